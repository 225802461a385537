"""The Jacobi preconditioner: division by the diagonal (Saad, Iterative Methods, §10.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt.basis import Basis

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Jacobi:
    """M = D⁻¹ as an operator: `M @ r`. Reads n numbers.

    Attributes:
      inverse_diagonal: [n].
    """

    inverse_diagonal: Array

    @property
    def shape(self) -> tuple[int, int]:
        n = self.inverse_diagonal.shape[0]
        return n, n

    def __matmul__(self, r: Array) -> Array:
        return self.inverse_diagonal * r

    def entered(self, basis: Basis) -> Jacobi:
        """The same operator between vectors that have entered `basis`, for solvers whose loop permutes nothing."""
        return Jacobi(basis.enter(self.inverse_diagonal))


def jacobi(A: Any) -> Jacobi:
    """The inverse of A's diagonal; a zero on it counts as 1, so that its row is left alone.

    Args:
      A: [n, n] with a method `diagonal()`, or a dense array.

    Raises:
      ValueError: A is not square.
    """
    shape = getattr(A, "shape", ())
    if len(shape) != 2 or shape[0] != shape[1]:
        got = shape or type(A).__name__
        raise ValueError(f"a Jacobi preconditioner needs a square matrix; got {got}. Pass M=jacobi(A), not M=jacobi")
    d = jnp.asarray(A.diagonal())
    return Jacobi(1 / jnp.where(d == 0, 1, d))
