"""Conjugate gradients (Hestenes and Stiefel 1952; Cevahir et al., Algorithm 1; Saad, Iterative Methods, Algorithm 9.1).

Traffic of a step without preconditioner, in vectors of n: the product reads p and writes q, with pᵀq on the way where
rows are short (2n more where not); r reads 2 and writes 1, with rᵀr; x and p read 3 and write 2. 10n in passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxsparse_fmt.vectors import Number, Pass, dot, joined, sweep, total
from solvers._iterate import Map, Method, product_dot, ratio, status_of
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
    gamma: Number  # rᵀ·u
    delta: Number  # uᵀ·w
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
      x0: as b, where to start; None starts from zero, as does an x0 whose residual is 1024 times b or more.
      M: an approximation of A⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      rtol, atol: stop when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual.
      maxiter: most iterations; None allows 10·n.
      history: keep the residual norms; True keeps up to 10,000, a number that many.
      callback: called as callback(x) after every iteration, as in SciPy; copies x to the host each time.
      progress: called as progress(iterations, residual_norm) about every 16 iterations.
      check_every: iterations between checks; None takes 1 on a CPU and 10 on a GPU, where a check waits for a copy to
        the host. It changes neither the answer nor the reported number of iterations.
      one_reduction: the form with one reduction a step instead of two or three (Chronopoulos and Gear 1989): for many
        devices, where a reduction waits for all. It reads and writes 4 vectors more, and its pᵀ·A·p is a difference:
        in float32, from a condition number of about 1e7, that may come out negative, and A be called not definite.

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
    gamma = total(dot(r, z))
    p = z if last is None else last.p + ratio(gamma - total(dot(r, last.p)), gamma).astype(r.dtype) * z
    return Work(jnp.zeros_like(r), r, p, gamma)


def step(A: Map, M: Map, work: Work, active: Array) -> tuple[Work, Array, Array]:
    x, r, p, gamma = work
    q, curvature = product_dot(A, p)
    (r,), (curvature, alpha, moves), (rr,) = sweep(DESCEND, (gamma, curvature, active), (r, q))
    z = M(r)
    rz = rr if z is r else dot(r, z)
    (x, p), (squared, gamma_new, *_), _ = sweep(TURN, (gamma, alpha, moves, rr, rz), (x, p, z))
    return Work(x, r, p, gamma_new), jnp.sqrt(squared), code(gamma, curvature)


def _descend(gamma, curvature, active):
    return curvature, gamma / curvature, active & definite(gamma, curvature)


def _descend_each(scalars, r, q):
    _, alpha, moves = scalars
    r = jnp.where(moves, r - alpha * q, r)
    return (r,), ((r, r),)


def _turn(gamma, alpha, moves, rr, rz):
    return rr, jnp.where(moves, rz, gamma), alpha, moves, rz / gamma


def _turn_each(scalars, x, p, z):
    _, _, alpha, moves, beta = scalars
    return (jnp.where(moves, x + alpha * p, x), jnp.where(moves, z + beta * p, p)), ()


DESCEND = Pass(_descend, _descend_each)
TURN = Pass(_turn, _turn_each)


def definite(gamma: Array, curvature: Array) -> Array:
    """Whether `code` lets go on."""
    largest = jnp.finfo(gamma.dtype).max
    return (gamma > 0) & (curvature > 0) & (gamma <= largest) & (curvature <= largest)


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
    w, delta = product_dot(A, u)
    gamma, delta = joined(dot(r, u), delta)
    zero = jnp.zeros_like(r)
    one = jnp.ones_like(total(gamma))
    return MergedWork(zero, r, zero, zero, u, w, gamma, delta, jnp.inf * one, one)


def step_merged(A: Map, M: Map, work: MergedWork, active: Array) -> tuple[MergedWork, Array, Array]:
    """Chronopoulos and Gear 1989, §2; pᵀ·A·p = δ − β·γ / α of the last step. Over devices all sums travel at once."""
    x, r, p, s, u, w, gamma, delta, last_gamma, last_alpha = work
    numbers = gamma, delta, last_gamma, last_alpha, active
    (x, r, p, s), (gamma, curvature, last_gamma, last_alpha, *_), (rr,) = sweep(ADVANCE, numbers, (x, r, p, s, u, w))
    u = M(r)
    w, delta = product_dot(A, u)
    rr, rz, delta = joined(rr, rr if u is r else dot(r, u), delta)
    return MergedWork(x, r, p, s, u, w, rz, delta, last_gamma, last_alpha), jnp.sqrt(total(rr)), code(gamma, curvature)


def _advance(gamma, delta, last_gamma, last_alpha, active):
    beta = gamma / last_gamma
    curvature = delta - beta * gamma / last_alpha
    alpha, moves = gamma / curvature, active & definite(gamma, curvature)
    return gamma, curvature, jnp.where(moves, gamma, last_gamma), jnp.where(moves, alpha, last_alpha), beta, moves


def _advance_each(scalars, x, r, p, s, u, w):
    _, _, _, alpha, beta, moves = scalars
    p, s = jnp.where(moves, u + beta * p, p), jnp.where(moves, w + beta * s, s)
    x, r = jnp.where(moves, x + alpha * p, x), jnp.where(moves, r - alpha * s, r)
    return (x, r, p, s), ((r, r),)


ADVANCE = Pass(_advance, _advance_each)
METHOD = Method(start, step, keeps=True)
ONE_REDUCTION = Method(start_merged, step_merged)
