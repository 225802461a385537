"""The demonstration: one Poisson problem, solved here and by SciPy on the same machine in one run."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt import gallery, measure, report, traffic
from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt.plot import Curve

if TYPE_CHECKING:
    from rich.console import RenderableType

TURNS = 2  # timed runs of each solver, in alternation; the better one counts
TRACE_EVERY = 10  # iterations between the points of SciPy's curve
BUSY = 0.5  # processes a core
SLACK = 1.01  # rounding in the comparison of norms


@dataclasses.dataclass(frozen=True)
class Side:
    """How one of the two did.

    Attributes:
      name, device: for people.
      format, stored: of the matrix; bytes.
      product, moved: seconds of a product, and the bytes it moves by the model of `choose`.
      setup, seconds: of conversion and compilation; of the solve.
      x: [n], the answer.
      residual: ‖b − A·x‖ / ‖b‖, by SciPy's product for both.
      trace: iterations [k] and relative residuals [k].
    """

    name: str
    device: str
    format: str
    stored: int
    product: float
    moved: int
    setup: float
    seconds: float
    x: np.ndarray
    residual: float
    trace: tuple[np.ndarray, np.ndarray]

    @property
    def iterations(self) -> int:
        return int(self.trace[0][-1])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Both sides, and whether they agree.

    Attributes:
      difference: ‖x − x_SciPy‖ / ‖x_SciPy‖.
      bound: the most that two answers can differ which both meet rtol: 2·rtol·‖b‖ / λ_min / ‖x‖,
        with the smallest eigenvalue of the grid's Laplacian, 12·sin²(π / (2n + 2)).
      faults: what is wrong, in sentences; empty when all is well.
    """

    S: scipy.sparse.csr_array
    title: str
    ours: Side
    theirs: Side
    difference: float
    bound: float
    faults: list[str]
    load: float  # runnable processes a core before the start; nan where the system does not tell

    def curves(self) -> list[Curve]:
        def curve(side: Side) -> Curve:
            steps, seconds = f"{side.iterations:,} iterations", report.duration(side.seconds)
            return Curve(f"{side.name} on {side.device}: {steps}, {seconds}", *side.trace)

        return [curve(self.ours), curve(self.theirs)]

    def table(self) -> RenderableType:
        ours, theirs = self.ours, self.theirs

        def times(name: str, a: float, b: float) -> tuple[str, ...]:
            return name, report.duration(a), report.duration(b), f"{b / a:.2f} ×"

        def each(name: str, text: Callable[[Side], str]) -> tuple[str, ...]:
            return name, text(ours), text(theirs), ""

        rows = [
            each("device", lambda s: s.device),
            each("format", lambda s: s.format),
            each("stored", lambda s: readable_bytes(s.stored)),
            times("product", ours.product, theirs.product),
            each("", lambda s: report.bandwidth(s.moved, s.product)),
            each("iterations", lambda s: f"{s.iterations:,}"),
            times("solve", ours.seconds, theirs.seconds),
            times("  with conversion, compilation", ours.seconds + ours.setup, theirs.seconds),
            each("true residual / ‖b‖", lambda s: f"{s.residual:.2e}"),
        ]
        size = f"{self.S.shape[0]:,} unknowns, {self.S.nnz:,} entries, float64"
        columns = ("", ours.name, theirs.name, "speed-up")
        return report.comparison(f"{self.title}: {size}", columns, rows)

    def verdict(self) -> str:
        busy = f" The machine was busy before the start, {self.load:.1f} processes a core: distrust the times."
        return (
            f"The answers {'do not agree' if self.faults else 'agree'}: they differ by "
            f"{self.difference:.1e} of their norm; two that meet rtol may differ by {self.bound:.1e}."
            f"{busy if self.load > BUSY else ''}"
        )


