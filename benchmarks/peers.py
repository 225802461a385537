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
functions: eigenpairs, singular values, exp(A)·b, complex symmetric systems and null spaces of n³ unknowns, to each
library's own measure of 1e-8, SciPy's BLAS with one thread. The sides take turns in one process; "first" is the first
call, and a name alone the least of three later ones. CPU seconds on a CPU, wall seconds on a GPU, where CuPy joins.
"""

import argparse
import contextlib
import functools
import importlib
import statistics
import tempfile
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
from benchmarks.report import Row, child

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
    (cupy, sparse), linalg = report.theirs(), importlib.import_module("cupyx.scipy.sparse.linalg")
    A, c = sparse.csr_matrix(scipy.sparse.csr_matrix(S)), cupy.asarray(b)

    def solve() -> Any:
        x = linalg.cg(A, c, rtol=RTOL, maxiter=MAXITER)[0]
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
    return {name: timing.seconds_per_call(lambda _, f=f: jax.block_until_ready(f())) for name, f in calls.items()}


def calls(n: int) -> dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]]:
    """By name: a matrix of n³ rows; ours, of it and a vector; another library's, of its module, them too."""
    C, P = jsf.gallery.convection_diffusion(n, velocity=(0.02, 0.06, 0.1)), jsf.gallery.poisson(n)
    S = sp.random_array((n**3, n**2), density=0.1 / n, rng=np.random.default_rng(0))
    block = lambda b: b[:, None] ** np.arange(1, 5)  # noqa: E731
    tight = {"rtol": RTOL, "maxiter": MAXITER}
    return {
        "eigs, 4 of largest real part": same(C, "eigs", which="LR"),
        "eigs, 4 nearest to 0": same(C, "eigs", sigma=0.0),
        "eigsh, 4 largest": same(P, "eigsh"),
        "eigsh, 4 nearest to 0": same(P, "eigsh", sigma=0.0),
        "lobpcg, 4 largest to 1e-4": (
            P,
            lambda A, b: solvers.lobpcg(A, 4, X0=block(b), which="LA", tol=1e-4 / 12, maxiter=500),
            lambda lib, A, b: lib.lobpcg(A, block(b), tol=1e-4, maxiter=500),
        ),
        "svds, 4 largest": same(S, "svds"),
        "exp(-A)·b": (-C, solvers.expm_multiply, lambda lib, A, b: lib.expm_multiply(A, b)),
        "exp(-30·A)·b": (
            -C,
            lambda A, b: solvers.expm_multiply(A, b, 30.0),
            lambda lib, A, b: lib.expm_multiply(30 * A, b, traceA=30 * A.trace()),
        ),
        "cocg, beside bicgstab": (
            P - (0.3 + 0.2j) * sp.eye_array(n**3),
            lambda A, b: solvers.cocg(A, b, **tight),
            lambda lib, A, b: lib.bicgstab(A, b, **tight),
        ),
        "nullspace, beside eigsh": (
            scipy.sparse.csgraph.laplacian(sp.csr_array(6 * sp.eye_array(n**3) - P)),
            lambda A, b: solvers.nullspace(A, 1),
            lambda lib, A, b: lib.eigsh(A, 1, sigma=-1e-8, tol=RTOL),
        ),
    }


def same(S: Any, name: str, **options: Any) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """Four pairs or triplets of S, by the function that has this name here and elsewhere."""

    def call(lib: Any, A: Any, b: Any) -> Any:
        return getattr(lib, name)(A, 4, tol=RTOL, **options)

    return S, functools.partial(call, solvers), call


def beside(name: str, n: int) -> Row:
    """The seconds of a call, ours and others', first and later."""
    given, ours, theirs = calls(n)[name]
    S = sp.csr_array(given)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    A, c = jsf.from_scipy(S), jnp.asarray(b)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(c))
    sides: dict[str, Solve] = {"ours": lambda: ours(A, c), "SciPy": lambda: theirs(scipy.sparse.linalg, S, b)}
    if report.platform_here() == "gpu":
        (cupy, sparse), lib = report.theirs(), importlib.import_module("cupyx.scipy.sparse.linalg")
        B, x = sparse.csr_matrix(S), cupy.asarray(b)
        sides["CuPy"] = lambda: (theirs(lib, B, x), cupy.cuda.Device().synchronize())
    row: Row = {"n": n**3}
    for side in list(sides):
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # CuPy has not all of them
            row[f"{side}, first"] = timing.by_clock(*timing.timed(sides[side])[1:])
        if f"{side}, first" not in row:
            del sides[side]
    row |= {side: timing.by_clock(*both) for side, both in timing.in_turn(sides, 3).items()}
    return row | {"ratio": row["ours"] / row["SciPy"]}


# ----------------------------------------------------------------------------------------------------- the sections


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


def functions(n: int) -> Iterator[Row]:
    for name in calls(2):
        yield {"call": name} | child(beside, name, n)


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
    found |= {name: functools.partial(rows, 1 if args.small else 3) for name, rows in made.items()}
    return found | {"functions": functools.partial(functions, 6 if args.small else 24)}
