"""Matrices of SciPy in canonical CSR: the checks at every door, since SciPy checks few arrays and kernels none."""

from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import building


def canonical(S: Any) -> Csr:
    """S as CSR with sorted rows, no duplicates and checked indices; it shares the arrays of a canonical S.

    If there may be duplicates, integers and booleans become float64, in which duplicates are summed. The result is a
    matrix of its own, with `found` for `building.once`; it is returned as it is if it comes again.

    Raises:
      ValueError: an index out of range, a broken row pointer, or more columns than 32-bit indices address.
    """
    if hasattr(S, "found"):
        return S
    if S.format in ("csr", "csc", "bsr"):
        check_compressed(S)
    elif S.format == "coo":
        for name, index, bound in zip(("row", "col"), S.coords, S.shape, strict=True):
            building.check_range(name, index, bound)
    building.check_bound("columns", S.shape[1])
    whole = S.dtype.kind in "iub"  # SciPy would sum such duplicates modulo 2⁸, and booleans not at all
    narrowed = {"g": np.float64, "G": np.complex128}  # kernels have no wider numbers, and SciPy no other byte order
    kind = np.float64 if whole and S.format == "coo" else narrowed.get(S.dtype.char, S.dtype.newbyteorder("="))
    csr = scipy.sparse.csr_array(S.astype(kind, copy=False))
    if S.format not in ("csr", "csc", "bsr", "coo"):
        check_compressed(csr)
    if not csr.has_canonical_format:
        shared = csr is S or np.shares_memory(csr.indices, getattr(S, "indices", ()))
        csr = csr.astype(np.float64) if whole else csr.copy() if shared else csr
        csr.sum_duplicates()
    csr.found = {}  # nobody changes it from here on
    return csr


def check_compressed(S: Any) -> None:
    """Checks a compressed matrix, since SciPy does not check its arrays, and bad ones cause access out of bounds."""
    major, minor = S.shape if S.format != "csc" else S.shape[::-1]
    if S.format == "bsr":
        major, minor = major // S.blocksize[0], minor // S.blocksize[1]
    ptr, idx, stored = S.indptr, S.indices, min(len(S.indices), len(S.data))
    names = ("row", "column") if S.format != "csc" else ("column", "row")
    if len(ptr) != major + 1 or ptr[0] != 0 or ptr[-1] > stored or np.any(np.diff(ptr) < 0):
        raise ValueError(
            f"the matrix has a broken {names[0]} pointer: it must hold {major + 1} numbers that rise from 0 to at most "
            f"the {stored} stored entries"
        )
    building.check_range(names[1], idx[: ptr[-1]], minor)
