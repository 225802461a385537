"""A suite by class of matrix: `auto` and the formats that rank next, against every format of cuSPARSE in one run.

    python -m benchmarks.spmv --suite standard --json out.json --plot out.png     on a GPU, some ten minutes
    python -m benchmarks.spmv --suite standard --small        a minute or two on a CPU, to try it
    python -m benchmarks.spmv --suite standard --join a.json b.json --json out.json     of two runs, --cases of each

The opponent is the fastest of cuSPARSE's CSR (ALG1, ALG2, both preprocessed, and SpMVOp where the library has it), COO,
sliced ELL (also with its rows sorted by length, so that y is in their order) and BSR where there are blocks, and of
JAX's BCSR; on a CPU SciPy's csr @ x takes cuSPARSE's place. On a GPU products of square matrices are timed in chains,
x ← A·x, in one program of ours and one CUDA graph of theirs, since a single call waits for Python: theirs 5 µs and ours
up to 90. JSON and table are written after every matrix, so an interrupted run keeps its results. A matrix is left out
if the run would pass the limit with a matrix that takes as long as the longest so far.

The fastest opponent and all of our formats are timed several times in turn. The median counts; `spread` is the range of
the times of auto's choice over their median. The card rests between the rounds of a timing
(`timing.seconds_per_call`); `--sustained` adds the times of auto's choice and the fastest opponent after seconds
without rest, when a card lowers its clock to keep within its limit of power.

`tune` would choose the fastest by its own clock (`choose/timing.py`) among its candidates; the table takes those of
them that `--others` includes.

A row of the JSON is a matrix and a dtype: `opponents` has µs by method, or the reason for their absence, `ours` the
prediction and the time of every timed format, `predicted` the whole ranking, from which `choose` can be calibrated.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, suite, suite_table, timing
from benchmarks.report import Row, log, reason
from jaxsparse_fmt.choose import ranking as choose
from jaxsparse_fmt.choose import timing as clock
from jaxsparse_fmt.choose import tune

Timer = Callable[..., float]  # seconds; arguments go to `timing.seconds_per_call`
TRIPS = 8  # of the loop of a chain
IN_L2 = 64e6  # bytes in CSR with float32 values, below which a trip is of 16 products, else of 2
WRONG = 1e-3  # relative error from which a product is wrong and its time does not count
HOPELESS = 3.0  # formats of a larger predicted cost, over the first, are not timed
ROUNDS = {"rounds": 3, "seconds": 0.04}  # of `timing.seconds_per_call`
QUICK = {"rounds": 1, "seconds": 0.001}
PASSES = 3  # times that the fastest opponent and all of ours are timed in turn, so that a slow minute slows both
BCSR = "JAX BCSR"
COMPILED_AT_ONCE = 8  # XLA compiles beside Python

product = jax.jit(lambda A, x: A @ x)


@functools.partial(jax.jit, static_argnums=2)
def chain(A, x, length):
    """A·…·A·x by `TRIPS` trips of `length` products, an even number, so that the last can overwrite the first x."""
    trip = lambda _, x: functools.reduce(lambda x, _: product(A, x), range(length), x)  # noqa: E731
    return jax.lax.fori_loop(0, TRIPS, trip, x)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The input of all methods: the canonical matrix, three vectors exact in float32, and A·xs[0] in float64."""

    S: Any
    xs: list[np.ndarray]
    exact: np.ndarray
    chained: int  # products of a trip; 0: one product a call

    @classmethod
    def of(cls, S: Any, platform: str) -> Self:
        xs = list(np.random.default_rng(0).standard_normal((3, S.shape[1])).astype(np.float32))
        square = platform == "gpu" and S.shape[0] == S.shape[1]
        return cls(S, xs, S @ xs[0].astype(np.float64), (16 if S.nnz * 8 < IN_L2 else 2) if square else 0)

    def run(self, A: Any, x: jax.Array) -> jax.Array:
        """The computation that is timed."""
        return chain(A, x, self.chained) if self.chained else product(A, x)

    @property
    def products(self) -> int:
        """The count of products in `run`."""
        return TRIPS * self.chained or 1

    def off(self, y: Any) -> float:
        """The largest error of y = A·xs[0] over the largest result."""
        largest = np.max(np.abs(self.exact), initial=0) or 1
        return float(np.max(np.abs(np.asarray(y, np.float64) - self.exact), initial=0) / largest)


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of a run, which all matrices share."""

    platform: str
    dtypes: list[str]
    backend: str
    others: int
    copy: float
    rounds: dict[str, Any]
    passes: int = PASSES
    sustained: float = 0.0  # seconds of load before auto and the fastest opponent are timed again; 0: they are not

    def matrix(self, case: suite.Case, S: Any) -> list[Row]:
        """One row a dtype. Formats are converted once, in float64, and timed in all dtypes."""
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
                log(f"  {dtype}: {suite_table.sentence(rows[-1])}")
                both = {"opponent": rivals.get(rows[-1]["opponent"]), "auto": timers.get(rows[-1]["auto"])}
                if self.sustained and all(callable(timer) for timer in both.values()):
                    try:
                        rows[-1] |= self.at_length(both)
                    except Exception as error:  # the times so far count
                        rows[-1]["sustained failed"] = reason(error)
        return rows

    def theirs(self, opponent: cusparse.Opponent | None, problem: Problem, dtype: str) -> dict[str, Timer | str]:
        """By method its timer, or the reason for its absence."""
        xs = [x.astype(dtype) for x in problem.xs]
        if opponent is None:
            M = problem.S.astype(dtype)
            one = lambda i: M @ xs[i % 3]  # noqa: E731
            run = functools.partial(timing.seconds_per_call, one, lambda _: None, **self.rounds)
            return {"SciPy csr @ x": run, BCSR: self._bcsr(xs, problem)}
        found: dict[str, Timer | str] = {}
        for name, make in opponent.methods.items():
            try:
                found[f"cuSPARSE {name}"] = self.cupy(make(dtype), xs, problem)
            except Exception as error:  # any fault of an opponent; the run goes on
                found[f"cuSPARSE {name}"] = f"absent: {error}".splitlines()[0]
        return found | {BCSR: self._bcsr(xs, problem)}

    def in_turn(self, rivals: dict[str, Timer | str], ours: list[Row], timers: dict[str, Timer]) -> Row:
        """Times all rivals for a round, then the fastest and ours in turn: µs by rival, or the reason for its absence.

        Rows of ours get µs and `spread`.
        """
        found: Row = {}
        for name, timer in rivals.items():
            try:
                found[name] = timer if isinstance(timer, str) else 1e6 * timer(rounds=1)
            except Exception as error:
                found[name] = f"absent: {error}".splitlines()[0]
        known = {name: us for name, us in found.items() if not isinstance(us, str)}
        best = min(known, key=known.__getitem__, default=None)
        passes: dict[str, list[float]] = {name: [] for name in [*timers, *([best] if best else [])]}
        failed: Row = {}
        for _ in range(self.passes):
            for name in passes:
                timer: Any = timers.get(name) or rivals[name]
                try:
                    passes[name].append(1e6 * timer())
                except Exception as error:  # the times so far count
                    failed[name] = reason(error)
        if best:
            found[best] = statistics.median(passes[best]) if passes[best] else f"absent: {failed[best]}"
        for row in ours:
            if times := passes.get(row["label"]):
                us = statistics.median(times)
                row |= {"us": us, "spread": (max(times) - min(times)) / us}
                row["share"] = row["moved"] / us * 1e6 / self.copy
            elif row["label"] in failed:
                row["failed"] = failed[row["label"]]
        return found

    def at_length(self, timers: dict[str, Any]) -> Row:
        """µs and MHz of each after `sustained` seconds of load, which follow as many seconds of rest."""
        found: Row = {}
        for name, timer in timers.items():
            time.sleep(self.sustained)
            found[f"{name} sustained us"] = 1e6 * timer(lead=self.sustained)
            found[f"{name} sustained MHz"] = timing.clock()
        return found

    def cupy(self, product: cusparse.Product, xs: list[np.ndarray], problem: Problem) -> Timer:
        """The timer of a product of theirs.

        Raises:
          cusparse.Absent: its result is wrong.
        """
        inputs = [product.to_device(x) for x in xs]
        y = product(inputs[0])
        x0 = product.to_device(xs[0])  # every chain of ours begins with x too
        if problem.chained:
            launch, y = product.captured(x0, [(inputs[0], inputs[1])]), inputs[1]
            y.fill(math.nan)
            product.wait(y)
            launch()
            product.wait(y)
        if not (error := problem.off(product.in_order(y.get()))) <= WRONG:
            raise cusparse.Absent(f"its result is off by {error:.0e}")
        if not problem.chained:
            one = lambda i: product(inputs[i % 3])  # noqa: E731
            return functools.partial(timing.seconds_per_call, one, product.wait, **self.rounds)
        graph = product.captured(x0, [(inputs[i % 2], inputs[1 - i % 2]) for i in range(problem.products)])
        run = functools.partial(timing.seconds_per_call, lambda _: graph(), product.wait, **self.rounds)
        return lambda **how: run(**how) / problem.products

    def _bcsr(self, xs: list[np.ndarray], problem: Problem) -> Timer:
        inputs = lambda: [jnp.asarray(x) for x in xs]  # noqa: E731
        return lambda **how: self.of_jax(bcsr(problem.S, xs[0].dtype), inputs(), problem, **how)

    def of_jax(self, A: Any, xs: list[jax.Array], problem: Problem, **how: Any) -> float:
        """Seconds of a product of ours."""
        run = lambda i: problem.run(A, xs[i % 3])  # noqa: E731
        return timing.seconds_per_call(run, jax.block_until_ready, **(self.rounds | how)) / problem.products

    def ours(
        self,
        pool: ThreadPoolExecutor,
        stored: dict[str, tuple[jsf.SparseMatrix, float] | str],
        ranking: list[jsf.Choice],
        problem: Problem,
        dtype: str,
    ) -> tuple[list[Row], dict[str, Timer]]:
        """A row with the prediction for every stored format, auto's first, and by label the timers."""
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
                tuned = clock.repeated(B)
                jax.block_until_ready(tuned[0]())
                return B, tuned
            except (ValueError, RuntimeError) as error:
                return reason(error)

        rows, timers = [], {}
        for name, ready in zip(names, list(pool.map(compiled, names)), strict=True):
            row: Row = {"format": name.split()[0], "label": name, "us": math.nan, "tune us": math.nan}
            row["model us"] = 1e6 * predicted.get(name, math.nan)
            if isinstance(ready, str):
                rows.append(row | {"failed": ready})
                continue
            B, (run, products) = ready
            row["tune us"] = 1e6 * clock.median_seconds(run, **self.rounds) / products
            timers[name] = functools.partial(self.of_jax, B, xs, problem)
            row |= {"moved": timing.moved_bytes(B, xs[0]), "error": problem.off(product(B, xs[0]))}
            rows.append(row | {"convert s": stored[name][1]})
        return rows, timers


