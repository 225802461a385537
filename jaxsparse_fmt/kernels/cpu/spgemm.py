"""The pattern of a product of two sparse matrices, and of coordinates, in compiled code over all cores of the host.

Gustavson, "Two fast algorithms for sparse matrices" (1978), row by row: the first pass counts the entries of each row
of C = A·B and the products a[i]·b[j] that they sum; the second writes the columns down. Each thread takes its own rows,
and has one number for every column of C, which marks the columns that a row has met. Nothing depends on the number of
threads.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt.kernels.cpu.over_rows import over_rows


class Product(NamedTuple):
    """The entries of C = A·B.

    Attributes:
      indptr, indices: [n_rows + 1] int64, [nnz of C] int32: C's pattern, with sorted rows.
      before: [n_rows + 1] int64, the products a[i]·b[j] in the rows before.
    """

    indptr: np.ndarray
    indices: np.ndarray
    before: np.ndarray


def product(A: Any, B: Any, room: Callable[[int, int], None]) -> Product:
    """The symbolic part of A·B.

    Args:
      A, B: patterns with sorted rows: `indptr`, `indices` and `shape`.
      room: called with the numbers of entries and of products before memory is allocated; raises if they are too many.
    """
    (n_rows, _), n_cols = A.shape, B.shape[1]
    given, entries, summed = _arrays(A, B), np.zeros(n_rows + 1, np.int64), np.zeros(n_rows + 1, np.int64)
    _over_rows("count", n_rows, n_cols, *given, entries, summed)
    indptr, before = np.cumsum(entries), np.cumsum(summed)
    room(int(indptr[-1]), int(before[-1]))
    indices = np.empty(indptr[-1], np.int32)
    _over_rows("columns", n_rows, n_cols, *given, indptr, indices)
    return Product(indptr, indices, before)


def pairs(A: Any, B: Any, C: Product) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The products that each entry of C sums, by rising column of A.

    Returns:
      first [nnz of C + 1], left, right [products] int32: entry n sums the products a[left[k]]·b[right[k]] for k from
      first[n] to first[n + 1].
    """
    products = int(C.before[-1])
    first = np.full(C.indices.size + 1, products, np.int64)
    left, right = np.empty(products, np.int32), np.empty(products, np.int32)
    _over_rows("pairs", A.shape[0], B.shape[1], *_arrays(A, B), *C[:2], C.before, first, left, right)
    return first, left, right


def coordinates(row: np.ndarray, col: np.ndarray, n_rows: int) -> tuple[np.ndarray, ...]:
    """Coordinates [k] as a pattern with sorted rows, each place once.

    Returns:
      indptr [n_rows + 1], indices [nnz] int32; first [nnz + 1] and order [k] int32: entry n comes from the coordinates
      order[first[n]:first[n + 1]], in the order given.
    """
    row, col = (np.ascontiguousarray(a, np.int32) for a in (row, col))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n_rows))])
    order, sorted_col = np.empty(row.size, np.int32), np.empty(row.size, np.int32)
    # Each task reads all keys and writes those of its own rows.
    _over_rows("place", n_rows, n_rows, np.array([row.size]), row, ptr, order, rows=-(-n_rows // _threads()) or 1)
    entries = np.zeros(n_rows + 1, np.int64)
    _over_rows("sort_rows", n_rows, 0, ptr, col, order, sorted_col, entries)
    indptr = np.cumsum(entries)
    indices, first = np.empty(indptr[-1], np.int32), np.full(indptr[-1] + 1, row.size, np.int64)
    _over_rows("first_of_each", n_rows, 0, ptr, sorted_col, indptr, indices, first)
    return indptr, indices, first, order


def _arrays(*matrices: Any) -> list[np.ndarray]:
    return [np.ascontiguousarray(a, t) for M in matrices for a, t in ((M.indptr, np.int64), (M.indices, np.int32))]


def _threads() -> int:
    return min(os.cpu_count() or 1, 8)


def _kernels() -> Any:
    from jaxsparse_fmt.kernels.cpu import spgemm_kernels

    return spgemm_kernels


_over_rows = functools.partial(over_rows, _kernels)
