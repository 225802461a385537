"""Sums, products and slices of matrices, by SciPy's names; `jaxsparse_fmt.algebra` computes them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

Array = jax.Array


class Operators:
    """The operators that make a matrix of matrices.

    An operation finds the pattern of its result on the host and keeps it for later operands of the same patterns; the
    values are computed in JAX, with all derivatives. Inside jit the patterns must not be traced: close over A and pass
    `A.data`. The result has the format of the operands, or is in "csr" where they differ.
    """

    if TYPE_CHECKING:

        def _each(self, f: Any) -> Any: ...

    def __add__(self, other: Any) -> Any:
        if np.ndim(other) == 0 and isinstance(other, int | float) and other == 0:
            return self  # the start of Python's sum
        return _operations("A + B", other).add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _operations("A - B", other).subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operations("B - A", other).subtract(other, self)

    def _times_matrix(self, other: Any) -> Any:
        return _operations("A @ B", other).matmul(self, other)

    def multiply(self, other: Any) -> Any:
        """The product entry by entry with another matrix, or with a number.

        Raises:
          TypeError: a dense array. ValueError: another shape.
        """
        if np.ndim(other) == 0 and not isinstance(other, Operators):
            return self * other  # pyright: ignore[reportOperatorIssue]
        return _operations("A.multiply(B)", other).multiply(self, other)

    def scale_rows(self, d: Any) -> Any:
        """diag(d)·A, of the same pattern.

        Args:
          d: [n_rows].
        """
        return _operations().scale_rows(self, d)

    def scale_cols(self, d: Any) -> Any:
        """A·diag(d), of the same pattern.

        Args:
          d: [n_cols].
        """
        return _operations().scale_cols(self, d)

    def shift(self, s: Any) -> Any:
        """A + s·I; the whole diagonal becomes entries.

        Args:
          s: a number, or [n] for diag(s); may be traced.

        Raises:
          ValueError: A is not square, or s has another shape.
        """
        return _operations().shift(self, s)

    def setdiag(self, d: Any) -> Any:
        """A with the diagonal d, all of which becomes entries; a new matrix, where SciPy writes into the old one.

        Args:
          d: a number, or [n].

        Raises:
          ValueError: A is not square, or d has another shape.
        """
        return _operations().set_diagonal(self, d)

    def tril(self, k: int = 0) -> Any:
        """The entries on and below diagonal k."""
        return _operations().triangle(self, k, lower=True)

    def triu(self, k: int = 0) -> Any:
        """The entries on and above diagonal k."""
        return _operations().triangle(self, k, lower=False)

    def prune(self, tol: float = 0.0) -> Any:
        """A without the entries of absolute value at most `tol`.

        Raises:
          ValueError: inside jit, where the values, and so the size of the result, are not known.
        """
        return _operations().prune(self, tol)

    def sum(self, axis: int | None = None) -> Array:
        """The sum of all entries, or with axis 0 of each column, [n_cols], with axis 1 of each row, [n_rows]."""
        return _operations().total(self, axis)

    def max(self, axis: int | None = None) -> Array:
        """The largest number of the matrix, or of each column (axis 0) or row (axis 1) as a dense array.

        A place without an entry counts as 0, as in SciPy.
        """
        return _operations().extreme(self, axis, largest=True)

    def min(self, axis: int | None = None) -> Array:
        """The smallest number, as `max`."""
        return _operations().extreme(self, axis, largest=False)

    def norm(self, ord: Any = None) -> Array:
        """A norm of the matrix, as `scipy.sparse.linalg.norm`.

        Args:
          ord: None or "fro"; of the sums of absolute values 1 for the largest of a column, inf for the largest of a
            row, -1 and -inf for the smallest.
        """
        return _operations().norm(self, ord)

    def __getitem__(self, index: Any) -> Any:
        """A[rows, columns] as a matrix; A[i, j] of two integers as a number.

        Args:
          index: for each axis an integer, a slice, or an array of integers or booleans; as `numpy.ix_` combines them.

        Raises:
          IndexError: out of range, or of another kind. TypeError: a traced index.
        """
        return _operations().item(self, index)

    def _entries_of_equal(self, data: Any) -> Any:
        """`data`, or the entries of `data` if it is a matrix of the same pattern."""
        return _operations().entries_of_equal(self, data) if isinstance(data, Operators) else data

    __iter__ = None  # else Python would iterate by A[0], A[1], …


def _operations(operation: str = "", *others: Any) -> Any:
    """The module that computes, which lies above, since it builds matrices. TypeError: an operand of another kind."""
    for other in others:
        if not isinstance(other, Operators):
            raise TypeError(
                f"{operation} takes two matrices of this library, got {type(other).__name__}; convert a sparse matrix "
                "by from_scipy; with a dense array take A.todense(); A + s·I is A.shift(s)"
            )
    return importlib.import_module("jaxsparse_fmt.algebra.operations")
