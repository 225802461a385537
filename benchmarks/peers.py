"""One solve as users call it, cold and warm, beside CuPy, jax.scipy and SciPy.

    python -m benchmarks peers --json out.json     on a GPU, or with JAX_PLATFORMS=cpu on a CPU; about a minute each

Conjugate gradients to ‖b − A·x‖ ≤ 1e-8·‖b‖ in float64 for the 7-point Poisson problem on n³ points; b is white noise of
seed 0, which favours no method. Each side runs in a process of its own. "cold" is the first solve of that process, wall
seconds from SciPy's matrix on the host to the answer: conversion, compiling and solving, once the library is imported
and the device has run a first small program. "kept" is the same with JAX's programs on disk from an earlier process.
"warm" is the least of several later solves with the same matrix. "cpu" sums the processor's seconds of all threads,
which other processes disturb less. The caches of CuPy and of Numba stay as they are:
the first process of a side fills them, the second one counts.
"""

import argparse
import functools
import importlib
import json
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jax.experimental.sparse import BCSR
from jax.scipy.sparse.linalg import cg as cg_of_jax

import jaxsparse_fmt as jsf
import solvers
from benchmarks import report, timing
from benchmarks.report import Row

RTOL, MAXITER = 1e-8, 10_000
Solve = Callable[[], Any]


def ours(S: Any, b: np.ndarray, multigrid: bool = False) -> Solve:
    A, c = jsf.from_scipy(S), jnp.asarray(b)
    M = solvers.precond.multigrid(A) if multigrid else None
    return lambda: solvers.cg(A, c, rtol=RTOL, M=M, maxiter=MAXITER).x


def by_jax(S: Any, b: np.ndarray) -> Solve:
    A, c = BCSR.from_scipy_sparse(S), jnp.asarray(b)
    solve = jax.jit(lambda A, c: cg_of_jax(lambda v: A @ v, c, tol=RTOL, maxiter=MAXITER)[0])
    return lambda: solve(A, c)


def by_cupy(S: Any, b: np.ndarray) -> Solve:
    cupy, sparse = importlib.import_module("cupy"), importlib.import_module("cupyx.scipy.sparse")
    cg = importlib.import_module("cupyx.scipy.sparse.linalg").cg
    A, c = sparse.csr_matrix(scipy.sparse.csr_matrix(S)), cupy.asarray(b)

    def solve() -> Any:
        x = cg(A, c, rtol=RTOL, maxiter=MAXITER)[0]
        cupy.cuda.Device().synchronize()
        return x

    return solve


def by_scipy(S: Any, b: np.ndarray) -> Solve:
    return lambda: scipy.sparse.linalg.cg(S, b, rtol=RTOL, atol=0.0, maxiter=MAXITER)[0]


SIDES: dict[str, Callable[[Any, np.ndarray], Solve]] = {
    "jaxsparse": ours,
    "jaxsparse, multigrid": functools.partial(ours, multigrid=True),
    "jax.scipy": by_jax,
    "CuPy": by_cupy,
    "SciPy": by_scipy,
}


def child(side: str, n: int) -> None:
    """Prints, as JSON, what a side takes in this process."""
    jax.config.update("jax_enable_x64", True)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(8)))
    if side == "CuPy":
        _ = importlib.import_module("cupy").ones(8) + 1
    S = jsf.gallery.poisson(n)
    b = np.random.default_rng(0).standard_normal(S.shape[0])

    def first() -> tuple[Solve, Any]:
        solve = SIDES[side](S, b)
        return solve, solve()

    (solve, x), *cold = timing.timed(first)
    wall, cpu = timing.least(solve, enough=10)
    x = np.asarray(x.get() if side == "CuPy" else x)
    residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
    row = {"cold s": cold[0], "warm s": wall, "cold cpu s": cold[1], "warm cpu s": cpu, "residual": residual}
    print(json.dumps(row))


def solved(side: str, n: int, cache: str | None = None) -> Row:
    """What a fresh process measures; `cache` as in `report.fresh`."""
    return report.fresh(f"from benchmarks.peers import child; child({side!r}, {n})", cache=cache)


def solves(n: int) -> Iterator[Row]:
    on_gpu = report.platform_here() == "gpu"
    solved("jaxsparse, multigrid", 8)  # fills the caches of Numba
    if on_gpu:
        solved("CuPy", 8)
    for side in ("jaxsparse", "jaxsparse, multigrid", "jax.scipy", *["CuPy"] * on_gpu, "SciPy"):
        row = solved(side, n)
        if side.startswith("jaxsparse"):
            with tempfile.TemporaryDirectory() as cache:
                solved(side, n, cache)
                kept = solved(side, n, cache)
                row |= {"kept s": kept["cold s"], "kept cpu s": kept["cold cpu s"]}
        yield {"problem": f"7-point {n}³", "side": side} | row


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    return {"solves": functools.partial(solves, 8 if args.small else 100)}
