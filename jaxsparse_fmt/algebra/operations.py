"""Shifts, scalings and slices of matrices, and the public functions that make new patterns."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.core import Tracer

from jaxsparse_fmt._arguments import as_floating, number, whole_number
from jaxsparse_fmt._dtypes import check_keeps_imaginary, index_dtype, requested_dtype
from jaxsparse_fmt.algebra import by_scipy, on_device, patterns, plans
from jaxsparse_fmt.algebra.assembly import assembly
from jaxsparse_fmt.core.entry_index import take
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import OPERATORS
from jaxsparse_fmt.formats import building, memory
from jaxsparse_fmt.kernels.layout.address import expand_ptr


def _scaled(A: Any, d: Any, axis: int) -> Any:
    name = ("scale_rows", "scale_cols")[axis]
    patterns.check(name, A)
    d = as_floating(d, "d")
    if d.shape != (A.shape[axis],):
        raise ValueError(f"{name}(d) takes d of shape ({A.shape[axis]},), got {d.shape}")
    return A.with_data(A.data * d[A.row_ids if axis == 0 else A.col_ids])


def _shifted(A: Any, s: Any) -> SparseMatrix:
    patterns.check("shift", A)
    n = A.shape[0]
    if n != A.shape[1]:
        raise ValueError(f"shift needs a square matrix, got shape {A.shape}")
    s = number(s)
    s = jnp.asarray(s, jnp.result_type(A.dtype, s))
    if s.ndim != 0 and s.shape != (n,):
        raise ValueError(f"shift(s) takes a number or an array of shape ({n},), got shape {s.shape}")
    return plans.combined("A.shift(s)", A, diags(jnp.broadcast_to(s, (n,))), operator.add, patterns.format_of(A))


def _item(A: Any, index: Any) -> Any:
    """A[index]: a matrix; with two integers a number."""
    index = index if isinstance(index, tuple) else (index,)
    axes = [axis for axis, i in enumerate(index) if i is Ellipsis]
    if axes:
        index = (*index[: axes[0]], *[slice(None)] * (3 - len(index)), *index[axes[0] + 1 :])
    index = (*index, *[slice(None)] * (2 - len(index)))
    if len(index) > 2 or any(i is None or i is Ellipsis for i in index):
        raise IndexError(f"a matrix takes one index or two, rows and columns; got {index!r}")
    if any(isinstance(i, Tracer) for i in index):
        raise TypeError("an index of a sparse matrix must not be traced, since it decides the pattern; use A @ e")
    rows, columns = index
    pairs = np.ndim(rows) == np.ndim(columns) == 1
    if np.shape(rows)[1:] == (1,) and np.ndim(columns) and np.shape(columns)[:-1] in ((), (1,)):
        index = np.ravel(rows), np.ravel(columns)  # of numpy.ix_, or rows[:, None]
    index = [i.item() if isinstance(i, np.ndarray | np.generic | jax.Array) and i.ndim == 0 else i for i in index]
    whole = [isinstance(i, int) and not isinstance(i, bool) for i in index]
    places = [[_in_range(i, n)] if one else _places(i, n) for i, one, n in zip(index, whole, A.shape, strict=True)]
    if pairs:
        return _at_pairs(A, *places)
    at_hand = by_scipy.at_hand(A, fetched=True)
    if at_hand is not None:
        part = plans.made(by_scipy.crossing(*at_hand, *places), None, A)
        device = memory.device(A)
        part = part if device == memory.device() else jax.device_put(part, device)
    else:
        key = tuple(p if isinstance(p, slice) else tuple(p) if len(p) < 64 else None for p in places)
        key = None if None in key else ("item", *map(repr, key))
        part = plans.selected("A[...]", key, lambda S: patterns.crossed(S, *places), A)
    return part.todense()[0, 0] if all(whole) else part


def _at_pairs(A: Any, rows: Any, columns: Any) -> Any:
    """The numbers of A at pairs of a row and a column [k]; one row or column serves all."""
    if rows.size != columns.size and 1 not in (rows.size, columns.size):
        raise IndexError(
            f"two arrays list pairs of a row and a column, and have {rows.size} and {columns.size} numbers; for a "
            "submatrix take A[rows][:, columns]"
        )
    S = patterns.patterns_of(A)[0]
    number = np.arange(1, A.nnz + 1, dtype=index_dtype(A.nnz + 1))
    S = by_scipy.with_data(patterns.csr(np.asarray(S.indptr), np.asarray(S.indices), S.shape), number)
    pairs = tuple(map(np.array, np.broadcast_arrays(rows, columns)))
    entry = np.asarray(S[pairs]) if pairs[0].size else number[:0]
    return take(A.data, jnp.asarray(np.where(entry > 0, entry - 1, A.nnz)))


def _in_range(i: int, n: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of range for an axis of {n}")
    return int(i) % n


def _places(index: Any, n: int) -> Any:
    if isinstance(index, slice):
        return index
    index = np.asarray(index)
    if index.ndim != 1 or (index.dtype != bool and not np.issubdtype(index.dtype, np.integer) and index.size):
        raise IndexError(f"an index is an integer, a slice, or one axis of integers or booleans; got {index!r}")
    if index.dtype == bool:
        if index.size != n:
            raise IndexError(f"a mask for an axis of {n} must have {n} booleans, got {index.size}")
        return np.flatnonzero(index)
    index = index.astype(np.int64)
    if index.size and not (-n <= index.min() and index.max() < n):
        bad = index.max() if index.max() >= n else index.min()
        raise IndexError(f"index {bad} is out of range for an axis of {n}")
    return index % n if n else index


def _with_diagonal(A: Any, values: Any, k: int) -> SparseMatrix:
    patterns.check("setdiag", A)
    k, values = whole_number("k", k, None), as_floating(values, "values")
    row, col = max(-k, 0), max(k, 0)  # of the diagonal's first place
    n = min(A.shape[0] - row, A.shape[1] - col)
    if n <= 0 or values.ndim > 1:
        raise ValueError(
            f"setdiag takes a number or one array of them, and a diagonal of a matrix of shape {A.shape}; got values "
            f"of shape {values.shape}, k={k}"
        )
    check_keeps_imaginary(values.dtype, A.dtype)
    n = min(n, values.size) if values.ndim else n
    place, values = np.arange(n), (values[:n] if values.ndim else jnp.full(n, values)).astype(A.dtype)
    D = assembly(row + place, col + place, A.shape, "csr")(values)
    is_set = (A.col_ids - A.row_ids == k) & (A.row_ids < row + n)
    others = A.with_data(jnp.where(is_set, 0, A.data))
    return plans.combined("A.setdiag(values)", others, D, operator.add, patterns.format_of(A))


OPERATORS |= {
    "combined": plans.combined,
    "item": _item,
    "product": plans.product,
    "scaled": _scaled,
    "shifted": _shifted,
    "with_diagonal": _with_diagonal,
}


# ------------------------------------------------------------------------------------------------------ public names


def eye(m: int, n: int | None = None, *, dtype: Any = None, format: str = "csr") -> SparseMatrix:
    """The identity matrix [m, n], with ones on the diagonal.

    Raises:
      ValueError: a size below 0.

    Examples:
      >>> js.eye(2).todense().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    m = whole_number("m", m)
    n = m if n is None else whole_number("n", n)
    building.check_result(min(m, n), (m, n))
    dtype = jax.dtypes.canonicalize_dtype(dtype or float)
    return patterns.matrix(scipy.sparse.csr_array(scipy.sparse.eye_array(m, n)), format, "auto", dtype=dtype)


