"""Products over a suite of matrices: the formats that rank first, against every format of cuSPARSE in one run.

    python -m benchmarks spmv --json out.json                    "auto" over the suite; on a GPU some ten minutes
    python -m benchmarks spmv --workers 12 --json out.json       the same on a host of 16 cores in three minutes
    python -m benchmarks spmv --suite held-out --cases 0 3       other matrices, some of them
    python -m benchmarks spmv --cases 0 1 --formats coo ell      these formats too, whatever their rank
    python -m benchmarks spmv --backends triton mosaic           both dialects

The opponent is the fastest of cuSPARSE's CSR (ALG1, ALG2, both preprocessed, and SpMVOp where the library has it), COO,
sliced ELL (also with its rows sorted by length, so that y is in their order) and BSR where there are blocks; on a CPU
SciPy's csr @ x takes its place. On a GPU products of square matrices are timed in chains, x ← A·x, in one program of
ours and one CUDA graph of theirs, since a single call waits for Python: theirs 5 µs and ours up to 90. With `--json` an
interrupted run keeps its rows.

Matrices are made, converted and compiled on the host. With several workers other processes do that while one times on
the GPU. The fastest opponent and all of our formats are timed several times in turn, and the median counts. `tune`
would choose by its own clock (`choose/timing.py`); the table uses those of its candidates that were timed.

A row of the JSON is a matrix and a dtype: `opponents` has µs by method, or the reason for their absence, `ours` the
counts and the time of every timed format, by which `benchmarks choices` judges the rules of "auto".
"""

import argparse
import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, suite, timing, workers
from benchmarks.report import Row, reason
from jaxsparse_fmt.choose import ranking as choose
from jaxsparse_fmt.choose import timing as clock
from jaxsparse_fmt.choose import tune
from jaxsparse_fmt.formats.footprint import PatternCounts, Storage, bytes_moved
from jaxsparse_fmt.kernels.backends import selection

Timer = Callable[..., float]  # seconds; arguments go to `timing.seconds_per_call`
WRONG = 1e-3  # relative error from which a product is wrong and its time does not count
OTHERS = 3  # formats timed besides that of "auto"
HOPELESS = 3.0  # formats of a larger predicted cost, over the first, are not timed
# Of `timing.seconds_per_call`. A busy host takes up to 1 ms to begin a round of ours, which would be 12% of 8 ms.
ROUNDS = {"gpu": {"rounds": 1, "seconds": 0.04}, "cpu": {"rounds": 3, "seconds": 0.04}}
QUICK = {"rounds": 1, "seconds": 0.001}
PASSES = 3  # times that the fastest opponent and all of ours are timed in turn, so that a slow minute slows both
DISTURBED = 0.1  # `spread` from which times are taken again

