"""The pattern of a product of two sparse matrices, in compiled code over all cores of the host.

Gustavson, "Two fast algorithms for sparse matrices" (1978), row by row: the first pass counts the entries of each row
of C = A·B and the products a[i]·b[j] that they sum; the second writes them down. Each thread takes its own rows, and
has one number for every column of C, which marks the columns that a row has met. Nothing depends on the number of
threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt import machine_code

ROWS = 16_384  # of a task


class Products(NamedTuple):
    """The entries of C = A·B, and the products that they sum.

    Attributes:
      indptr, indices: [n_rows + 1], [nnz of C]: C's pattern, with sorted rows.
      first: [nnz of C + 1]: entry k of C sums the products from first[k] to first[k + 1], by rising column of A.
      left, right: [products] int32: the entries of A and of B that each multiplies.
    """

    indptr: np.ndarray
    indices: np.ndarray
    first: np.ndarray
    left: np.ndarray
    right: np.ndarray


def products(A: Any, B: Any, room: Callable[[int, int], None]) -> Products:
    """The symbolic part of A·B.

    Args:
      A, B: patterns with sorted rows: `indptr`, `indices` and `shape`.
      room: called with the numbers of entries and of products before they are allocated; raises if they are too many.
    """
    (n_rows, _), n_cols = A.shape, B.shape[1]
    given = [np.ascontiguousarray(a, t) for M in (A, B) for a, t in ((M.indptr, np.int64), (M.indices, np.int32))]
    entries, summed = np.zeros(n_rows + 1, np.int64), np.zeros(n_rows + 1, np.int64)
    _over_rows("count", n_rows, n_cols, *given, entries, summed)
    indptr, before = np.cumsum(entries), np.cumsum(summed)
    room(int(indptr[-1]), int(before[-1]))
    indices, first = np.empty(indptr[-1], np.int32), np.empty(indptr[-1] + 1, np.int64)
    left, right = np.empty(before[-1], np.int32), np.empty(before[-1], np.int32)
    first[-1] = before[-1]
    _over_rows("fill", n_rows, n_cols, *given, indptr, before, indices, first, left, right)
    return Products(indptr, indices, first, left, right)


def _over_rows(name: str, n_rows: int, n_cols: int, *arrays: np.ndarray) -> None:
    """Calls the kernel `name` for all rows, a task of `ROWS` at a time; each thread has marks of its own."""
    pointers = ", ".join(f"CPointer({a.dtype})" for a in arrays)
    signature = f"void(int64, int64, CPointer(int64), {pointers})"
    address = machine_code.address(lambda: (_kernel(name), signature), "spgemm", name, signature)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * (1 + len(arrays)))(address)
    starts = range(0, n_rows, ROWS)
    threads = max(1, min(len(starts), os.cpu_count() or 1))

    def thread(k: int) -> None:
        marks = np.full(n_cols, -1, np.int64)
        for start in starts[k::threads]:
            function(start, min(start + ROWS, n_rows), marks.ctypes.data, *(a.ctypes.data for a in arrays))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(thread, range(threads)))


def _kernel(name: str) -> Any:
    from jaxsparse_fmt.kernels.cpu import spgemm_kernels

    return getattr(spgemm_kernels, name)