def diags(
    diagonals: Any,
    offsets: Any = 0,
    *,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    format: str = "csr",
) -> SparseMatrix:
    """A matrix from its diagonals, which may be traced.

    Args:
      diagonals: an array, or a list of arrays, one for each offset: as long as the diagonal, or a number for all of it.
      offsets: an integer, or one for each diagonal; positive above the main diagonal.
      shape: None: square, as large as the first diagonal requires.

    Raises:
      ValueError: a diagonal of another length, an offset outside the matrix, or the same offset twice.

    Examples:
      >>> js.diags([[2.0, 2.0], [1.0]], [0, 1]).todense().tolist()
      [[2.0, 1.0], [0.0, 2.0]]
    """
    if np.ndim(offsets) == 0:
        offsets, diagonals = [offsets], [diagonals]
    offsets = [whole_number("offset", k, None) for k in offsets]
    given = [jnp.asarray(d) for d in diagonals]
    if len(offsets) != len(given) or not given or len(set(offsets)) != len(offsets):
        raise ValueError(f"diags takes one diagonal for each offset, each offset once; got {len(given)} for {offsets}")
    if shape is None:
        if given[0].ndim == 0:
            raise ValueError("diags of a single number needs shape=(rows, columns)")
        shape = (given[0].size + abs(offsets[0]),) * 2
    rows, cols, values = [], [], []
    for k, d in zip(offsets, given, strict=True):
        row, col = max(-k, 0), max(k, 0)  # of its first entry
        n = min(shape[0] - row, shape[1] - col)
        if n < 0 or (d.ndim and d.shape != (n,)):
            raise ValueError(
                f"the diagonal of offset {k} of a matrix of shape {shape} has {max(n, 0)} numbers, not {d.shape}"
            )
        building.check_result(n * len(given), shape, on_device.SORTED)
        rows.append(row + np.arange(n))
        cols.append(col + np.arange(n))
        values.append(jnp.broadcast_to(d, (n,)))
    data = as_floating(jnp.concatenate(values), "the diagonals")
    data = data if dtype is None else data.astype(requested_dtype(dtype))
    return assembly(np.concatenate(rows), np.concatenate(cols), shape, format)(data)


