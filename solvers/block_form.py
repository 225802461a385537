"""The block triangular form of an unsymmetric matrix (Duff and Reid 1978; Pothen and Fan 1990), by SciPy's graphs."""

from typing import Any

import numpy as np
import scipy

ROUNDS = 50  # of the matching by places without a choice


def matching(S: Any) -> np.ndarray | None:
    """[n], for each column of a matrix in CSC a row of its own in which it is not 0; None: there is no such matching.

    It is a flow of units from columns to rows, which begins with the diagonal, or with the rows and columns that have
    one place left (Karp and Sipser 1981). Dinic's method takes √n·nnz steps at most; SciPy's
    `maximum_bipartite_matching` takes hours of 1,280 unknowns.
    """
    from scipy.sparse import csgraph

    n, col = S.shape[0], np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    row, col = S.indices[S.data != 0], col[S.data != 0]
    rows = np.where(S.diagonal() != 0, np.arange(n), -1)
    if np.all(rows >= 0):
        return rows
    if np.count_nonzero(rows < 0) > n / 2:
        rows = _forced(row, col, n)
    free_rows = np.ones(n, bool)
    free_rows[rows[rows >= 0]] = False
    free, free_rows = np.flatnonzero(rows < 0), np.flatnonzero(free_rows)
    is_back = rows[col] == row  # what is matched can be given up
    begin = np.concatenate([np.where(is_back, n + row, col), np.full(free.size, 2 * n), n + free_rows])
    end = np.concatenate([np.where(is_back, col, n + row), free, np.full(free.size, 2 * n + 1)])
    size = 2 * n + 2
    edges = scipy.sparse.csr_matrix((np.ones(begin.size, np.int32), (begin, end)), shape=(size, size))
    found = csgraph.maximum_flow(edges, 2 * n, 2 * n + 1, method="dinic")
    if found.flow_value < free.size:
        return None
    flow = found.flow[:n].tocoo()
    used = (flow.data > 0) & (flow.col >= n) & (flow.col < 2 * n)
    rows[flow.row[used]] = flow.col[used] - n
    return rows


def _forced(row: np.ndarray, col: np.ndarray, n: int) -> np.ndarray:
    """[n], for each column its row or -1: columns and rows with one place left take it, one after the other."""
    rows = np.full(n, -1)
    for _ in range(ROUNDS):
        one = (np.bincount(col, minlength=n)[col] == 1) | (np.bincount(row, minlength=n)[row] == 1)
        if not np.any(one):
            break
        r, c = row[one], col[one]
        r, first = np.unique(r, return_index=True)
        c = c[first]
        c, first = np.unique(c, return_index=True)
        rows[c] = r[first]
        taken = np.zeros(n, bool)
        taken[r[first]] = True
        left = (rows[col] < 0) & ~taken[row]
        row, col = row[left], col[left]
    return rows


def parts(S: Any, rows: np.ndarray) -> tuple[np.ndarray, Any] | None:
    """[n], of each column of S[rows], whose diagonal is full, a number that grows along the blocks; and these in CSC.

    None: one block has more than half of the columns.
    """
    from scipy.sparse import csgraph

    matched = scipy.sparse.csc_array(S.tocsr()[rows])
    n = matched.shape[0]
    _, part = csgraph.connected_components(scipy.sparse.csr_matrix(matched), connection="strong")
    if np.max(np.bincount(part)) > n / 2:
        return None
    row, col = matched.indices, np.repeat(np.arange(n), np.diff(matched.indptr))
    part = part if np.all(part[row] <= part[col]) else -part  # SciPy numbers them in the order, or against it
    inside = part[row] == part[col]
    blocks = scipy.sparse.csc_array((matched.data[inside], (row[inside], col[inside])), shape=S.shape)
    return (part, blocks) if np.all(part[row] <= part[col]) else None
