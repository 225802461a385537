"""A suite by class of matrix: `auto` and the formats that rank next, against every format of cuSPARSE in one run.

    python -m benchmarks.spmv --suite standard --json out.json --plot out.png     on a GPU, some seven minutes
    python -m benchmarks.spmv --suite standard --small        a minute or two on a CPU, to try it

The opponent is the fastest of cuSPARSE's CSR (ALG1, ALG2, both preprocessed), COO, sliced ELL and BSR where there are
blocks, and of JAX's BCSR; on a CPU SciPy's csr @ x takes cuSPARSE's place. On a GPU square matrices are timed in chains
of products, x ← A·x, in one program of ours and one sequence of calls of theirs: else it would wait for Python, which
takes up to 90 µs for a call of ours where the host is busy. JSON and table are written after every matrix, so that a
run that is cut off has told what it could, and no matrix is begun that would not end before the limit if it took as
long as the longest so far.

The fastest opponent and all of ours are timed several times in turn; what counts is the median, and `spread` is how far
apart the times of auto's choice were, over it.

What `tune` would choose is the fastest, by its own clock (`_clock.py`), of the formats that it and `--others` look at.

A row of the JSON is a matrix and a dtype: `opponents` has µs by method or why there are none, `ours` what was predicted
and measured of every format that was timed, `predicted` the whole ranking; `choose.py` can be calibrated from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, spmv, suite, timing
from jaxsparse_fmt import _clock, choose, tune

Row = dict[str, Any]
Timer = Callable[[], float]  # seconds
TRIPS = 8  # of the loop of a chain
IN_L2 = 64e6  # bytes in CSR with float32 values, below which a trip is of 16 products, else of 2
WRONG = 1e-3  # relative error from which a time counts for nothing
HOPELESS = 3.0  # times the predicted cost of the first, from which a format is not timed
ROUNDS = {"rounds": 3, "seconds": 0.04}  # of `timing.seconds_per_call`; to begin one takes a call of ours some 0.1 ms
QUICK = {"rounds": 1, "seconds": 0.001}
PASSES = 3  # times that the fastest opponent and all of ours are timed, in turn: what slows one minute slows both
BCSR = "JAX BCSR"
COMPILED_AT_ONCE = 8  # XLA compiles beside Python

product = jax.jit(lambda A, x: A @ x)


@functools.partial(jax.jit, static_argnums=2)
def chain(A, x, length):
    """Trips of `length` products each: an even number, so that the last can write where the first has read."""
    trip = lambda _, x: functools.reduce(lambda x, _: product(A, x), range(length), x)  # noqa: E731
    return jax.lax.fori_loop(0, TRIPS, trip, x)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What all methods get: the canonical matrix, three vectors that float32 holds exactly, and A·xs[0] in float64."""

    S: Any
    xs: list[np.ndarray]
    exact: np.ndarray
    chained: int  # products of a trip; 0: each is called by itself

    @classmethod
    def of(cls, S: Any, platform: str) -> Problem:
        xs = list(np.random.default_rng(0).standard_normal((3, S.shape[1])).astype(np.float32))
        square = platform == "gpu" and S.shape[0] == S.shape[1]
        return cls(S, xs, S @ xs[0].astype(np.float64), (16 if S.nnz * 8 < IN_L2 else 2) if square else 0)

    def run(self, A: Any, x: jax.Array) -> jax.Array:
        """What is timed."""
        return chain(A, x, self.chained) if self.chained else product(A, x)

    @property
    def products(self) -> int:
        """That `run` makes."""
        return TRIPS * self.chained or 1

    def off(self, y: Any) -> float:
        """The largest error of y = A·xs[0] over the largest result."""
        largest = np.max(np.abs(self.exact), initial=0) or 1
        return float(np.max(np.abs(np.asarray(y, np.float64) - self.exact), initial=0) / largest)


