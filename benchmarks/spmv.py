"""Products over a suite of matrices: the formats that rank first, against every format of cuSPARSE in one run.

    python -m benchmarks.spmv --json out.json                    "auto" over the suite; on a GPU some ten minutes
    python -m benchmarks.spmv --suite held-out --cases 0 3       other matrices, some of them
    python -m benchmarks.spmv --cases 0 1 --formats coo ell      these formats too, whatever their rank
    python -m benchmarks.spmv --backends triton mosaic           both dialects
    python -m benchmarks.spmv --what columns                     A·X with several columns

The opponent is the fastest of cuSPARSE's CSR (ALG1, ALG2, both preprocessed, and SpMVOp where the library has it), COO,
sliced ELL (also with its rows sorted by length, so that y is in their order) and BSR where there are blocks, and of
JAX's BCSR; on a CPU SciPy's csr @ x takes cuSPARSE's place. On a GPU products of square matrices are timed in chains,
x ← A·x, in one program of ours and one CUDA graph of theirs, since a single call waits for Python: theirs 5 µs and ours
up to 90. JSON and table are written after every matrix, so an interrupted run keeps its results. A matrix is left out
if the run would pass the limit with a matrix that takes as long as the longest so far.

The fastest opponent and all of our formats are timed several times in turn, and the median counts. `tune` would choose
by its own clock (`choose/timing.py`); the table takes those of its candidates that `--others` includes.

A row of the JSON is a matrix and a dtype: `opponents` has µs by method, or the reason for their absence, `ours` the
prediction and the time of every timed format, `predicted` the whole ranking, from which `choose` can be calibrated.
"""

import dataclasses
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, suite, timing
from benchmarks.report import Row, log, reason
from jaxsparse_fmt.choose import ranking as choose
from jaxsparse_fmt.choose import timing as clock
from jaxsparse_fmt.choose import tune
from jaxsparse_fmt.models import traffic

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
    formats: tuple[str, ...] = ()  # timed whatever their rank

    def matrix(self, case: suite.Case, S: Any) -> list[Row]:
        """One row a dtype. Formats are converted once, in float64, and timed in all dtypes."""
        problem = Problem.of(S, self.platform)
        A = jsf.from_scipy(S, "csr", backend=self.backend)
        opponent = cusparse.Opponent(S, A) if self.platform == "gpu" else None
        rankings = {dtype: choose.rank(S, dtype, backend=self.backend) for dtype in self.dtypes}
        few = {label(c): c for ranking in rankings.values() for c in picked(ranking, self.others)}
        few |= {name: jsf.Choice(name, {}, 0, 0, 0.0, "", 0.0) for name in self.formats}
        with ThreadPoolExecutor(COMPILED_AT_ONCE if self.platform == "gpu" else 1) as pool:
            stored = dict(zip(few, pool.map(lambda c: converted(A, c), few.values()), strict=True))
            rows = []
            for dtype, ranking in rankings.items():
                rivals = self.theirs(opponent, problem, dtype)
                ours, timers = self.ours(pool, stored, ranking, problem, dtype)
                theirs = self.in_turn(rivals, ours, timers)
                row = {"matrix": case.name, "class": case.kind, "dtype": dtype, "rows": S.shape[0], "nnz": S.nnz}
                row |= {"chained": bool(problem.chained), "opponents": theirs, "ours": ours}
                row["predicted"] = [
                    {"label": label(c), "model us": 1e6 * c.seconds, "moved": c.moved, "reason": c.reason}
                    for c in ranking
                ]
                looked_at = [label(c) for c in choose.best_layouts(ranking)[: tune.CANDIDATES]]
                rows.append(row | compared(theirs, ours, looked_at))
                log(f"  {dtype}: {rows[-1]['ratio']:.2f} × {rows[-1]['opponent']}")
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
        store = lambda: sparse.BCSR.from_scipy_sparse(problem.S.astype(xs[0].dtype))  # noqa: E731
        return lambda **how: self.of_jax(store(), [jnp.asarray(x) for x in xs], problem, **how)

    def of_jax(self, A: Any, xs: list[jax.Array], problem: Problem, **how: Any) -> float:
        """Seconds of a product of ours."""
        run = lambda i: problem.run(A, xs[i % len(xs)])  # noqa: E731
        return timing.seconds_per_call(run, jax.block_until_ready, **(self.rounds | how)) / problem.products

    def ours(
        self,
        pool: ThreadPoolExecutor,
        stored: dict[str, jsf.SparseMatrix | str],
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
                B = kept.astype(dtype)
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
            moved = traffic.bytes_moved(B.nbytes_read, B.shape, xs[0].itemsize)
            rows.append(row | {"moved": moved, "error": problem.off(product(B, xs[0]))})
        return rows, timers


def label(choice: jsf.Choice) -> str:
    return " ".join([choice.format, *(f"{k}={v}" for k, v in choice.layout.items())])


def converted(A: jsf.SparseMatrix, choice: jsf.Choice) -> jsf.SparseMatrix | str:
    """The matrix as chosen, or the reason for its absence."""
    try:
        return jax.block_until_ready(A.asformat(choice.format, max_bytes=2**36, **choice.layout))
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
    }  # fmt: skip