product = jax.jit(lambda A, x: A @ x)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The input of all methods: the canonical matrix, three vectors exact in float32, and A·xs[0] in float64."""

    S: Any
    xs: list[np.ndarray]
    exact: np.ndarray
    chained: bool  # x ← A·x, several times a call

    @classmethod
    def of(cls, S: Any, platform: str) -> Self:
        xs = list(np.random.default_rng(0).standard_normal((3, S.shape[1])).astype(np.float32))
        square = platform == "gpu" and S.shape[0] == S.shape[1]
        return cls(S, xs, S @ xs[0].astype(np.float64), square)

    @property
    def products(self) -> int:
        """The number of products in a graph of theirs, as many as XLA puts into one of ours in CSR."""
        products = clock.LOOP_SMALL if self.S.nnz * 8 < clock.SMALL else clock.LOOP
        return products if self.chained else 1

    def error(self, y: Any) -> float:
        """The largest error of y = A·xs[0] over the largest result."""
        largest = np.max(np.abs(self.exact), initial=0) or 1
        return float(np.max(np.abs(np.asarray(y, np.float64) - self.exact), initial=0) / largest)


@dataclasses.dataclass(frozen=True)
class Ready:
    """A matrix on the host and its compiled programs: all that can be made without the device."""

    A: Any  # with NumPy's arrays
    product: Callable[..., Any]
    program: Callable[..., Any]  # which is timed, as `tune` would
    products: int  # of the program

    @classmethod
    def of(cls, A: jsf.SparseMatrix | str, dtype: str, problem: Problem) -> "Ready | str":
        """The matrix in that dtype with its programs; or the reason for their absence."""
        if isinstance(A, str):
            return A
        try:
            with on_host():
                stored = jax.tree.map(np.asarray, A.astype(dtype))
            x = vector(stored, dtype)
            one = product.lower(stored, x).compile()
            return cls(stored, one, *(clock.repeated(stored, x) if problem.chained else (one, 1)))
        except (ValueError, RuntimeError) as error:
            return reason(error)


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of a run, which all matrices share."""

    platform: str
    cases: str  # the name of the suite
    scale: float
    dtypes: list[str]
    backends: list[str]
    formats: list[str]  # timed whatever their rank
    copy: float  # bytes a second
    rounds: dict[str, Any]  # arguments of `timing.seconds_per_call`
    passes: int

    def rows(self, number: int) -> list[Row]:
        """The rows of one matrix of the suite."""
        case = suite.SUITES[self.cases][number]
        S = suite.tamed(case.make(self.scale))
        return [row for backend in self.backends for row in self.matrix(case, S, backend)]

    def matrix(self, case: suite.Case, S: Any, backend: str) -> Iterator[Row]:
        """One row a dtype. Formats are converted once, in float64, and timed in all dtypes."""
        problem = Problem.of(S, self.platform)
        opponent = cusparse.Opponent(S) if self.platform == "gpu" else None
        rankings = {dtype: choose.rank(S, dtype, backend=backend) for dtype in self.dtypes}
        few = {label(c): c for ranking in rankings.values() for c in picked(ranking)}
        few |= {name: jsf.Choice(name, {}, 0, 0, 0.0, "") for name in self.formats}
        stored = {name: converted(S, choice, backend) for name, choice in few.items()}
        ready = {dtype: {name: Ready.of(A, dtype, problem) for name, A in stored.items()} for dtype in self.dtypes}
        counts = {dtype: self.counts(S, dtype, backend) for dtype in self.dtypes}
        with workers.device():
            for dtype, ranking in rankings.items():
                rivals = self.theirs(opponent, problem, dtype)
                ours, timers = self.ours(ready[dtype], ranking, problem, dtype)
                theirs = self.in_turn(rivals, ours, timers)
                for one in ours:
                    one |= {"storage": counts[dtype][one["label"]]} if one["label"] in counts[dtype] else {}
                candidates = [label(c) for c in choose.best_layouts(ranking)[: tune.CANDIDATES]]
                yield {
                    "matrix": case.name, "class": case.kind, "dtype": dtype,
                    "rows": S.shape[0], "cols": S.shape[1], "nnz": S.nnz, "chained": bool(problem.chained),
                    "opponents": theirs, "ours": ours,
                    **compared(theirs, ours, candidates), "backend": backend,
                }  # fmt: skip

    def counts(self, S: Any, dtype: str, backend: str) -> dict[str, Row]:
        """By label what the rules count of each layout; for GPUs alone."""
        if self.platform != "gpu":
            return {}
        keeps = selection.shares_memory(selection.resolve(backend, "cuda", shared=True))
        pattern = PatternCounts(S, np.dtype(dtype), self.platform, keeps)
        found = [s for made in jsf.FORMATS.values() for s in made._footprints(pattern)]
        return {label(s): dataclasses.asdict(s) | {"misses": s.miss_factor * pattern.misses} for s in found}

    def timer(self, run: Callable[[int], Any], wait: Callable[[Any], Any], products: int = 1) -> Timer:
        """Times one of the products of each run(i)."""
        return lambda **rounds: timing.seconds_per_call(run, wait, **(self.rounds | rounds)) / products

    def theirs(self, opponent: cusparse.Opponent | None, problem: Problem, dtype: str) -> dict[str, Timer | str]:
        """By method its timer, or the reason for its absence."""
        xs = [x.astype(dtype) for x in problem.xs]
        if opponent is None:
            S = problem.S.astype(dtype)
            return {"SciPy csr @ x": self.timer(lambda i: S @ xs[i % 3], lambda _: None)}
        found: dict[str, Timer | str] = {}
        for name, make in opponent.methods.items():
            try:
                found[f"cuSPARSE {name}"] = self.cupy(make(dtype), xs, problem)
            except Exception as error:  # any fault of an opponent; the run goes on
                found[f"cuSPARSE {name}"] = f"absent: {error}".splitlines()[0]
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
            launch = product.captured(x0, [(inputs[0], inputs[1])])
            y = inputs[1]
            y.fill(math.nan)
            product.wait(y)
            launch()
            product.wait(y)
        if not (error := problem.error(product.in_order(y.get()))) <= WRONG:
            raise cusparse.Absent(f"its result is off by {error:.0e}")
        if not problem.chained:
            return self.timer(lambda i: product(inputs[i % 3]), product.wait)
        graph = product.captured(x0, [(inputs[i % 2], inputs[1 - i % 2]) for i in range(problem.products)])
        return self.timer(lambda _: graph(), product.wait, problem.products)

    def ours(
        self, ready: dict[str, Ready | str], ranking: list[jsf.Choice], problem: Problem, dtype: str
    ) -> tuple[list[Row], dict[str, Timer]]:
        """A row with the cost of every stored format, auto's first, and by label the timers."""
        # Of mirrored and plain "dia", which share a label, the better one counts.
        cost = {label(c): c.cost for c in reversed(ranking)}
        xs = [jnp.asarray(x.astype(dtype)) for x in problem.xs]
        rows: list[Row] = []
        timers: dict[str, Timer] = {}
        for name in sorted(ready, key=lambda name: cost.get(name, math.inf)):
            row: Row = {"format": name.split()[0], "label": name, "us": math.nan, "tune us": math.nan}
            row["cost"] = cost.get(name, math.nan)
            rows.append(row)
            found = ready[name]
            if isinstance(found, str):
                row["failed"] = found
                continue
            B = jax.device_put(found.A)
            tuned = clock.median_seconds(functools.partial(found.program, B, xs[0]), **self.rounds)
            row["tune us"] = 1e6 * tuned / found.products
            timers[name] = self.timer(
                lambda i, found=found, B=B: found.program(B, xs[i % 3]), jax.block_until_ready, found.products
            )
            row["moved"] = bytes_moved(B.nbytes_read, B.shape, xs[0].itemsize)
            row["error"] = problem.error(found.product(B, xs[0]))
        return rows, timers

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
        best = fastest_of(found)
        passes: dict[str, list[float]] = {name: [] for name in [*timers, *([best] if best else [])]}
        failed: Row = {}
        for number in range(2 * self.passes):
            for name, times in passes.items():
                if number >= self.passes and spread(times) <= DISTURBED:
                    continue
                timer: Any = timers.get(name) or rivals[name]
                try:
                    times.append(1e6 * timer())
                except Exception as error:  # the times so far count
                    failed[name] = reason(error)
        if best:
            found[best] = statistics.median(passes[best]) if passes[best] else f"absent: {failed[best]}"
        for row in ours:
            if times := passes.get(row["label"]):
                us = statistics.median(times)
                row |= {"us": us, "spread": spread(times), "share": row["moved"] / us * 1e6 / self.copy}
            elif row["label"] in failed:
                row["failed"] = failed[row["label"]]
        return found


