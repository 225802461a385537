"""Every stage of work with a matrix on one GPU, first call and later ones, beside CuPy's.

    python -m benchmarks device --json out.json          some three minutes on an H100

"First" includes compiling; "again" is the best of several calls: those that find patterns with a copy of the matrix,
for which nothing is kept; products 20 at a time. Conversions begin with SciPy's matrix on the host, or with CSR on the
GPU. All is in float64, or complex128. CuPy's time is that of the same work. Runs on a CPU too, to try the script.
"""

import argparse
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from benchmarks import report, timing
from benchmarks.algebra import scattered
from benchmarks.report import Row
from solvers import precond

Call = Callable[[], Any]


def seconds(run: Call, wait: Callable[[Any], Any], flights: int) -> tuple[float, float]:
    """Seconds of the first call, and the least seconds of a call in later rounds of `flights` calls."""
    _, first, _ = timing.timed(lambda: wait(run()))
    again, _ = timing.least(lambda: wait([run() for _ in range(flights)]), enough=2)
    return first, again / flights


def row(name: str, run: Call, theirs: Call | None = None, flights: int = 1) -> Row:
    def wait(_: Any) -> None:
        _cupy().cuda.Device().synchronize()

    first, again = seconds(run, jax.block_until_ready, flights)
    peer = seconds(theirs, wait, flights)[1] if theirs and _on_gpu() else math.nan
    return {"what": name, "first s": first, "again ms": again * 1e3, "CuPy ms": peer * 1e3, "ratio": again / peer}


def _on_gpu() -> bool:
    return report.platform_here() == "gpu"


def _cupy() -> Any:
    return importlib.import_module("cupy")


def in_cupy(S: Any) -> Any:
    """The matrix as CuPy's CSR; None where there is no GPU."""
    return importlib.import_module("cupyx.scipy.sparse").csr_matrix(sp.csr_matrix(S)) if _on_gpu() else None


def fresh(A: Any) -> Any:
    """A copy with index arrays of its own, for which nothing is kept."""
    return jax.tree.map(jnp.copy, A)


def conversions(n: int, k: int) -> Iterator[Row]:
    S = jsf.gallery.poisson(2 * n)
    A = jsf.from_scipy(S, "csr")
    row_ids, col_ids, n_rows = scattered(k)
    r, c, v = jnp.asarray(row_ids), jnp.asarray(col_ids), jnp.ones(k)
    shape = n_rows, n_rows
    yield row(f"from_scipy, 7 points {2 * n}³", lambda: jsf.from_scipy(S).values, lambda: in_cupy(S))
    yield row(f"asformat('auto'), 7 points {2 * n}³", lambda: fresh(A).asformat("auto").values)
    coo: Any = importlib.import_module("cupyx.scipy.sparse").coo_matrix if _on_gpu() else None
    w, i, j = map(_cupy().asarray if _on_gpu() else np.asarray, (np.ones(k), row_ids, col_ids))

    def tocsr() -> Any:
        return coo((w, (i, j)), shape=shape).tocsr()

    yield row(f"assembly of {k:.0e} triplets", lambda: jsf.assembly(r, c, shape, "csr")(v).values, tocsr)
    yield row(f"from_coo of {k:.0e} triplets", lambda: jsf.from_coo(r, c, v, shape, "csr").values, tocsr)


