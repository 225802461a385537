"""`jaxsparse demo`: one Poisson problem, solved here and by SciPy on the same machine in one run, and compared."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse

import solvers
from jaxsparse_fmt import gallery
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt.choose.timing import median_seconds
from jaxsparse_fmt.cli import arguments, measure, plots, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.formats import footprint

TURNS = 2  # timed runs of each solver, in alternation; the better one counts
SLACK = 1.01  # rounding in the comparison of norms


@jax.enable_x64(True)
def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    """Compares the two in float64; the right-hand side is white noise (seed 0), which favours no method."""
    if args.plot:
        arguments.check_picture(args.plot)
    with progress.stage("build", f"the 7-point Poisson problem on {args.n}³ points"):
        S = gallery.poisson(args.n)
        b = np.random.default_rng(0).standard_normal(S.shape[0])
    with progress.stage("convert", f"{S.nnz:,} entries"):
        stored = measure.store(S, S.dtype)
    with progress.stage("compile", f"cg on {stored.A.name} for {measure.device()}"):
        solve = measure.prepare(solvers.cg, stored, b, rtol=args.rtol, history=bool(args.plot))
    setup = progress.seconds["convert"] + progress.seconds["compile"]
    runs = {"solve": solve, "SciPy": lambda: scipy_cg(S, b, args.rtol)}
    (ours, sol), (theirs, (x, info, steps)) = _in_turns(runs, progress)
    with progress.stage("measure", "the products"):
        products = stored.seconds_per_product(), median_seconds(lambda: S @ b)
    A, in_csr, times = stored.A, footprint.csr_bytes(S, 8), tables.duration
    n_bytes = stored.moved, footprint.bytes_moved(in_csr, S.shape, 8)
    left = [measure.relative_residual(S, b, np.asarray(v)) for v in (sol.x, x)]
    compared: list[tuple[str, Any, Callable[[Any], str]]] = [
        ("device", (measure.device(), "the CPU"), str),
        ("format", (A.name, "csr"), str),
        ("stored", (A.nbytes, in_csr), readable_bytes),
        ("product", products, times),
        ("bandwidth", [tables.bandwidth(*pair) for pair in zip(n_bytes, products, strict=True)], str),
        ("iterations", (sol.iterations, len(steps)), str),
        ("solve", (ours, theirs), times),
        ("solve and set-up", (ours + setup, theirs), times),
        ("true residual / ‖b‖", left, "{:.2e}".format),
    ]
    both = {name: sides for name, sides, _ in compared}
    rows = [(name, shown(a), shown(c), f"{c / a:.2f} ×" if shown is times else "") for name, (a, c), shown in compared]
    faults = [] if sol.success else [f"jaxsparse did not converge: {sol.status.message}"]
    faults += [f"SciPy did not converge: info = {info}"] if info else []
    for side, residual in zip(("jaxsparse", "SciPy"), left, strict=True):
        if not residual <= SLACK * args.rtol:
            faults.append(f"{side} left {residual:.2e} of ‖b‖, above rtol = {args.rtol:.0e}")
    if args.plot:
        with progress.stage("draw", args.plot), arguments.blaming(args.plot):
            norms = scipy_cg(S, b, args.rtol, history=True)[2]  # once more, since each norm takes a product
            curves = {f"jaxsparse, on {measure.device()}": sol, "SciPy": [np.linalg.norm(b), *norms]}
            timed = {name: both[name] for name in ("product", "solve", "solve and set-up")}
            plots.draw_comparison(args.plot, curves, timed, args.rtol)
    title = f"7-point Poisson problem: {S.shape[0]:,} unknowns, {S.nnz:,} entries, float64"
    record = {"rows": S.shape[0], "nnz": S.nnz, "faults": faults, **both}
    remark = "The answers do not agree." if faults else f"Both answers leave at most {args.rtol:.0e} of ‖b‖."
    texts = [tables.comparison(title, ("", "jaxsparse", "SciPy", "speed-up"), rows), remark]
    if args.plot:
        record["plot"] = args.plot
        texts.append(f"The picture is in {args.plot}.")
    return tables.Done(record, texts, faults, code=1 if faults else 0)


def _in_turns(runs: dict[str, Callable[[], Any]], progress: Progress) -> list[tuple[float, Any]]:
    """The least seconds and the last result of each."""
    seconds, results = dict.fromkeys(runs, np.inf), {}
    for turn in range(1, TURNS + 1):
        for name, run in runs.items():
            with progress.stage(f"{name} {turn}", f"run {turn} of {TURNS}"):
                start = time.perf_counter()
                results[name] = run()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return [(seconds[name], results[name]) for name in runs]


def scipy_cg(
    S: scipy.sparse.csr_array, b: np.ndarray, rtol: float, history: bool = False
) -> tuple[np.ndarray, int, list[float]]:
    """The solution, SciPy's `info`, and the norms of its residuals after each step; zeros without `history`."""
    from scipy.sparse.linalg import cg

    norms: list[float] = []

    def step(x: np.ndarray) -> None:
        norms.append(float(np.linalg.norm(b - S @ x)) if history else 0.0)

    x, info = cg(S, b, rtol=rtol, atol=0.0, callback=step)
    return x, info, norms
