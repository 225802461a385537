"""Systems of which some unknowns are known: Dirichlet values, eliminated so that a symmetric matrix stays symmetric."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._tracing import is_traced, standard_promotion
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core.basis import agreed
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.core.transposed import Transposed


@standard_promotion
@agreed
def constrain(A: Any, b: Any, fixed: Any, values: Any = 0.0) -> tuple[Any, Array]:
    """The system A·x = b with x[fixed] = values: of A's size and pattern, and symmetric (positive definite) if A is.

        A, b = js.constrain(A, b, boundary, values)
        x = cg(A, b).x                              # x[boundary] is values, as far as cg solves

    Rows and columns of `fixed` become zero except on the diagonal, which keeps A's entries (1 for a zero), and b loses
    A[:, fixed]·values. The result is differentiable by A's values, b and `values`. `prune` removes the zeros.

    Args:
      A: a square matrix, sharded or not, that stores the diagonal entry of each fixed row.
      b: [n] or [n, k].
      fixed: [m] distinct indices, or a mask [n] of booleans. It decides the pattern, so it may not be traced: inside
        jit pass NumPy's, or one that the function closes over.
      values: one number, [m] in the order of `fixed`, or for b [n, k] also [m, k].

    Raises:
      TypeError: A is no matrix of this library, or `fixed` is traced. ValueError: A is not square, a shape or an index
        is wrong, or a fixed row stores no diagonal entry (if A's pattern is not traced).

    Examples:
      >>> C, c = js.constrain(A, b, [0, 15], 2.0)
      >>> x = js.cg(C, c).x
      >>> x[jnp.array([0, 15])].tolist()
      [2.0, 2.0]
    """
    _check(A)
    n = A.shape[0]
    index = _indices(fixed, n)
    b = as_floating(b, "b", A.dtype)
    values = as_floating(values, "values", A.dtype)
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(f"constrain takes b of shape ({n},) or ({n}, k); got {b.shape}")
    if values.shape not in ((), index.shape, (*index.shape, *b.shape[1:])):
        raise ValueError(
            f"values must be one number or have a number for each of the {index.size} fixed unknowns, "
            f"shape {index.shape}; got {values.shape}"
        )
    is_fixed = np.zeros(n, bool)
    is_fixed[index] = True
    in_columns = (slice(None),) + (None,) * (b.ndim - 1)
    values = values[:, None] if values.ndim == 1 and b.ndim == 2 else values
    known = jnp.zeros(b.shape, jnp.result_type(A.dtype, b, values)).at[index].set(values)
    diagonal = lax.stop_gradient(A.diagonal())
    diagonal = jnp.where(diagonal == 0, 1, diagonal)
    free = jnp.asarray(~is_fixed)
    b = jnp.where(free[in_columns], b - A @ known, diagonal[in_columns] * known)
    return _eliminated(A, free, diagonal, is_fixed), b


def _eliminated(A: Any, free: Array, diagonal: Array, is_fixed: np.ndarray) -> Any:
    if isinstance(A, Transposed):
        return _eliminated(A.T, free, diagonal, is_fixed).T
    if not isinstance(A, SparseMatrix):  # sharded: the entries stay on their devices
        return A._eliminated(free, diagonal)
    row, col = A.row_ids, A.col_ids
    _check_diagonal(row, col, is_fixed)
    rest = jnp.where(row == col, diagonal[row], 0)
    return A.with_data(jnp.where(free[row] & free[col], A.data, rest))


def _check(A: Any) -> None:
    if not isinstance(A, ScipyNames):
        patterns.check("constrain", A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"constrain takes a square matrix, got shape {A.shape}")


def _indices(fixed: Any, n: int) -> np.ndarray:
    """[m] distinct indices."""
    if is_traced(fixed):
        raise TypeError(
            "constrain needs to know which unknowns are fixed, and `fixed` is traced here; make it with NumPy"
        )
    given = np.asarray(fixed)
    if given.dtype == bool:
        if given.shape != (n,):
            raise ValueError(f"a mask of fixed unknowns has shape ({n},); got {given.shape}")
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"fixed must be whole numbers [m] or a mask [{n}]; got {given.dtype} of shape {given.shape}")
    given = given.astype(np.int64)
    if given.size and not (given.min() >= 0 and given.max() < n):
        raise ValueError(f"an index in fixed is outside 0 to {n - 1}: {given[(given < 0) | (given >= n)][0]}")
    if np.unique(given).size != given.size:
        raise ValueError("fixed lists an unknown twice; take numpy.unique, and values in its order")
    return given


def _check_diagonal(row: Any, col: Any, is_fixed: np.ndarray) -> None:
    if is_traced(row, col):
        return
    row, col = np.asarray(row), np.asarray(col)
    lacking = is_fixed.copy()
    lacking[row[row == col]] = False
    if lacking.any():
        raise ValueError(f"row {np.argmax(lacking)} is fixed and stores no diagonal entry; add one by A + 0 * eye(n)")
