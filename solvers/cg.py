"""Conjugate gradients (Hestenes and Stiefel 1952; Cevahir et al., Algorithm 1; Saad, Iterative Methods, Algorithm 9.1).

Traffic of a step without preconditioner, in vectors of n: the product reads p and writes q; pᵀq reads 2; x and r read
4 and write 2, with rᵀr on the way; p reads 2 and writes 1. 13n with nothing fused, 11n as XLA fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers import _iterate
from solvers._iterate import RUNNING, dot
from solvers.solution import Solution, Status

Array = jax.Array


class Work(NamedTuple):
    x: Array  # [n] iterate
    r: Array  # [n] residual b − A·x by recursion
    p: Array  # [n] direction
    gamma: Array  # rᵀ·M·r


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
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A.

    Works inside jit, vmap and grad. Differentiable in b and in A's values to any order, by implicit differentiation:
    the derivative of a solve is a solve with the same A, M, rtol and maxiter. It is NaN where that solve breaks down.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
        A matrix is an argument of the compiled solver, which serves every other of its layout shape. A function, or
        a matrix that is no pytree, is traced and compiled anew at each call outside jit.
      b: [n].
      x0: [n], where to start; None starts from zero.
      M: an approximation of A⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      rtol, atol: stop when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual.
      maxiter: most iterations; None allows 10·n.
      history: keep the residual norms; True keeps up to 10,000, a number that many.
      callback: called as callback(x) after every iteration, as in SciPy; copies x to the host each time.
      progress: called as progress(iterations, residual_norm) about every 16 iterations.
      check_every: iterations between checks; None takes 1 on a CPU and 10 on a GPU, where a check waits for a copy to
        the host. It changes neither the answer nor the reported number of iterations.

    Returns:
      A `Solution`. Its status says how the solve ended; x is finite whatever happens.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    return _iterate.solve(
        METHOD,
        A,
        b,
        x0,
        M=M,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        history=history,
        callback=callback,
        progress=progress,
        check_every=check_every,
    )


def start(A: _iterate.Map, M: _iterate.Map, x: Array, r: Array) -> Work:
    del A
    z = M(r)
    return Work(x, r, z, dot(r, z))


def step(A: _iterate.Map, M: _iterate.Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, p, gamma = work
    q = A(p)
    curvature = dot(p, q)
    alpha = gamma / curvature
    x, r = x + alpha * p, r - alpha * q
    z = M(r)
    gamma_new = dot(r, z)
    p = z + (gamma_new / gamma) * p
    return Work(x, r, p, gamma_new), _iterate.norm(r), _code(gamma, curvature)


def _code(gamma: Array, curvature: Array) -> Array:
    ends = [
        (~jnp.isfinite(gamma) | ~jnp.isfinite(curvature), Status.NON_FINITE),
        ((gamma < 0) | (curvature < 0), Status.NOT_POSITIVE_DEFINITE),
        ((gamma == 0) | (curvature == 0), Status.BREAKDOWN),
    ]
    return jnp.select([c for c, _ in ends], [jnp.int32(s) for _, s in ends], jnp.int32(RUNNING))


METHOD = _iterate.Method(start, step)
