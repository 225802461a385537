"""Solves as users call them, cold and warm, and the first calls of a process, beside CuPy, jax.scipy, lineax and SciPy.

    python -m benchmarks peers --only solves --json out.json      on a GPU, or with JAX_PLATFORMS=cpu; a minute each
    python -m benchmarks peers --json out.json                    all; on two cores some six minutes

Every side runs in a process of its own. "cpu" sums the processor's seconds of all threads, which other processes
disturb less. The caches of CuPy and of Numba stay as they are: a process before the first row fills them.

solves: conjugate gradients to ‖b − A·x‖ ≤ 1e-8·‖b‖ in float64 for the 7-point Poisson problem on n³ points; b is white
noise of seed 0, which favours no method. "cold" is the first solve of a process, wall seconds from SciPy's matrix on
the host to the answer: conversion, compiling and solving, once the library is imported and the device has run a first
small program. "kept" is the same with JAX's programs on disk from an earlier process. "warm" is the least of several
later solves with the same matrix.
first calls: CPU seconds of the first call of a jitted function, from tracing to the answer; "ratio" is to jax.scipy's.
Peers solve with the same matrix, as a function v -> A @ v. Medians of three, in which the sides take turns.
"""

import argparse
import functools
import importlib
import statistics
import tempfile
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as peer
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg
from jax.experimental.sparse import BCSR

import jaxsparse_fmt as jsf
import solvers
from benchmarks import report, timing
from benchmarks.report import Row

RTOL, MAXITER = 1e-8, 10_000
SIDES = ("ours", "jax.scipy", "lineax")
SOLVES = (("cg", ""), ("gmres", ""), ("bicgstab", ""), ("cg", "grad"), ("gmres", "grad"), ("cg", "hessian"))
IMPORTS = """
import json, time
began = time.time()
import jax; jax.config.update("jax_enable_x64", True)
imported = time.time()
import jax.numpy, jax.scipy.sparse.linalg, numpy, scipy.sparse
before = time.time()
import jaxsparse_fmt
print(json.dumps({"jax": imported - began, "library": time.time() - before}))
"""
Solve = Callable[[], Any]


def ours(S: Any, b: np.ndarray, multigrid: bool = False) -> Solve:
    A, c = jsf.from_scipy(S), jnp.asarray(b)
    M = solvers.precond.multigrid(A) if multigrid else None
    return lambda: solvers.cg(A, c, rtol=RTOL, M=M, maxiter=MAXITER).x


def by_jax(S: Any, b: np.ndarray) -> Solve:
    A, c = BCSR.from_scipy_sparse(S), jnp.asarray(b)
    solve = jax.jit(lambda A, c: peer.cg(lambda v: A @ v, c, tol=RTOL, maxiter=MAXITER)[0])
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


LIBRARIES: dict[str, Callable[[Any, np.ndarray], Solve]] = {
    "jaxsparse": ours,
    "jaxsparse, multigrid": functools.partial(ours, multigrid=True),
    "jax.scipy": by_jax,
    "CuPy": by_cupy,
    "SciPy": by_scipy,
}


# ----------------------------------------------------------------------------------------- what runs in other processes


