"""The generalized inverse of a small dense Hermitian matrix; differentiable."""

import jax
import jax.numpy as jnp
from jax import Array

from solvers.core.vectors import matmul

LARGEST = 4000  # rows: 128 MB in float64
NULL = 1e-12  # of the sum of the absolute values that add up to an entry: smaller entries count as zero
ROUNDING = 10  # times eps: the least NULL in a narrow type


def generalized_inverse(
    A: Array,  # [m, m]
    unit: Array,  # [m] sum of the absolute values that add up to each diagonal entry
) -> Array:
    """As `_hierarchy.coarse_inverse`, for a Hermitian A."""
    scale = jnp.where(unit > 0, 1 / jnp.sqrt(jnp.where(unit > 0, unit, 1)), 0)
    dense = scale[:, None] * A * scale
    return scale[:, None] * _inverse((dense + dense.conj().T) / 2) * scale


@jax.custom_jvp
def _inverse(A: Array) -> Array:
    values, V = jnp.linalg.eigh(A)
    live = jnp.abs(values) > max(NULL, ROUNDING * float(jnp.finfo(A.dtype).eps))
    return matmul(V * jnp.where(live, 1 / jnp.where(live, values, 1), 0), V.conj().T)


@_inverse.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    X = _inverse(primals[0])
    return X, -matmul(X, matmul(tangents[0], X))
