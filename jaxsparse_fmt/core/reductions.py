"""Reductions over rows and columns, in which every place without an entry counts as a zero, as in SciPy.

The columns of A are the rows of A.T, whose entries lie in order: one pass over sorted rows serves both axes.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.ops import segment_max, segment_min, segment_sum

from jaxsparse_fmt._arguments import real_number
from jaxsparse_fmt._dtypes import scipy_dtype, x64_enabled
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core.basis import agreed
from jaxsparse_fmt.kernels.layout.address import row_pointers, when_run


def axis_of(axis: Any) -> int | None:
    """0 for the sums of columns, 1 for those of rows, None for both axes. ValueError: another axis."""
    axis = axis.tolist() if hasattr(axis, "tolist") else axis  # a number of NumPy's is compared with each of a tuple
    if axis in (None, (0, 1), (1, 0), (-2, -1), (-1, -2)):
        return None
    if axis not in (0, 1, -1, -2):
        raise ValueError(f"axis must be None, 0, 1 or (0, 1), got {axis!r}")
    return int(axis) % 2


class Reductions:
    """SciPy's reductions; the results are dense, [n_cols] for axis 0, [n_rows] for axis 1."""

    shape: Any
    dtype: Any
    T: Any
    data: Any
    row_ids: Any
    col_ids: Any
    with_data: Any
    _in_bases: Any
    __neg__: Any
    _each: Any
    sum: Any
    diagonal: Any

    @agreed
    def max(self, axis: Any = None) -> Array:
        """The greatest number of each column or row, or of all; a NaN is greater than every number.

        The derivative of a maximum that several places share is divided evenly, as by jnp.max. `A.data.max()` is the
        greatest of the entries alone.

        Args:
          axis: None or (0, 1), 0 for each column, 1 for each row.

        Raises:
          ValueError: another axis, or no place to take it from. TypeError: complex entries.
        """
        R, row = self._in_rows("max", axis)
        top = _greatest(R.data, row, *_sizes(R, row))
        return top[0] if row is None else top

    @agreed
    def min(self, axis: Any = None) -> Array:
        """The least number of each column or row, or of all; as `max`."""
        return 0 - (-self).max(axis)  # not -0.0

    @agreed
    def argmax(self, axis: Any = None) -> Array:
        """The first place of the greatest number: the row in each column, the column in each row; integers.

        With axis None it is the place in the matrix written out by rows, row·n_cols + column. Arguments as for `max`.

        Raises:
          ValueError: also for a matrix with 2³¹ places or more, axis None, while `jax_enable_x64` is off.
        """
        R, row = self._in_rows("argmax", axis)
        if row is not None:
            return _first_greatest(lax.stop_gradient(R.data), row, R.col_ids, *R.shape)
        rows, cols = self.shape
        if rows * cols >= 2**31 and not x64_enabled():
            raise ValueError(
                f"the places of a matrix of shape {self.shape} need 64-bit integers; call "
                "jax.config.update('jax_enable_x64', True) first, or take argmax of each axis"
            )
        place = jnp.argmax(self.max(1))
        return place * cols + self.argmax(1)[place].astype(place.dtype)

    @agreed
    def argmin(self, axis: Any = None) -> Array:
        """The first place of the least number; as `argmax`."""
        return (-self).argmax(axis)

    def _in_rows(self, name: str, axis: Any) -> tuple[Any, Array | None]:
        """The matrix whose rows are reduced and the row of each of its entries; None: all are one row."""
        axis = axis_of(axis)
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            raise TypeError(f"{name} orders numbers, and complex numbers have no order; take abs(A), A.real or A.imag")
        R = self.T if axis == 0 else self
        if (0 in self.shape) if axis is None else (R.shape[1] == 0):
            raise ValueError(f"{name} along axis {axis} of a matrix of shape {self.shape} has nothing to choose from")
        return R, None if axis is None else R.row_ids

    @agreed
    def mean(self, axis: Any = None) -> Array:
        """`sum(axis)`, divided by the number of places that each sum is over."""
        axis = axis_of(axis)
        places = float(math.prod(self.shape) if axis is None else self.shape[axis])
        wide = scipy_dtype(self.dtype)  # 16 bits may not hold the sum
        return (self._each(lambda values: values.astype(wide)).sum(axis) / places).astype(self.dtype)

    @agreed
    def count_nonzero(self, axis: Any = None) -> Array:
        """The number of entries that are not zero, of all or of each column or row; `nnz` counts zeros too."""
        axis = axis_of(axis)
        if axis is None:
            return jnp.count_nonzero(self.data)
        R = self.T if axis == 0 else self
        return segment_sum((R.data != 0).astype(int), R.row_ids, R.shape[0], indices_are_sorted=True)

    def nonzero(self) -> tuple[Array, Array]:
        """Row and column of the entries that are not zero, by row and then by column.

        Raises:
          ValueError: traced values, which decide how many these are.
        """
        if isinstance(self.data, Tracer):
            raise ValueError(
                "the values decide how many entries are not zero, and are traced here; A.row_ids and A.col_ids are the "
                "places of all entries"
            )
        mask = np.asarray(self._in_bases()[2]._shared(self.data)) != 0
        return self.row_ids[mask], self.col_ids[mask]

    def trace(self, offset: int = 0) -> Array:
        """The sum of the diagonal `offset`, counted as in `diagonal`."""
        return self.diagonal(offset).sum()

    @agreed
    def power(self, n: Any) -> Any:
        """The matrix of the n-th powers of the entries, of the same pattern. `A @ A` is a power of the matrix.

        Raises:
          ValueError: n is not above 0, whose powers of the zeros between the entries are no zeros.
        """
        if not isinstance(n, Tracer) and not real_number("n", n) > 0:
            raise ValueError(f"power takes an n above 0, since a sparse matrix keeps its zeros; got {n}")
        return self.with_data(self.data ** (n.item() if isinstance(n, np.generic) else n))