def run(solver: Callable[..., Any], n: int, rtol: float, stages: report.Progress) -> Outcome:
    """-Δu = f on n³ points with f white noise (seed 0), which no method can be lucky with; float64.

    Each solver runs alone and without callbacks while it is timed. SciPy's iterations and residuals,
    which it does not keep, come from one more run.

    Args:
      solver: of the contract of `solvers.cg`.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else math.nan
    with stages.stage("build", f"the 7-point Poisson problem on {n}³ points"):
        S = gallery.poisson(n)
        b = np.random.default_rng(0).standard_normal(S.shape[0])
    dtype = np.dtype(np.float64)
    with stages.stage("convert", f"{S.nnz:,} entries"):
        stored = measure.store(S, dtype)
    with stages.stage("compile", f"cg on {stored.A.name} for {measure.device()}"):
        system = measure.prepare(solver, stored, b, rtol=rtol, history=True)
    setup = stages.seconds["convert"] + stages.seconds["compile"]
    (our_seconds, sol), (their_seconds, (x_scipy, info)) = _in_turns(
        {"solve": system.solve, "SciPy": lambda: scipy_cg(S, b, rtol)}, stages
    )
    with stages.stage("measure", "the products"):
        products = stored.seconds_per_product(), measure.median_seconds(lambda: S @ b)
    with stages.stage("trace", "SciPy's residuals, which it does not keep"):
        trace = _scipy_trace(S, b, rtol)

    norms = np.asarray(sol.history) / np.linalg.norm(b)
    in_csr = traffic.csr_bytes(S, dtype.itemsize)
    ours = Side(
        name="jaxsparse",
        device=measure.device(),
        format=stored.A.name,
        stored=stored.A.nbytes,
        product=products[0],
        moved=stored.moved,
        setup=setup,
        seconds=our_seconds,
        x=np.asarray(sol.x),
        residual=report.relative_residual(S, b, np.asarray(sol.x)),
        trace=(np.arange(len(norms)), norms),
    )
    theirs = Side(
        name="SciPy",
        device="the CPU",
        format="csr",
        stored=in_csr,
        product=products[1],
        moved=traffic.bytes_moved(in_csr, S.shape, dtype.itemsize),
        setup=0.0,
        seconds=their_seconds,
        x=x_scipy,
        residual=report.relative_residual(S, b, x_scipy),
        trace=trace,
    )
    faults = [] if sol.success else [f"{ours.name} did not converge: {sol.status.message}"]
    if info != 0:
        faults.append(f"{theirs.name} did not converge: info = {info}")
    return _compared(S, b, n, rtol, ours, theirs, faults, load)


def _compared(
    S: scipy.sparse.csr_array,
    b: np.ndarray,
    n: int,
    rtol: float,
    ours: Side,
    theirs: Side,
    faults: list[str],
    load: float,
) -> Outcome:
    norm = np.linalg.norm(theirs.x)
    smallest_eigenvalue = 12 * math.sin(math.pi / (2 * n + 2)) ** 2
    difference = float(np.linalg.norm(ours.x - theirs.x) / norm)
    bound = float(2 * rtol * np.linalg.norm(b) / smallest_eigenvalue / norm)
    for side in (ours, theirs):
        if not side.residual <= SLACK * rtol:
            faults.append(f"{side.name} left {side.residual:.2e} of ‖b‖, above rtol = {rtol:.0e}")
    if not difference <= SLACK * bound:
        faults.append(f"the answers differ by {difference:.2e}, above the bound {bound:.2e}")
    title = f"7-point Poisson problem on {n}³ points"
    return Outcome(S, title, ours, theirs, difference, bound, faults, load)


def _in_turns(runs: dict[str, Callable[[], Any]], stages: report.Progress) -> list[tuple[float, Any]]:
    """The least seconds of each, and its last result."""
    seconds, results = dict.fromkeys(runs, math.inf), {}
    for turn in range(1, TURNS + 1):
        for name, run in runs.items():
            with stages.stage(f"{name} {turn}", f"run {turn} of {TURNS}"):
                start = time.perf_counter()
                results[name] = run()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return [(seconds[name], results[name]) for name in runs]


def scipy_cg(S: scipy.sparse.csr_array, b: np.ndarray, rtol: float, **options: Any) -> Any:
    from scipy.sparse.linalg import cg

    return cg(S, b, rtol=rtol, atol=0.0, **options)


def _scipy_trace(S: scipy.sparse.csr_array, b: np.ndarray, rtol: float) -> tuple[np.ndarray, np.ndarray]:
    """Iterations and relative residuals: the first, every `TRACE_EVERY`th, and the last."""
    count, last = 0, np.zeros_like(b)
    steps, norms = [0], [1.0]

    def note(x: np.ndarray) -> None:
        nonlocal count, last
        count, last = count + 1, x
        if count % TRACE_EVERY == 0:
            steps.append(count)
            norms.append(report.relative_residual(S, b, x))

    scipy_cg(S, b, rtol, callback=note)
    if count % TRACE_EVERY:
        steps.append(count)
        norms.append(report.relative_residual(S, b, last))
    return np.array(steps), np.array(norms)