@dataclasses.dataclass(frozen=True)
class Run:
    """What all matrices of a run share; the attributes are the command line's."""

    platform: str
    dtypes: list[str]
    backend: str
    others: int
    copy: float
    rounds: dict[str, Any]
    passes: int = PASSES

    def matrix(self, case: suite.Case, S: Any) -> list[Row]:
        """One row a dtype. What is timed for one is timed for all, and converted once, in float64."""
        problem = Problem.of(S, self.platform)
        A = jsf.from_scipy(S, "csr", backend=self.backend)
        opponent = cusparse.Opponent(S, A) if self.platform == "gpu" else None
        rankings = {}
        for dtype in self.dtypes:
            start = time.perf_counter()
            ranking = choose.rank(S, dtype, backend=self.backend)
            rankings[dtype] = ranking, time.perf_counter() - start
        few = {label(c): c for ranking, _ in rankings.values() for c in picked(ranking, self.others)}
        with ThreadPoolExecutor(COMPILED_AT_ONCE if self.platform == "gpu" else 1) as pool:
            stored = dict(zip(few, pool.map(lambda c: converted(A, c), few.values()), strict=True))
            for name, (B, _) in ((name, found) for name, found in stored.items() if not isinstance(found, str)):
                again = [converted(A, few[name]) for _ in range(3)]  # compiled, alone, and with memory at hand
                took = [found[1] for found in again if not isinstance(found, str)]
                stored[name] = (B, statistics.median(took)) if took else again[0]
            rows = []
            for dtype, (ranking, seconds) in rankings.items():
                rivals = self.theirs(opponent, problem, dtype)
                ours, timers = self.ours(pool, stored, ranking, problem, dtype)
                theirs = self.in_turn(rivals, ours, timers)
                row = {"matrix": case.name, "class": case.kind, "dtype": dtype, "rows": S.shape[0], "nnz": S.nnz}
                row |= {"chained": bool(problem.chained), "rank s": seconds, "opponents": theirs, "ours": ours}
                row["predicted"] = [
                    {"label": label(c), "model us": 1e6 * c.seconds, "moved": c.moved, "reason": c.reason}
                    for c in ranking
                ]
                looked_at = [label(c) for c in choose.best_layouts(ranking)[: tune.CANDIDATES]]
                rows.append(row | compared(theirs, ours, looked_at))
                say(f"  {dtype}: {sentence(rows[-1])}")
        return rows

    def theirs(self, opponent: cusparse.Opponent | None, problem: Problem, dtype: str) -> dict[str, Timer | str]:
        """By method what times it, or why there is nothing to time."""
        xs = [x.astype(dtype) for x in problem.xs]
        if opponent is None:
            M = problem.S.astype(dtype)
            run = functools.partial(timing.seconds_per_call, lambda i: M @ xs[i % 3], lambda _: None, **self.rounds)
            return {"SciPy csr @ x": run, BCSR: self._bcsr(xs, problem)}
        found: dict[str, Timer | str] = {}
        for name, make in opponent.methods.items():
            try:
                found[f"cuSPARSE {name}"] = self.cupy(make(dtype), xs, problem)
            except Exception as error:  # whatever an opponent lacks, the run goes on
                found[f"cuSPARSE {name}"] = f"absent: {error}".splitlines()[0]
        return found | {BCSR: self._bcsr(xs, problem)}

    def in_turn(self, rivals: dict[str, Timer | str], ours: list[Row], timers: dict[str, Timer]) -> Row:
        """Times all rivals, then the fastest and ours in turn: µs by method, or why there are none. Rows of ours get µs
        and `spread`, how far apart the passes were.
        """
        told: Row = {}
        for name, timer in rivals.items():
            try:
                told[name] = timer if isinstance(timer, str) else 1e6 * timer()
            except Exception as error:
                told[name] = f"absent: {error}".splitlines()[0]
        known = {name: us for name, us in told.items() if not isinstance(us, str)}
        best = min(known, key=known.__getitem__, default=None)
        passes: dict[str, list[float]] = {name: [] for name in timers} | ({best: [known[best]]} if best else {})
        failed: Row = {}
        for _ in range(self.passes):
            for name in passes:
                timer = timers.get(name) or rivals[name]
                if len(passes[name]) < self.passes and not isinstance(timer, str):
                    try:
                        passes[name].append(1e6 * timer())
                    except Exception as error:  # what was timed before counts
                        failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        if best:
            told[best] = statistics.median(passes[best])
        for row in ours:
            if times := passes.get(row["label"]):
                us = statistics.median(times)
                row |= {
                    "us": us,
                    "spread": (max(times) - min(times)) / us,
                    "share": row["moved"] / us * 1e6 / self.copy,
                }
            elif row["label"] in failed:
                row["failed"] = failed[row["label"]]
        return told

    def cupy(self, product: cusparse.Product, xs: list[np.ndarray], problem: Problem) -> Timer:
        """What gives the seconds of a product of theirs.

        Raises:
          cusparse.Absent: its result is wrong.
        """
        inputs = [product.to_device(x) for x in xs]
        if (error := problem.off(product(inputs[0]).get())) > WRONG:
            raise cusparse.Absent(f"its result is off by {error:.0e}")
        if not problem.chained:
            return lambda: timing.seconds_per_call(lambda i: product(inputs[i % 3]), product.wait, **self.rounds)

        def calls(_: int) -> None:
            for i in range(problem.products):
                product(inputs[i % 2], inputs[1 - i % 2])

        return lambda: timing.seconds_per_call(calls, product.wait, **self.rounds) / problem.products

    def _bcsr(self, xs: list[np.ndarray], problem: Problem) -> Timer:
        S = problem.S

        def seconds() -> float:
            arrays = jnp.asarray(S.data, xs[0].dtype), jnp.asarray(S.indices), jnp.asarray(S.indptr)
            return self.of_jax(sparse.BCSR(arrays, shape=S.shape), [jnp.asarray(x) for x in xs], problem)

        return seconds

    def of_jax(self, A: Any, xs: list[jax.Array], problem: Problem) -> float:
        """Seconds of a product of ours."""
        run = lambda i: problem.run(A, xs[i % 3])  # noqa: E731
        return timing.seconds_per_call(run, jax.block_until_ready, **self.rounds) / problem.products

    def ours(
        self,
        pool: ThreadPoolExecutor,
        stored: dict[str, tuple[jsf.SparseMatrix, float] | str],
        ranking: list[jsf.Choice],
        problem: Problem,
        dtype: str,
    ) -> tuple[list[Row], dict[str, Timer]]:
        """Every format that is stored, auto's first: what was predicted, and by its label what times it."""
        predicted = {label(c): c.seconds for c in ranking}
        names = sorted(stored, key=lambda name: predicted.get(name, math.inf))
        xs = [jnp.asarray(x.astype(dtype)) for x in problem.xs]

        def compiled(name: str) -> tuple[jsf.SparseMatrix, Any] | str:
            kept = stored[name]
            if isinstance(kept, str):
                return kept
            try:
                B = kept[0].astype(dtype)
                jax.block_until_ready(problem.run(B, xs[0]))
                clock = _clock.repeated(B)
                jax.block_until_ready(clock[0]())
                return B, clock
            except (ValueError, RuntimeError) as error:
                return f"{type(error).__name__}: {error}".splitlines()[0]

        rows, timers = [], {}
        for name, ready in zip(names, list(pool.map(compiled, names)), strict=True):
            row: Row = {"format": name.split()[0], "label": name, "us": math.nan, "tune us": math.nan}
            row["model us"] = 1e6 * predicted.get(name, math.nan)
            if isinstance(ready, str):
                rows.append(row | {"failed": ready})
                continue
            B, (run, products) = ready
            row["tune us"] = 1e6 * _clock.median_seconds(run, **self.rounds) / products
            timers[name] = functools.partial(self.of_jax, B, xs, problem)
            row |= {"moved": spmv.moved_bytes(B, xs[0]), "error": problem.off(product(B, xs[0]))}
            rows.append(row | {"convert s": stored[name][1]})
        return rows, timers


