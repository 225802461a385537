"""MINRES (Paige and Saunders 1975; with a preconditioner: Elman, Silvester and Wathen, Algorithm 4.1).

It makes the residual least in the norm of M, and the residual itself comes by recursion, so that the stopping rule is
that of the other methods. In vectors of n: one product, one use of M, and 17 more as XLA fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers._iterate import Map, Method, dot, holding, norm, ratio, status_of
from solvers._solve import solve
from solvers.solution import Solution, Status

Array = jax.Array


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    v: Array  # [n] Lanczos vector, not normalized
    z: Array  # [n] M·v
    v_last: Array  # [n]
    w: Array  # [n] direction, of the step before
    w_last: Array  # [n] and of the one before that
    squared: Array  # vᴴ·z = γ²
    squared_last: Array
    eta: Array  # residual norm in the norm of M, with a sign
    c: Array  # cosines and sines of the last two rotations
    s: Array
    c_last: Array
    s_last: Array


def minres(
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
    """Solves A·x = b for a symmetric (Hermitian) A, definite or not, or nearly singular.

    Args:
      M: an approximation of |A|⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      The others: as in `cg`.

    Returns:
      A `Solution`, differentiable as that of `cg`.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    return solve(METHOD, A, b, x0, M, rtol, atol, maxiter, history, callback, progress, check_every)


def start(A: Map, M: Map, r: Array, last: None) -> Work:
    del A, last
    z, zero = M(r), jnp.zeros_like(r)
    squared = dot(r, z)
    one, none = jnp.ones_like(squared), jnp.zeros_like(squared)
    return Work(zero, r, r, z, zero, zero, zero, squared, one, jnp.sqrt(squared), one, none, one, none)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, v, z, v_last, w, w_last, squared, squared_last, eta, c, s, c_last, s_last = work
    gamma = jnp.sqrt(squared)
    z = z / gamma
    q = A(z)
    delta = dot(q, z)
    v_new = q - (delta / gamma) * v - (gamma / jnp.sqrt(squared_last)) * v_last
    z_new = M(v_new)
    squared_new = dot(v_new, z_new)
    gamma_new = jnp.sqrt(jnp.maximum(squared_new, 0))
    a0, a2, a3 = c * delta - c_last * s * gamma, s * delta + c_last * c * gamma, s_last * gamma
    a1 = jnp.hypot(a0, gamma_new)
    c_new, s_new = a0 / a1, gamma_new / a1
    w_new = (z - a3 * w_last - a2 * w) / a1
    eta_new = -s_new * eta
    x = x + (c_new * eta) * w_new
    r = s_new**2 * r + ratio(c_new * eta_new, gamma_new) * v_new
    code = status_of(
        (~jnp.isfinite(squared) | ~jnp.isfinite(delta) & (squared > 0), Status.NON_FINITE),
        (squared < -jnp.finfo(r.dtype).eps * squared_last, Status.NOT_POSITIVE_DEFINITE),  # M is not
        ((squared <= 0) | (a1 == 0), Status.BREAKDOWN),
    )
    new = Work(x, r, v_new, z_new, v, w_new, w, squared_new, squared, eta_new, c_new, s_new, c, s)
    return new, norm(r), code


METHOD = Method(start, holding(step))