def algebra(n: int, m: int) -> Iterator[Row]:
    side = m * 20 // 32
    S, F, G = jsf.gallery.poisson(n), jsf.gallery.elasticity(m), jsf.gallery.elasticity(side)
    T = sp.csr_array((np.ones(n**3), np.arange(n**3) // 8, np.arange(n**3 + 1)))
    for name, a, b in (
        (f"A @ A, 7 points {n}³", S, S),
        ("A @ T, with aggregates of 8", S, T),
        (f"A @ A, FEM {side}³ × 3", G, G),
    ):
        (A, C), (B, D) = ((jsf.from_scipy(M, "csr"), in_cupy(M)) for M in (a, b))
        yield row(name, lambda A=A, B=B: fresh(A) @ fresh(B), lambda C=C, D=D: C @ D)
    for name, a in ((f"7 points {n}³", S), (f"FEM {m}³ × 3", F)):
        A, C = jsf.from_scipy(a, "csr"), in_cupy(a)
        yield row(f"A + A.T, {name}", lambda A=A: fresh(A) + fresh(A).T, lambda C=C: C + C.T.tocsr())


def preconditioners(n: int) -> Iterator[Row]:
    for side in (n, 2 * n):
        A = jsf.from_scipy(jsf.gallery.poisson(side))
        b = jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0]))
        yield row(f"precond.multigrid, 7 points {side}³", lambda A=A: precond.multigrid(fresh(A)))
        M = precond.multigrid(A)
        steps = int(solvers.cg(A, b, M=M, rtol=1e-8).iterations)
        yield row(f"cg with it, {steps} steps", lambda A=A, b=b, M=M: solvers.cg(A, b, M=M, rtol=1e-8).x)
        yield row(f"cg without, 7 points {side}³", lambda A=A, b=b: solvers.cg(A, b, rtol=1e-8).x)
    A = jsf.from_scipy(jsf.gallery.poisson(n * 64 // 100), "csr")
    yield row(f"precond.incomplete_lu, {A.shape[0]} unknowns", lambda: precond.incomplete_lu(fresh(A)))


def products(n: int, m: int, nodes: int) -> Iterator[Row]:
    S, W = jsf.gallery.poisson(n), jsf.gallery.power_law(nodes)
    yield from of_matrix(f"FEM {m}³ × 3", jsf.gallery.elasticity(m))
    for name, M in ((f"7 points {n}³", S), (f"power law {nodes:,}", W)):
        yield from of_matrix(name, M)
        yield from of_functions(name, M)


def of_matrix(name: str, S: Any) -> Iterator[Row]:
    many = functools.partial(row, flights=20)
    times, turned = jax.jit(lambda A, x: A @ x), jax.jit(lambda A, x: A.T @ x)
    A, both, C, n = jsf.from_scipy(S), jsf.from_scipy(S, transpose=True), in_cupy(S), S.shape[0]
    x, u = jnp.ones(n), _cupy().ones(n) if _on_gpu() else None
    yield many(f"A @ x, {name}", lambda: times(A, x), lambda: C @ u)
    yield many(f"A.T @ x, {name}", lambda: turned(A, x), lambda: C.T @ u)
    yield many(f"A.T @ x, transpose=True, {name}", lambda: turned(both, x), lambda: C.T @ u)
    Z = (sp.csr_array(S) * (1 + 0.5j)).tocsr()
    AZ, CZ, z = jsf.from_scipy(Z), in_cupy(Z), x + 1j
    w = _cupy().ones(n, complex) if _on_gpu() else None
    yield many(f"complex A @ x, {name}", lambda: times(AZ, z), lambda: CZ @ w)


def of_functions(name: str, S: Any) -> Iterator[Row]:
    many, A, n = functools.partial(row, flights=20), jsf.from_scipy(S), S.shape[0]
    x, X = jnp.ones(n), jnp.ones((n, 8))
    times, across = jax.jit(lambda A, x: A @ x), jax.jit(jax.vmap(lambda A, x: A @ x, (None, 0)))
    yield many(f"A @ X of 8 columns, {name}", lambda: times(A, X))
    yield many(f"vmap over 8, {name}", lambda: across(A, X.T))
    d, loss = A.data, lambda d, A: jnp.sum((A.with_data(d) @ x) ** 2)
    inside, passed = jax.jit(jax.grad(lambda d: loss(d, A))), jax.jit(jax.grad(loss))
    yield many(f"gradient by data, A in a closure, {name}", lambda: inside(d))
    yield many(f"gradient by data, A passed, {name}", lambda: passed(d, A))


def solves(n: int, nodes: int) -> Iterator[Row]:
    W = jsf.gallery.power_law(nodes)
    out = 1 / np.maximum(abs(W).sum(axis=1), 1e-30)
    walk = sp.csr_array(sp.eye_array(nodes) - 0.85 * sp.diags_array(out) @ W)
    side = n * 64 // 100
    for name, A in (
        (f"convection {side}³", jsf.from_scipy(jsf.gallery.convection_diffusion(side))),
        (f"power law {nodes:,}, transpose=True", jsf.from_scipy(walk, transpose=True)),
    ):
        b, d = jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0])), A.data
        for method in (solvers.bicgstab, solvers.gmres):
            solve = functools.partial(method, b=b, rtol=1e-8)
            alone = row(f"{method.__name__}, {name}", functools.partial(solve, A))
            loss = jax.value_and_grad(lambda d, A, solve=solve: jnp.sum(solve(A.with_data(d)).x ** 2))
            both = row(f"value and gradient of {method.__name__}, {name}", functools.partial(jax.jit(loss), d, A))
            both["what"] += f": {both['again ms'] / alone['again ms']:.1f} solves"
            yield from (alone, both)


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    n, m, nodes, k = (8, 4, 2000, 10_000) if args.small else (100, 32, 1_000_000, 10_000_000)
    return {
        "conversions": lambda: conversions(n, k),
        "algebra": lambda: algebra(n, m),
        "preconditioners": lambda: preconditioners(n),
        "products": lambda: products(n, m, nodes),
        "solves": lambda: solves(n, nodes),
    }
