"""BiCGSTAB (van der Vorst 1992; Saad, Iterative Methods, Algorithm 7.7), preconditioned from the right.

A step takes two products and two uses of M, and moves 18 more vectors of n, as XLA fuses it without preconditioner.
"""

from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt.core.vector_passes import inner_product
from solvers.core.iterate import Method, holding
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.core.space import Map, Space
from solvers.core.stopping import RESTART, status_of
from solvers.core.vectors import ratio
from solvers.solution import Solution, Status


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    shadow: Array  # [n] the first residual, r̂
    p: Array  # [n] direction
    v: Array  # [n] A·M·p
    rho: Array  # r̂ᴴ·r
    last_rho: Array  # of the step before
    alpha: Array
    omega: Array
    r_norm: Array
    shadow_norm: Array
    first: Array  # whether no step has been made


@solver()
def bicgstab(A: Any, b: Any, x0: Any = None, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for any square A with only a few vectors; the residual may rise and fall.

    Args:
      M: an approximation of A⁻¹: anything with `@`, or a function r -> M·r.

    Other arguments, the `Solution` and the errors are those of `cg`; a derivative solves with the transposes of A
    and M.

    Examples:
      >>> js.bicgstab(A, b, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    return by_method(METHOD, A, b, x0, Settings(**settings))


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: None) -> Work:
    zero, rho, norm = jnp.zeros_like(r), squared.astype(r.dtype), jnp.sqrt(squared)
    one = jnp.ones_like(rho)
    return Work(zero, r, r, zero, zero, rho, one, one, one, norm, norm, jnp.ones(rho.shape, bool))


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, shadow, p, v, rho, last_rho, alpha, last_omega, r_norm, shadow_norm, first = work
    beta = (rho / last_rho) * (alpha / last_omega)
    p = r + beta * (p - last_omega * v)
    p_hat = M(p)
    v = A(p_hat)
    along, vv = space.sum(inner_product(shadow, v), inner_product(v, v))
    alpha = rho / along
    s = r - alpha * v
    s_hat = M(s)
    t = A(s_hat)
    # s = 0: the first half of the step reached the solution.
    omega = ratio(*space.sum(inner_product(t, s), inner_product(t, t)))
    x, r = x + alpha * p_hat + omega * s_hat, s - omega * t
    new_rho, rr = space.sum(inner_product(shadow, r), inner_product(r, r))
    code = _code(rho, r_norm, shadow_norm, along, vv, last_omega, first)
    r_norm = jnp.sqrt(rr.real)
    new = Work(x, r, shadow, p, v, new_rho, rho, alpha, omega, r_norm, shadow_norm, jnp.zeros_like(first))
    return new, r_norm, code


@one_kernel
def _code(rho, r_norm, shadow_norm, along, vv, last_omega, first) -> Array:
    """RUNNING, or the code of a step that is not taken."""
    tiny = jnp.finfo(rho.dtype).eps * shadow_norm
    lost = (jnp.abs(rho) <= tiny * r_norm) | (jnp.abs(along) <= tiny * jnp.sqrt(vv.real)) | (last_omega == 0)
    return status_of(
        (~jnp.isfinite(rho) | ~jnp.isfinite(along + vv), Status.NON_FINITE),
        (lost & first, Status.BREAKDOWN),
        (lost, RESTART),  # the residual becomes the new shadow
    )


METHOD = Method(start, holding(step), self_adjoint=False)
