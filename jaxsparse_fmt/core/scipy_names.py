"""SciPy's names, which all matrices share, and errors that name what to do instead.

`jaxsparse_fmt.algebra` computes sums, products and slices.
"""

import importlib
from typing import Any, ClassVar, NoReturn, Self

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._types import Array, as_floating, check_keeps_imaginary, owned, requested_dtype


class ScipyNames:
    """SciPy's names, which stored, transposed and sharded matrices derive from a few members of their own.

    A subclass provides `shape`, `dtype`, `nnz`, `T`, `matvec`, `_transposed` (Aᵀ·y without conjugation), `_each` (the
    same matrix with a function applied to all of its values), `asformat` and `todense`.

    An operation that makes a matrix of matrices finds the pattern of its result on the host and keeps it for later
    operands of the same patterns; the values are computed in JAX, with all derivatives. Inside jit the patterns must
    not be traced: close over A and pass `A.data`. The result has the format of the operands, or is in "csr" where they
    differ.
    """

    ndim: ClassVar[int] = 2
    __array_ufunc__ = None  # NumPy then leaves x @ A to `__rmatmul__`

    T: Any
    dtype: Any
    shape: Any
    nnz: Any
    matvec: Any
    _transposed: Any
    _each: Any
    asformat: Any
    todense: Any

    # --------------------------------------------------------------------------------------------------- products

    def rmatvec(self, y: Any) -> Array:
        """Aᴴ·y, the adjoint as in SciPy; for real matrices the same as A.T @ y.

        Args:
          y: [n_rows] or [n_rows, p].
        """
        return _conjugate(self._transposed(_conjugate(as_floating(y, "the vector"))))

    def __matmul__(self, x: Any) -> Any:
        return self._times_matrix(x) if isinstance(x, ScipyNames) else self.matvec(x)

    def __rmatmul__(self, x: Any) -> Array:
        return self._transposed(as_floating(x, "the vector").T).T

    def dot(self, x: Any) -> Any:
        """A @ x; with a number A * x."""
        return self * x if np.ndim(x) == 0 else self @ x

    # ----------------------------------------------------------------------------------------------------- values

    def astype(self, dtype: Any) -> Self:
        """The same matrix with values of another dtype, for example bfloat16 under a float32 vector.

        Raises:
          TypeError: a dtype that cannot hold the values. ValueError: 64 bits while `jax_enable_x64` is off.
        """
        dtype = requested_dtype(dtype)
        check_keeps_imaginary(self.dtype, dtype)
        return self._each(lambda values: values.astype(dtype))

    def __mul__(self, scalar: Any) -> Self:
        if np.ndim(scalar) != 0:
            raise TypeError(
                "A * scales by one number; the product with a vector or a matrix is A @ x, and the product entry by "
                "entry of two matrices A.multiply(B)"
            )
        return self._each(lambda values: values * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> Self:
        return self * (1 / jnp.asarray(scalar))

    def __neg__(self) -> Self:
        return self._each(jnp.negative)

    def __abs__(self) -> Self:
        return self._each(jnp.abs)

    def conj(self) -> Self:
        """The matrix of the conjugate entries, not transposed; for the conjugate transpose use `H`."""
        return self._each(_conjugate)

    conjugate = conj

    @property
    def real(self) -> Self:
        return self._each(jnp.real)

    @property
    def imag(self) -> Self:
        return self._each(jnp.imag)

    def copy(self) -> Self:
        """The matrix itself: JAX's arrays cannot be written to."""
        return self

    @property
    def size(self) -> int:
        """`nnz`, by SciPy's name."""
        return self.nnz

    # ------------------------------------------------------------------------------------------------ conversions

    @property
    def H(self) -> Any:
        """The conjugate transpose; a view for real matrices, one copy of `values` for complex ones."""
        return self.conj().T

    def transpose(self, axes: tuple[int, int] | None = None, copy: bool = False) -> Any:
        """`T`, by SciPy's name.

        Raises:
          ValueError: axes in another order than (1, 0).
        """
        del copy
        if axes not in (None, (1, 0)):
            raise ValueError(f"a matrix has two axes to exchange, axes=(1, 0); got axes={axes!r}")
        return self.T

    def toarray(self) -> Array:
        """`todense`, by SciPy's name."""
        return self.todense()

    def tobsr(self) -> Any:
        return self.asformat("bsr")

    def tocoo(self) -> Any:
        return self.asformat("coo")

    def tocsc(self) -> Any:
        return self.asformat("csc")

    def tocsr(self) -> Any:
        """A matrix of this library in "csr", as `asformat` makes it; `to_scipy` gives SciPy's."""
        return self.asformat("csr")

    def todia(self) -> Any:
        return self.asformat("dia")

    # ------------------------------------------------------------------------------- sums, products, slices, reductions

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
        return _operations("A @ B", other).product(self, other)

    def multiply(self, other: Any) -> Any:
        """The product entry by entry with another matrix, or with a number.

        Raises:
          TypeError: a dense array. ValueError: another shape.
        """
        if np.ndim(other) == 0 and not isinstance(other, ScipyNames):
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
        return _operations().entries_of_equal(self, data) if isinstance(data, ScipyNames) else data

    __iter__ = None  # else Python would iterate by A[0], A[1], …

    # --------------------------------------------------------------------------------------------------- refusals

    def __len__(self) -> int:
        raise TypeError("the length of a matrix is ambiguous; use A.shape[0] for its rows, A.nnz for its entries")

    def __bool__(self) -> bool:
        raise ValueError(
            "the truth value of a matrix is ambiguous; write `A is not None` if A may be None, or `A.nnz > 0` to learn "
            "whether it has entries"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a sparse matrix is no array; use A @ x, A.todense() or A.to_scipy()")


def spmv(A: Any, x: Any, y: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Array:
    """alpha·A·x + beta·y. If beta is 0, NaNs of y do not spread, and y is not read unless beta is traced.

    Args:
      x: [n_cols] or [n_cols, p].
      y: [n_rows] or [n_rows, p], of the product's shape.

    Raises:
      ValueError: y is missing or has another shape while beta is not 0.
    """
    product = A @ x
    alpha, beta = (a.item() if isinstance(a, np.generic) else a for a in (alpha, beta))  # weak, as Python's numbers
    product = product if isinstance(alpha, (int, float)) and alpha == 1 else alpha * product
    if not isinstance(beta, Tracer) and np.ndim(beta) == 0 and beta == 0:
        return product
    if y is None or jnp.shape(y) != product.shape:
        got = "no y" if y is None else f"y of shape {jnp.shape(y)}"
        raise ValueError(f"beta={beta} adds beta·y, which needs y of shape {product.shape}; got {got}")
    y = owned(y)
    if isinstance(beta, Tracer):  # finite numbers of y stay, for the derivative with respect to beta
        y = jnp.where((beta == 0) & ~jnp.isfinite(y), 0, y)
    return product + beta * y


def _conjugate(a: Array) -> Array:
    return jnp.conj(a) if jnp.iscomplexobj(a) else a


def _operations(operation: str = "", *others: Any) -> Any:
    """The module that computes, which lies above, since it builds matrices. TypeError: an operand of another kind."""
    for other in others:
        if not isinstance(other, ScipyNames):
            raise TypeError(
                f"{operation} takes two matrices of this library, got {type(other).__name__}; convert a sparse matrix "
                "by from_scipy; with a dense array take A.todense(); A + s·I is A.shift(s)"
            )
    return importlib.import_module("jaxsparse_fmt.algebra.operations")
