"""The determinant, entries of the inverse, and a root of it, by SuperLU's factors.

The functions take the factors and `entries`: rows, columns and values of the matrix, as `host_calls.Call` passes them.
Without factors the result is NaN, but of a determinant that is 0.
"""

from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers import host
from solvers.superlu import OnHost


def places(found: OnHost) -> tuple[np.ndarray, np.ndarray]:
    """[n] and [n], where rows and columns of A stand in L·U."""
    n, made = np.arange(found.made.shape[0]), found.made
    return made.perm_r[np.argsort(n[found.rows])], made.perm_c[np.argsort(n[found.cols])]


def determinant(found: OnHost | None, entries: Any) -> tuple[Any, Any]:
    """det A / |det A|, and log|det A|."""
    if found is None:
        return (0, -np.inf) if np.all(np.isfinite(entries[2])) else (np.nan, np.nan)
    D = found.made.U.diagonal()
    with np.errstate(all="ignore"):
        sign = np.prod(D / np.abs(D)) * np.prod([_parity(p) for p in places(found)])
        return sign, np.sum(np.log(np.abs(D)))


def _parity(order: np.ndarray) -> int:
    """1 for an even permutation, −1 for an odd one."""
    from scipy.sparse import csgraph

    n = len(order)
    graph = scipy.sparse.csr_matrix((np.ones(n, np.int8), order, np.arange(n + 1)), shape=(n, n))
    cycles = csgraph.connected_components(graph, directed=True, connection="weak", return_labels=False)
    return -1 if (n - cycles) % 2 else 1


def inverse_entries(found: OnHost | None, entries: Any, i: Any, j: Any) -> np.ndarray:
    """[m], entries (i, j) of A⁻¹.

    It costs some four factorizations if each (j, i) is an entry of A. The recurrence takes L + U as symmetric, free of
    cancellation, and with the entries that are asked for, so that it finds whatever it needs.
    """
    if found is None:
        return np.full(i.shape, np.nan)
    n = found.made.shape[0]
    row, col, _ = entries
    rows, cols = (place.astype(np.int64) for place in places(found))  # SuperLU's 32 bits do not hold n² of the keys
    one, other = np.append(rows[row], cols[i]), np.append(cols[col], rows[j])
    ends = np.append(one, other), np.append(other, one)
    pattern = scipy.sparse.csr_array((np.ones(2 * len(one), bool), ends), shape=(n, n))
    _, counts, parent = host.column_counts(pattern, np.arange(n))
    start, below = host.filled(pattern, counts, parent)
    key = np.repeat(np.arange(n), np.diff(start)) * n + below

    def placed(T: Any) -> np.ndarray:
        """The entries below the diagonal of a matrix in CSC, by column and row."""
        column = np.repeat(np.arange(n), np.diff(T.indptr))
        inside = T.indices > column
        wanted = column[inside] * n + T.indices[inside]
        place = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        values = np.zeros(len(key), T.dtype)
        there = key[place] == wanted if len(key) else np.zeros(0, bool)
        values[place[there]] = T.data[inside][there]  # others are zeros that SuperLU stores
        return values

    U = found.made.U
    pivot = U.diagonal()
    column_of = np.repeat(np.arange(n), np.diff(start))
    lower, upper = placed(found.made.L), placed(U.T.tocsc()) / pivot[column_of]
    diagonal, left, right = (np.zeros(size, pivot.dtype) for size in (n, len(key), len(key)))
    over_rows(elimination.selected_inverse, n, n, start, below, pivot, lower, upper, diagonal, left, right, rows=n)
    a, b = cols[i], rows[j]
    if not len(key):
        return diagonal[a]
    place = np.minimum(np.searchsorted(key, np.minimum(a, b) * n + np.maximum(a, b)), len(key) - 1)
    return np.where(a == b, diagonal[a], np.where(a > b, left[place], right[place]))


def root(found: OnHost | None, entries: Any, z: np.ndarray, way: str) -> np.ndarray:
    """R·z with R·Rᴴ = A⁻¹, or with the way "T" Rᵀ·z, by factors without pivoting; NaN unless A is positive definite."""
    if found is None:
        return np.full_like(z, np.nan)
    n, made = found.made.shape[0], found.made
    D, (rows, cols) = made.U.diagonal(), places(found)
    if not (np.all(D.real > 0) and np.array_equal(rows, cols) and found.host.symmetric):
        return np.full_like(z, np.nan)
    L, scale = made.L.tocsc(), np.sqrt(D.real)
    off = L.indices != np.repeat(np.arange(n), np.diff(L.indptr))
    upper = scipy.sparse.csr_array((L.data[off].conj(), L.indices[off], L.indptr - np.arange(n + 1)), shape=(n, n))
    y = z.astype(np.result_type(z, D), copy=True)
    T = upper if way == "N" else upper.T.tocsr()  # Lᴴ, or its transpose
    y = (y.T / scale).T if way == "N" else y[np.argsort(rows)]
    columns = [np.ascontiguousarray(c) for c in y.reshape(n, -1).T]
    for c in columns:
        over_rows(elimination.substitute, n, 1, T.indptr, T.indices, T.data, c, int(way == "N"), rows=n)
    y = np.stack(columns, axis=-1).reshape(y.shape)
    return y[rows] if way == "N" else (y.T / scale).T
