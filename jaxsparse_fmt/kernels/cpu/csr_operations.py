"""Sums, products, parts and transposes of matrices in CSR on the host; rows are sorted, and zeros stay entries.

The arrays of results lie where JAX takes them. One pass over the rows writes a small result; of a large one a first
pass counts the entries, so that all cores write.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._aligned import aligned, empty_aligned
from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import CORES, Csr
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

OPERATIONS = operator.add, operator.sub, operator.mul
FEW = 2**13  # entries of operands that SciPy and NumPy are done with before a process has linked a kernel
AT_ONCE = 2**22  # entries of a result, at most, that one core writes without a count
# Digits that repeat through 64 bits, of the usual count of ones (Warren, Hacker's Delight, Figure 5-2).
ONES, THREES, FIVES, FIFTEENS = (d * 0x0101010101010101 for d in (0x01, 0x33, 0x55, 0x0F))


def pays(nnz: int) -> bool:
    """Whether compiled kernels are there, and worth their link."""
    return nnz >= FEW and selection.native_importable()


def serves(*operands: Csr, dtype: Any = np.float32) -> bool:
    """Whether these operands, and a result of this dtype, are for the functions of this module."""
    is_wide = all(np.dtype(d).itemsize >= 4 for d in (dtype, *(S.data.dtype for S in operands)))
    arrays = (a for S in operands for a in (S.data, S.indices, S.indptr))
    is_plain = all(a.dtype.isnative and a.flags.c_contiguous for a in arrays)  # as kernels read what they are given
    return is_wide and is_plain and all(S.nnz for S in operands) and pays(sum(S.nnz for S in operands))


def combined(f: Callable[[Any, Any], Any], S: Csr, R: Csr) -> Csr:
    """f(S, R), one of `OPERATIONS`, entry by entry; a product keeps the entries that both have."""
    kind, dtype = OPERATIONS.index(f), np.result_type(S.data, R.data)
    s, r = ((M.indptr, M.indices, M.data.astype(dtype, copy=False)) for M in (S, R))
    most = min(S.nnz, R.nnz) if kind == 2 else S.nnz + R.nnz
    ptr = np.zeros(S.shape[0] + 1, np.int64)
    if most > AT_ONCE:
        over_rows(count_combined, S.shape[0], 0, kind, *s[:2], *r[:2], ptr)
    return _filled(combine, ptr, most, S.shape, dtype, 0, kind, *s, *r)


def product(S: Csr, R: Csr) -> Csr:
    """S @ R."""
    dtype, shape = np.result_type(S.data, R.data), (S.shape[0], R.shape[1])
    s, r = ((M.indptr, M.indices, M.data.astype(dtype, copy=False)) for M in (S, R))
    ptr, words = np.zeros(shape[0] + 1, np.int64), shape[1] // 64 + 1
    most = int(np.sum(np.diff(R.indptr)[S.indices], dtype=np.int64))
    if most > AT_ONCE:
        over_rows(count_products, shape[0], shape[1], *s[:2], *r[:2], ptr)
    n_marks = shape[1] + words + words // 64 + 1
    return _filled(multiply, ptr, most, shape, dtype, n_marks, shape[1], shape[1] + words, *s, *r)


def crossed(S: Csr, rows: np.ndarray, lengths: np.ndarray, number: np.ndarray, n_cols: int) -> Csr:
    """S[rows][:, columns].

    Args:
      rows: [rows of the result] int64.
      lengths: [rows of the result], their entries in S.
      number: [columns of S] int32, that of each column in the result, rising, or -1; empty: all columns.
    """
    ptr, given = np.zeros(rows.size + 1, np.int64), (S.indptr, S.indices)
    ptr[1:] = lengths
    most = int(ptr.sum())
    if number.size and most > AT_ONCE:
        over_rows(count_crossed, rows.size, 0, rows, number, *given, ptr)
    return _filled(cross, ptr, most, (rows.size, n_cols), S.dtype, 0, rows, number, number.size, *given, S.data)


def transposed(S: Csr) -> Csr:
    """Sᵀ."""
    ptr = np.zeros(S.shape[1] + 1, index_dtype(S.nnz))
    over_rows(count_columns, S.shape[0], 0, S.indptr, S.indices, ptr, rows=S.shape[0])
    next_place = np.cumsum(ptr, out=ptr)[:-1].copy()
    indices, data = empty_aligned((S.nnz,), np.int32), empty_aligned((S.nnz,), S.dtype)
    arguments = S.indptr, S.indices, S.data, next_place, indices, data
    over_rows(transpose, S.shape[0], 0, *arguments, rows=S.shape[0])
    return scipy.sparse.csr_array((data, indices, ptr), shape=S.shape[::-1])


def occupied(S: Csr) -> np.ndarray:
    """The diagonals that hold an entry, rising, as col − row + n_rows − 1."""
    present = np.zeros(sum(S.shape), np.uint8)
    over_rows(mark_diagonals, S.shape[0], 0, S.shape[0], S.indptr, S.indices, present, rows=_task(S))
    return np.flatnonzero(present.view(bool))  # which NumPy reads ten times as fast


def put_on_diagonals(S: Csr, diagonals: np.ndarray, values: np.ndarray, full: np.ndarray) -> None:
    """Writes the entries of S to `values` [diagonals·n_rows], and True to `full` [diagonals, n_rows] where they lie."""
    place = np.zeros(sum(S.shape), np.int64)
    place[diagonals] = np.arange(diagonals.size) * S.shape[0]
    arguments = S.shape[0], place, S.indptr, S.indices, S.data, values, full.view(np.uint8)
    over_rows(put_entries, S.shape[0], 0, *arguments, rows=_task(S))


def _task(S: Csr) -> int:
    """Rows of a task: a few for each core, or all of a matrix for which a thread would cost more than it saves."""
    return max(S.shape[0] // (4 * CORES), 2**17)


def _filled(
    kernel: Any, ptr: np.ndarray, most: int, shape: tuple[int, int], dtype: Any, n_marks: int, *arguments: Any
) -> Csr:
    """The matrix whose rows a kernel writes.

    Args:
      ptr: [rows + 1] the numbers of entries after a zero, if there may be more than `AT_ONCE`.
      most: entries, if there are fewer.
    """
    if most > AT_ONCE:
        np.cumsum(ptr, out=ptr)
        most = int(ptr[-1])
    indices, data = empty_aligned((most,), np.int32), empty_aligned((most,), dtype)
    rows = {"rows": shape[0]} if most <= AT_ONCE else {}
    over_rows(kernel, shape[0], n_marks, *arguments, ptr, indices, data, **rows)
    nnz = int(ptr[-1])
    data, indices = data[:nnz], indices[:nnz]
    if 2 * nnz < most:  # else the result would keep the memory of all that it might have had
        data, indices = (aligned(a, a.dtype) for a in (data, indices))
    return scipy.sparse.csr_array((data, indices, ptr.astype(index_dtype(nnz))), shape=shape)


# ------------------------------------------------------------------- kernels for `over_rows`, whose arrays are pointers


def count_combined(begin, end, marks, kind, ptr, col, other_ptr, other_col, count):
    """The entries of each row of a sum; of a product of entries if `kind` is 2."""
    for row in range(begin, end):
        i, j, i_end, j_end, both = ptr[row], other_ptr[row], ptr[row + 1], other_ptr[row + 1], 0
        whole = i_end - i + j_end - j
        while i < i_end and j < j_end:
            c, d = col[i], other_col[j]
            both += c == d
            i += c <= d
            j += d <= c
        count[row + 1] = both if kind == 2 else whole - both


def combine(begin, end, marks, kind, ptr, col, a, other_ptr, other_col, b, first, out_col, out):
    """Writes the rows from first[begin] on, and where each ends."""
    p = first[begin]
    for row in range(begin, end):
        i, j, i_end, j_end = ptr[row], other_ptr[row], ptr[row + 1], other_ptr[row + 1]
        while i < i_end and j < j_end:
            c, d = col[i], other_col[j]
            if c == d:
                left, right = a[i], b[j]
                out_col[p] = c
                out[p] = left * right if kind == 2 else left - right if kind == 1 else left + right
                i += 1
                j += 1
                p += 1
                continue
            is_left = c < d
            if kind != 2:
                out_col[p] = c if is_left else d
                out[p] = a[i] if is_left else b[j] if kind == 0 else 0 - b[j]
                p += 1
            i += is_left
            j += not is_left
        while kind != 2 and i < i_end:
            out_col[p] = col[i]
            out[p] = a[i]
            i += 1
            p += 1
        while kind != 2 and j < j_end:
            out_col[p] = other_col[j]
            out[p] = b[j] if kind == 0 else 0 - b[j]
            j += 1
            p += 1
        first[row + 1] = p


def count_products(begin, end, marks, ptr, col, other_ptr, other_col, count):
    """The entries of each row of a matrix product; marks [n_cols], the last row that had each column."""
    for row in range(begin, end):
        n = 0
        for i in range(ptr[row], ptr[row + 1]):
            for j in range(other_ptr[col[i]], other_ptr[col[i] + 1]):
                c = other_col[j]
                n += marks[c] != row
                marks[c] = row
        count[row + 1] = n


def multiply(begin, end, marks, words, upper, ptr, col, a, other_ptr, other_col, b, first, out_col, out):
    """Gustavson's product. Two levels of bits, 0 for what the row has, give its columns sorted, and are then cleared.

    marks: [n_cols] the place of each column in the row; from `words` on, a bit for each column; from `upper` on, a bit
    for each of these words.
    """
    p = first[begin]
    for row in range(begin, end):
        low, high = upper, -1
        for i in range(ptr[row], ptr[row + 1]):
            for j in range(other_ptr[col[i]], other_ptr[col[i] + 1]):
                word = other_col[j] >> 6
                bits = marks[words + word]
                marks[words + word] = bits & ~(1 << (other_col[j] & 63))
                if bits == -1:
                    marks[upper + (word >> 6)] &= ~(1 << (word & 63))
                    low, high = min(low, word), max(high, word)
        for above in range(low >> 6, (high >> 6) + 1):
            some, marks[upper + above] = ~marks[upper + above], -1
            while some:
                x = (some & -some) - 1  # as many ones as zeros end `some`
                x -= (x >> 1) & FIVES
                x = (x & THREES) + ((x >> 2) & THREES)
                word = 64 * above + ((((x + (x >> 4)) & FIFTEENS) * ONES) >> 56)
                some &= some - 1
                bits, marks[words + word] = ~marks[words + word], -1
                while bits:
                    x = (bits & -bits) - 1
                    x -= (x >> 1) & FIVES
                    x = (x & THREES) + ((x >> 2) & THREES)
                    c = 64 * word + ((((x + (x >> 4)) & FIFTEENS) * ONES) >> 56)
                    bits &= bits - 1
                    marks[c] = p
                    out_col[p] = c
                    out[p] = 0
                    p += 1
        for i in range(ptr[row], ptr[row + 1]):
            for j in range(other_ptr[col[i]], other_ptr[col[i] + 1]):
                out[marks[other_col[j]]] += a[i] * b[j]
        first[row + 1] = p


def count_crossed(begin, end, marks, rows, number, ptr, col, count):
    for row in range(begin, end):
        n = 0
        for i in range(ptr[rows[row]], ptr[rows[row] + 1]):
            n += number[col[i]] >= 0
        count[row + 1] = n


def cross(begin, end, marks, rows, number, n_numbers, ptr, col, a, first, out_col, out):
    """As `combine` writes; but first[0] may be all that is known of `first`."""
    p = first[begin]
    for row in range(begin, end):
        start, stop = ptr[rows[row]], ptr[rows[row] + 1]
        for i in range(start, stop if n_numbers else start):
            c = number[col[i]]
            if c >= 0:
                out_col[p] = c
                out[p] = a[i]
                p += 1
        for i in range(stop if n_numbers else start, stop):  # without a test of each
            out_col[p] = col[i]
            out[p] = a[i]
            p += 1
        first[row + 1] = p


def count_columns(begin, end, marks, ptr, col, count):
    for i in range(ptr[begin], ptr[end]):
        count[col[i] + 1] += 1


def transpose(begin, end, marks, ptr, col, a, next_place, out_col, out):
    for row in range(begin, end):
        for i in range(ptr[row], ptr[row + 1]):
            p = next_place[col[i]]
            next_place[col[i]] = p + 1
            out_col[p] = row
            out[p] = a[i]


def mark_diagonals(begin, end, marks, n_rows, ptr, col, present):
    for row in range(begin, end):
        for i in range(ptr[row], ptr[row + 1]):
            diagonal = np.int64(col[i]) - row + n_rows - 1
            if present[diagonal] == 0:  # so that cores share the table
                present[diagonal] = 1


def put_entries(begin, end, marks, n_rows, place, ptr, col, a, values, full):
    for row in range(begin, end):
        for i in range(ptr[row], ptr[row + 1]):
            p = place[np.int64(col[i]) - row + n_rows - 1] + row
            values[p] = a[i]
            full[p] = 1