def _sizes(R: Any, row: Array | None) -> tuple[int, int]:
    return (1, R.shape[0] * R.shape[1]) if row is None else R.shape


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
@functools.partial(jax.jit, static_argnums=(2, 3))
def _greatest(
    data: Array,  # [nnz]
    row: Array | None,  # [nnz], sorted; None: there is one row
    n_rows: int,
    length: int,  # places of a row
) -> Array:  # [n_rows]
    if row is None:
        top, count = jnp.max(data, initial=-jnp.inf)[None], data.shape[0]
    else:
        top, count = segment_max(data, row, n_rows, indices_are_sorted=True), _counts(row, n_rows)
    return jnp.where(count < length, jnp.maximum(top, 0), top)


@_greatest.defjvp
def _greatest_jvp(n_rows, length, primals, tangents):
    data, row = primals
    top = _greatest(data, row, n_rows, length)
    return top, _shared_slope(data, row, top, tangents[0], n_rows, length)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _shared_slope(data, row, top, tangent, n_rows, length):
    """The mean of the tangents of the places that are greatest, where those without an entry have none."""
    if row is None:
        wins, count = data == top, data.shape[0]
        add = lambda a: jnp.sum(a)[None]  # noqa: E731
    else:
        wins, count = data == top[row], _counts(row, n_rows)
        add = lambda a: segment_sum(a, row, n_rows, indices_are_sorted=True)  # noqa: E731
    others = float(length - count) if row is None else length - count  # which 32 bits may not hold
    share = add(wins.astype(tangent.dtype)) + jnp.where(top == 0, others, 0).astype(tangent.dtype)
    return add(jnp.where(wins, tangent, 0)) / share


def _counts(row: Array, n_rows: int) -> Array:
    return jnp.diff(row_pointers(row, n_rows))


@functools.partial(jax.jit, static_argnums=(3, 4))
def _first_greatest(data: Array, row: Array, col: Array, n_rows: int, length: int) -> Array:
    """The first column of the greatest number of each row."""
    row, col = map(when_run, (row, col))
    top = _greatest(data, row, n_rows, length)
    wins = (data == top[row]) | jnp.isnan(data)
    first = segment_min(jnp.where(wins, col, length), row, n_rows, indices_are_sorted=True)
    # The columns of a row rise, so that entry j lies in column j as long as no column before is without an entry.
    number = jnp.arange(row.shape[0], dtype=col.dtype) - row_pointers(row, n_rows).astype(col.dtype)[row]
    hole = segment_sum((col == number).astype(col.dtype), row, n_rows, indices_are_sorted=True)
    return jnp.minimum(first, jnp.where(top == 0, hole, length))
