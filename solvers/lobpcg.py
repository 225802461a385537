"""Eigenpairs at an end of a Hermitian matrix's spectrum, with a preconditioner (Knyazev 2001).

`_lobpcg` has the loop, `eigsh` the result and the derivatives.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.core.vector_passes import noise
from solvers import _lobpcg
from solvers._lanczos import Limits
from solvers.core import arguments, program
from solvers.core.entry import Entry, entered
from solvers.eigsh import EigenSolution, differentiable

GUARDS, MAXITER = 3, 1000
SIGNS = {"SA": 1, "LA": -1}


class Plan(NamedTuple):
    """The static arguments: pairs, 1 for the smallest or −1, unknowns, vectors in a block, and their dtype."""

    k: int
    sign: int
    n: int
    count: int
    dtype: Any


@standard_promotion
def lobpcg(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    which: str = "SA",
    X0: Any = None,
    maxiter: int | None = None,
    tol: float = 0.0,
) -> EigenSolution:
    """k eigenvalues at an end of the spectrum of a symmetric (Hermitian) A, and their eigenvectors.

    With an M such as `precond.multigrid(A)` it finds the smallest eigenvalues of a discretised differential operator in
    a few steps, where `eigsh` is slow. It finds copies of an eigenvalue like any other eigenvalue. Works inside jit and
    vmap, and is differentiable as `eigsh` is.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v,
        which needs X0.
      k: the number of pairs, below n.
      M: a positive definite approximation of A⁻¹, or of (A − σ)⁻¹ with σ below the wanted values: anything with `@`,
        or a function r -> M·r. None: the identity.
      which: "SA" smallest, "LA" largest.
      X0: [n, p] to start from, p ≥ k; None draws k + 3 vectors, the same at every call. Vectors beyond k make the
        others converge faster.
      maxiter: most steps, each of p products and uses of M; None allows 1000.
      tol: pairs are done when ‖A·v − λ·v‖₂ ≤ tol·|λ|, or when the residual is rounding, a few eps·‖A‖₂; 0 iterates down
        to rounding.

    Returns:
      An `EigenSolution`, also `w, v = lobpcg(A)`; it counts steps as iterations.

    Raises:
      ValueError, TypeError: invalid arguments.
    """
    shape = getattr(A, "shape", None)
    X0 = None if X0 is None else arguments.vectors(X0, "X0")
    if X0 is not None and X0.ndim != 2:
        raise ValueError(f"X0 must be vectors as columns, (n, p); got shape {X0.shape}")
    if X0 is None and shape is None and callable(A):
        raise ValueError("A is a function, whose size is unknown; pass X0, vectors to start from")
    n = X0.shape[0] if X0 is not None else shape[0] if shape else 1
    A = arguments.linear_map(A, n, "A")
    k = arguments.eigenpair_count(k, n)
    if X0 is not None and not k <= X0.shape[1] <= n:
        raise ValueError(f"X0 has {X0.shape[1]} columns; k = {k} and n = {n} need from {k} to {n}")
    if which not in SIGNS:
        raise ValueError(f"which must be one of {', '.join(SIGNS)}; got {which!r}")
    own, basis = arguments.in_basis(A)
    like = jnp.zeros(n, getattr(A, "dtype", None)) if X0 is None else X0[:, 0]
    dtype = jnp.promote_types(arguments.result_dtype(own, arguments.vectors(like, "X0"), "A"), jnp.float32)
    M = arguments.preconditioner(M, jax.ShapeDtypeStruct((n,), dtype), "make X0 complex")
    limits = Limits(arguments.tolerance(tol, "tol"), arguments.maxiter(maxiter, MAXITER))
    X0 = None if X0 is None else basis.accept(X0).astype(dtype)
    plan = Plan(k, SIGNS[which], n, min(k + GUARDS, n) if X0 is None else X0.shape[1], jnp.dtype(dtype))
    return _solve(plan, (own, M), basis, X0, limits)


def _in_basis(plan: Plan, maps: tuple[Any, Any], basis: Basis, X0: Any, limits: Limits) -> EigenSolution:
    A, M = maps
    if X0 is None:
        n = basis.enter(jnp.zeros(plan.n, plan.dtype)).shape[0]
        noises = [noise(n, jnp.finfo(plan.dtype).dtype, seed) for seed in range(plan.count)]
        X = mesh_axes.varying(jnp.stack(noises).astype(plan.dtype), limits)  # as do all operands
    else:
        X = basis.enter(X0).T
    matvec = lambda v: arguments.apply(A, v).astype(plan.dtype)  # noqa: E731
    M = None if M is None else program.traced(entered(M, basis), X[0])
    loop = functools.partial(_lobpcg.run, plan.k, plan.sign)
    values, V, end = differentiable(loop, basis, matvec, X[0], (X, limits, M))
    return EigenSolution(values, basis.leave(V.T), end.code, end.cycles, end.products, end.residual_norms)


def _examples(plan: Plan, X0: Any) -> tuple[Any, Any]:
    column = jax.ShapeDtypeStruct((plan.n,), plan.dtype) if X0 is None else X0[:, 0]
    return column, column


_solve = Entry(_in_basis, _examples)
