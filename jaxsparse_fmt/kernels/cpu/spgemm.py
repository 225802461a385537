"""The pattern of a product of two sparse matrices, and of coordinates, in compiled code over all cores of the host.

Gustavson, "Two fast algorithms for sparse matrices" (1978), row by row: the first pass counts the entries of each row
of C = A·B and the products a[i]·b[j] that they sum; the second writes the columns. Each thread takes its own rows, and
has one number for every column of C, to mark the columns that a row has met. The results do not depend on the number of
threads.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels.cpu.over_rows import empty, over_rows

BUCKETS, PARTS = 9, 16  # coordinates are spread over at most 2^9 buckets, in parts for the threads


class Product(NamedTuple):
    """The entries of C = A·B.

    Attributes:
      indptr, indices: [n_rows + 1] int64, [nnz of C] int32: C's pattern, with sorted rows.
      before: [n_rows + 1] int64, the products a[i]·b[j] in the rows before.
      values: [nnz of C], where those of A and B were given.
    """

    indptr: np.ndarray
    indices: np.ndarray
    before: np.ndarray
    values: np.ndarray | None


def product(A: Any, B: Any, room: Callable[[int, int], None], values: Any = None) -> Product:
    """The symbolic part of A·B, and its values in the same pass.

    Args:
      A, B: patterns with sorted rows: `indptr`, `indices` and `shape`.
      room: called with the numbers of entries and of products before memory is allocated; raises if they are too many.
      values: those of A and B, of one dtype; None: only the pattern.
    """
    (n_rows, _), n_cols = A.shape, B.shape[1]
    given, entries, summed = _arrays(A, B), np.zeros(n_rows + 1, np.int64), np.zeros(n_rows + 1, np.int64)
    _over_rows("count", n_rows, n_cols, *given, entries, summed, before=given[0])
    indptr, before = np.cumsum(entries), np.cumsum(summed)
    room(int(indptr[-1]), int(before[-1]))
    indices, found = empty(indptr[-1], np.int32), None
    if values is None:
        _over_rows("columns", n_rows, n_cols, *given, indptr, indices, before=before)
    else:
        found = empty(indptr[-1], values[0].dtype)
        _over_rows("columns_and_values", n_rows, n_cols, *given, indptr, indices, *values, found, before=before)
    return Product(indptr, indices, before, found)


def pairs(A: Any, B: Any, C: Product) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The products that each entry of C sums, by rising column of A.

    Returns:
      first [nnz of C + 1], left, right [products] int32: entry n sums the products a[left[k]]·b[right[k]] for k from
      first[n] to first[n + 1].
    """
    products = int(C.before[-1])
    first = np.full(C.indices.size + 1, products, np.int64)
    left, right = np.empty(products, np.int32), np.empty(products, np.int32)
    given = *_arrays(A, B), *C[:3], first, left, right
    _over_rows("pairs", A.shape[0], B.shape[1], *given, before=C.before)
    return first, left, right


def merged(A: Any, B: Any, shared: bool) -> tuple[np.ndarray, ...]:
    """The entries of A + B; with `shared` only those that A and B both have.

    Returns:
      indptr [n_rows + 1] int64, indices [nnz] int32; left, right [nnz] int32 or int64, the entries of A and of B there;
      where A or B has none, its number of entries.
    """
    given, work, indptr = _counted_sum(A, B, shared)
    index = index_dtype(max(A.nnz, B.nnz))
    indices, left, right = (empty(indptr[-1], t) for t in (np.int32, index, index))
    rest = int(shared), A.nnz, B.nnz, indptr, indices, left, right
    _over_rows("merge", A.shape[0], 0, *given, *rest, before=work)
    return indptr, indices, left, right


def added(A: Any, B: Any, sign: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    """A + sign·B: indptr [n_rows + 1] int64, indices [nnz] int32 and values [nnz], of the dtype of a and b."""
    given, work, indptr = _counted_sum(A, B, False)
    indices, out = empty(indptr[-1], np.int32), empty(indptr[-1], a.dtype)
    _over_rows("add", A.shape[0], 0, *given, sign, indptr, indices, a, b, out, before=work)
    return indptr, indices, out


def _counted_sum(A: Any, B: Any, shared: bool) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The arrays of A and B, the work in the rows before, and `indptr` of the sum."""
    (n_rows, n_cols), given, entries = A.shape, _arrays(A, B), np.zeros(A.shape[0] + 1, np.int64)
    work = given[0] + given[2]
    _over_rows("count_sum", n_rows, n_cols, *given, int(shared), entries, before=work)
    return given, work, np.cumsum(entries)


def coordinates(row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Coordinates [k] as a pattern with sorted rows, each place once.

    It first spreads the coordinates over buckets of rows, which fit the cache, and then sorts each bucket.

    Returns:
      indptr [n_rows + 1], indices [nnz] int32; first [nnz + 1] and order [k] int32: entry n comes from the coordinates
      order[first[n]:first[n + 1]], in the order given.

    Raises:
      ValueError: an index outside `shape`.
    """
    (n_rows, _), k = shape, row.size
    row, col = (np.ascontiguousarray(a, a.dtype if a.dtype == np.int32 else np.int64) for a in (row, col))
    shift = max((n_rows - 1).bit_length() - BUCKETS, 0)
    buckets = -(-n_rows // 2**shift)
    ends, counts, outside = (
        k * np.arange(PARTS + 1) // PARTS,
        np.zeros((PARTS, buckets), np.int64),
        np.zeros(PARTS, int),
    )
    _over_rows("tally", PARTS, 0, ends, row, col, *shape, shift, buckets, counts, outside, before=ends)
    if outside.any():
        for name, index, bound in (("row", row, shape[0]), ("col", col, shape[1])):
            bad = index.min() if index.min() < 0 else index.max()
            if not 0 <= bad < bound:
                raise ValueError(f"{name} index {bad} is out of range for shape {shape}; indices count from 0")
    place = np.cumsum(np.append(0, counts.T))  # of a bucket's coordinates from each part
    key, number = np.empty(k, np.int64), np.empty(k, np.int32)
    starts = place[:-1].reshape(buckets, PARTS).T.copy()  # `spread` advances it
    _over_rows("spread", PARTS, 0, ends, row, col, shift, buckets, starts, key, number, before=ends)
    ends, ptr, entries = place[::PARTS].copy(), np.zeros(n_rows + 1, np.int64), np.zeros(n_rows + 1, np.int64)
    placed, order = np.empty(k, np.int64), empty(k, np.int32)
    given = ends, key, number, n_rows, shift, ptr, placed, entries
    _over_rows("sort_buckets", buckets, 2**shift, *given, before=ends)
    indptr = np.cumsum(entries)
    indices, first = empty(indptr[-1], np.int32), np.full(indptr[-1] + 1, k, np.int64)
    _over_rows("first_of_each", n_rows, 0, ptr, placed, indptr, indices, first, order, before=ptr)
    return indptr, indices, first, order


def _arrays(*matrices: Any) -> list[np.ndarray]:
    return [np.ascontiguousarray(a, t) for M in matrices for a, t in ((M.indptr, np.int64), (M.indices, np.int32))]


def _kernels() -> Any:
    from jaxsparse_fmt.kernels.cpu import spgemm_kernels

    return spgemm_kernels


_over_rows = functools.partial(over_rows, _kernels)
