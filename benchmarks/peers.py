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
import tempfile
from collections.abc import Iterator

from benchmarks import report
from benchmarks.report import Row

RTOL, WARM = 1e-8, 5

CHILD = """
import importlib, json, sys, time
import numpy as np
import scipy.sparse.linalg
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import jaxsparse_fmt as jsf
import solvers
from jax.experimental.sparse import BCSR

side, n, rtol, warm = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
jax.config.update("jax_enable_x64", True)
jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(8)))
S = jsf.gallery.poisson(n)
b = np.random.default_rng(0).standard_normal(S.shape[0])
format, wait = "csr", jax.block_until_ready

def ours(M):
    global format
    A = jsf.from_scipy(S)
    format, M = A.name, solvers.precond.multigrid(A) if M else None
    c = jnp.asarray(b)
    return lambda: solvers.cg(A, c, rtol=rtol, M=M, maxiter=10_000).x

def jax_scipy():
    A, c = BCSR.from_scipy_sparse(S), jnp.asarray(b)
    solve = jax.jit(lambda A, c: jax.scipy.sparse.linalg.cg(lambda v: A @ v, c, tol=rtol, maxiter=10_000)[0])
    return lambda: solve(A, c)

def cupy_cg():
    sparse = importlib.import_module("cupyx.scipy.sparse")
    cg = importlib.import_module("cupyx.scipy.sparse.linalg").cg
    A, c = sparse.csr_matrix(scipy.sparse.csr_matrix(S)), cupy.asarray(b)
    return lambda: cg(A, c, rtol=rtol, maxiter=10_000)[0]

def scipy_cg():
    return lambda: scipy.sparse.linalg.cg(S, b, rtol=rtol, atol=0.0, maxiter=10_000)[0]

if side == "CuPy":
    cupy = importlib.import_module("cupy")
    cupy.ones(8) + 1
    wait = lambda x: cupy.cuda.Device().synchronize()
prepare = {
    "jaxsparse": lambda: ours(False),
    "jaxsparse, multigrid": lambda: ours(True),
    "jax.scipy": jax_scipy,
    "CuPy": cupy_cg,
    "SciPy": scipy_cg,
}[side]

def seconds(f):
    wall, cpu = time.perf_counter(), time.process_time()
    result = f()
    wait(result)
    return result, time.perf_counter() - wall, time.process_time() - cpu

def first():
    global solve
    solve = prepare()
    return solve()

x, *cold = seconds(first)
times = [seconds(solve)[1:]]
while len(times) < warm and sum(wall for wall, _ in times) < 10:
    times.append(seconds(solve)[1:])
least = [min(column) for column in zip(*times)]
x = np.asarray(x.get() if side == "CuPy" else x)
true = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
row = {"format": format, "cold s": cold[0], "warm s": least[0], "cold cpu s": cold[1], "warm cpu s": least[1]}
print(json.dumps(row | {"residual": true}))
"""


def solved(side: str, n: int, cache: str | None = None) -> Row:
    """What a fresh process measures; `cache` as in `report.fresh`."""
    return report.fresh(CHILD, side, n, RTOL, WARM, cache=cache)


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
