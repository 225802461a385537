"""Where the eigenvalues of a positive definite operator lie, from a few steps of Lanczos' method."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from solvers._iterate import Map, dot, probe, ratio

Array = jax.Array

STEPS = 12


def spectrum(A: Map, M: Map, like: Array, steps: int = STEPS) -> tuple[Array, Array]:
    """The least and the largest eigenvalue of M·A, the least from above, the largest as a rule from above too.

    Lanczos' process in the inner product of M, from a random start, the same in every run: its vectors v are
    orthonormal in that of M and z = M·v in that of M⁻¹, so that M⁻¹ is never applied. To the largest Ritz value the
    norm of its residual is added (Parlett, The Symmetric Eigenvalue Problem, §13.2). Where M shows itself indefinite
    there is no such inner product, and the least is −∞. `steps` products.

    Args:
      like: [n] or [n, k], what A and M take; k columns do the same work k times.
    """

    def inner(v: Array, w: Array) -> Array:
        return jnp.sum(dot(v, w))

    def normalized(w: Array) -> tuple[Array, Array, Array, Array]:
        z = M(w)
        square = inner(w, z)
        rounding = jnp.finfo(square.dtype).eps ** 0.5 * jnp.sqrt(inner(w, w)) * jnp.sqrt(inner(z, z))
        size = jnp.sqrt(jnp.maximum(square, 0))
        inverse = ratio(jnp.ones_like(size), size)
        return w * inverse, z * inverse, size, square < -rounding

    def step(state, _):
        before, v, z, beta, negative = state
        w = A(z) - beta * before
        alpha = inner(z, w)
        after, z, size, more = normalized(w - alpha * v)
        return (v, after, z, size, negative | more), (alpha, beta, size)

    v, z, size, negative = normalized(probe(like))
    first = (jnp.zeros_like(v), v, z, jnp.zeros_like(size), negative)
    (*_, negative), (alpha, before, beta) = lax.scan(step, first, length=steps)
    exhausted = jnp.cumsum(before == 0) > 1  # an invariant subspace: the rest repeats a Rayleigh quotient
    alpha = jnp.where(exhausted, alpha[0], alpha)
    ritz, vectors = jnp.linalg.eigh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))
    return jnp.where(negative, -jnp.inf, ritz[0]), ritz[-1] + beta[-1] * jnp.abs(vectors[-1, -1])
