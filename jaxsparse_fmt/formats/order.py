"""Orders of unknowns: reverse Cuthill-McKee, and a matrix with its unknowns in another order.

In reverse Cuthill-McKee order (Cuthill and McKee, 1969; George, 1971) neighbouring rows have columns near one another:
the part of x that they read stays in the L1 cache, differences of columns fit 16 bits, and diagonals may appear.
"""

from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._types import Csr


def order_of(csr: Csr, reorder: Any) -> np.ndarray:
    """The permutation [n] int64 of the user's `reorder`, "rcm" or a permutation: place k gets unknown perm[k].

    ValueError: a matrix that is not square, another word, or numbers that are no permutation. TypeError: no integers.
    """
    rows, cols = csr.shape
    if isinstance(reorder, str) and reorder != "rcm":
        raise ValueError(f"reorder must be 'rcm', a permutation or None; got {reorder!r}")
    if rows != cols:
        raise ValueError(
            f"another order renumbers rows and columns alike, which a {rows} × {cols} matrix does not allow"
        )
    if isinstance(reorder, str):
        return cuthill_mckee(csr)
    perm = np.asarray(reorder)
    if perm.dtype.kind not in "iu" and rows:
        raise TypeError(f"reorder must be 'rcm', or a permutation in integers; got dtype {perm.dtype}")
    if perm.shape != (rows,) or not np.array_equal(np.sort(perm), np.arange(rows)):
        low, high = (perm.min(), perm.max()) if perm.size else (0, 0)
        found = f"{np.unique(perm).size} different ones from {low} to {high}"
        raise ValueError(
            f"reorder must be a permutation of the numbers 0 to {rows - 1}; got shape {perm.shape}, with {found}"
        )
    return perm.astype(np.int64)


def cuthill_mckee(csr: Csr) -> np.ndarray:
    """The reverse Cuthill-McKee order of the pattern of S + Sᵀ, [n] int64, component by component of the graph."""
    if csr.nnz == 0:
        return np.arange(csr.shape[0])
    from scipy.sparse import csgraph  # slow to import

    # The graph holds ones, since values of S and Sᵀ may cancel.
    S = scipy.sparse.csr_array((np.ones(csr.nnz, np.int8), csr.indices, csr.indptr), shape=csr.shape)
    return csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True).astype(np.int64)


def permuted(csr: Csr, perm: np.ndarray | None) -> tuple[Csr, np.ndarray | None]:
    """P·S·Pᵀ, whose row and column i are perm[i] of S, and the index in S's data of its entries (None: unchanged)."""
    if perm is None:
        return csr, None
    index = scipy.sparse.csr_array((np.arange(csr.nnz), csr.indices, csr.indptr), shape=csr.shape)[perm][:, perm]
    index.sort_indices()
    entry = index.data
    out = scipy.sparse.csr_array((csr.data[entry], index.indices, index.indptr), shape=csr.shape)
    out.has_canonical_format = True
    return out, entry
