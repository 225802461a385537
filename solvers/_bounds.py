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

    Lanczos' tridiagonal matrix from the coefficients of conjugate gradients (Saad, Iterative Methods, §6.7.3) on a
    random right-hand side, the same in every run. To the largest Ritz value the bound of its error is added (Zhou and
    Li 2011, eq. 2.4). `steps` products.

    Args:
      like: [n] or [n, k], what A and M take.
    """
    r = probe(like)
    z = M(r)
    gamma = dot(r, z)

    def step(state, _):
        r, p, gamma = state
        q = A(p)
        alpha = ratio(gamma, dot(p, q))
        r = r - alpha * q
        z = M(r)
        gamma_new = dot(r, z)
        beta = ratio(gamma_new, gamma)
        return (r, z + beta * p, gamma_new), (alpha, beta)

    _, (alpha, beta) = lax.scan(step, (r, z, gamma), length=steps)
    alpha, beta = alpha.reshape(steps, -1)[:, 0], beta.reshape(steps, -1)[:, 0]  # columns are alike
    inverse = ratio(jnp.ones_like(alpha), alpha)
    before = jnp.concatenate([jnp.zeros(1, beta.dtype), (beta * inverse)[:-1]])
    diagonal, beside = inverse + before, jnp.sqrt(jnp.abs(beta)) * inverse
    diagonal = jnp.where(
        alpha == 0, diagonal[0], diagonal
    )  # an invariant subspace: the rest repeats a Rayleigh quotient
    beside = jnp.where(jnp.concatenate([alpha[1:], alpha[-1:]]) == 0, 0, beside)
    ritz, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1))
    return ritz[0], ritz[-1] + beside[-1] * jnp.abs(vectors[-1, -1])
