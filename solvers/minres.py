"""MINRES (Paige and Saunders 1975; with a preconditioner: Elman, Silvester and Wathen, Algorithm 4.1).

It minimises the residual in the norm of M, and a recursion computes the residual itself, so that the stopping rule is
that of the other methods. A step takes one product and one use of M, and moves 19 more vectors of n, as XLA fuses
it.

A singular system without a solution ends at a least-squares solution: A·M·r = 0. The recursion computes ‖A·M·r‖
(Choi, Paige and Saunders 2011, §3.2), which falls to about √eps and no further; after that w grows into a null vector
of A, and x grows with w. So the method keeps the x with the least ‖A·M·r‖, and ends when A·w is only rounding.
"""

import functools
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._one_kernel import one_kernel
from solvers.core.iterate import Method, holding
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Space
from solvers.core.stopping import status_of
from solvers.core.vectors import dot, ratio
from solvers.solution import Solution, Status

ROUNDING = 10  # times eps: the rounding that remains of a zero
# The fields of Work that are numbers.
NUMBERS = "squared", "squared_last", "eta", "c", "s", "c_last", "s_last", "least", "A_norm", "M_norm", "w_norm"


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
    best: Array  # [n] the x with the least ‖A·M·r‖ / ‖r‖ so far
    least: Array  # that number
    A_norm: Array  # ‖A‖ in the norm of M, from below
    M_norm: Array  # ‖M‖^½, from below
    w_norm: Array


@solver()
def minres(A: Any, b: Any, x0: Any = None, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) A, definite or not, or singular.

    Of the solutions of a singular system it finds the shortest if x0 and M are None. If the system has no solution, it
    ends at a least-squares solution, with the status LEAST_SQUARES. With an M it makes rᴴ·M·r least, and ends with
    BREAKDOWN unless ‖r‖ is least, too: leave M out then, or take `lsmr`.

    Args:
      M: an approximation of |A|⁻¹, positive definite: anything with `@`, or a function r -> M·r.

    Other arguments, the `Solution` and the errors are those of `cg`.

    Examples:
      >>> js.minres(A, b, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    return by_method(METHOD, A, b, x0, Settings(**settings))


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: None) -> Work:
    z, zero, v = M(r), jnp.zeros_like(r), space.probe(r)
    Mv = M(v)
    q = A(Mv)
    squared, before, after = space.sum(dot(r, z), dot(v, Mv), dot(q, M(q)))
    one, none = jnp.ones_like(squared), jnp.zeros_like(squared)
    # The size of A by a vector without a pattern: r may be a null vector, of which rounding alone is left.
    A_norm = jnp.sqrt(jnp.abs(ratio(after, before)))
    numbers = squared, jnp.where(squared == 0, 1, jnp.abs(squared)), jnp.sqrt(squared), one, none, one, none
    return Work(zero, r, r, z, zero, zero, zero, *numbers, zero, jnp.inf * one, A_norm, none, none)


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, v, z, v_last, w, w_last, squared, squared_last, *_ = work
    gamma = jnp.sqrt(squared)
    z = z / gamma
    q = A(z)
    delta, zz = space.sum(dot(q, z), dot(z, z))
    v_new = q - (delta / gamma) * v - (gamma / jnp.sqrt(squared_last)) * v_last
    z_new = M(v_new)
    squared_new = space.dot(v_new, z_new)
    numbers = tuple([getattr(work, name) for name in NUMBERS])
    numbers, (a1, a2, a3, along_w, along_r, along_v), is_better, code = _rotated(
        jnp.finfo(r.dtype).eps, numbers, delta, zz, squared_new
    )
    w_new = (z - a3 * w_last - a2 * w) / a1
    best = jnp.where(is_better, x, work.best)
    x, r = x + along_w * w_new, along_r * r + along_v * v_new
    r_norm, w_norm = map(jnp.sqrt, space.sum(dot(r, r), dot(w_new, w_new)))
    vectors = {"x": x, "r": r, "v": v_new, "z": z_new, "v_last": v, "w": w_new, "w_last": w, "best": best}
    numbers = dict(zip(NUMBERS, numbers, strict=True)) | {"w_norm": w_norm}
    return Work(**vectors, **numbers), r_norm, code


@functools.partial(one_kernel, statics=1)
def _rotated(eps: Any, numbers: tuple[Array, ...], delta: Array, zz: Array, squared_new: Array) -> tuple[Any, ...]:
    """The numbers of the next step; a₁, a₂, a₃ and the factors of w, r and v; whether x is a better one; the code."""
    squared, squared_last, eta, c, s, c_last, s_last, least, A_norm, M_norm, w_norm = numbers
    gamma, gamma_new = jnp.sqrt(squared), jnp.sqrt(jnp.maximum(squared_new, 0))
    a0, a2, a3 = c * delta - c_last * s * gamma, s * delta + c_last * c * gamma, s_last * gamma
    a1 = jnp.hypot(a0, gamma_new)
    c_new, s_new = a0 / a1, gamma_new / a1
    eta_new = -s_new * eta
    was_singular = is_singular(eps, A_norm, M_norm, w_norm)
    A_norm, M_norm = jnp.maximum(A_norm, jnp.hypot(delta, gamma_new)), jnp.maximum(M_norm, jnp.sqrt(zz))
    left = ratio(jnp.hypot(a0, c * gamma_new), A_norm)
    is_better = left < least
    least = jnp.where(is_better, left, least)
    code = status_of(
        (~jnp.isfinite(squared) | ~jnp.isfinite(delta) & (squared > 0), Status.NON_FINITE),
        (squared < -eps * squared_last, Status.NOT_POSITIVE_DEFINITE),  # M is not
        (squared <= 0, Status.BREAKDOWN),
        ((left <= ROUNDING * eps) | was_singular & (least <= ROUNDING * eps**0.5), Status.LEAST_SQUARES),
        ((a1 == 0) | was_singular, Status.BREAKDOWN),
    )
    following = squared_new, squared, eta_new, c_new, s_new, c, s, least, A_norm, M_norm, w_norm
    factors = a1, a2, a3, c_new * eta, s_new**2, ratio(c_new * eta_new, gamma_new)
    return following, factors, is_better, code


def is_singular(eps: Any, A_norm: Array, M_norm: Array, w_norm: Array) -> Array:
    """Whether w is a null vector of A within rounding: A·w has length 1 in the norm of M."""
    return ROUNDING * eps * A_norm * w_norm > M_norm


def iterate(M: Map, work: Work) -> Array:
    """x; the best one, if the last step followed a null vector."""
    eps = jnp.finfo(work.x.dtype).eps
    return jnp.where(is_singular(eps, work.A_norm, work.M_norm, work.w_norm), work.best, work.x)


METHOD = Method(start, holding(step), iterate, least_squares=True)
