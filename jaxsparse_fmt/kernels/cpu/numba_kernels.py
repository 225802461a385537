"""Kernels for the CPU in Numba, of rows and of whole diagonals, and what all kernels for the CPU share.

`spmv_reference.py` and `sddmm.py` compute the same in jnp. This file imports Numba, which takes half a second, so only
`ffi.py` imports it, when a program first calls a kernel that no file holds.

Operands are pointers, which cost Numba half the time that arrays take to compile. A kernel computes one member of a
batch:

    values             [n_stored]
    x, y               [n_cols·p], [n_rows·p]
    columns            [n_stored] int32 in rows; from n_cols on in padding, whose x is never read
    ptr                [n_slices + 1] int32 or int64; with one row a slice, `row_ptr`
    perm               [n_rows]: storage row k is row perm[k] of the matrix; n_perm = 0: the matrix's own order

A kernel adds the entries of a row in fours, (e0 + e1) + (e2 + e3), and the fours in storage order, in slices as in
rows: four loads are in flight, and neither threads nor formats change a bit. The caller cuts the rows into pieces, by
`rows_before` or `lanes_before`.

Loops over rows test `n_perm` themselves, and the product has one kernel for one right-hand side and one for several:
LLVM moves the test out of such a loop, but not out of a larger loop or a function, which costs a tenth of the speed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

U = np.uint64
BLOCK = 128  # lanes whose sums stay in the L1 cache while the kernel adds their columns
DIAGONAL_ROWS = 1024  # the same for diagonals

# Without reference counts of arrays, since no kernel makes one, and without what Python would call: each such wrapper
# costs Numba as much as a small function.
njit: Any = numba.njit  # whose types do not know all options
OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled, inlined = njit(**OPTIONS), njit(forceinline=True, **OPTIONS)


class Operands(NamedTuple):
    """The operands of every kernel: pointers, then uint64.

    Attributes:
      a, b, out: values, x, y for a product; values, y, x for a transposed product; y, x, values for an outer product.
      columns: the array from which columns are decoded, or the offsets of diagonals.
      ptr: slice_ptr, or col_start of jagged chunks, or of diagonals the place of each diagonal's row 0.
      perm: or lane_row of tiles.
      pattern: bits of the places that hold an entry, read only where `masked` is 2.
      base: col_base; start: index_start, read where `mixed`; wide: the columns of slices too wide for 16 bits.
      n_ptr, n_perm, n_places: the lengths of ptr, perm and the values.
      zero: of the dtype of sums and of the result.
      masked: 0: all places hold entries; 1: a value of zero is padding, whose x does not count; 2: `pattern` decides.
    """

    a: Any
    b: Any
    out: Any
    columns: Any
    ptr: Any
    perm: Any
    pattern: Any
    base: Any
    start: Any
    wide: Any
    n_rows: Any
    n_cols: Any
    p: Any
    lanes: Any
    n_ptr: Any
    n_perm: Any
    masked: Any
    mixed: Any
    block_rows: Any
    block_columns: Any
    entries: Any
    n_places: Any
    zero: Any


# --------------------------------------------------------------------------------------------------- pieces of the rows


@compiled
def rows_before(o, piece, pieces):
    """The first row of a piece; all pieces have equally many entries, a row counted as one more."""
    ptr, n_rows = o.ptr, np.int64(o.n_rows)
    if piece >= pieces:
        return n_rows
    target = (np.int64(ptr[n_rows]) - np.int64(ptr[0]) + n_rows) * piece // pieces
    low, high = 0, n_rows
    while low < high:
        middle = (low + high) // 2
        if np.int64(ptr[middle]) - np.int64(ptr[0]) + middle < target:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def clear_behind(o, piece, pieces):
    """Zeros of an outer product behind the last row or chunk."""
    if piece == pieces - 1:
        for k in range(U(o.ptr[o.n_ptr - U(1)]), o.n_places):
            o.out[k] = o.zero


# --------------------------------------------------------------------------------------------------------- rows of CSR


@inlined
def _term(o, at, p, q):
    """values[at]·x[col, q] of a product, in the type of sums."""
    c = U(np.uint32(o.columns[at]))
    if c >= o.n_cols:
        return o.zero
    return type(o.zero)(o.a[at]) * type(o.zero)(o.b[c * p + q])


@inlined
def _row_sum(o, begin, end, p, q):
    total, k = o.zero, begin
    while k + U(4) <= end:
        c0, c1 = U(np.uint32(o.columns[k])), U(np.uint32(o.columns[k + U(1)]))
        c2, c3 = U(np.uint32(o.columns[k + U(2)])), U(np.uint32(o.columns[k + U(3)]))
        if max(max(c0, c1), max(c2, c3)) < o.n_cols:  # one test for four
            a = type(total)(o.a[k]) * type(total)(o.b[c0 * p + q])
            a += type(total)(o.a[k + U(1)]) * type(total)(o.b[c1 * p + q])
            b = type(total)(o.a[k + U(2)]) * type(total)(o.b[c2 * p + q])
            total += a + (b + type(total)(o.a[k + U(3)]) * type(total)(o.b[c3 * p + q]))
        else:
            a, b = _term(o, k, p, q), _term(o, k + U(1), p, q)
            total += (a + b) + (_term(o, k + U(2), p, q) + _term(o, k + U(3), p, q))
        k += U(4)
    if k < end:  # without a branch for each: how many are left is different in every row
        last = end - U(1)
        k1, k2 = min(k + U(1), last), min(k + U(2), last)
        b, c = _term(o, k1, p, q), _term(o, k2, p, q)
        rest = _term(o, k, p, q) + (b if k < k1 else o.zero)
        total += rest + (c if k1 < k2 else o.zero)
    return total


@compiled
def product_rows(o, piece, pieces):
    """A·x of the rows of a piece, for one right-hand side."""
    first, last = rows_before(o, piece, pieces), rows_before(o, piece + 1, pieces)
    begin = U(o.ptr[first])
    for r in range(U(first), U(last)):
        end, row = U(o.ptr[r + U(1)]), r
        if o.n_perm:
            row = U(o.perm[r])
        o.out[row] = _row_sum(o, begin, end, U(1), U(0))
        begin = end


@compiled
def product_of_columns(o, piece, pieces):
    """The same for several right-hand sides, each added as `_row_sum` adds it, but four rows of x side by side."""
    cast, columns, values, x, y, p, n_cols = type(o.zero), o.columns, o.a, o.b, o.out, o.p, o.n_cols
    for r in range(U(rows_before(o, piece, pieces)), U(rows_before(o, piece + 1, pieces))):
        row, k, end = r, U(o.ptr[r]), U(o.ptr[r + U(1)])
        if o.n_perm:
            row = U(o.perm[r])
        at = row * p
        for q in range(p):
            y[at + q] = o.zero
        while k < end:
            last = end - U(1)
            k1, k2, k3 = min(k + U(1), last), min(k + U(2), last), min(k + U(3), last)
            c0, c1 = U(np.uint32(columns[k])), U(np.uint32(columns[k1]))
            c2, c3 = U(np.uint32(columns[k2])), U(np.uint32(columns[k3]))
            v0, v1, v2, v3 = cast(values[k]), cast(values[k1]), cast(values[k2]), cast(values[k3])
            if max(max(c0, c1), max(c2, c3)) >= n_cols:
                for q in range(p):
                    y[at + q] += _row_sum(o, k, min(k + U(4), end), p, q)
            elif k2 < k3:
                for q in range(p):
                    a = v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])
                    y[at + q] += a + (v2 * cast(x[c2 * p + q]) + v3 * cast(x[c3 * p + q]))
            elif k1 < k2:
                for q in range(p):
                    y[at + q] += (v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])) + v2 * cast(x[c2 * p + q])
            elif k < k1:
                for q in range(p):
                    y[at + q] += v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])
            else:
                for q in range(p):
                    y[at + q] += v0 * cast(x[c0 * p + q])
            k += U(4)


@inlined
def clear(o):
    for i in range(o.n_cols * o.p):
        o.out[i] = o.zero


@inlined
def scatter(o, c, v, row):
    """x[c] += v·y[row], of p columns. One is not worth a loop, which would take four times as long."""
    if o.p == U(1):
        o.out[c] += v * type(o.zero)(o.b[row])
    else:
        for q in range(o.p):
            o.out[c * o.p + q] += v * type(o.zero)(o.b[row * o.p + q])


@inlined
def inner(o, row, c):
    """Σ_p y[row, p]·x[c, p] of an outer product."""
    if o.p == U(1):
        return type(o.zero)(o.a[row]) * type(o.zero)(o.b[c])
    total = o.zero
    for q in range(o.p):
        total += type(total)(o.a[row * o.p + q]) * type(total)(o.b[c * o.p + q])
    return total


@compiled
def transposed_rows(o, piece, pieces):
    """x = Aᵀ·y of the rows of a piece alone."""
    clear(o)
    for r in range(U(rows_before(o, piece, pieces)), U(rows_before(o, piece + 1, pieces))):
        row = r
        if o.n_perm:
            row = U(o.perm[r])
        for k in range(U(o.ptr[r]), U(o.ptr[r + U(1)])):
            c = U(np.uint32(o.columns[k]))
            if c < o.n_cols:
                scatter(o, c, type(o.zero)(o.a[k]), row)


@compiled
def outer_rows(o, piece, pieces):
    """Σ_p y[row, p]·x[col, p] at the entries of the rows of a piece."""
    for r in range(U(rows_before(o, piece, pieces)), U(rows_before(o, piece + 1, pieces))):
        row = r
        if o.n_perm:
            row = U(o.perm[r])
        for k in range(U(o.ptr[r]), U(o.ptr[r + U(1)])):
            c = U(np.uint32(o.columns[k]))
            o.out[k] = inner(o, row, c) if c < o.n_cols else o.zero
    clear_behind(o, piece, pieces)


# --------------------------------------------------------------------------------------------------- whole diagonals


@compiled
def product_diagonals(o, piece, pieces):
    """A·x of the rows of a piece: entry d of row r is at ptr[d] + r, in column r + columns[d]."""
    values, x, y, p, zero, n_rows = o.a, o.b, o.out, o.p, o.zero, np.int64(o.n_rows)
    last = n_rows * (piece + 1) // pieces
    for block in range(n_rows * piece // pieces, last, DIAGONAL_ROWS):
        stop = min(block + DIAGONAL_ROWS, last)
        for i in range(U(block) * p, U(stop) * p):
            y[i] = zero
        for d in range(o.n_ptr):
            offset = np.int64(o.columns[d])
            begin, end = max(block, -offset), min(stop, np.int64(o.n_cols) - offset)
            if begin >= end:
                continue
            base, shifted = U(np.int64(o.ptr[d]) + begin), U(begin + offset)
            row, count = U(begin), U(end - begin)
            if p == U(1) and o.masked < U(2):
                for i in range(count):
                    v = type(zero)(values[base + i])
                    term = v * type(zero)(x[shifted + i])
                    y[row + i] += zero if o.masked and v == zero else term
            else:
                for i in range(count):
                    v, at = type(zero)(values[base + i]), base + i
                    entry = v != zero
                    if o.masked == U(2):
                        entry = (o.pattern[at >> U(3)] >> (at & U(7))) & U(1) != U(0)
                    if entry or o.masked == U(0):
                        for q in range(p):
                            y[(row + i) * p + q] += v * type(zero)(x[(shifted + i) * p + q])
