"""Smoothed aggregation on the host: aggregates, prolongations and coarse matrices in compiled code over all cores.

Vaněk, Mandel and Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic problems"
(1996). Only the aggregation itself, a greedy algorithm, runs on one core: 1% of the time of a set-up. Nothing depends
on the number of threads. Matrices are SciPy's, in CSR with sorted rows.
"""

from __future__ import annotations

import ctypes
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt import machine_code
from jaxsparse_fmt._types import index_dtype

Matrix = Any  # scipy.sparse.csr_array
ROWS = 16_384  # of a task


def strength(
    A: Matrix,
    b: int,
    theta: float,
) -> tuple[Matrix, np.ndarray]:
    """The couplings of the points of A [points, points], b unknowns each, and whether they are strong [couplings]."""
    if b == 1:
        graph = scipy.sparse.csr_array((np.abs(A.data), A.indices, A.indptr), shape=A.shape)
    else:
        points = A.shape[0] // b
        ptr = np.zeros(points + 1, A.indptr.dtype)
        size = np.zeros(1)
        _over_rows("couplings", points, points, 0, b, *_arrays(A), ptr, A.indices[:1], size)
        np.cumsum(ptr, out=ptr)
        col, size = np.empty(ptr[-1], A.indices.dtype), np.empty(ptr[-1])
        _over_rows("couplings", points, points, 1, b, *_arrays(A), ptr, col, size)
        graph = scipy.sparse.csr_array((np.sqrt(size), col, ptr), shape=(points, points))
    chosen = np.empty(graph.nnz, bool)
    root = np.sqrt(graph.diagonal())
    _over_rows("strong", graph.shape[0], 0, float(theta), *_arrays(graph)[:2], graph.data, root, chosen.view(np.uint8))
    return graph, chosen


def aggregates(graph: Matrix, chosen: np.ndarray) -> tuple[np.ndarray, int]:
    """The aggregate of each point [points] int32, -1 for points without strong neighbours, and their number."""
    agg, count = np.full(graph.shape[0], -1, np.int32), np.zeros(1, np.int64)
    _over_rows("aggregate", graph.shape[0], 0, *_arrays(graph)[:2], chosen.view(np.uint8), agg, count, whole=True)
    return agg, int(count[0])


