"""Multigrid against PyAMG: seconds to set up and to solve to 1e-8, iterations, operator complexity; and deflation.

    python -m benchmarks.multigrid --json out.json            some six minutes of CPU time

Each figure is of a second call, so that nothing compiles; "cold" is the first set-up and solve of the process, which
compile or load kernels and programs. "CPU" sums the seconds of all threads. "Peak" is the memory that the set-up took
at most, with the hierarchy, over the bytes of the matrix, and is empty where the process held enough freed memory.
"""

import ctypes
import functools
import gc
import itertools
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pyamg
import scipy.sparse
import scipy.sparse.csgraph

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.models import traffic
from solvers import cg, precond, refine


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, seconds, and the processor's seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(f())
    return result, time.perf_counter() - wall, time.process_time() - cpu


def grid(m: int) -> np.ndarray:
    return np.array(list(itertools.product(range(m), repeat=3)), float)


def diffusion(along: list[np.ndarray]) -> scipy.sparse.csr_array:
    """Seven points on a cube; along[d] are the coefficients between neighbours on axis d, the last with zeros outside.

    Each axis begins at a boundary value of 0.
    """
    shape = along[0].shape
    n, strides = along[0].size, [np.prod(shape[d + 1 :], dtype=int) for d in range(3)]
    S = scipy.sparse.diags_array(sum(1e-3 * c.ravel() for c in along))
    for c, stride in zip(along, strides, strict=True):
        there = np.arange(n) + stride
        inside = (there < n) & (there // stride % c.shape[0] != 0)
        here, there, c = np.flatnonzero(inside), there[inside], c.ravel()[inside]
        edges = scipy.sparse.coo_array((-c, (here, there)), shape=(n, n))
        ends = np.bincount(here, c, n) + np.bincount(there, c, n)
        S = S + edges + edges.T + scipy.sparse.diags_array(ends)
    return scipy.sparse.csr_array(S)


def graph(n: int) -> scipy.sparse.csr_array:
    """The Laplacian of a power-law graph, made definite by 1e-3 on the diagonal."""
    G = jsf.gallery.power_law(n, mean=8)
    G = abs(G) + abs(G).T
    G.setdiag(0)
    return scipy.sparse.csr_array(scipy.sparse.csgraph.laplacian(G) + 1e-3 * scipy.sparse.eye_array(n))


def cases(small: bool) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Makers of matrix and near-null space."""
    n, m, k = (20, 8, 12) if small else (100, 32, 46)
    one, blocks = np.ones((k, k, k)), (np.indices((k, k, k)) // 6).sum(axis=0) % 2
    elastic = lambda m: (jsf.gallery.elasticity(m), jsf.gallery.rigid_body_modes(grid(m)))  # noqa: E731
    made: dict[str, Any] = {
        f"7 points {n}³": lambda: (jsf.gallery.poisson(n), None),
        f"elasticity {m}³": lambda: elastic(m),
        f"anisotropic 1:100 {k}³": lambda: (diffusion([one, one, 0.01 * one]), None),
        f"jumps of 10⁶ {k}³": lambda: (diffusion([10.0 ** (6 * blocks)] * 3), None),
        f"power-law graph {k**3 // 5}": lambda: (graph(k**3 // 5), None),
    }
    for size in () if small else (46, 126, 200):
        made[f"7 points {size}³"] = lambda size=size: (jsf.gallery.poisson(size), None)
    for size in () if small else (12, 22):
        made[f"elasticity {size}³"] = lambda size=size: elastic(size)
    return made


def peak(f: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the bytes by which the process grew at most meanwhile, where Linux counts them."""

    def status(name: str) -> float:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(1024 * float(line.split()[1]) for line in lines if line.startswith(name))

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the process keeps would serve the set-up unseen
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = jax.block_until_ready(f())
    return result, status("VmHWM") - before


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
    M, grown = peak(lambda: precond.multigrid(A, B))
    if grown > 0.05 * A.nbytes:
        rows[-1]["peak"] = grown / A.nbytes
    del M
    if S.shape[0] > 1.1e6:
        return rows
    blocks = S if B is None else S.tobsr(blocksize=(3, 3))
    theirs, *setup = timed(lambda: pyamg.smoothed_aggregation_solver(blocks, B=B))
    residuals: list[float] = []
    _, *solve = timed(lambda: theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals))
    rows.append(row(name, "PyAMG", *setup, *solve, len(residuals) - 1, theirs.operator_complexity()))
    return rows


def deflation(m: int) -> list[Row]:
    """Steps to 1e-10 on elasticity of m³ nodes, with and without the rigid motions of eight subdomains."""
    points = grid(m)
    W = precond.subdomains(jsf.gallery.rigid_body_modes(points), (points >= m / 2) @ np.array([4, 2, 1]))
    A = jsf.from_scipy(jsf.gallery.elasticity(m, poisson_ratio=0.45), "bsr", block_shape=(3, 3))
    b, rows = np.random.default_rng(0).standard_normal(A.shape[0]), []
    step: dict[int, float] = {}
    for method, word in (("cg", 8), ("refine", 4)):
        solver = cg if method == "cg" else functools.partial(refine, dtype="float32")
        for side, M in (("jacobi", precond.jacobi(A)), ("jacobi, 48 modes", precond.coarse_space(A, W))):
            timed(lambda solver=solver, M=M: solver(A, b, M=M, rtol=1e-10))
            sol, *solve = timed(lambda solver=solver, M=M: solver(A, b, M=M, rtol=1e-10))
            stored = A.astype("float32" if word == 4 else "float64").nbytes
            modes = 2 * W.nnz * (word + 4) if "modes" in side else 0
            step[word] = traffic.bytes_moved(stored, A.shape, word) + modes + 10 * len(b) * word
            residuals = 0 if word == 8 else 2 + int(np.ceil(np.log(1e-10) / np.log(0.03)))
            moved = int(sol.iterations) * step[word]
            moved += residuals * (traffic.bytes_moved(A.nbytes, A.shape) + 6 * len(b) * 8)
            name = f"elasticity {m}³, Poisson's ratio 0.45, {method} to 1e-10"
            rows.append(row(name, side, np.nan, np.nan, *solve, int(sol.iterations), np.nan) | {"moved": moved / 1e9})
    return rows


def row(case: str, side: str, *figures: float) -> Row:
    names = ("setup", "setup_cpu", "solve", "solve_cpu", "iterations", "complexity")
    known = {name: figure for name, figure in zip(names, figures, strict=True) if not np.isnan(figure)}
    return {"case": case, "side": side} | known


def main(argv: list[str] | None = None) -> int:
    args = report.arguments(__doc__, dtypes=False).parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header = report.provenance()
    rows = [row for name, make in cases(args.small).items() for row in measure(name, *make())]
    rows += deflation(6 if args.small else 20)
    columns = [
        *(("case", "case"), ("", "side"), ("set-up s", "setup:.2f"), ("CPU s", "setup_cpu:.2f")),
        *(("solve s", "solve:.2f"), ("CPU s", "solve_cpu:.2f")),
        *(("iterations", "iterations"), ("operator complexity", "complexity:.2f")),
        *(("peak", "peak:.1f"), ("GB moved", "moved:.2f")),
    ]
    text = "\n".join([report.line(header), "", *report.markdown(rows, columns)])
    report.write(args.json, header, rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