def bcsr(S: Any, dtype: Any) -> sparse.BCSR:
    return sparse.BCSR((jnp.asarray(S.data, dtype), jnp.asarray(S.indices), jnp.asarray(S.indptr)), shape=S.shape)


def label(choice: jsf.Choice) -> str:
    return " ".join([choice.format, *(f"{k}={v}" for k, v in choice.layout.items())])


def converted(A: jsf.SparseMatrix, choice: jsf.Choice) -> tuple[jsf.SparseMatrix, float] | str:
    """The matrix as chosen, and the seconds of its conversion; or the reason for its absence."""
    start = time.perf_counter()
    try:
        B = jax.block_until_ready(A.asformat(choice.format, max_bytes=2**36, **choice.layout))
        return B, time.perf_counter() - start
    except (ValueError, RuntimeError) as error:
        return reason(error)


def picked(choices: list[jsf.Choice], others: int) -> list[jsf.Choice]:
    """The best layouts of the format that ranks first and of the `others` that rank next."""
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


def finished(args: argparse.Namespace, header: dict[str, str], rows: list[Row], copy: float) -> int:
    """Prints, writes and draws the results; exit code 1 where one of ours failed."""
    text = suite_table.table(rows, header)
    print(text)
    report.write(args.json, header, rows, text)
    if args.plot:
        opponent = "SciPy" if any("SciPy csr @ x" in row["opponents"] for row in rows) else "cuSPARSE"
        suite_table.draw(args.plot, rows, f"auto against {opponent}, {header['device']}", copy)
    return int(any("failed" in ours for row in rows for ours in row["ours"]))