def label(choice: jsf.Choice) -> str:
    return " ".join([choice.format, *(f"{k}={v}" for k, v in choice.layout.items())])


def converted(A: jsf.SparseMatrix, choice: jsf.Choice) -> tuple[jsf.SparseMatrix, float] | str:
    """The matrix as chosen, and the seconds that it took; or why there is none."""
    start = time.perf_counter()
    try:
        B = jax.block_until_ready(A.asformat(choice.format, max_bytes=2**36, **choice.layout))
        return B, time.perf_counter() - start
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def picked(choices: list[jsf.Choice], others: int) -> list[jsf.Choice]:
    """The first of the ranking, and of the `others` formats that rank next the best layout each."""
    best = choose.best_layouts(choices)[: 1 + others]
    return [c for c in best if c.cost <= HOPELESS * best[0].cost]


def fastest(ours: list[Row], key: str) -> Row:
    return min(ours, key=lambda o: math.inf if math.isnan(o[key]) else o[key])


def compared(theirs: Row, ours: list[Row], looked_at: list[str]) -> Row:
    """The fastest of either side, and how they compare. Ratios above 1 are in our favour, NaN where a side has none.

    Args:
      looked_at: the formats that `tune` would time.
    """
    times = {name: us for name, us in theirs.items() if not isinstance(us, str)}
    times = {} if list(times) == [BCSR] else times  # ten times as slow as cuSPARSE: alone it would flatter
    opponent = min(times, key=times.__getitem__, default="none")
    rival, auto = times.get(opponent, math.nan), ours[0]
    best = fastest(ours, "us")
    tuned = fastest([o for o in ours if o["label"] in looked_at], "tune us")
    return {
        "opponent": opponent, "opponent us": rival, "auto": auto["label"], "auto us": auto["us"],
        "model us": auto["model us"], "best": best["label"], "best us": best["us"], "ratio": rival / auto["us"],
        "best ratio": rival / best["us"], "auto vs best": best["us"] / auto["us"],
        "tune": tuned["label"], "tune vs best": best["us"] / tuned["us"],
        **{key: auto.get(key, math.nan) for key in ("spread", "share", "error")},
        "conversion": auto.get("convert s", math.nan) * 1e6 / auto["us"],
    }  # fmt: skip


