"""`jaxsparse demo`: one Poisson problem, solved here and by SciPy on the same machine in one run, and compared."""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy.sparse

import solvers
from jaxsparse_fmt import gallery, plot
from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt.choose.timing import median_seconds
from jaxsparse_fmt.cli import arguments, measure, plots, process, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.models import traffic

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = "solve, against SciPy"
ABOUT = "Solves the 7-point Poisson problem on n³ points here and with SciPy, and compares."

TURNS = 2  # timed runs of each solver, in alternation; the better one counts
SLACK = 1.01  # rounding in the comparison of norms


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=arguments.at_least_one, default=100, help="points an axis; default 100")
    arguments.add_plot(parser, "; default demo.png where matplotlib is installed")
    arguments.add_rtol(parser, 1e-8)


def run(args: argparse.Namespace) -> int:
    args.plot = args.plot or ("demo.png" if plot.available() else None)
    arguments.check_outputs(args)
    with Progress() as progress, jax.enable_x64(True):
        outcome = compare(solvers.cg, args.n, args.rtol, progress)
        title = f"7-point Poisson problem on {args.n}³ points"
        if args.plot:
            with arguments.drawing(args, progress):
                curves = {side.label: side.trace for side in outcome.sides}
                plots.draw(args.plot, outcome.S, title, curves, args.rtol)
    remarks = [
        f"The answers {'do not agree' if outcome.faults else 'agree'}: they differ by {outcome.difference:.1e} of "
        f"their norm; two that meet rtol may differ by {outcome.bound:.1e}."
    ]
    if args.plot:
        remarks.append(f"The picture is in {args.plot}.")
    tables.report(args.json, outcome.record, outcome.table(title), *remarks)
    for fault in outcome.faults:
        process.complain(fault)
    return 1 if outcome.faults else 0


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two solvers with its results: times in seconds, sizes in bytes.

    Attributes:
      moved: bytes that a product moves by the model of `choose`.
      setup, solve: conversion and compilation; the solve.
      x: [n], the answer.
      residual: ‖b − A·x‖ / ‖b‖, by SciPy's product for both.
      trace: iterations [k] and relative residuals [k].
    """

    name: str
    device: str
    format: str
    nbytes: int
    moved: int
    product: float
    setup: float
    solve: float
    x: np.ndarray
    residual: float
    trace: tuple[np.ndarray, np.ndarray]

    @property
    def iterations(self) -> int:
        return int(self.trace[0][-1])

    @property
    def label(self) -> str:
        return f"{self.name} on {self.device}: {self.iterations:,} iterations, {tables.duration(self.solve)}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Both sides and their difference.

    Attributes:
      difference: ‖x − x_SciPy‖ / ‖x_SciPy‖.
      bound: the largest difference of two answers that both meet rtol: 2·rtol·‖b‖ / λ_min / ‖x‖,
        with the smallest eigenvalue of the grid's Laplacian, 12·sin²(π / (2n + 2)).
      faults: sentences; empty when the two agree.
    """

    S: scipy.sparse.csr_array
    ours: Side
    theirs: Side
    difference: float
    bound: float
    faults: list[str]

    @property
    def record(self) -> dict[str, Any]:
        hidden = ("x", "trace")
        sides = [
            {k: v for k, v in vars(side).items() if k not in hidden} | {"iterations": side.iterations}
            for side in self.sides
        ]
        found = {"difference": self.difference, "bound": self.bound, "faults": self.faults}
        return {"rows": self.S.shape[0], "nnz": self.S.nnz, "sides": sides, **found}

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.theirs

    def table(self, title: str) -> "RenderableType":
        a, b = self.sides
        times = lambda x, y: (tables.duration(x), tables.duration(y), f"{y / x:.2f} ×")  # noqa: E731
        rows = [
            ("device", a.device, b.device, ""),
            ("format", a.format, b.format, ""),
            ("stored", readable_bytes(a.nbytes), readable_bytes(b.nbytes), ""),
            ("product", *times(a.product, b.product)),
            ("", tables.bandwidth(a.moved, a.product), tables.bandwidth(b.moved, b.product), ""),
            ("iterations", f"{a.iterations:,}", f"{b.iterations:,}", ""),
            ("solve", *times(a.solve, b.solve)),
            ("  with conversion, compilation", *times(a.solve + a.setup, b.solve + b.setup)),
            ("true residual / ‖b‖", f"{a.residual:.2e}", f"{b.residual:.2e}", ""),
        ]
        size = f"{self.S.shape[0]:,} unknowns, {self.S.nnz:,} entries, float64"
        return tables.comparison(f"{title}: {size}", ("", a.name, b.name, "speed-up"), rows)


