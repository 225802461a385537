"""The inverse of a small dense Hermitian matrix, or a generalized one; differentiable."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from solvers.core.vectors import matmul

LARGEST = 4000  # rows: 128 MB in float64
NULL = 1e-12  # of the sums of absolute values behind an entry: smaller entries are rounding and count as zero
PIVOT = 1e-8  # the smallest squared pivot for which Cholesky's factor serves; else the inverse is a generalized one
ROUNDING = 10  # times eps: the least NULL and PIVOT in a narrow type


def generalized_inverse(
    A: Array,  # [m, m]
    unit: Array,  # [m] size of the sums behind the diagonal
) -> Array:
    """As `_hierarchy.coarse_inverse`, for a Hermitian A."""
    scale = jnp.where(unit > 0, 1 / jnp.sqrt(jnp.where(unit > 0, unit, 1)), 0)
    dense = scale[:, None] * A * scale
    return scale[:, None] * _inverse((dense + dense.conj().T) / 2) * scale


@jax.custom_jvp
def _inverse(A: Array) -> Array:
    L = jnp.linalg.cholesky(A)
    rounding = ROUNDING * float(jnp.finfo(A.dtype).eps)

    def regular() -> Array:
        half = jax.scipy.linalg.solve_triangular(L, jnp.eye(len(A), dtype=A.dtype), lower=True)
        return matmul(half.conj().T, half)

    def generalized() -> Array:
        values, V = jnp.linalg.eigh(A)
        live = jnp.abs(values) > max(NULL, rounding)
        return matmul(V * jnp.where(live, 1 / jnp.where(live, values, 1), 0), V.conj().T)

    return lax.cond(jnp.all(jnp.diagonal(L).real ** 2 > max(PIVOT, rounding)), regular, generalized)


@_inverse.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    X = _inverse(primals[0])
    return X, -matmul(X, matmul(tangents[0], X))
