"""The Jacobi preconditioner: division by the diagonal (Saad, Iterative Methods, §10.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import owned
from jaxsparse_fmt.basis import Basis
from solvers.precond import _door as door

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Jacobi:
    """M = D⁻¹ as an operator: `M @ r` for r of [n] or [n, k]. Reads n numbers.

    Attributes:
      inverse_diagonal: [n].
    """

    inverse_diagonal: Array

    @property
    def shape(self) -> tuple[int, int]:
        n = self.inverse_diagonal.shape[0]
        return n, n

    @property
    def dtype(self) -> np.dtype:
        return self.inverse_diagonal.dtype

    @property
    def T(self) -> Jacobi:
        return self

    def __matmul__(self, r: Array) -> Array:
        return door.rows_scaled(self.inverse_diagonal, r)

    def entered(self, basis: Basis) -> Jacobi:
        """The same operator between vectors that have entered `basis`, for solvers whose loop permutes nothing."""
        return Jacobi(basis.enter(self.inverse_diagonal))


def jacobi(A: Any) -> Jacobi:
    """The inverse of A's diagonal; a zero on it counts as 1, so that its row is left alone. A NaN on it stays one.

    Args:
      A: [n, n] with a method `diagonal()`, or a dense array.

    Raises:
      ValueError: A is not square.
    """
    door.square(A, "a Jacobi", "jacobi")
    d = owned(A.diagonal())
    d = d.astype(jnp.promote_types(d.dtype, jnp.float32))  # 1 / d may lie beyond 16 bits
    return Jacobi(1 / jnp.where(d == 0, 1, d))