def compare(solver: Callable[..., Any], n: int, rtol: float, progress: Progress) -> Outcome:
    """-Δu = f on n³ points in float64; f is white noise (seed 0), which favours no method.

    Each solver runs alone and without callbacks while it is timed. One more run of SciPy's records its residuals.

    Args:
      solver: a function called as `solvers.cg` is.
    """
    with progress.stage("build", f"the 7-point Poisson problem on {n}³ points"):
        S = gallery.poisson(n)
        b = np.random.default_rng(0).standard_normal(S.shape[0])
    b_norm, dtype = np.linalg.norm(b), np.dtype(np.float64)
    with progress.stage("convert", f"{S.nnz:,} entries"):
        stored = measure.store(S, dtype)
    with progress.stage("compile", f"cg on {stored.A.name} for {measure.device()}"):
        solve = measure.prepare(solver, stored, b, rtol=rtol, history=True)
    setup = progress.seconds["convert"] + progress.seconds["compile"]
    (our_seconds, sol), (their_seconds, (x_scipy, info)) = _in_turns(
        {"solve": solve, "SciPy": lambda: scipy_cg(S, b, rtol)}, progress
    )
    with progress.stage("measure", "the products"):
        our_product, their_product = stored.seconds_per_product(), median_seconds(lambda: S @ b)
    with progress.stage("trace", "SciPy's residuals, which it does not keep"):
        their_trace = _scipy_trace(S, b, rtol)

    norms, x = np.asarray(sol.history) / b_norm, np.asarray(sol.x)
    ours = Side(
        "jaxsparse", measure.device(), stored.A.name, stored.A.nbytes, stored.moved, our_product,
        setup, our_seconds, x, measure.relative_residual(S, b, x), (np.arange(len(norms)), norms),
    )  # fmt: skip
    in_csr = traffic.csr_bytes(S, dtype.itemsize)
    theirs = Side(
        "SciPy", "the CPU", "csr", in_csr, traffic.bytes_moved(in_csr, S.shape, dtype.itemsize), their_product,
        0.0, their_seconds, x_scipy, measure.relative_residual(S, b, x_scipy), their_trace,
    )  # fmt: skip

    x_norm = np.linalg.norm(theirs.x)
    smallest_eigenvalue = 12 * math.sin(math.pi / (2 * n + 2)) ** 2
    difference = float(np.linalg.norm(ours.x - theirs.x) / x_norm)
    bound = float(2 * rtol * b_norm / smallest_eigenvalue / x_norm)
    faults = [] if sol.success else [f"{ours.name} did not converge: {sol.status.message}"]
    if info != 0:
        faults.append(f"{theirs.name} did not converge: info = {info}")
    for side in (ours, theirs):
        if not side.residual <= SLACK * rtol:
            faults.append(f"{side.name} left {side.residual:.2e} of ‖b‖, above rtol = {rtol:.0e}")
    if not difference <= SLACK * bound:
        faults.append(f"the answers differ by {difference:.2e}, above the bound {bound:.2e}")
    return Outcome(S, ours, theirs, difference, bound, faults)


def _in_turns(runs: dict[str, Callable[[], Any]], progress: Progress) -> list[tuple[float, Any]]:
    """The least seconds and the last result of each."""
    seconds, results = dict.fromkeys(runs, math.inf), {}
    for turn in range(1, TURNS + 1):
        for name, run in runs.items():
            with progress.stage(f"{name} {turn}", f"run {turn} of {TURNS}"):
                start = time.perf_counter()
                results[name] = run()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return [(seconds[name], results[name]) for name in runs]


def scipy_cg(S: scipy.sparse.csr_array, b: np.ndarray, rtol: float, **options: Any) -> Any:
    from scipy.sparse.linalg import cg

    return cg(S, b, rtol=rtol, atol=0.0, **options)


def _scipy_trace(S: scipy.sparse.csr_array, b: np.ndarray, rtol: float) -> tuple[np.ndarray, np.ndarray]:
    """Iterations and relative residuals."""
    found = [1.0]
    scipy_cg(S, b, rtol, callback=lambda x: found.append(measure.relative_residual(S, b, x)))
    return np.arange(len(found)), np.array(found)