def tentative(
    agg: np.ndarray,  # [points]
    count: int,
    B: np.ndarray,  # [n, k]
) -> tuple[np.ndarray, np.ndarray]:
    """Q [n, k], with columns orthonormal on each aggregate and zero outside of all, and R [count·k, k]: B = Q·R."""
    (n, k), points = B.shape, agg.size
    inside = np.flatnonzero(agg >= 0)
    sorted_ = scipy.sparse.csr_array((np.ones(inside.size, np.int8), (agg[inside], inside)), shape=(count, points))
    Q, R = np.zeros_like(B), np.zeros((count * k, k), B.dtype)
    _over_rows("orthonormalize", count, 0, n // points, k, sorted_.indptr, sorted_.indices, B, Q, R)
    return Q, R


def lumped(A: Matrix, b: int, graph: Matrix, chosen: np.ndarray) -> Matrix:
    """A with its weak couplings moved to the diagonal block, to the same unknown of the row's point.

    Rows keep their sums. Without weak couplings it is A. The result shares A's values, so it has several entries of one
    place.
    """
    if np.all(chosen):
        return A
    col = np.empty_like(A.indices)
    given = *_arrays(A)[:2], *_arrays(graph)[:2], chosen.view(np.uint8)
    _over_rows("lump", graph.shape[0], graph.shape[0], b, *given, col)
    return scipy.sparse.csr_array((A.data, col, A.indptr), shape=A.shape)


def multiply(A: Matrix, B: Matrix, k: int = 1, sort: bool = True) -> Matrix:
    """A·B, where the rows of B consist of groups of k entries, the first in a column that k divides."""
    n_rows, n_cols = A.shape[0], B.shape[1]
    given = *_arrays(A), *_arrays(B)
    return _in_two_passes(("multiply", k), (n_rows, n_cols), B, n_rows, n_cols, given, 2 if sort else 1)


def placed(
    agg: np.ndarray,  # [points]
    count: int,
    Q: np.ndarray,  # [n, k]
) -> Matrix:
    """T [n, count·k], which holds the rows of Q in the columns of their aggregates."""
    n, k = Q.shape
    of_row = np.repeat(agg, n // agg.size)
    inside = of_row >= 0
    ptr = np.append(0, np.cumsum(k * inside, dtype=index_dtype(Q.size)))
    col = (k * of_row[inside, None] + np.arange(k, dtype=np.int32)).ravel()
    return scipy.sparse.csr_array((Q[inside].ravel(), col, ptr), shape=(n, max(count * k, 1)))


def prolongation(
    A: Matrix,
    T: Matrix,
    k: int,
    scale: np.ndarray,  # [n]
) -> Matrix:
    """P = T - diag(scale)·A·T, for a T as `placed` makes it."""
    P = multiply(A, T, k)
    _over_rows("smooth", P.shape[0], 0, k, *_arrays(T), scale, *_arrays(P))
    return P


def product(A: Matrix, x: np.ndarray) -> np.ndarray:
    y = np.empty(A.shape[0], A.dtype)
    _over_rows("product", A.shape[0], 0, *_arrays(A), x, y)
    return y


def sums(A: Matrix) -> np.ndarray:
    """The sums of the absolute values in the rows [n]."""
    y = np.empty(A.shape[0])
    _over_rows("sums", A.shape[0], 0, A.indptr, A.data, y)
    return y


def asymmetry(A: Matrix, conjugate: bool = True) -> float:
    """The largest |A - Aᴴ|, or |A - Aᵀ|."""
    largest = np.empty(A.shape[0])
    _over_rows("asymmetry", A.shape[0], 0, int(conjugate), *_arrays(A), largest)
    return float(np.max(largest, initial=0))


def _arrays(A: Matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return A.indptr, A.indices, A.data


def _in_two_passes(
    name: Any, shape: tuple[int, int], like: Matrix, rows: int, marks: int, given: Any, write: int = 1
) -> Matrix:
    """The matrix that a kernel first counts and then writes."""
    lengths = np.zeros(shape[0] + 1, np.int64)
    none = np.zeros(1, like.indices.dtype), np.zeros(1, like.data.dtype)
    _over_rows(name, rows, marks, 0, *given, lengths, *none)
    ptr = np.cumsum(lengths)
    col, val = np.empty(ptr[-1], like.indices.dtype), np.empty(ptr[-1], like.data.dtype)
    _over_rows(name, rows, marks, write, *given, ptr, col, val)
    made = scipy.sparse.csr_array((val, col, ptr.astype(index_dtype(val.size))), shape=shape)
    made.has_canonical_format = True
    return made


def _over_rows(name: Any, n_rows: int, n_marks: int, *arguments: Any, whole: bool = False) -> None:
    """Calls the kernel `name`, or the one that name[0] makes of name[1], `ROWS` rows at a time or all at once.

    Each thread has marks of its own.
    """
    kinds = tuple(
        f"CPointer({a.dtype})" if isinstance(a, np.ndarray) else "double" if isinstance(a, float) else "int64"
        for a in arguments
    )
    assert all(a.flags.c_contiguous for a in arguments if isinstance(a, np.ndarray))
    function = _function(name, kinds)
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    starts = range(0, n_rows, n_rows if whole else ROWS) if n_rows else range(0)
    threads = max(1, min(len(starts), os.cpu_count() or 1))

    def thread(t: int) -> None:
        marks = np.full(n_marks, -1, np.int64)
        for start in starts[t::threads]:
            function(start, min(start + starts.step, n_rows), marks.ctypes.data, *values)

    if threads == 1:
        thread(0)
    else:
        list(_threads().map(thread, range(threads)))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


@functools.cache
def _function(name: Any, kinds: tuple[str, ...]) -> Any:
    """The compiled kernel, whose arguments after the marks are of these kinds."""
    signature = f"void(int64, int64, CPointer(int64), {', '.join(kinds)})"

    def made() -> tuple[Any, str]:
        from jaxsparse_fmt.kernels.cpu import aggregation_kernels as kernels

        return getattr(kernels, name) if isinstance(name, str) else getattr(kernels, name[0])(name[1]), signature

    types = (ctypes.c_double if kind == "double" else ctypes.c_int64 for kind in kinds)
    address = machine_code.address(made, "aggregation", str(name), signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, *types)(address)
