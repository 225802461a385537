"""Products over a suite of matrices: the formats that rank first, against every format of cuSPARSE in one run.

    python -m benchmarks.spmv --json out.json                    "auto" over the suite; on a GPU some ten minutes
    python -m benchmarks.spmv --workers 12 --json out.json       the same on a host of 16 cores in three minutes
    python -m benchmarks.spmv --suite held-out --cases 0 3       other matrices, some of them
    python -m benchmarks.spmv --cases 0 1 --formats coo ell      these formats too, whatever their rank
    python -m benchmarks.spmv --backends triton mosaic           both dialects
    python -m benchmarks.spmv --what columns                     A·X with several columns

The opponent is the fastest of cuSPARSE's CSR (ALG1, ALG2, both preprocessed, and SpMVOp where the library has it), COO,
sliced ELL (also with its rows sorted by length, so that y is in their order) and BSR where there are blocks, and of
JAX's BCSR; on a CPU SciPy's csr @ x takes cuSPARSE's place. On a GPU products of square matrices are timed in chains,
x ← A·x, in one program of ours and one CUDA graph of theirs, since a single call waits for Python: theirs 5 µs and ours
up to 90. JSON and table are written after every matrix, so an interrupted run keeps its results. A matrix is left out
if it is not its turn before the limit.

Matrices are made, converted and compiled on the host. With several workers other processes do that, each for its
matrix, while one has its turn on the GPU; of more than eight cores, that one has four for itself.

The fastest opponent and all of our formats are timed several times in turn, and the median counts. `tune` would choose
by its own clock (`choose/timing.py`); the table takes those of its candidates that `--others` includes.

A row of the JSON is a matrix and a dtype: `opponents` has µs by method, or the reason for their absence, `ours` the
counts and the time of every timed format, by which `benchmarks.choices` judges the rules of "auto", and `predicted` the
whole ranking.
"""

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from jaxsparse_fmt.formats.footprint import PatternCounts, Storage
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.models import traffic

Timer = Callable[..., float]  # seconds; arguments go to `timing.seconds_per_call`
WRONG = 1e-3  # relative error from which a product is wrong and its time does not count
HOPELESS = 3.0  # formats of a larger predicted cost, over the first, are not timed
# Of `timing.seconds_per_call`. A busy host takes up to 1 ms to begin a round of ours, which would be 12% of 8 ms.
ROUNDS = {"gpu": {"rounds": 1, "seconds": 0.04}, "cpu": {"rounds": 3, "seconds": 0.04}}
QUICK = {"rounds": 1, "seconds": 0.001}
PASSES = 3  # times that the fastest opponent and all of ours are timed in turn, so that a slow minute slows both
DISTURBED = 0.1  # `spread` from which times are taken again
BCSR = "JAX BCSR"
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

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
        """The count of products in a graph of theirs, as many as XLA puts into one of ours in CSR."""
        products = clock.LOOP_SMALL if self.S.nnz * 8 < clock.SMALL else clock.LOOP
        return products if self.chained else 1

    def off(self, y: Any) -> float:
        """The largest error of y = A·xs[0] over the largest result."""
        largest = np.max(np.abs(self.exact), initial=0) or 1
        return float(np.max(np.abs(np.asarray(y, np.float64) - self.exact), initial=0) / largest)


