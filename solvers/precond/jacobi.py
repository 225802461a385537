"""The Jacobi preconditioner: division by the diagonal (Saad, Iterative Methods, §10.2)."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from solvers.core import arguments
from solvers.core.operators import Diagonal
from solvers.precond import _checks as checks


@exportable
@brief
@pytree
class Jacobi(Diagonal, checks.Refreshed):
    """M = D⁻¹ as an operator: `M @ r` for r of [n] or [n, k]. Reads n entries."""

    @property
    def inverse_diagonal(self) -> Array:
        """[n]."""
        return self.d

    def _anew(self, A: Any) -> "Jacobi":
        return jacobi(A)


@arguments.door
def jacobi(A: Any) -> Jacobi:
    """The inverse of A's diagonal; a zero on the diagonal counts as 1, so that M leaves its row unchanged.

    A NaN stays NaN.

    Args:
      A: [n, n] with a method `diagonal()`, a dense array, or an operator of lineax, such as a sum of several. For a
        function v -> A·v + s·v pass the solver M=1/(A.diagonal() + s): an M of shape (n,) is a diagonal matrix.

    Raises:
      ValueError: A is not square. TypeError: A has no diagonal to read.

    Examples:
      >>> js.cg(A, b, M=js.precond.jacobi(A)).iterations > 0
      True
    """
    return Jacobi(_of_matrix(A) if isinstance(A, SparseMatrix) else _inverted(_diagonal(A)))


def of_diagonal(d: np.ndarray, dtype: Any) -> Jacobi:
    """`jacobi` of a matrix of this dtype with the diagonal d [n]; compiles nothing."""
    with np.errstate(all="ignore"):
        return Jacobi(building.on_device(_inverse(np, d.astype(dtype))))


def _diagonal(A: Any) -> Array:
    """[n]; see `jacobi`."""
    lineax = sys.modules.get("lineax")  # without it there is no operator of lineax
    if lineax is not None and isinstance(A, lineax.AbstractLinearOperator):
        if A.in_size() != A.out_size():
            raise ValueError(f"a Jacobi preconditioner needs a square matrix; got {(A.out_size(), A.in_size())}")
        return as_floating(lineax.diagonal(A), "the diagonal")
    checks.square(A, "jacobi")
    if not hasattr(A, "diagonal"):
        raise TypeError(
            f"jacobi reads A.diagonal(), which {type(A).__name__} does not have; pass M=1/d for its diagonal d"
        )
    return as_floating(A.diagonal(), "the diagonal")


def _inverse(xp: Any, d: Any) -> Any:
    d = d.astype(jnp.promote_types(d.dtype, jnp.float32))  # 1 / d may lie beyond 16 bits
    return 1 / xp.where(d == 0, 1, d)


_inverted = jax.jit(functools.partial(_inverse, jnp))
_of_matrix = jax.jit(lambda A: _inverse(jnp, _diagonal(A)))