COLUMNS_OF = (1, 2, 4, 8, 32)


def columns(run: Run, case: suite.Case, S: Any) -> Iterator[Row]:
    """A row for each dtype and number of columns; throughput is against a product with one column."""
    problem, wide = Problem.of(S, run.platform), jsf.from_scipy(S, "csr", backend=run.backend)
    for dtype in run.dtypes:
        choice = choose.rank(S, dtype, backend=run.backend)[0]
        A = wide.asformat(choice.format, max_bytes=2**36, **choice.layout).astype(dtype)
        alone = 0.0
        for p in COLUMNS_OF:
            X = jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[1], p)), dtype)
            X = X[:, 0] if p == 1 else X
            ends = lambda a: np.asarray(a if a.ndim == 1 else a[:, np.array([0, -1])], np.float64)  # noqa: E731
            wanted, got = S @ ends(X), ends(product(A, X))  # SciPy would take seconds for all of them
            took = run.of_jax(A, [X], problem)
            alone = alone or took
            moved = traffic.bytes_moved(A.nbytes_read, S.shape, X.dtype.itemsize * p)
            yield {
                "matrix": case.name, "dtype": dtype, "format": label(choice), "columns": p, "µs": 1e6 * took,
                "throughput": p * alone / took, "share": moved / took / run.copy,
                "error": float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted))),
            }  # fmt: skip


COLUMNS = [(name, name) for name in ("matrix", "class", "dtype")]
COLUMNS += [("rows", "rows:d"), ("nnz", "nnz:d"), ("backend", "backend")]
COLUMNS += [("opponent", "opponent"), ("µs", "opponent us:.1f"), ("auto", "auto"), ("µs", "auto us:.1f")]
COLUMNS += [("model", "model us:.1f"), ("best of ours", "other best"), ("µs", "best us:.1f")]
COLUMNS += [("× opponent", "ratio:.2f")]
COLUMNS += [(name, f"{name}:.2f") for name in ("auto vs best", "tune vs best", "spread")]
COLUMNS += [("share of copy", "share:.2f"), ("error", "error:.0e")]


def before_limit(cases: list[suite.Case], limit: float, header: dict[str, str]) -> Iterator[suite.Case]:
    """The cases in turn, until the next would end after `limit` seconds if it took as long as the longest so far.

    The header gets the names of the cases that are left out, and the seconds that the others took.
    """
    start, longest = time.perf_counter(), 0.0
    for at, case in enumerate(cases):
        begun = time.perf_counter() - start
        if begun + longest > limit:
            header["left out"] = ", ".join(case.name for case in cases[at:])
            log(f"{begun:.0f} s: left out {header['left out']}")
            return
        yield case
        jax.clear_caches()
        longest = max(longest, time.perf_counter() - start - begun)
        header["took"] = f"{time.perf_counter() - start:.0f} s"


WHAT: dict[str, Callable[[Run, suite.Case, Any], Iterable[Row]]] = {"products": Run.matrix, "columns": columns}


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--what", choices=WHAT, default="products")
    parser.add_argument("--suite", choices=suite.SUITES, default="standard")
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the matrices; default: all")
    parser.add_argument("--backends", nargs="+", default=["auto"])
    parser.add_argument("--others", type=int, default=3, help="formats timed beside auto's; default 3")
    parser.add_argument("--formats", nargs="+", default=[], choices=jsf.FORMATS, help="timed beside those")
    parser.add_argument("--scale", type=float, help="size of the matrices; default 1, on a CPU 1/20")
    parser.add_argument("--limit", type=float, default=900, help="end after about so many seconds")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    platform, (copy, header) = report.platform_here(), report.machine(args.small)
    scale = args.scale or (1 / 2000 if args.small else 1 if platform == "gpu" else 1 / 20)
    rounds, passes, others = (QUICK, 1, min(args.others, 1)) if args.small else (ROUNDS, PASSES, args.others)
    settings = others, copy, rounds, passes, tuple(args.formats)
    runs = [Run(platform, args.dtypes, backend, *settings) for backend in args.backends]
    header |= {"suite": args.suite, "scale": f"{scale:g}", "others": str(others)}
    if platform == "gpu":
        try:
            header["cusparse"] = str(cusparse.library().version)
        except cusparse.Absent as absent:
            header["cusparse"] = str(absent)
    cases = suite.SUITES[args.suite]
    cases = [cases[i] for i in args.cases or range(len(cases))]
    rows: list[Row] = []

    def text() -> str:
        shown = [r | {"other best": "" if r["best"] == r["auto"] else r["best"]} for r in rows if "best" in r]
        lines = ["", *report.markdown(shown, COLUMNS)] if shown else report.section(args.what, rows)
        return "\n".join([report.line(header), *lines])

    for case in before_limit(cases, args.limit, header):
        S = suite.tamed(case.make(scale))
        log(f"{case.name}, {S.shape[0]} rows, {S.nnz} entries")
        for run in runs:
            rows += [row | {"backend": run.backend} for row in WHAT[args.what](run, case, S)]
        report.write(args.json, header, rows, text())
    print(text())
    report.write(args.json, header, rows, text())
    return int(any("failed" in ours for row in rows for ours in row.get("ours", ())))


if __name__ == "__main__":
    sys.exit(main())
