"""SciPy's names, which all matrices share, and errors that name what to do instead."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt import _elsewhere, _html
from jaxsparse_fmt._arguments import as_floating, is_number, number, owned
from jaxsparse_fmt._dtypes import check_keeps_imaginary, requested_dtype
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import is_concrete
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core.basis import Operator, agreed
from jaxsparse_fmt.core.reductions import Reductions, axis_of

# Operations that build a matrix from matrices on one device, by name; `algebra/operations.py` fills it.
OPERATORS: dict[str, Callable[..., Any]] = {}
MOST_DRAWN = 5_000_000  # entries of a matrix whose picture a notebook shows; a picture needs the pattern on the host


def _of_entries(sign: str) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, other: Any) -> NoReturn:
        raise TypeError(
            f"A {sign} b is not defined for a sparse matrix; entry by entry take A.with_data(A.data {sign} b)"
            + (", and for a power of the matrix A @ A" if sign == "**" else "")
        )

    return refuse


class ScipyNames(Operator):
    """SciPy's names for stored, transposed and sharded matrices."""

    ndim: ClassVar[int] = 2
    __array_ufunc__ = None  # NumPy then leaves x @ A to `__rmatmul__`

    # What a subclass provides, in addition to `shape`, `dtype` and `T`.
    nnz: Any
    _times_vector: Any  # A·x
    _transposed: Any  # Aᵀ·y without conjugation
    _each: Any  # the same matrix with a function applied to all of its values
    _combined: Any  # with another matrix, entry by entry
    _times_matrix: Any
    asformat: Any
    todense: Any
    to_scipy: Any

    # --------------------------------------------------------------------------------------------------- products

    def matvec(self, x: Any) -> Any:
        """A @ x, as SciPy's solvers call it: an array of NumPy for a NumPy x.

        Args:
          x: [n_cols], or [n_cols, p] for p products that read A once.

        Raises:
          ValueError: x has another shape. TypeError: x is not a numeric array.
        """
        return _as_given(self._times_vector(x), x)

    def rmatvec(self, y: Any) -> Any:
        """Aᴴ·y, the adjoint as in SciPy; for real matrices the same as A.T @ y; an array of NumPy for a NumPy y.

        Args:
          y: [n_rows] or [n_rows, p].
        """
        return _as_given(_conjugate(self._transposed(_conjugate(as_floating(y, "the vector", self.dtype)))), y)

    def __matmul__(self, x: Any) -> Any:
        return self._times_matrix(x) if isinstance(x, ScipyNames) else self._times_vector(x)

    def __rmatmul__(self, x: Any) -> Array:
        return self._transposed(as_floating(x, "the vector", self.dtype).T).T

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(
            f"a sharded matrix has no A[{index!r}]: its rows lie on several devices; take A.to_scipy()[{index!r}], or "
            "slice the matrix before `shard`"
        )

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(
            f"a matrix cannot change, as arrays of JAX cannot: for A[{index!r}] = {value!r} make it anew with other "
            "values by A.with_data(A.data.at[k].set(value)), where A.row_ids and A.col_ids show the entry k"
        )

    def dot(self, x: Any) -> Any:
        """A @ x; with a number A * x."""
        return self * x if np.ndim(x) == 0 else self @ x

    # ----------------------------------------------------------------------------------------------------- values

    @agreed
    def astype(self, dtype: Any) -> Self:
        """The same matrix with values of another dtype, for example bfloat16 under a float32 vector.

        Raises:
          TypeError: a dtype that cannot hold the values. ValueError: 64 bits while `jax_enable_x64` is off.
        """
        dtype = requested_dtype(dtype)
        check_keeps_imaginary(self.dtype, dtype)
        return self._each(lambda values: values.astype(dtype))

    @agreed
    def __mul__(self, scalar: Any) -> Self:
        """A times a number. If it is not finite, stored zeros stay zero, since padding is zero."""
        if not is_number(scalar):
            raise TypeError(
                "A * scales by one number; the product with a vector or a matrix is A @ x, and the product entry by "
                "entry of two matrices A.multiply(B)"
            )
        scalar = number(scalar)
        if not isinstance(scalar, jax.Array) and np.isfinite(scalar):
            return self._each(lambda values: values * scalar)
        return self._each(lambda values: _times(values, scalar))

    __rmul__ = __mul__

    @agreed
    def __truediv__(self, scalar: Any) -> Self:
        if not is_number(scalar):
            raise TypeError(
                "A / divides by one number; by one for each row or column divide as A.scale_rows(1 / d) or "
                "A.scale_cols(1 / d)"
            )
        return self * (1 / jnp.asarray(number(scalar)))

    __pow__, __floordiv__, __mod__ = map(_of_entries, ("**", "//", "%"))

    def __neg__(self) -> Self:
        return self._each(jnp.negative)

    def __abs__(self) -> Self:
        return self._each(jnp.abs)

    def conj(self) -> Self:
        """The matrix of the conjugate entries, not transposed; for the conjugate transpose use `H`."""
        return self._each(_conjugate)

    @property
    def real(self) -> Self:
        return self._each(jnp.real)

    @property
    def imag(self) -> Self:
        return self._each(jnp.imag)

    def copy(self) -> Self:
        """The same matrix in arrays of its own, which may be donated."""
        return jax.tree.map(jnp.copy, self)

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

    def tocoo(self) -> Any:
        return self.asformat("coo")

    def tocsc(self) -> Any:
        return self.asformat("csc")

    def tocsr(self) -> Any:
        """A matrix of this library in "csr", as `asformat` makes it; `to_scipy` gives SciPy's."""
        return self.asformat("csr")

    # ----------------------------------------------------------------------------------------------------- sums

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int | float) and other == 0:
            return self  # the start of Python's sum
        return self._combined("A + B", other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined("A - B", other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def multiply(self, other: Any) -> Any:
        """The product entry by entry with another matrix, or with a number."""
        return self * other if np.ndim(other) == 0 else self._combined("A.multiply(B)", other, operator.mul)

    @agreed
    def sum(self, axis: Any = None) -> Array:
        """The sum of all entries, or with axis 0 of each column, [n_cols], with axis 1 of each row, [n_rows]."""
        if (axis := axis_of(axis)) == 0:
            return self._transposed(jnp.ones(self.shape[0], self.dtype))
        rows = self @ jnp.ones(self.shape[1], self.dtype)
        return rows if axis == 1 else rows.sum()

    if not TYPE_CHECKING:
        __getattr__ = _elsewhere.missing(_elsewhere.OF_MATRICES)

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


class OnOneDevice(Reductions, ScipyNames):
    """The operations of stored and transposed matrices that make new patterns, or read where entries lie.

    The result has the format of the operands, or is in "csr" if they differ. SciPy or a compiled kernel makes it if the
    values are at hand on the host. Otherwise the pattern is found once, on the operands' device, and kept for later
    operands of the same patterns; JAX computes the values, with all derivatives. Inside jit the patterns must not be
    traced: close over A and pass `A.data`.
    """

    _stored: Any  # the matrix whose arrays these are: itself, or that of which it is the transpose
    data: Any
    row_ids: Any
    col_ids: Any
    with_data: Any

    def _repr_html_(self) -> str | None:
        """For notebooks: sizes, format and a picture of the pattern; None, which shows `repr`, inside a trace, and of a
        view of a sharded matrix.
        """
        A = self._stored
        is_known = all(isinstance(a, np.ndarray) or is_concrete(a) for a in jax.tree.leaves(A))
        if not (isinstance(self._stored, OnOneDevice) and is_known):
            return None
        if A.values.ndim != 1 or not A._has_pattern:
            return None
        rows, cols = self.shape
        name, *remarks = A._described
        options = ", ".join(f"{k}={v}" for k, v in A.layout.items())
        facts = [
            ("entries", f"{A.nnz:,}, {A.nnz / max(rows * cols, 1):.2g} of all places"),
            ("format", ", ".join(filter(None, (name, options, *remarks)))),
            ("stored", f"{readable_bytes(A.nbytes)} as {jnp.dtype(A.dtype).name}, {1 - A.fill:.0%} padding"),
        ]
        title = f"{'transposed ' if A is not self else ''}sparse matrix {rows:,} × {cols:,}"
        return _html.table(title, facts, _html.spy(self.to_scipy()) if A.nnz <= MOST_DRAWN else "")

    def _combined(self, operation: str, other: Any, f: Callable[[Array, Array], Array]) -> Any:
        return OPERATORS["combined"](operation, self, other, f)

    def _times_matrix(self, other: Any) -> Any:
        return OPERATORS["product"](self, other)

    def multiply(self, other: Any) -> Any:
        """The product entry by entry with another matrix, a number, or a dense array, which broadcasts to A's shape.

        A sparse row, column or single number broadcasts too, in A's pattern.

        Raises:
          ValueError: another shape.
        """
        if isinstance(other, OnOneDevice) and other.shape != self.shape:
            if self.shape == (1, 1):
                return other.multiply(self)
            other = other.todense() if 1 in other.shape else other
        if isinstance(other, np.ndarray | jax.Array | list) and np.ndim(other):
            dense = jnp.atleast_2d(as_floating(other, "the array"))
            if dense.ndim > 2 or any(n not in (1, of_A) for n, of_A in zip(dense.shape, self.shape, strict=False)):
                raise ValueError(
                    f"A.multiply takes an array that broadcasts to A's shape {self.shape}, such as one number for each "
                    f"column, [{self.shape[1]}], or row, [{self.shape[0]}, 1]; got {np.shape(other)}"
                )
            row, col = (0 if n == 1 else ids for n, ids in zip(dense.shape, (self.row_ids, self.col_ids), strict=True))
            return self.with_data(self.data * dense[row, col])
        return super().multiply(other)

    def scale_rows(self, d: Any) -> Any:
        """diag(d)·A, of the same pattern.

        Args:
          d: [n_rows].
        """
        return OPERATORS["scaled"](self, d, 0)

    def scale_cols(self, d: Any) -> Any:
        """A·diag(d), of the same pattern.

        Args:
          d: [n_cols].
        """
        return OPERATORS["scaled"](self, d, 1)

    def shift(self, s: Any) -> Any:
        """A + s·I; the whole diagonal becomes entries.

        Args:
          s: a number, or [n] for diag(s); may be traced.

        Raises:
          ValueError: A is not square, or s has another shape.
        """
        return OPERATORS["shifted"](self, s)

    def setdiag(self, values: Any, k: int = 0) -> Any:
        """A new matrix with these numbers on diagonal k, which become entries; A itself cannot change.

        Args:
          values: a number for the whole diagonal, or an array for its first places; may be traced.

        Raises:
          ValueError: a diagonal outside the matrix, or several axes. TypeError: complex numbers for real entries.
        """
        return OPERATORS["with_diagonal"](self, values, k)

    def __getitem__(self, index: Any) -> Any:
        """A[rows, columns] as a matrix; of two integers a number, of two arrays [k] the numbers at k places, dense.

        Args:
          index: for each axis an integer, a slice, or an array of integers or booleans; `numpy.ix_` of two arrays gives
            the submatrix of their rows and columns.

        Raises:
          IndexError: out of range, or of another kind. TypeError: a traced index.
        """
        return OPERATORS["item"](self, index)


@agreed
def spmv(A: Any, x: Any, y: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Array:
    """alpha·A·x + beta·y. If beta is 0, NaNs of y do not spread; y is then read only if beta is traced.

    Args:
      x: [n_cols] or [n_cols, p].
      y: [n_rows] or [n_rows, p], of the product's shape.

    Raises:
      ValueError: y is missing or has another shape while beta is not 0.

    Examples:
      >>> np.allclose(js.spmv(A, b, b, alpha=2.0, beta=1.0), 2 * (A @ b) + b)
      True
    """
    product = A @ x
    alpha, beta = (a.item() if isinstance(a, np.generic) else number(a) for a in (alpha, beta))  # weak dtypes
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


@jax.jit
def _times(values: Array, scalar: Any) -> Array:
    """values·scalar; 0 where a value is 0 and the scalar is not finite, whose product would be NaN."""
    return values * jnp.where((values == 0) & ~jnp.isfinite(scalar), 0, scalar)


def _as_given(y: Any, x: Any) -> Any:
    """y, computed from x, as an array of NumPy if x is one: SciPy's solvers write to what a product returns."""
    return np.array(y) if isinstance(x, np.ndarray) and is_concrete(y) and y.is_fully_addressable else y


def _conjugate(a: Array) -> Array:
    return jnp.conj(a) if jnp.iscomplexobj(a) else a