def spread(times: list[float]) -> float:
    """The range of these times, without the outer quarters of four or more, over their median."""
    within = sorted(times)[len(times) // 4 : len(times) - len(times) // 4]
    return (within[-1] - within[0]) / statistics.median(times) if times else 0.0


def on_host() -> contextlib.AbstractContextManager:
    """A context in which JAX puts arrays on the host."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def vector(A: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    """What A multiplies, on the device."""
    return jax.ShapeDtypeStruct(A.shape[1:], dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def converted(S: Any, choice: jsf.Choice, backend: str) -> jsf.SparseMatrix | str:
    """The matrix as chosen, on the host, or the reason for its absence."""
    try:
        with on_host():
            return jsf.from_scipy(S, choice.format, backend=backend, max_bytes=2**36, **choice.layout)
    except (ValueError, RuntimeError) as error:
        return reason(error)


def label(choice: jsf.Choice | Storage) -> str:
    return " ".join([choice.format, *(f"{k}={v}" for k, v in choice.layout.items())])


def picked(choices: list[jsf.Choice]) -> list[jsf.Choice]:
    """The best layouts of the format that ranks first and of those that rank next."""
    best = choose.best_layouts(choices)[: 1 + OTHERS]
    return [c for c in best if c.cost <= HOPELESS * best[0].cost]


def fastest_of(theirs: Row) -> str | None:
    """The opponent that has the least time."""
    times = {name: us for name, us in theirs.items() if not isinstance(us, str)}
    return min(times, key=times.__getitem__, default=None)


def compared(theirs: Row, ours: list[Row], candidates: list[str]) -> Row:
    """The fastest of either side, and how they compare. Ratios above 1 are in our favour, NaN where a side has none.

    Args:
      candidates: the formats that `tune` would time.
    """

    def fastest(ours: list[Row], key: str) -> Row:
        return min(ours, key=lambda row: math.inf if math.isnan(row[key]) else row[key])

    opponent = fastest_of(theirs)
    rival = theirs[opponent] if opponent else math.nan
    auto = ours[0]
    best = fastest(ours, "us")
    tuned = fastest([row for row in ours if row["label"] in candidates], "tune us")
    return {
        "opponent": opponent or "none", "opponent us": rival, "auto": auto["label"], "auto us": auto["us"],
        "best": best["label"], "best us": best["us"], "ratio": rival / auto["us"],
        "best ratio": rival / best["us"], "auto vs best": best["us"] / auto["us"],
        "tune": tuned["label"], "tune vs best": best["us"] / tuned["us"],
        **{key: auto.get(key, math.nan) for key in ("spread", "share", "error")},
    }  # fmt: skip


def options_of_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the matrices; default: all")


def options(parser: argparse.ArgumentParser) -> None:
    options_of_suite(parser)
    parser.add_argument("--suite", choices=suite.SUITES, default="standard")
    parser.add_argument("--backends", nargs="+", default=["auto"])
    parser.add_argument("--formats", nargs="+", default=[], choices=jsf.FORMATS, help="timed whatever their rank")
    parser.add_argument("--workers", type=int, default=1, help="processes that make, convert and compile")


def scale(small: bool) -> float:
    """The size of the matrices."""
    return 1 / 2000 if small else 1 if report.platform_here() == "gpu" else 1 / 20


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    platform = report.platform_here()
    copy = timing.copy_bandwidth(args.small)
    rounds, passes = (QUICK, 1) if args.small else (ROUNDS[platform], PASSES)
    header |= {"copy": f"{copy / 1e9:.0f} GB/s", "suite": args.suite, "scale": f"{scale(args.small):g}"}
    if platform == "gpu":
        try:
            header["cusparse"] = str(cusparse.library().version)
        except cusparse.Absent as absent:
            header["cusparse"] = str(absent)
    settings = args.suite, scale(args.small), args.dtypes, args.backends, args.formats
    run = Run(platform, *settings, copy, rounds, passes)
    numbers = args.cases or range(len(suite.SUITES[args.suite]))

    return {"products": lambda: (row for rows in workers.each(run.rows, numbers, args.workers) for row in rows)}