@dataclasses.dataclass(frozen=True)
class Ready:
    """A matrix on the host and its compiled programs: all that needs no turn on the device."""

    A: Any  # with NumPy's arrays
    product: Callable[..., Any]
    program: Callable[..., Any]  # which is timed, as `tune` would
    products: int  # of the program


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

    def matrix(self, case: suite.Case, S: Any, turn: "Turn") -> list[Row]:
        """One row a dtype. Formats are converted once, in float64, and timed in all dtypes."""
        problem = Problem.of(S, self.platform)
        opponent = cusparse.Opponent(S) if self.platform == "gpu" else None
        rankings = {dtype: choose.rank(S, dtype, backend=self.backend) for dtype in self.dtypes}
        few = {label(c): c for ranking in rankings.values() for c in picked(ranking, self.others)}
        few |= {name: jsf.Choice(name, {}, 0, 0, 0.0, "") for name in self.formats}
        stored = {name: self.converted(S, choice) for name, choice in few.items()}
        ready = {dtype: {name: readied(A, dtype, problem) for name, A in stored.items()} for dtype in self.dtypes}
        bcsr = {dtype: readied(sparse.BCSR.from_scipy_sparse(S.astype(dtype)), dtype, problem) for dtype in self.dtypes}
        storages = {dtype: self.storages(S, dtype) for dtype in self.dtypes}
        rows = []
        with turn.taken():
            for dtype, ranking in rankings.items():
                rivals = self.theirs(opponent, bcsr[dtype], problem, dtype)
                ours, timers = self.ours(ready[dtype], ranking, problem, dtype)
                theirs = self.in_turn(rivals, ours, timers)
                for of in ours:
                    of |= {"storage": storages[dtype][of["label"]]} if of["label"] in storages[dtype] else {}
                row = {"matrix": case.name, "class": case.kind, "dtype": dtype}
                row |= {"rows": S.shape[0], "cols": S.shape[1], "nnz": S.nnz}
                row |= {"chained": bool(problem.chained), "opponents": theirs, "ours": ours}
                row["predicted"] = [
                    {"label": label(c), "cost": c.cost, "moved": c.moved, "reason": c.reason} for c in ranking
                ]
                looked_at = [label(c) for c in choose.best_layouts(ranking)[: tune.CANDIDATES]]
                rows.append(row | compared(theirs, ours, looked_at))
                log(f"{case.name}, {dtype}: {rows[-1]['ratio']:.2f} × {rows[-1]['opponent']}")
        return rows

    def storages(self, S: Any, dtype: str) -> dict[str, Row]:
        """By label what the rules count of each layout; for GPUs alone."""
        if self.platform != "gpu":
            return {}
        keeps = selection.shares_memory(selection.resolve(self.backend, "cuda", shared=True))
        pattern = PatternCounts(S, np.dtype(dtype), self.platform, keeps)
        return {label(storage): dataclasses.asdict(storage) for storage in choose.storages(pattern)}

    def converted(self, S: Any, choice: jsf.Choice) -> jsf.SparseMatrix | str:
        """The matrix as chosen, on the host, or the reason for its absence."""
        try:
            with on_host():
                return jsf.from_scipy(S, choice.format, backend=self.backend, max_bytes=2**36, **choice.layout)
        except (ValueError, RuntimeError) as error:
            return reason(error)

    def theirs(
        self, opponent: cusparse.Opponent | None, bcsr: Ready | str, problem: Problem, dtype: str
    ) -> dict[str, Timer | str]:
        """By method its timer, or the reason for its absence."""
        xs = [x.astype(dtype) for x in problem.xs]
        of_jax: Timer | str = bcsr if isinstance(bcsr, str) else functools.partial(self._bcsr, bcsr, xs)
        if opponent is None:
            M = problem.S.astype(dtype)
            one = lambda i: M @ xs[i % 3]  # noqa: E731
            run = functools.partial(timing.seconds_per_call, one, lambda _: None, **self.rounds)
            return {"SciPy csr @ x": run, BCSR: of_jax}
        found: dict[str, Timer | str] = {}
        for name, make in opponent.methods.items():
            try:
                found[f"cuSPARSE {name}"] = self.cupy(make(dtype), xs, problem)
            except Exception as error:  # any fault of an opponent; the run goes on
                found[f"cuSPARSE {name}"] = f"absent: {error}".splitlines()[0]
        return found | {BCSR: of_jax}

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
        for number in range(2 * self.passes):
            for name in passes:
                if number >= self.passes and spread(passes[name]) <= DISTURBED:
                    continue
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
                row |= {"us": us, "spread": spread(times)}
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

    def _bcsr(self, ready: Ready, xs: list[np.ndarray], **how: Any) -> float:
        return self.of_jax(ready, jax.device_put(ready.A), [jnp.asarray(x) for x in xs], **how)

    def of_jax(self, ready: Ready, A: Any, xs: list[jax.Array], **how: Any) -> float:
        """Seconds of a product of A, which lies on the device."""
        run = lambda i: ready.program(A, xs[i % len(xs)])  # noqa: E731
        return timing.seconds_per_call(run, jax.block_until_ready, **(self.rounds | how)) / ready.products

    def ours(
        self, ready: dict[str, Ready | str], ranking: list[jsf.Choice], problem: Problem, dtype: str
    ) -> tuple[list[Row], dict[str, Timer]]:
        """A row with the cost of every stored format, auto's first, and by label the timers."""
        # Of mirrored and plain "dia", which share a label, the better one counts.
        cost = {label(c): c.cost for c in reversed(ranking)}
        xs = [jnp.asarray(x.astype(dtype)) for x in problem.xs]
        rows, timers = [], {}
        for name in sorted(ready, key=lambda name: cost.get(name, math.inf)):
            row: Row = {"format": name.split()[0], "label": name, "us": math.nan, "tune us": math.nan}
            row["cost"] = cost.get(name, math.nan)
            found = ready[name]
            if isinstance(found, str):
                rows.append(row | {"failed": found})
                continue
            B = jax.device_put(found.A)
            tuned = clock.median_seconds(functools.partial(found.program, B, xs[0]), **self.rounds)
            row["tune us"] = 1e6 * tuned / found.products
            timers[name] = functools.partial(self.of_jax, found, B, xs)
            moved = traffic.bytes_moved(B.nbytes_read, B.shape, xs[0].itemsize)
            rows.append(row | {"moved": moved, "error": problem.off(found.product(B, xs[0]))})
        return rows, timers


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


