"""A diagonal matrix as an operator, and the check of the vectors that operators of this package take."""

import dataclasses
from typing import Any, Self

import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import as_vector
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.core.basis import Basis, Operator


def operand(M: Any, r: Any, leaf: Array, ndim: int) -> Array:
    """r in the form in which M multiplies it: [n] or [n, k], of floats or complex numbers.

    ValueError: another shape, or a stack of operators, whose array `leaf` has more than `ndim` dimensions.
    """
    if leaf.ndim != ndim:
        raise ValueError(
            f"M is a stack of {' × '.join(map(str, leaf.shape[: leaf.ndim - ndim]))} preconditioners, as vmap makes "
            "them; apply it inside vmap too: jax.vmap(lambda M, r: M @ r)(M, R)"
        )
    return as_vector(r, M, 1, f"M @ r with M of shape {M.shape} takes r")


def rows_scaled(d: Array, r: Array) -> Array:
    """d [n] times the rows of r, [n] or [n, k]."""
    return (d if r.ndim == 1 else d[:, None]) * r


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Operator):
    """diag(d) as an operator: `@ r` for r of [n] or [n, k]. Reads n entries.

    Attributes:
      d: [n].
    """

    d: Array

    @property
    def shape(self) -> tuple[int, int]:
        return self.d.shape[-1], self.d.shape[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.d.dtype

    @property
    def T(self) -> Self:
        return self

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        return rows_scaled(self.d, operand(self, r, self.d, 1))

    def _entered(self, basis: Basis) -> Self:
        return dataclasses.replace(self, d=basis.enter(self.d))

    def _partition(self, axis: Any) -> PartitionSpec:
        return PartitionSpec(axis)
