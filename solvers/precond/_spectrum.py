"""Bounds on the eigenvalues of a positive definite operator by Lanczos' method, and Chebyshev's iteration on them."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core.space import HERE, Map, exponent
from solvers.core.vectors import dot, ratio, scaled


def chebyshev_step(rho: Any, center: Any, radius: Any) -> tuple[Any, Any, Any]:
    """ρ, a and c of the next step d ← a·d + c·M·r of Chebyshev's iteration on [center − radius, center + radius].

    Saad, Iterative Methods, Algorithm 12.1, where ρ starts as radius / center; Python numbers or arrays.
    """
    after = 1 / (2 * center / radius - rho)
    return after, after * rho, 2 * after / radius


def spectrum(A: Map, M: Map, like: Array, steps: int) -> tuple[Array, Array]:
    """The least and the largest eigenvalue of M·A, the least from above, the largest as a rule from above too.

    Lanczos' process in the inner product of M, from a random start, the same in every run: its vectors v are
    orthonormal in the inner product of M, and z = M·v in that of M⁻¹, so that M⁻¹ is never applied. The norm of its
    residual is added to the largest Ritz value (Parlett, The Symmetric Eigenvalue Problem, §13.2). Where M proves
    indefinite, there is no such inner product, and the least is −∞. It takes `steps` products, and one more for the
    scale of A.

    Args:
      like: [n] or [n, k], a vector like those that A and M take; k columns repeat the same work k times.
    """

    start = HERE.probe(like)
    # Squares of what A and M give must neither under- nor overflow.
    of_A, of_M = (jnp.max(exponent(f(start))) for f in (A, M))
    apply_A, apply_M = A, M
    A, M = (lambda v: scaled(apply_A(v), -of_A)), (lambda v: scaled(apply_M(v), -of_M))

    def inner_product(v: Array, w: Array) -> Array:
        return jnp.sum(dot(v, w))

    def normalized(w: Array) -> tuple[Array, Array, Array, Array]:
        z = M(w)
        square = inner_product(w, z)
        rounding = jnp.finfo(square.dtype).eps ** 0.5 * jnp.sqrt(inner_product(w, w)) * jnp.sqrt(inner_product(z, z))
        length = jnp.sqrt(jnp.maximum(square, 0))
        inverse = ratio(jnp.ones_like(length), length)
        return w * inverse, z * inverse, length, square < -rounding

    def step(state, _):
        before, v, z, beta, negative = state
        w = A(z) - beta * before
        alpha = inner_product(z, w)
        after, z, length, more = normalized(w - alpha * v)
        return (v, after, z, length, negative | more), (alpha, beta, length)

    v, z, length, negative = normalized(start)
    # Only the type of A(z) is used: XLA drops the product.
    first = mesh_axes.varying((jnp.zeros_like(v), v, z, jnp.zeros_like(length), negative), A(z))
    (*_, negative), (alpha, before, beta) = lax.scan(step, first, length=steps)
    exhausted = jnp.cumsum(before == 0) > 1  # an invariant subspace: the rest repeats a Rayleigh quotient
    alpha = jnp.where(exhausted, alpha[0], alpha)
    ritz, vectors = jnp.linalg.eigh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))
    found = jnp.where(negative, -jnp.inf, ritz[0]), ritz[-1] + beta[-1] * jnp.abs(vectors[-1, -1])
    return scaled(found[0], of_A + of_M), scaled(found[1], of_A + of_M)