def joined(args: argparse.Namespace) -> int:
    """Joins the files of several runs, among whose equal GPUs the matrices were divided.

    Raises:
      ValueError: the runs have a matrix in common, or were not made alike.
    """
    runs = [json.loads(path.read_text()) for path in args.join]
    order = [case.name for case in suite.SUITES[args.suite]]
    for key in ("suite", "scale", "device", "jax", "cusparse"):
        if len(found := {run["header"].get(key) for run in runs}) > 1:
            raise ValueError(f"runs of one table must agree in {key!r}; got {', '.join(map(str, found))}")
    rows = [row for run in runs for row in run["rows"]]
    if len({(row["matrix"], row["dtype"]) for row in rows}) < len(rows):
        raise ValueError("the runs have matrices in common; name each in one of them, by --cases")
    rows.sort(key=lambda row: order.index(row["matrix"]))
    keys = dict.fromkeys(key for run in runs for key in run["header"] if key != "left out")
    header = {key: ", ".join(dict.fromkeys(run["header"].get(key, "none") for run in runs)) for key in keys}
    if missing := [name for name in order if name not in {row["matrix"] for row in rows}]:
        header["left out"] = ", ".join(missing)
    return finished(args, header, rows, statistics.mean(1e9 * float(run["header"]["copy"].split()[0]) for run in runs))