def geometric_mean(values: Iterable[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return statistics.geometric_mean(known) if known else math.nan


def summary(rows: list[Row]) -> list[str]:
    """Geometric mean and worst case over all matrices, and means by class, as Markdown."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    lines = ["", "| × opponent | " + " | ".join(f"auto, {d} | best of ours, {d}" for d in dtypes) + " |"]
    lines += ["|---|" + "---:|---:|" * len(dtypes)]

    def line(name: str, of: Any, chosen: list[Row]) -> str:
        cells = []
        for dtype in dtypes:
            of_dtype = [r for r in chosen if r["dtype"] == dtype]
            cells += [f" {of([r[key] for r in of_dtype]):.2f} |" for key in ("ratio", "best ratio")]
        return f"| {name} |" + "".join(cells)

    least = lambda values: min((v for v in values if not math.isnan(v)), default=math.nan)  # noqa: E731
    lines += [line("geometric mean", geometric_mean, rows), line("worst case", least, rows)]
    for kind in dict.fromkeys(r["class"] for r in rows):
        lines.append(line(kind, geometric_mean, [r for r in rows if r["class"] == kind]))
    compared = [r for r in rows if not math.isnan(r["ratio"])]
    if compared:
        worst = min(compared, key=lambda r: r["ratio"])
        lines += ["", f"Worst: {worst['matrix']}, {worst['dtype']}, {worst['ratio']:.2f} × {worst['opponent']}."]
    for chooser in ("auto", "tune"):
        chosen = [r[f"{chooser} vs best"] for r in rows if not math.isnan(r[f"{chooser} vs best"])]
        if chosen:
            near, worst = sum(v > 0.95 for v in chosen), min(chosen)
            lines += ["", f"{chooser} is within 5% of our best in {near} of {len(chosen)}, at worst {worst:.2f} of it."]
    return lines


def table(rows: list[Row], header: dict[str, str]) -> str:
    """A Markdown table, which reads as plain text too."""
    lines = [timing.line(header), ""]
    lines += [
        "| matrix | class | dtype | rows | nnz | opponent | µs | auto | µs | model | best of ours | µs | × opponent |"
    ]
    lines[-1] += " auto vs best | tune vs best | spread | share of copy | conversion | error |"
    lines += ["|---|---|---|---:|---:|---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        best = "" if r["best"] == r["auto"] else r["best"]
        lines.append(
            f"| {r['matrix']} | {r['class']} | {r['dtype']} | {r['rows']} | "
            f"{r['nnz']} | {r['opponent']} | {r['opponent us']:.1f} | {r['auto']} | {r['auto us']:.1f} | "
            f"{r['model us']:.1f} | {best} | {r['best us']:.1f} | {r['ratio']:.2f} | {r['auto vs best']:.2f} | "
            f"{r['tune vs best']:.2f} | {r['spread']:.2f} | {r['share']:.2f} | {r['conversion']:.0f} | "
            f"{r['error']:.0e} |"
        )
    return "\n".join(lines + summary(rows))


def sentence(r: Row) -> str:
    failed = [f"; {o['label']} FAILED: {o['failed']}" for o in r["ours"] if "failed" in o]
    return (
        f"{r['opponent']} {r['opponent us']:.1f} µs, auto {r['auto']} {r['auto us']:.1f} µs ({r['ratio']:.2f} ×), "
        f"best {r['best']} {r['best us']:.1f} µs{''.join(failed)}"
    )


def draw(path: Path, rows: list[Row], title: str, copy: float) -> None:
    """Every matrix a dot, by class: times the opponent's speed; and under the roof of `copy` bytes a second."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxsparse_fmt import plot

    kinds = list(dict.fromkeys(r["class"] for r in rows))
    with matplotlib.rc_context(plot.STYLE):
        figure = Figure(figsize=(13, 5), layout="constrained")
        ratios, roof = figure.subplots(1, 2, width_ratios=(3, 2))
        for k, dtype in enumerate(dict.fromkeys(r["dtype"] for r in rows)):
            look = {"s": 28, "color": plot.COLORS[k % 2], "label": dtype, "alpha": 0.85}
            chosen = [r for r in rows if r["dtype"] == dtype and not math.isnan(r["ratio"])]
            x = [kinds.index(r["class"]) + 0.24 * (k - 0.5) for r in chosen]
            ratios.scatter(x, [r["ratio"] for r in chosen], **look)
            timed = [(r, r["ours"][0]) for r in rows if r["dtype"] == dtype and "moved" in r["ours"][0]]
            flops_a_byte = [2 * r["nnz"] / auto["moved"] for r, auto in timed]
            roof.scatter(flops_a_byte, [2e-3 * r["nnz"] / auto["us"] for r, auto in timed], **look)
        ratios.axhline(1, color=plot.INK, linewidth=1)
        ratios.set_yscale("log", base=2)
        ratios.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ratios.set_xticks(range(len(kinds)), kinds, rotation=35, ha="right")
        ratios.set_ylabel("times the opponent's speed")
        ratios.set_title(title)
        ratios.grid(axis="y")
        ratios.legend(frameon=False)
        ends = np.array([0.05, 1.0])
        roof.plot(ends, ends * copy / 1e9, color=plot.INK, linewidth=1)
        roof.set_xscale("log")
        roof.set_yscale("log")
        roof.set_xticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
        roof.set_xticks([], minor=True)
        roof.set_yticks([200, 500, 1000, 2000], ["200", "500", "1,000", "2,000"])
        roof.set_yticks([], minor=True)
        roof.set_xlabel("operations a byte that auto's format moves")
        roof.set_ylabel("Gflop/s")
        roof.set_title("Under the roof of the copy")
        roof.grid()
        figure.savefig(path, dpi=150)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    """Runs the suite of `benchmarks.spmv`'s arguments; exit code 1 where one of ours failed."""
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    scale = args.scale or (1 / 2000 if args.small else 1 if platform == "gpu" else 1 / 20)
    copy = timing.copy_bandwidth(2**24 if args.small else 2**28 if platform == "cpu" else 2**31)
    rounds, others = (QUICK, min(args.others, 1)) if args.small else (ROUNDS, args.others)
    passes = 1 if args.small else PASSES
    run = Run(platform, args.dtypes, (args.backends or ["auto"])[0], others, copy, rounds, passes)
    header = timing.provenance() | {"copy": f"{copy / 1e9:.0f} GB/s", "suite": args.suite, "scale": f"{scale:g}"}
    if platform == "gpu":
        try:
            header["cusparse"] = str(cusparse.library().version)
        except cusparse.Absent as absent:
            header["cusparse"] = str(absent)
    numbers = [i for i in range(len(suite.SUITES[args.suite])) if not args.cases or i in args.cases]
    rows: list[Row] = []
    start, longest = time.perf_counter(), 0.0
    matrices = suite.made(args.suite, numbers, scale, ahead=platform == "gpu")
    for at, number in enumerate(numbers):
        begun = time.perf_counter() - start
        if begun + longest > args.limit:
            header["left out"] = ", ".join(suite.SUITES[args.suite][i].name for i in numbers[at:])
            say(f"{begun:.0f} s: left out {header['left out']}")
            break
        S, case = next(matrices), suite.SUITES[args.suite][number]
        say(f"{begun:.0f} s: {case.name}, {S.shape[0]} rows, {S.nnz} entries")
        rows += run.matrix(case, S)
        jax.clear_caches()
        longest = max(longest, time.perf_counter() - start - begun)
        header["took"] = f"{time.perf_counter() - start:.0f} s"
        if args.json:
            timing.write(args.json, header, rows, table(rows, header))
    matrices.close()
    print(table(rows, header))
    if args.json:
        timing.write(args.json, header, rows, table(rows, header))
    if args.plot:
        draw(args.plot, rows, f"auto against {'cuSPARSE' if platform == 'gpu' else 'SciPy'}, {header['device']}", copy)
    return int(any("failed" in ours for row in rows for ours in row["ours"]))
