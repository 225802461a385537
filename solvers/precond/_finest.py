"""The checked inputs of multigrid's set-up: A on the host, its near-null space, and the size of its blocks."""

from typing import Any

import jax
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import floating_dtype
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.precond import _checks as checks


def host(A: Any) -> Any:
    """A as a canonical CSR array of float64 or complex128, after all checks."""
    ours = hasattr(A, "to_scipy")
    if ours:
        checks.untraced(A)
    if not all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(A)):
        raise ValueError(f"A has {A.shape[0]} rows on several processes; pass max_coarse= below that number")
    if not ours and not scipy.sparse.issparse(A):
        raise TypeError(f"multigrid needs a matrix of jaxsparse_fmt or scipy.sparse; got {type(A).__name__}")
    if len(A.shape) != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ValueError(f"multigrid needs a square matrix with at least one row; got shape {A.shape}")
    kind = np.complex128 if floating_dtype(A.dtype, "A").kind == "c" else np.float64
    if getattr(A, "name", None) == "csr":  # its arrays, without a copy
        data, indices, indptr = map(np.asarray, A.csr_arrays())
        S = scipy.sparse.csr_array((data, indices, indptr), shape=A.shape)
    else:
        S = scipy.sparse.csr_array(A.to_scipy() if ours else A)
    S = S.astype(kind, copy=not S.has_canonical_format)
    S.check_format(full_check=True)
    S.sum_duplicates()
    checks.entries(S.data, S.diagonal())
    return S


def near_null(B: Any, S: Any) -> np.ndarray:
    B = checks.near_null(np.asarray(B), S.shape[0], S.dtype)
    checks.finite_near_null(B)
    return np.ascontiguousarray(B, S.dtype)


def block_size(A: Any, S: Any) -> int:
    """Unknowns of a point: the blocks of a BSR matrix, ours or SciPy's, or the largest dense ones of at most 6."""
    rows, columns = getattr(A, "block_shape", getattr(A, "blocksize", (None, None)))
    n, lengths = S.shape[0], np.diff(S.indptr)
    if rows and rows == columns and n % rows == 0:
        return rows
    whole = (b for b in (6, 5, 4, 3, 2) if not n % b and not np.any(lengths % b) and not aggregation.has_holes(S, b))
    return next(whole, 1)