def readied(A: Any, dtype: str, problem: Problem) -> Ready | str:
    """A matrix of JAX on the host in that dtype, with its programs for the device; or the reason for their absence."""
    if isinstance(A, str):
        return A
    try:
        with on_host():
            A = jax.tree.map(np.asarray, A.astype(dtype) if isinstance(A, jsf.SparseMatrix) else A)
        x = vector(A, dtype)
        one, is_ours = product.lower(A, x).compile(), isinstance(A, jsf.SparseMatrix)
        return Ready(A, one, *(clock.repeated(A, x) if problem.chained and is_ours else (one, 1)))
    except (ValueError, RuntimeError) as error:
        return reason(error)


def label(choice: jsf.Choice | Storage) -> str:
    return " ".join([choice.format, *(f"{k}={v}" for k, v in choice.layout.items())])


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
        "best": best["label"], "best us": best["us"], "ratio": rival / auto["us"],
        "best ratio": rival / best["us"], "auto vs best": best["us"] / auto["us"],
        "tune": tuned["label"], "tune vs best": best["us"] / tuned["us"],
        **{key: auto.get(key, math.nan) for key in ("spread", "share", "error")},
    }  # fmt: skip


COLUMNS_OF = (1, 2, 4, 8, 32)


def columns(run: Run, case: suite.Case, S: Any, turn: "Turn") -> Iterator[Row]:
    """A row for each dtype and number of columns; throughput is against a product with one column."""
    problem = Problem.of(S, run.platform)
    choices = {dtype: choose.rank(S, dtype, backend=run.backend)[0] for dtype in run.dtypes}
    stored = {dtype: run.converted(S, choice) for dtype, choice in choices.items()}
    with turn.taken():
        for dtype, wide in stored.items():
            A: Any = jax.device_put(wide, jax.devices()[0]).astype(dtype)
            chosen, alone = label(choices[dtype]), 0.0
            for p in COLUMNS_OF:
                X = jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[1], p)), dtype)
                X = X[:, 0] if p == 1 else X
                ends = lambda a: np.asarray(a if a.ndim == 1 else a[:, np.array([0, -1])], np.float64)  # noqa: E731
                wanted, got = S @ ends(X), ends(product(A, X))  # SciPy would take seconds for all of them
                ready = Ready(A, product, *(clock.repeated(A, X) if problem.chained else (product, 1)))
                took = run.of_jax(ready, A, [X])
                alone = alone or took
                moved = traffic.bytes_moved(A.nbytes_read, S.shape, X.dtype.itemsize * p)
                yield {
                    "matrix": case.name, "dtype": dtype, "format": chosen, "columns": p, "µs": 1e6 * took,
                    "throughput": p * alone / took, "share": moved / took / run.copy,
                    "error": float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted))),
                }  # fmt: skip


COLUMNS = [(name, name) for name in ("matrix", "class", "dtype")]
COLUMNS += [("rows", "rows:d"), ("nnz", "nnz:d"), ("backend", "backend")]
COLUMNS += [("opponent", "opponent"), ("µs", "opponent us:.1f"), ("auto", "auto"), ("µs", "auto us:.1f")]
COLUMNS += [("best of ours", "other best"), ("µs", "best us:.1f")]
COLUMNS += [("× opponent", "ratio:.2f")]
COLUMNS += [(name, f"{name}:.2f") for name in ("auto vs best", "tune vs best", "spread")]
COLUMNS += [("share of copy", "share:.2f"), ("error", "error:.0e")]