def main(args: argparse.Namespace) -> int:
    """Runs the suite of `benchmarks.spmv`'s arguments; exit code 1 where one of ours failed."""
    if args.join:
        return joined(args)
    platform, scale = report.platform_here(), report.scale_of(args)
    copy, header = report.machine(args.small)
    rounds, others = (QUICK, min(args.others, 1)) if args.small else (ROUNDS, args.others)
    passes = 1 if args.small else PASSES
    run = Run(platform, args.dtypes, (args.backends or ["auto"])[0], others, copy, rounds, passes, args.sustained)
    header |= {"suite": args.suite, "scale": f"{scale:g}", "others": str(others)}
    if platform == "gpu":
        try:
            header["cusparse"] = str(cusparse.library().version)
        except cusparse.Absent as absent:
            header["cusparse"] = str(absent)
    numbers = [i for i in range(len(suite.SUITES[args.suite])) if not args.cases or i in args.cases]
    cases = [suite.SUITES[args.suite][i] for i in numbers]
    rows: list[Row] = []
    matrices = suite.made(args.suite, numbers, scale, ahead=platform == "gpu")
    jobs = zip(cases, matrices, strict=True)
    for case, S in report.before_limit(jobs, [case.name for case in cases], args.limit, header):
        log(f"{case.name}, {S.shape[0]} rows, {S.nnz} entries")
        rows += run.matrix(case, suite.tamed(S))
        report.write(args.json, header, rows, suite_table.table(rows, header))
    matrices.close()
    return finished(args, header, rows, copy)
