"""Smoothed aggregation on the host: aggregates, prolongations and coarse matrices in compiled code over all cores.

Vaněk, Mandel and Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic problems"
(1996). Only the aggregation itself, a greedy algorithm, runs on one core: 1% of the time of a set-up. Nothing depends
on the number of threads. Matrices are SciPy's, in CSR with sorted rows.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

Matrix = Any  # scipy.sparse.csr_array


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
    _over_rows(
        "aggregate", graph.shape[0], 0, *_arrays(graph)[:2], chosen.view(np.uint8), agg, count, rows=graph.shape[0]
    )
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
    run = functools.partial(_over_rows, ("multiply", k), n_rows, n_cols, before=A.indptr)
    given, lengths = (*_arrays(A), *_arrays(B)), np.zeros(n_rows + 1, np.int64)
    run(0, *given, lengths, np.zeros(1, B.indices.dtype), np.zeros(1, B.data.dtype))
    ptr = np.cumsum(lengths)
    col, val = np.empty(ptr[-1], B.indices.dtype), np.empty(ptr[-1], B.data.dtype)
    run(2 if sort else 1, *given, ptr, col, val)
    made = scipy.sparse.csr_array((val, col, ptr.astype(index_dtype(val.size))), shape=(n_rows, n_cols))
    made.has_canonical_format = True
    return made


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


def add_product(
    y: np.ndarray,  # [n]
    c: float,
    f: float,
    left: np.ndarray,  # [n]
    A: Matrix,
    right: np.ndarray,  # [n]
    x: np.ndarray,  # [n]
) -> None:
    """Writes c·y + f·diag(left)·A·diag(right)·x over y."""
    _over_rows("add_product", A.shape[0], 0, float(c), float(f), left, *_arrays(A), right, x, y)


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


def _kernels() -> Any:
    from jaxsparse_fmt.kernels.cpu import aggregation_kernels

    return aggregation_kernels


_over_rows = functools.partial(over_rows, _kernels)
