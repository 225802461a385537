"""Operations on matrices at hand on the host: sums, products and slices, by compiled kernels, or few entries by SciPy.

SciPy also serves where Numba is not installed. It drops the zeros of a result; here
they stay entries, as in plans.
"""

import contextlib
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse_fmt._tracing import concrete, is_on_cpu, is_traced
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.cpu import csr_operations

COUNTED = 2**24  # products of two entries whose distinct places are counted at once


def at_hand(*operands: Any, fetched: bool = False) -> list[Csr] | None:
    """The operands as SciPy's matrices; None if one is traced or, unless they are `fetched`, not on the host."""
    if is_traced(operands):
        return None
    if not fetched and not (jax.default_backend() == "cpu" and all(map(is_on_cpu, jax.tree.leaves(operands)))):
        return None
    with concrete():
        return [A._read_only() for A in operands]


def with_data(S: Csr, data: np.ndarray) -> Csr:
    """The pattern of S with other entries."""
    return scipy.sparse.csr_array((data, S.indices, S.indptr), shape=S.shape)


def sorted_rows(S: Any) -> Csr:
    """S in CSR with sorted rows, perhaps in its own arrays."""
    S = scipy.sparse.csr_array(S)
    S.sort_indices()
    return S


def crossing(S: Csr, rows: Any, columns: Any) -> Csr:
    """S[rows][:, columns] in canonical order.

    SciPy counts the entries in the dtype of the indices, and writes beyond its arrays if there are too many.
    """
    n_cols = S.shape[1]
    if isinstance(rows, slice) and rows.step in (None, 1):
        begin, end, _ = rows.indices(S.shape[0])
        S, rows = _rows(S, begin, max(begin, end)), None
    rows = None if rows is None else _listed(rows, S.shape[0])
    taken = None if isinstance(columns, slice) and columns == slice(None) else _listed(columns, n_cols)
    if rows is None and taken is None:
        return S
    lengths = np.diff(S.indptr) if rows is None else S.indptr[1:][rows] - S.indptr[:-1][rows]
    building.check_result(int(lengths.sum(dtype=np.int64)))
    rises = taken is None or np.all(taken[1:] > taken[:-1])
    if rises and csr_operations.serves(S):
        number = np.zeros(0, np.int32)
        if taken is not None:
            number = np.full(n_cols, -1, np.int32)
            number[taken] = np.arange(taken.size)
        rows = np.arange(S.shape[0]) if rows is None else rows
        return csr_operations.crossed(S, rows, lengths, number, n_cols if taken is None else taken.size)
    S = S if rows is None else S[rows]
    if taken is None:
        return sorted_rows(S)
    if not rises:
        times = np.bincount(taken, minlength=n_cols)
        building.check_result(int(np.sum(times[S.indices], dtype=np.int64)))
    return sorted_rows(S[:, taken])


def _listed(places: Any, n: int) -> np.ndarray:
    """The numbers, of n, in a slice or an array, contiguous as kernels read them."""
    return np.arange(*places.indices(n)) if isinstance(places, slice) else np.ascontiguousarray(places, np.int64)


def product(S: Csr, R: Csr) -> Csr:
    """S @ R in canonical order."""
    _check_product(S, R)
    if csr_operations.serves(S, R):
        return csr_operations.product(S, R)
    C = S @ R
    return sorted_rows(C if _is_whole(C) else _product_with_zeros(S, R, C))


def _check_product(S: Csr, R: Csr) -> None:
    """Refuses a product that the memory does not hold. It counts the entries only if a bound on them does not fit."""
    each = 2 * (np.result_type(S.data, R.data).itemsize + 4)  # of the pieces, and of the whole

    def refuse(entries: int) -> None:
        building.check_free(each * entries, f"a product of at least {entries} entries", "multiply some rows at a time")

    lengths = np.diff(R.indptr)
    with contextlib.suppress(building.TooLarge):
        return refuse(S.nnz * int(lengths.max(initial=0)))
    products = np.concatenate([[0], np.cumsum(lengths[S.indices], dtype=np.int64)])[S.indptr]
    with contextlib.suppress(building.TooLarge):
        return refuse(int(products[-1]))
    refuse(int(np.sum(np.diff(products) // np.maximum(np.diff(S.indptr), 1))))
    entries, (S, R) = 0, (with_data(M, np.ones(M.nnz, bool)) for M in (S, R))
    cuts = products.searchsorted(np.arange(0, products[-1], COUNTED))
    for begin, end in itertools.pairwise(np.unique([*cuts, S.shape[0]])):
        entries += (_rows(S, begin, end) @ R).nnz
        refuse(entries)


def combined(f: Callable[[Any, Any], Any], places: Callable[[Any, Any], Any], S: Csr, R: Csr) -> Csr:
    """f(S, R), a sum, a difference or a product by entries, in canonical order.

    `places` has f's pattern and no zeros on matrices of ones, such as add for subtract.
    """
    if csr_operations.serves(S, R) and f in csr_operations.OPERATIONS:
        return csr_operations.combined(f, S, R)
    return _with_zeros(sorted_rows(f(S, R)), places, S, R)


def _rows(S: Csr, begin: int, end: int) -> Csr:
    """Neighbouring rows, in the arrays of S."""
    ptr = S.indptr[begin : end + 1]
    entries = slice(ptr[0], ptr[-1])
    return scipy.sparse.csr_array((S.data[entries], S.indices[entries], ptr - ptr[0]), shape=(end - begin, S.shape[1]))


def _is_whole(C: Csr) -> bool:
    """Whether SciPy dropped no zeros of this product: it allocates all entries before it drops some."""
    return C.data.base is not None and C.data.base.size == C.nnz


def _product_with_zeros(S: Csr, R: Csr, C: Csr) -> Csr:
    """C, the product S @ R, with the sums that cancel.

    SciPy keeps those of complex numbers whose imaginary parts do not cancel.
    """
    if np.result_type(S.data, R.data).kind == "f":
        imaginary = np.random.default_rng(0).uniform(1, 2, S.nnz).astype(S.dtype)
        both = with_data(S, S.data + 1j * imaginary) @ R
        if _is_whole(both):
            return with_data(both, both.data.real.copy())
    return _with_zeros(sorted_rows(C), operator.matmul, S, R)


def _with_zeros(C: Csr, places: Any, S: Csr, R: Csr) -> Csr:
    """The canonical C with zeros where `places` has entries and C has none."""
    whole = places(*(with_data(M, np.ones(M.nnz, bool)) for M in (S, R)))
    if whole.nnz == C.nnz:
        return C
    whole = sorted_rows(whole)
    values = np.zeros(whole.nnz, C.dtype)
    values[np.searchsorted(_keys(whole), _keys(C))] = C.data
    return with_data(whole, values)


def _keys(S: Csr) -> np.ndarray:
    return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)) * S.shape[1] + S.indices
