"""COCG, conjugate gradients for complex symmetric A = Aᵀ (van der Vorst and Melissen 1990).

CG with xᵀ·y in place of xᴴ·y, which is no inner product: xᵀ·x may be 0 for an x that is not. So the residual rises and
falls, and a step may break down; then the method starts again.

A step takes one product and one use of M, half of bicgstab's, and moves 13 more vectors of n without preconditioner.
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

LOST = 10  # times eps: a product xᵀ·y that is rounding beside ‖x‖·‖y‖


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    p: Array  # [n] direction
    rho: Array  # rᵀ·M·r
    far: Array  # ‖r‖·‖M·r‖
    first: Array  # whether no step has been made


@solver()
def cocg(A: Any, b: Any, x0: Any = None, **settings: Unpack[Keywords]) -> Solution:
    """Solves A·x = b for a complex A that equals its transpose, not its adjoint: damped waves (Helmholtz, Maxwell).

    It needs half the products and uses of M of `bicgstab`. The residual may rise and fall, and if A is not symmetric,
    as where it is Hermitian, the solve fails. For a real symmetric A take `cg` or `minres`.

    Args:
      M: an approximation of A⁻¹, symmetric too: anything with `@`, or a function r -> M·r.

    Other arguments, the `Solution` and the errors are those of `cg`; a derivative solves with the transposes of A
    and M, which are themselves.

    Examples:
      >>> js.cocg(A + 1j * js.eye(16), b, rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    return by_method(METHOD, A, b, x0, Settings(**settings))


def start(space: Space, A: Map, M: Map, r: Array, squared: Array, last: None) -> Work:
    z = M(r)
    rho, zz = space.sum(_along(r, z), inner_product(z, z))
    return Work(jnp.zeros_like(r), r, z, rho, jnp.sqrt(squared * zz.real), jnp.ones(rho.shape, bool))


def step(space: Space, A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, p, rho, far, first = work
    q = A(p)
    along, pp, qq = space.sum(_along(p, q), inner_product(p, p), inner_product(q, q))
    code = _code(rho, far, along, pp.real, qq.real, first)
    alpha = ratio(rho, along)
    x, r = x + alpha * p, r - alpha * q
    z = M(r)
    new_rho, rr, zz = space.sum(_along(r, z), inner_product(r, r), inner_product(z, z))
    far = jnp.sqrt(rr.real) * jnp.sqrt(zz.real)
    new = Work(x, r, z + ratio(new_rho, rho) * p, new_rho, far, jnp.zeros_like(first))
    return new, jnp.sqrt(rr.real), code


def _along(x: Array, y: Array) -> Array:
    """xᵀ·y."""
    return inner_product(jnp.conj(x), y)


@one_kernel
def _code(rho, far, along, pp, qq, first) -> Array:
    """RUNNING, or the code of a step that is not taken."""
    tiny = LOST * jnp.finfo(rho.dtype).eps
    lost = (jnp.abs(rho) <= tiny * far) | (jnp.abs(along) <= tiny * jnp.sqrt(pp) * jnp.sqrt(qq))
    return status_of(
        (~jnp.isfinite(rho) | ~jnp.isfinite(along + pp + qq), Status.NON_FINITE),
        (lost & first, Status.BREAKDOWN),
        (lost, RESTART),
    )


METHOD = Method(start, holding(step), self_adjoint=False)
