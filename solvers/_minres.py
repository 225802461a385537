"""MINRES as a part of `eigsh` (Paige and Saunders 1975; Elman, Silvester and Wathen, Finite Elements, Algorithm 4.1).

It stops where further steps could not help: once x solves exactly a system whose matrix differs by rounding from K.
Nearly singular systems, which eigenproblems are made of, are solved as well as others then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers._iterate import Map, dot, norm
from solvers._solve import STEPS_PER_CHECK, STEPS_PER_CHECK_DEFAULT

Array = jax.Array

# A residual of 4·eps·‖K‖·‖x‖ is rounding. `Work.norm` finds ‖K‖ from below.
ROUNDING = 4


class Work(NamedTuple):
    x: Array  # [n] iterate
    v: Array  # [n] Lanczos vector
    v_old: Array
    w: Array  # [n] direction
    w_old: Array
    beta: Array  # of the recursion K·v = beta_new·v_new + alpha·v + beta·v_old
    eta: Array  # the residual norm, with a sign
    rotations: tuple[Array, Array, Array, Array]  # cosine and sine, those before
    norm: Array  # ‖K‖₂, from below
    x_norm: Array
    k: Array  # steps done
    sound: Array  # nothing has vanished or overflowed


def minres(K: Map, b: Array, rtol: Any, maxiter: int) -> tuple[Array, Array, Array]:
    """x with K·x = b for a Hermitian K, of any sign, and a b of about length 1.

    Args:
      rtol: stop when ‖b − K·x‖₂ ≤ rtol·‖b‖₂, and in any case once that is rounding.
      maxiter: most steps; each is a product with K.

    Returns:
      x, NaN where a product was not finite; ‖K‖₂ from below; steps done.
    """
    length = norm(b)
    eps = jnp.finfo(b.dtype).eps
    zero, nought = jnp.zeros_like(b), jnp.zeros_like(length)
    one = jnp.ones_like(length)
    v = b / jnp.where(length == 0, 1, length)
    sound = ~jnp.isnan(length)
    work = Work(
        zero, v, zero, zero, zero, nought, length, (one, nought, one, nought), nought, nought, jnp.int32(0), sound
    )

    def goes_on(work: Work) -> Array:
        enough = jnp.maximum(rtol * length, ROUNDING * eps * work.norm * work.x_norm)
        return work.sound & (jnp.abs(work.eta) > enough) & (work.k < maxiter)

    def advance(_, work: Work) -> Work:
        moves, new = goes_on(work), _step(K, work)
        return jax.tree.map(lambda new, old: jnp.where(moves, new, old), new, work)

    steps = STEPS_PER_CHECK.get(jax.default_backend(), STEPS_PER_CHECK_DEFAULT)
    work = lax.while_loop(goes_on, lambda work: lax.fori_loop(0, steps, advance, work), work)
    finite = jnp.isfinite(work.eta) & jnp.isfinite(work.norm)
    return jnp.where(finite, work.x, jnp.nan), work.norm, work.k


def _step(K: Map, work: Work) -> Work:
    x, v, v_old, w, w_old, beta, eta, (c, s, c_old, s_old), size, *_ = work
    q = K(v)
    alpha = dot(v, q)
    q = q - alpha * v - beta * v_old
    beta_new = norm(q)
    # The column (s_old·beta, ., ., beta_new) of the tridiagonal matrix, turned by the last two rotations and a new one.
    diagonal = c * alpha - c_old * s * beta
    rho = jnp.hypot(diagonal, beta_new)
    above, far_above = s * alpha + c_old * c * beta, s_old * beta
    sound = rho > 0
    rho = jnp.where(sound, rho, 1)
    w_new = (v - far_above * w_old - above * w) / rho
    c_new, s_new = diagonal / rho, beta_new / rho
    x = x + c_new * eta * w_new
    return Work(
        x,
        q / jnp.where(beta_new == 0, 1, beta_new),
        v,
        w_new,
        w,
        beta_new,
        -s_new * eta,
        (c_new, s_new, c, s),
        jnp.maximum(size, jnp.hypot(alpha, jnp.hypot(beta, beta_new))),
        norm(x),
        work.k + 1,
        sound,
    )
