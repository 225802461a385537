"""Multigrid against PyAMG and cg alone: seconds to set up and to solve to 1e-8, iterations, operator complexity.

    python -m benchmarks.multigrid --json out.json            some six minutes of CPU time

Each figure is of a second call, so that nothing compiles; "cold" is the first set-up and solve of the process, which
compile or load kernels and programs. "CPU" sums the seconds of all threads.
"""

import functools
import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.report import Row
from solvers import cg, precond


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, seconds, and the processor's seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(f())
    return result, time.perf_counter() - wall, time.process_time() - cpu


def grid(m: int) -> np.ndarray:
    return np.array(list(itertools.product(range(m), repeat=3)), float)


def diffusion(c: np.ndarray, *weights: float) -> scipy.sparse.csr_array:
    """−∇·c∇ on the points of a cube, c given at the points, each axis with its weight."""
    S = scipy.sparse.csr_array((c.size, c.size))
    for axis, weight in enumerate(weights):
        ones = [scipy.sparse.eye_array(m) for m in c.shape]
        ones[axis] = scipy.sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(c.shape[axis] + 1, c.shape[axis]))
        G = functools.reduce(scipy.sparse.kron, ones)
        edges = np.concatenate([c.take([0], axis), c], axis)  # of the point before each edge
        S = S + weight * (G.T @ scipy.sparse.diags_array(edges.ravel()) @ G)
    return scipy.sparse.csr_array(S)


def cases(small: bool) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Makers of matrix and near-null space."""
    n, m, k = (20, 8, 12) if small else (100, 32, 46)
    one, blocks = np.ones((k, k, k)), (np.indices((k, k, k)) // 6).sum(axis=0) % 2
    elastic = lambda m: (jsf.gallery.elasticity(m), jsf.gallery.rigid_body_modes(grid(m)))  # noqa: E731
    made: dict[str, Any] = {
        f"7 points {n}³": lambda: (jsf.gallery.poisson(n), None),
        f"elasticity {m}³": lambda: elastic(m),
        f"anisotropic 1:100 {k}³": lambda: (diffusion(one, 1, 1, 0.01), None),
        f"jumps of 10⁶ {k}³": lambda: (diffusion(10.0 ** (6 * blocks), 1, 1, 1), None),
    }
    for size in () if small else (46, 126, 200):
        made[f"7 points {size}³"] = lambda size=size: (jsf.gallery.poisson(size), None)
    return made


def measure(name: str, S: Any, B: Any) -> list[Row]:
    A, b = jsf.from_scipy(S), np.random.default_rng(0).standard_normal(S.shape[0])
    rows: list[Row] = []
    for call in ("cold", "warm"):
        M, *setup = timed(lambda: precond.multigrid(A, B))
        sol, *solve = timed(lambda M=M: cg(A, b, M=M, rtol=1e-8))
        rows.append(row(name, f"ours, {call}", *setup, *solve, int(sol.iterations), M.operator_complexity))
        if not sol.success:
            rows[-1]["side"] += f": {sol.status.name}"
        del M
    sol, *solve = min((timed(lambda: cg(A, b, rtol=1e-8)) for _ in range(2)), key=lambda found: found[1])
    rows.append(row(name, "cg alone", math.nan, math.nan, *solve, int(sol.iterations), math.nan))
    if S.shape[0] > 1.1e6 or importlib.util.find_spec("pyamg") is None:
        return rows
    import pyamg

    blocks = S if B is None else S.tobsr(blocksize=(3, 3))
    theirs, *setup = timed(lambda: pyamg.smoothed_aggregation_solver(blocks, B=B))
    residuals: list[float] = []
    _, *solve = timed(lambda: theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals))
    rows.append(row(name, "PyAMG", *setup, *solve, len(residuals) - 1, theirs.operator_complexity()))
    return rows


def row(case: str, side: str, *figures: float) -> Row:
    names = ("setup", "setup_cpu", "solve", "solve_cpu", "iterations", "complexity")
    known = {name: figure for name, figure in zip(names, figures, strict=True) if not np.isnan(figure)}
    return {"case": case, "side": side} | known


def main(argv: list[str] | None = None) -> int:
    args = report.arguments(__doc__, dtypes=False).parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    made = ((name, measure(name, *make())) for name, make in cases(args.small).items())
    return report.in_sections(args.json, report.provenance(), made)


if __name__ == "__main__":
    sys.exit(main())
