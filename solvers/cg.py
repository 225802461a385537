"""Conjugate gradients (Hestenes and Stiefel 1952; Cevahir et al., Algorithm 1; Saad, Iterative Methods, Algorithm 9.1).

Traffic of a step without preconditioner, in vectors of n: the product reads p and writes q; pᵀq reads 2; x and r read
4 and write 2, with rᵀr on the way; p reads 2 and writes 1. 13n with nothing fused, 11n as XLA fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers._iterate import Map, Method, dot, norm, status_of
from solvers._solve import solve
from solvers.solution import Solution, Status

Array = jax.Array


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual b − A·x by recursion
    p: Array  # [n] direction
    gamma: Array  # rᵀ·M·r


class MergedWork(NamedTuple):
    x: Array
    r: Array
    p: Array
    s: Array  # [n] A·p
    u: Array  # [n] M·r
    w: Array  # [n] A·u
    gamma: Array  # rᵀ·u
    delta: Array  # uᵀ·w
    last_gamma: Array  # of the step before
    last_alpha: Array


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    history: bool | int = False,
    callback: Callable[[Array], None] | None = None,
    progress: Callable[[int, float], None] | None = None,
    check_every: int | None = None,
    one_reduction: bool = False,
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A.

    Works inside jit, vmap and grad. Differentiable in b and in A's values to any order, by implicit differentiation:
    the derivative of a solve is a solve with the same A, M, rtol and maxiter. It is NaN where that solve breaks down.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
        A matrix is an argument of the compiled solver, which serves every other of its layout shape. A function, or
        a matrix that is no pytree, is traced and compiled anew at each call outside jit.
      b: [n], or [n, k] for k systems at once: they share every product, and each starts, counts and ends by itself.
      x0: as b, where to start; None starts from zero.
      M: an approximation of A⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      rtol, atol: stop when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual.
      maxiter: most iterations; None allows 10·n.
      history: keep the residual norms; True keeps up to 10,000, a number that many.
      callback: called as callback(x) after every iteration, as in SciPy; copies x to the host each time.
      progress: called as progress(iterations, residual_norm) about every 16 iterations.
      check_every: iterations between checks; None takes 1 on a CPU and 10 on a GPU, where a check waits for a copy to
        the host. It changes neither the answer nor the reported number of iterations.
      one_reduction: the form with one reduction a step instead of two or three (Chronopoulos and Gear 1989): for many
        devices, where a reduction waits for all. It reads and writes 4 vectors more, and rounds a little differently.

    Returns:
      A `Solution`. Its status says how the solve ended; x is finite whatever happens.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    method = ONE_REDUCTION if one_reduction else METHOD
    return solve(method, A, b, x0, M, rtol, atol, maxiter, history, callback, progress, check_every)


def start(A: Map, M: Map, r: Array, last: Work | None) -> Work:
    """From a residual alone, or in the last direction, its part along M·r replaced: rᵀ·p = rᵀ·M·r as in a step.

    The latter is a reliable update (Clark et al. 2010, §5): a restart would forget what the directions were conjugate
    to, and converge as slowly as at first.
    """
    del A
    z = M(r)
    gamma = dot(r, z)
    p = z if last is None else last.p + ((gamma - dot(r, last.p)) / gamma).astype(r.dtype) * z
    return Work(jnp.zeros_like(r), r, p, gamma)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, p, gamma = work
    q = A(p)
    curvature = dot(p, q)
    alpha = gamma / curvature
    x, r = x + alpha * p, r - alpha * q
    z = M(r)
    gamma_new = dot(r, z)
    p = z + (gamma_new / gamma) * p
    return Work(x, r, p, gamma_new), norm(r), code(gamma, curvature)


def code(gamma: Array, curvature: Array) -> Array:
    """What rᵀ·M·r and pᵀ·A·p tell, both positive where A and M are definite."""
    return status_of(
        (~jnp.isfinite(gamma) | ~jnp.isfinite(curvature), Status.NON_FINITE),
        ((gamma < 0) | (curvature < 0), Status.NOT_POSITIVE_DEFINITE),
        ((gamma == 0) | (curvature == 0), Status.BREAKDOWN),
    )


def start_merged(A: Map, M: Map, r: Array, last: None) -> MergedWork:
    del last
    u = M(r)
    w, zero = A(u), jnp.zeros_like(r)
    gamma = dot(r, u)
    return MergedWork(zero, r, zero, zero, u, w, gamma, dot(u, w), jnp.full_like(gamma, jnp.inf), jnp.ones_like(gamma))


def step_merged(A: Map, M: Map, work: MergedWork) -> tuple[MergedWork, Array, Array]:
    """Chronopoulos and Gear 1989, §2; pᵀ·A·p = δ − β·γ / α of the last step."""
    x, r, p, s, u, w, gamma, delta, last_gamma, last_alpha = work
    beta = gamma / last_gamma
    curvature = delta - beta * gamma / last_alpha
    alpha = gamma / curvature
    p, s = u + beta * p, w + beta * s
    x, r = x + alpha * p, r - alpha * s
    u = M(r)
    w = A(u)
    new = MergedWork(x, r, p, s, u, w, dot(r, u), dot(u, w), gamma, alpha)
    return new, norm(r), code(gamma, curvature)


METHOD = Method(start, step, keeps=True)
ONE_REDUCTION = Method(start_merged, step_merged)