@dataclasses.dataclass(frozen=True)
class Turn:
    """The device, and four cores for it, which one of `workers` processes has at a time before `end`, s since 1970."""

    end: float
    lock: Any
    workers: int

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        with self.lock:
            self.check()
            self.on_cores(slice(None, 4))
            yield
            self.on_cores(slice(4, None))

    def check(self) -> None:
        """TimeoutError: the run is over."""
        if time.time() > self.end:
            raise TimeoutError

    def on_cores(self, which: slice) -> None:
        for thread in os.listdir("/proc/self/task") if self.workers > 1 and len(CORES) > 8 else ():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), CORES[which])


WHAT: dict[str, Callable[[Run, suite.Case, Any, Turn], Iterable[Row]]] = {
    "products": Run.matrix,
    "columns": columns,
}


def begin(turn: Turn) -> None:
    """Prepares a process for `measured`."""
    global TURN
    TURN = turn
    TURN.on_cores(slice(4, None))
    jax.config.update("jax_enable_x64", True)


def measured(what: str, cases: str, scale: float, runs: list[Run], at: int) -> list[Row]:
    """The rows of a matrix of a suite, none if the time is over."""
    case = suite.SUITES[cases][at]
    try:
        TURN.check()
        S = suite.tamed(case.make(scale))
        return [row | {"backend": run.backend} for run in runs for row in WHAT[what](run, case, S, TURN)]
    except TimeoutError:
        return []
    finally:
        jax.clear_caches()


def in_processes(f: Callable[[int], list[Row]], numbers: list[int], limit: float, workers: int) -> Iterator[Any]:
    """Each number with its f when that is done; several workers are a process for each, which leaves no memory."""
    spawn = multiprocessing.get_context("spawn")
    turn = Turn(time.time() + limit, threading.Lock() if workers == 1 else spawn.Lock(), workers)
    if workers == 1:
        begin(turn)
        yield from ((number, f(number)) for number in numbers)
        return
    with ProcessPoolExecutor(workers, spawn, begin, (turn,), max_tasks_per_child=1) as pool:
        futures = {pool.submit(f, number): number for number in numbers}
        yield from ((futures[done], done.result()) for done in as_completed(futures))


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
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that make, convert and compile while one times"
    )
    args = parser.parse_args(argv)
    if args.workers > 1:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # they share the memory of the GPU
    jax.config.update("jax_enable_x64", True)
    platform, (copy, header) = report.platform_here(), report.machine(args.small)
    scale = args.scale or (1 / 2000 if args.small else 1 if platform == "gpu" else 1 / 20)
    rounds, passes, others = (QUICK, 1, min(args.others, 1)) if args.small else (ROUNDS[platform], PASSES, args.others)
    settings = others, copy, rounds, passes, tuple(args.formats)
    runs = [Run(platform, args.dtypes, backend, *settings) for backend in args.backends]
    header |= {"suite": args.suite, "scale": f"{scale:g}", "others": str(others)}
    if platform == "gpu":
        try:
            header["cusparse"] = str(cusparse.library().version)
        except cusparse.Absent as absent:
            header["cusparse"] = str(absent)
    cases = suite.SUITES[args.suite]
    numbers = args.cases or list(range(len(cases)))
    rows: list[Row] = []

    def text() -> str:
        shown = [r | {"other best": "" if r["best"] == r["auto"] else r["best"]} for r in rows if "best" in r]
        lines = ["", *report.markdown(shown, COLUMNS)] if shown else report.section(args.what, rows)
        return "\n".join([report.line(header), *lines])

    start, found = time.perf_counter(), {}
    of_case = functools.partial(measured, args.what, args.suite, scale, runs)
    for at, of_matrix in in_processes(of_case, numbers, args.limit, args.workers):
        found[at] = of_matrix
        rows = [row for at in sorted(found) for row in found[at]]
        left = [cases[at].name for at in numbers if not found.get(at)]
        header |= {"took": f"{time.perf_counter() - start:.0f} s", "left out": ", ".join(left)}
        report.write(args.json, header, rows, text())
    if not header.get("left out"):
        header.pop("left out", None)
    print(text())
    report.write(args.json, header, rows, text())
    return int(any("failed" in ours for row in rows for ours in row.get("ours", ())))


if __name__ == "__main__":
    sys.exit(main())
