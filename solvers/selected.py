"""What SuperLU's factors tell beside solutions: the determinant, entries of the inverse, and a root of it."""

import dataclasses
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers import host, superlu
from solvers.superlu import OnHost


def places(found: OnHost) -> tuple[np.ndarray, np.ndarray]:
    """[n] and [n], where rows and columns of A stand in L·U."""
    n, made = np.arange(found.made.shape[0]), found.made
    return made.perm_r[np.argsort(n[found.rows])], made.perm_c[np.argsort(n[found.cols])]


def determinant(found: OnHost) -> tuple[Any, Any]:
    """det A / |det A|, and log|det A|."""
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


def inverse_entries(found: OnHost, row: Any, col: Any, i: Any, j: Any) -> np.ndarray:
    """[m], entries (i, j) of A⁻¹, where (row, col) are those of A.

    It costs some four factorizations if each (j, i) is an entry of A. The recurrence takes L + U as symmetric, free of
    cancellation, and with the entries that are asked for, so that it finds whatever it needs.
    """
    n = found.made.shape[0]
    rows, cols = (place.astype(np.int64) for place in places(found))  # SuperLU's 32 bits do not hold n² of the keys
    one, other = np.append(rows[row], cols[i]), np.append(cols[col], rows[j])
    ends = np.append(one, other), np.append(other, one)
    pattern = scipy.sparse.csr_array((np.ones(2 * len(one), bool), ends), shape=(n, n))
    _, counts, parent = host.column_counts(pattern, np.arange(n))
    start = np.append(0, np.cumsum(counts - 1))
    below = np.zeros(start[-1], np.int32)
    ptr, index = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
    over_rows(elimination.filled, n, 2 * n, ptr, index, parent, start, below, rows=n)
    key = np.repeat(np.arange(n), np.diff(start)) * n + below

    def placed(T: Any) -> np.ndarray:
        """The entries below the diagonal of a matrix in CSC, by column and row."""
        column = np.repeat(np.arange(n), np.diff(T.indptr))
        inside = T.indices > column
        wanted = column[inside] * n + T.indices[inside]
        at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        values = np.zeros(len(key), T.dtype)
        there = key[at] == wanted if len(key) else np.zeros(0, bool)
        values[at[there]] = T.data[inside][there]  # others are zeros that SuperLU stores
        return values

    U = found.made.U
    pivot = U.diagonal()
    column_of = np.repeat(np.arange(n), np.diff(start))
    lower, upper = placed(found.made.L), placed(U.T.tocsc()) / pivot[column_of]
    diagonal, left, right = (np.zeros(size, pivot.dtype) for size in (n, len(key), len(key)))
    over_rows(elimination.selected_inverse, n, n, start, below, pivot, lower, upper, diagonal, left, right, rows=n)
    a, b = cols[i], rows[j]
    at = np.minimum(np.searchsorted(key, np.minimum(a, b) * n + np.maximum(a, b)), max(len(key) - 1, 0))
    if not len(key):
        return diagonal[a]
    return np.where(a == b, diagonal[a], np.where(a > b, left[at], right[at]))


def root(found: OnHost, z: np.ndarray, way: str) -> np.ndarray:
    """R·z with R·Rᴴ = A⁻¹, or with the way "T" Rᵀ·z, by factors without pivoting; NaN unless A is positive definite."""
    n, made = found.made.shape[0], found.made
    D, (rows, cols) = made.U.diagonal(), places(found)
    if not (np.all(D.real > 0) and np.array_equal(rows, cols)):
        return np.full_like(z, np.nan)
    L, scale = made.L.tocsc(), np.sqrt(D.real)
    off = L.indices != np.repeat(np.arange(n), np.diff(L.indptr))
    turned = scipy.sparse.csr_array((L.data[off].conj(), L.indices[off], L.indptr - np.arange(n + 1)), shape=(n, n))
    y = z.astype(np.result_type(z, D), copy=True)
    T = turned if way == "N" else turned.T.tocsr()  # Lᴴ, or its transpose
    y = (y.T / scale).T if way == "N" else y[np.argsort(rows)]
    columns = [np.ascontiguousarray(c) for c in y.reshape(n, -1).T]
    for c in columns:
        over_rows(elimination.substitute, n, 1, T.indptr, T.indices, T.data, c, int(way == "N"), rows=n)
    y = np.stack(columns, axis=-1).reshape(y.shape)
    return y[rows] if way == "N" else (y.T / scale).T


@dataclasses.dataclass(frozen=True)
class Determinant:
    """What a program calls for [..., 2]: sign and log|det A| of the entries [..., nnz]; of a singular A 0 and −∞."""

    n: int

    def __call__(self, *entries: Any) -> np.ndarray:
        batch, each = superlu.members(entries, (1, 1, 1))
        ends = np.full((len(each), 2), np.nan, np.asarray(entries[2]).dtype)
        for k, (row, col, values) in enumerate(each):
            found = superlu.kept(self.n, ("lu",), row, col, values, 2 * len(each))
            if found is not None:
                ends[k] = determinant(found)
            elif np.all(np.isfinite(values)):
                ends[k] = 0, -np.inf
        return ends.reshape(*batch, 2)


@dataclasses.dataclass(frozen=True)
class Entries:
    """What a program calls for entries (i, j) of A⁻¹: [..., nnz] five times to [..., m]; NaN of a singular A."""

    n: int

    def __call__(self, *given: Any) -> np.ndarray:
        batch, each = superlu.members(given, (1,) * 5)
        x = np.full((len(each), given[3].shape[-1]), np.nan, np.asarray(given[2]).dtype)
        for k, (row, col, values, i, j) in enumerate(each):
            found = superlu.kept(self.n, ("lu",), row, col, values, 2 * len(each))
            if found is not None:
                x[k] = inverse_entries(found, row, col, i, j)
        return x.reshape(*batch, -1)


@dataclasses.dataclass(frozen=True)
class Root:
    """What a program calls for R·z or Rᵀ·z: entries [..., nnz] and z [..., n] or [..., n, k] to x like z."""

    n: int
    way: str
    ndim: int

    def __call__(self, *given: Any) -> np.ndarray:
        batch, each = superlu.members(given, (1, 1, 1, self.ndim))
        z = np.asarray(given[3])
        x = np.full((len(each), *z.shape[z.ndim - self.ndim :]), np.nan, z.dtype)
        for k, (row, col, values, one) in enumerate(each):
            S = scipy.sparse.csc_array((values, (row, col)), shape=(self.n, self.n))
            found = (
                superlu.kept(self.n, ("cholesky",), row, col, values, 2 * len(each)) if host.Host(S).symmetric else None
            )
            if found is not None:
                x[k] = root(found, one, self.way)
        return x.reshape(*batch, *x.shape[1:])
