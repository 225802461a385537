"""Reverse Cuthill-McKee (Cuthill and McKee, 1969; George, 1971): the columns of neighbouring rows lie together.

The part of x that a product reads then stays in the L1 cache, differences of columns fit 16 bits, and diagonals may
appear.
"""

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr


def cuthill_mckee(csr: Csr) -> np.ndarray:
    """The order of the pattern of S + Sᵀ, [n] int64, component by component of the graph.

    ValueError: a matrix that is not square.
    """
    rows, cols = csr.shape
    if rows != cols:
        raise ValueError(
            f"another order renumbers rows and columns alike, which a {rows} × {cols} matrix does not allow"
        )
    if csr.nnz == 0:
        return np.arange(rows)
    from scipy.sparse import csgraph  # slow to import

    # The graph holds ones, since values of S and Sᵀ may cancel.
    S = scipy.sparse.csr_array((np.ones(csr.nnz, np.int8), csr.indices, csr.indptr), shape=csr.shape)
    return csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(S + S.T), symmetric_mode=True).astype(np.int64)