def cold(side: str, n: int) -> Row:
    """The seconds of a side in this process."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(8)))
    if side == "CuPy":
        _ = importlib.import_module("cupy").ones(8) + 1
    S = jsf.gallery.poisson(n)
    b = np.random.default_rng(0).standard_normal(S.shape[0])

    def first() -> tuple[Solve, Any]:
        solve = LIBRARIES[side](S, b)
        return solve, solve()

    (solve, x), *first_call = timing.timed(first)
    _, wall, cpu = timing.least(solve, enough=10)
    x = np.asarray(x.get() if side == "CuPy" else x)
    residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
    return {"cold s": first_call[0], "warm s": wall, "cold cpu s": first_call[1], "warm cpu s": cpu} | {
        "residual": residual
    }


def chain(n: int) -> tuple[Any, jax.Array]:
    S = sp.diags_array([4 * np.ones(n), -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1])
    return jsf.from_scipy(sp.csr_array(S), "csr"), jnp.ones(n)


def first_call(n: int, side: str, method: str, of: str = "") -> Row:
    """The seconds of the first call of a solver, or of a derivative of it, in this process."""
    A, b = chain(n)
    jax.block_until_ready((jax.jit(lambda x: x + 1)(b), A @ b))

    def x_of(A: Any, b: jax.Array) -> jax.Array:
        if side == "ours":
            return getattr(solvers, method)(A, b, rtol=RTOL).x
        if side == "jax.scipy":
            return getattr(peer, method)(lambda v: A @ v, b, tol=RTOL)[0]
        tags = lineax.positive_semidefinite_tag if method == "cg" else ()
        operator = lineax.FunctionLinearOperator(lambda v: A @ v, jax.ShapeDtypeStruct(b.shape, b.dtype), tags)
        solver = {"cg": lineax.CG, "gmres": lineax.GMRES, "bicgstab": lineax.BiCGStab}[method](RTOL, 0.0)
        return lineax.linear_solve(operator, b, solver, throw=False).value

    def loss(data: jax.Array) -> jax.Array:
        return jnp.sum(x_of(A.with_data(data), b) ** 2)

    lineax: Any = importlib.import_module("lineax") if side == "lineax" else None
    d = jnp.ones_like(A.data)
    call: dict[str, Solve] = {
        "": lambda: jax.jit(x_of)(A, b),
        "grad": lambda: jax.jit(jax.grad(loss))(A.data),
        "hessian": lambda: jax.jit(lambda data: jax.jvp(jax.grad(loss), (data,), (d,)))(A.data),
    }
    _, wall, cpu = timing.timed(call[of])
    return {"wall": wall, "cpu": cpu}


def eager() -> Row:
    """The least seconds of warm calls outside of jit."""
    A, b = chain(1000)
    dense, v, S, c = jnp.eye(32), jnp.ones(32), A.to_scipy(), np.ones(1000)
    calls: dict[str, Solve] = {
        "A @ x": lambda: A @ b,
        "A.T @ x": lambda: A.T @ b,
        "dense @ x (32 × 32)": lambda: dense @ v,
        "A.with_data(A.data)": lambda: A.with_data(A.data),
        "cg": lambda: solvers.cg(A, b, rtol=RTOL).x,
        "SciPy's cg": lambda: scipy.sparse.linalg.cg(S, c, rtol=RTOL)[0],
    }
    for f in calls.values():
        jax.block_until_ready(f())
    return {
        name: min(timeit.repeat(lambda f=f: jax.block_until_ready(f()), number=100, repeat=7)) / 100
        for name, f in calls.items()
    }


# ----------------------------------------------------------------------------------------------------- the sections


def child(f: Callable[..., Row], *args: Any, cache: str | None = None) -> Row:
    """f(*args) of a fresh process; `cache` as in `report.fresh`."""
    code = f"import jax, json; jax.config.update('jax_enable_x64', True); from benchmarks.peers import {f.__name__}; "
    return report.fresh(code + f"print(json.dumps({f.__name__}{args!r}))", cache=cache)


def medians(found: list[Row]) -> Row:
    return {name: statistics.median(f[name] for f in found) for name in found[0]}


def solves(n: int) -> Iterator[Row]:
    on_gpu = report.platform_here() == "gpu"
    child(cold, "jaxsparse, multigrid", 8)  # fills the caches of Numba
    if on_gpu:
        child(cold, "CuPy", 8)
    for side in ("jaxsparse", "jaxsparse, multigrid", "jax.scipy", *["CuPy"] * on_gpu, "SciPy"):
        row = child(cold, side, n)
        if side.startswith("jaxsparse"):
            with tempfile.TemporaryDirectory() as cache:
                child(cold, side, n, cache=cache)
                kept = child(cold, side, n, cache=cache)
                row |= {"kept s": kept["cold s"], "kept cpu s": kept["cold cpu s"]}
        yield {"problem": f"7-point {n}³", "side": side} | row


def first_calls(rounds: int) -> Iterator[Row]:
    child(first_call, 400, "ours", "cg", "hessian")  # Numba compiles
    for method, form in SOLVES:
        found = [{side: child(first_call, 400, side, method, form)["cpu"] for side in SIDES} for _ in range(rounds)]
        cpu, name = medians(found), {"": method, "grad": f"grad of {method}", "hessian": f"hessian·v of {method}"}[form]
        yield {"call": name} | cpu | {"ratio": cpu["ours"] / cpu["jax.scipy"]}


def others(rounds: int) -> list[Row]:
    call = functools.partial(child, first_call, 1000, "ours", "cg")
    with tempfile.TemporaryDirectory() as cache:
        call(cache=cache)
        kept = medians([call(cache=cache) for _ in range(rounds)])
    cold, imports = medians([call() for _ in range(rounds)]), medians([report.fresh(IMPORTS) for _ in range(rounds)])
    rows = [
        {"what": "import jax", "seconds": imports["jax"]},
        {"what": "import jaxsparse_fmt, after that", "seconds": imports["library"]},
        {"what": "first cg, n = 1000, wall", "seconds": cold["wall"]},
        {"what": "first cg, n = 1000, programs kept, wall", "seconds": kept["wall"]},
    ]
    return rows + [{"what": f"{name}, warm", "seconds": s} for name, s in child(eager).items()]


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    made = {"first calls, n = 400": first_calls, "starts and warm calls": others}
    found: report.Sections = {"solves": functools.partial(solves, 8 if args.small else 100)}
    return found | {name: functools.partial(rows, 1 if args.small else 3) for name, rows in made.items()}