def block(blocks: Sequence[Sequence[Any]], *, format: str | None = None) -> SparseMatrix:
    """A matrix from blocks, None where a block is zero: `block([[A, B], [C, None]])`.

    Args:
      format: of the result; None: that of the blocks if it is the same for all, else "csr".

    Raises:
      ValueError: sizes that do not fit. TypeError: a block that is not a matrix of this library on one device.

    Examples:
      >>> js.block([[A, None], [None, A]]).shape
      (32, 32)
    """
    rows = [list(row) for row in blocks]
    given = [A for row in rows for A in row if A is not None]
    patterns.check("block", *given)
    if not given:
        raise ValueError("block needs at least one matrix")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"every row needs the same number of blocks; got {[len(row) for row in rows]}")
    key = "block", tuple(tuple(A is None for A in row) for row in rows)
    heights = [_common("rows", [A.shape[0] for A in row if A is not None]) for row in rows]
    widths = [_common("columns", [A.shape[1] for A in column if A is not None]) for column in zip(*rows, strict=True)]
    shape = sum(heights), sum(widths)
    building.check_result(sum(A.nnz for A in given), shape, on_device.SORTED)
    tops, lefts = ([*itertools.accumulate(sizes, initial=0)] for sizes in (heights, widths))
    corners = tuple((tops[i], lefts[j]) for i, row in enumerate(rows) for j, A in enumerate(row) if A is not None)

    def choose(*blocks: Any) -> Any:
        xp = building.namespace(blocks[0].indptr)
        row, col = _shifted_places(xp, [building.entries(S) for S in blocks], corners)
        return patterns.arranged(row, col, shape)

    return plans.selected("block", key, choose, *given, format=format)


def _common(what: str, sizes: list[int]) -> int:
    if len(set(sizes)) > 1:
        raise ValueError(f"blocks of one row or column of blocks need the same number of {what}; got {sizes}")
    return sizes[0] if sizes else 0


@building.on_either(2)
def _shifted_places(xp: Any, blocks: Any, corners: Any) -> Any:
    """Row and column of all entries of blocks whose first row and column are given."""
    places = ((row + i, col + j) for (row, col), (i, j) in zip(blocks, corners, strict=True))
    return tuple(map(xp.concatenate, zip(*places, strict=True)))


def hstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices side by side, as `block([matrices])`.

    Examples:
      >>> js.hstack([A, A]).shape
      (16, 32)
    """
    return block([matrices], format=format)


def vstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices one below the other, as `block` of one column.

    Examples:
      >>> js.vstack([A, A]).shape
      (32, 16)
    """
    return block([[A] for A in matrices], format=format)


def kron(A: Any, B: Any, *, format: str | None = None) -> SparseMatrix:
    """The Kronecker product, whose block (i, j) is A[i, j]·B.

    Raises:
      TypeError: not a matrix of this library on one device.

    Examples:
      >>> js.kron(js.eye(2), A).shape
      (32, 32)
    """
    patterns.check("kron", A, B)
    shape = A.shape[0] * B.shape[0], A.shape[1] * B.shape[1]
    building.check_result(A.nnz * B.nnz, shape, on_device.SORTED)
    at_hand = by_scipy.at_hand(A, B)
    if at_hand is not None:
        return plans.made(by_scipy.sorted_rows(scipy.sparse.kron(*at_hand, "csr")), format, A, B)
    return plans.paired(patterns.kronecker, "kron", format, A, B)(A, B, operator.mul)


def tril(A: Any, k: int = 0) -> SparseMatrix:
    """The entries of A on and below diagonal k.

    Examples:
      >>> js.tril(A).nnz, js.tril(A, -1).nnz
      (40, 24)
    """
    return _triangle("tril", A, k)


def triu(A: Any, k: int = 0) -> SparseMatrix:
    """The entries of A on and above diagonal k.

    Examples:
      >>> js.triu(A).nnz, js.triu(A, 1).nnz
      (40, 24)
    """
    return _triangle("triu", A, k)


def _triangle(name: str, A: Any, k: int) -> SparseMatrix:
    patterns.check(name, A)
    k = min(max(whole_number("k", k, None), -A.shape[0]), A.shape[1])

    def choose(S: Any) -> Any:
        return patterns.masked(S, _on_side(building.namespace(S.indptr), S.indptr, S.indices, k, name == "tril"))

    return plans.selected(name, (name, k), choose, A)


@building.on_either(4)
def _on_side(xp: Any, indptr: Any, indices: Any, k: Any, below: bool) -> Any:
    offset = indices - expand_ptr(xp, indptr, indices.shape[0])
    return offset <= k if below else offset >= k


def prune(A: Any, tol: float = 0.0) -> SparseMatrix:
    """A without the entries of absolute value at most `tol`.

    Raises:
      ValueError: inside jit, where the values, and so the size of the result, are not known.

    Examples:
      >>> js.prune(A.with_data(A.data.at[0].set(0.0))).nnz == A.nnz - 1
      True
    """
    patterns.check("prune", A)
    data = A.data
    if isinstance(data, Tracer):
        raise ValueError("prune drops entries by their values, which are traced here; call it outside jit")

    def keep(S: Any) -> Any:
        xp = building.namespace(S.indptr)
        return patterns.masked(S, _above(xp, xp.asarray(data), tol))

    return plans.selected("prune", None, keep, A)


@building.on_either()
def _above(xp: Any, data: Any, tol: Any) -> Any:
    return ~(xp.abs(data) <= tol)  # keeps NaN
