"""Norms of matrices, and of their rows and columns."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core.reductions import axis_of


def norm(A: Any, ord: Any = None, axis: Any = None) -> Array:
    """A norm of A, by SciPy's names, or the norms of its columns (axis 0) or rows (axis 1).

    Args:
      ord: None, or "fro" for the matrix and 2 along an axis: √Σ|a|²; 1 and -1: the greatest and the least
        sum of absolute values in a column; inf and -inf: in a row. Along an axis 1 sums them, and inf takes the
        greatest. The spectral norm is `svds(A, 1).s[0]`.
      axis: None or (0, 1), 0 for each column, 1 for each row.

    Raises:
      ValueError: another ord or axis. TypeError: not a matrix of this library on one device.

    Examples:
      >>> js.norm(A, 1).item(), js.norm(A, axis=1).shape
      (8.0, (16,))
    """
    patterns.check("norm", A)
    axis = axis_of(axis)
    known = (None, "fro", 1, -1, np.inf, -np.inf) if axis is None else (None, 1, 2, np.inf)
    if ord not in known:
        where = "of a matrix; the spectral norm is svds(A, 1).s[0]" if axis is None else "along an axis"
        raise ValueError(f"ord must be one of {', '.join(map(str, known))} {where}; got {ord!r}")
    if axis is None:
        if ord in (None, "fro"):
            return jnp.linalg.norm(A.data)
        sums = abs(A).sum(0 if abs(ord) == 1 else 1)
        return sums.max() if ord > 0 else sums.min()
    if ord in (None, 2):
        squares = abs(A).power(2).sum(axis)
        return jnp.where(squares == 0, 0, jnp.sqrt(jnp.where(squares == 0, 1, squares)))  # an empty row has slope 0
    return abs(A).sum(axis) if ord == 1 else abs(A).max(axis)
