"""Kernels for the CPU in Numba: plain arrays in, plain arrays out, over a range of rows.

`spmv_reference.py` and `sddmm.py` compute the same in jnp. This file imports Numba, which takes half a second, so only
`ffi.py` imports it, when a program first calls a kernel.

All arrays are flat. A kernel computes one member of a batch:

    values             [n_stored]
    x, y               [n_cols·p], [n_rows·p]
    col_idx            [n_stored] int32; from n_cols on in padding, whose x is never read
    ptr                [n_slices + 1] int32 or int64; with one row a slice, `row_ptr`
    perm               [n_rows]: storage row k is row perm[k] of the matrix; empty: the matrix's own order

A kernel adds the entries of a row in fours, (e0 + e1) + (e2 + e3), and the fours in storage order, in slices as in
rows: four loads are in flight, and neither threads nor formats change a bit. The caller cuts the rows into pieces, by
`rows_before` or `lanes_before`.

Indices are unsigned: Numba tests whether a signed index counts from the end, which halves the speed.
Loops over rows test `len(perm)` themselves, and the product has one loop for one right-hand side and one for several:
LLVM moves the test out of such a loop, but not out of a larger loop or a function, which costs a tenth of the speed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

U = np.uint64
BLOCK = 128  # lanes whose sums stay in the L1 cache while the kernel adds their columns
DIAGONAL_ROWS = 1024  # the same for diagonals

# Without reference counts of arrays (`_nrt`): with them a call for one row would take ten times as long as the row. No
# kernel makes an array that would have to be freed.
njit: Any = numba.njit  # whose types do not know all options
compiled = njit(error_model="numpy", nogil=True, _nrt=False)
inlined = njit(error_model="numpy", nogil=True, _nrt=False, forceinline=True)


class Operands(NamedTuple):
    """The operands of the kernels of rows and of slices; the last four are uint64.

    a, b, out are values, x, y for a product; values, y, x for a transposed product; y, x, values for an outer product.
    """

    a: Any
    b: Any
    out: Any
    col_idx: Any
    ptr: Any
    perm: Any
    n_rows: Any
    n_cols: Any
    p: Any
    lanes: Any


class Diagonals(NamedTuple):
    """The operands of the kernel of diagonals: entry d of row r is at start[d] + r, in column r + offsets[d].

    Attributes:
      pattern: [⌈n_stored / 8⌉] uint8, bits of the places that hold an entry; read only where `masked` is 2.
      p, n_cols: int64.
      masked: 0: all places hold entries; 1: a value of zero is padding, whose x does not count; 2: `pattern` decides.
    """

    values: Any
    x: Any
    y: Any
    offsets: Any
    start: Any
    pattern: Any
    n_cols: Any
    p: Any
    masked: Any


# --------------------------------------------------------------------------------------------------- pieces of the rows


@compiled
def rows_before(ptr, n_rows, piece, pieces):
    """The first row of a piece; all pieces have equally many entries, a row counted as one more."""
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


@compiled
def lanes_before(ptr, lanes, piece, pieces):
    """The first slice of a piece, and its first lane in that slice; all pieces have equally many places."""
    n_slices = len(ptr) - 1
    if piece == 0:
        return 0, 0
    if piece >= pieces:
        return n_slices, 0
    target = np.int64(ptr[n_slices]) * piece // pieces
    low, high = 0, n_slices  # the last slice that begins at target or before
    while low + 1 < high:
        middle = (low + high) // 2
        if np.int64(ptr[middle]) <= target:
            low = middle
        else:
            high = middle
    width = (np.int64(ptr[low + 1]) - np.int64(ptr[low])) // lanes
    lane = 0 if width == 0 else min((target - np.int64(ptr[low])) // width, lanes)
    return low, lane // 16 * 16  # whole cache lines


# --------------------------------------------------------------------------------------------------------- rows of CSR


@inlined
def _term(o, at, p, q, zero):
    """values[at]·x[col, q] of a product, in the type of `zero`."""
    c = U(np.uint32(o.col_idx[at]))
    if c >= o.n_cols:
        return zero
    return type(zero)(o.a[at]) * type(zero)(o.b[c * p + q])


@inlined
def _row_sum(o, begin, end, p, q, zero):
    total, k = zero, begin
    while k + U(4) <= end:
        a, b = _term(o, k, p, q, zero), _term(o, k + U(1), p, q, zero)
        c, d = _term(o, k + U(2), p, q, zero), _term(o, k + U(3), p, q, zero)
        total += (a + b) + (c + d)
        k += U(4)
    if k < end:  # without a branch for each: how many are left is different in every row
        last = end - U(1)
        k1, k2 = min(k + U(1), last), min(k + U(2), last)
        b, c = _term(o, k1, p, q, zero), _term(o, k2, p, q, zero)
        rest = _term(o, k, p, q, zero) + (b if k < k1 else zero)
        total += rest + (c if k1 < k2 else zero)
    return total


@inlined
def _row_of_columns(o, begin, end, at, zero):
    """out[at : at + p], each as `_row_sum` adds it, but four rows of x at a time, side by side."""
    col_idx, values, x, y, p = o.col_idx, o.a, o.b, o.out, o.p
    for q in range(p):
        y[at + q] = zero
    k = begin
    while k + U(4) <= end:
        c0, c1 = U(np.uint32(col_idx[k])), U(np.uint32(col_idx[k + U(1)]))
        c2, c3 = U(np.uint32(col_idx[k + U(2)])), U(np.uint32(col_idx[k + U(3)]))
        if max(max(c0, c1), max(c2, c3)) < o.n_cols:
            v0, v1 = type(zero)(values[k]), type(zero)(values[k + U(1)])
            v2, v3 = type(zero)(values[k + U(2)]), type(zero)(values[k + U(3)])
            for q in range(p):
                a = v0 * type(zero)(x[c0 * p + q]) + v1 * type(zero)(x[c1 * p + q])
                y[at + q] += a + (v2 * type(zero)(x[c2 * p + q]) + v3 * type(zero)(x[c3 * p + q]))
        else:
            for q in range(p):
                y[at + q] += _row_sum(o, k, k + U(4), p, q, zero)
        k += U(4)
    if k < end:  # one to three
        c0, v0, left = U(np.uint32(col_idx[k])), type(zero)(values[k]), end - k
        c1, c2 = c0, c0
        if left > U(1):
            c1 = U(np.uint32(col_idx[k + U(1)]))
        if left > U(2):
            c2 = U(np.uint32(col_idx[k + U(2)]))
        if max(c0, max(c1, c2)) >= o.n_cols:
            for q in range(p):
                y[at + q] += _row_sum(o, k, end, p, q, zero)
        elif left == U(1):
            for q in range(p):
                y[at + q] += v0 * type(zero)(x[c0 * p + q])
        elif left == U(2):
            v1 = type(zero)(values[k + U(1)])
            for q in range(p):
                y[at + q] += v0 * type(zero)(x[c0 * p + q]) + v1 * type(zero)(x[c1 * p + q])
        else:
            v1, v2 = type(zero)(values[k + U(1)]), type(zero)(values[k + U(2)])
            for q in range(p):
                a = v0 * type(zero)(x[c0 * p + q]) + v1 * type(zero)(x[c1 * p + q])
                y[at + q] += a + v2 * type(zero)(x[c2 * p + q])


@compiled
def product_rows(o, first, last):
    """A·x of the rows from `first` to `last`."""
    y, ptr, perm, p = o.out, o.ptr, o.perm, o.p
    zero, begin = y.dtype.type(0), U(ptr[first])
    if p > U(1):
        _product_of_columns(o, first, last)
        return
    for r in range(U(first), U(last)):
        end, row = U(ptr[r + U(1)]), r
        if len(perm):
            row = U(perm[r])
        y[row] = _row_sum(o, begin, end, U(1), U(0), zero)
        begin = end


@compiled
def _product_of_columns(o, first, last):
    """The same for several right-hand sides."""
    zero, begin = o.out.dtype.type(0), U(o.ptr[first])
    for r in range(U(first), U(last)):
        end, row = U(o.ptr[r + U(1)]), r
        if len(o.perm):
            row = U(o.perm[r])
        _row_of_columns(o, begin, end, row * o.p, zero)
        begin = end


@inlined
def _scatter(x, c, v, y, row, p):
    """x[c] += v·y[row], of p columns. One is not worth a loop, which would take four times as long."""
    if p == U(1):
        x[c] += v * x.dtype.type(y[row])
    else:
        for q in range(p):
            x[c * p + q] += v * x.dtype.type(y[row * p + q])


@inlined
def _inner(o, row, c, zero):
    """Σ_p y[row, p]·x[c, p] of an outer product."""
    y, x, p = o.a, o.b, o.p
    if p == U(1):
        return type(zero)(y[row]) * type(zero)(x[c])
    total = zero
    for q in range(p):
        total += type(zero)(y[row * p + q]) * type(zero)(x[c * p + q])
    return total


@compiled
def transposed_rows(o, first, last):
    """x = Aᵀ·y of the rows from `first` to `last` alone."""
    values, y, x, p, n_cols = o.a, o.b, o.out, o.p, o.n_cols
    col_idx, ptr = o.col_idx, o.ptr
    x[:] = 0
    for r in range(U(first), U(last)):
        row = r
        if len(o.perm):
            row = U(o.perm[r])
        for k in range(U(ptr[r]), U(ptr[r + U(1)])):
            c = U(np.uint32(col_idx[k]))
            if c < n_cols:
                _scatter(x, c, x.dtype.type(values[k]), y, row, p)


@compiled
def outer_rows(o, first, last):
    """Σ_p y[row, p]·x[col, p] at the entries of the rows from `first` to `last`."""
    zero = o.out.dtype.type(0)
    for r in range(U(first), U(last)):
        row = r
        if len(o.perm):
            row = U(o.perm[r])
        for k in range(U(o.ptr[r]), U(o.ptr[r + U(1)])):
            c = U(np.uint32(o.col_idx[k]))
            o.out[k] = _inner(o, row, c, zero) if c < o.n_cols else zero


# ----------------------------------------------------------------------------------------- lanes of slices, ELL to HLL


@inlined
def _lanes_of(o, s, begin, end):
    """The lanes of slice s that lie between `begin` and `end`, (slice, lane) each."""
    return begin[1] if s == begin[0] else 0, end[1] if s == end[0] else np.int64(o.lanes)


@compiled
def _lane_sums(o, at, count, row, rows, q):
    """Adds to y `count` entries, at most four, of each of `rows` lanes from `row` on; the first entry is at `at`."""
    zero, step = o.out.dtype.type(0), o.lanes
    for i in range(rows):
        total = _term(o, at + i, o.p, q, zero)
        if count > U(1):
            total += _term(o, at + step + i, o.p, q, zero)
        if count == U(3):
            total += _term(o, at + step + step + i, o.p, q, zero)
        elif count > U(3):
            c = _term(o, at + step + step + i, o.p, q, zero)
            total += c + _term(o, at + step + step + step + i, o.p, q, zero)
        target = row + i
        if len(o.perm):
            target = U(o.perm[target])
        o.out[target * o.p + q] += total


@compiled
def product_lanes(o, begin, end):
    """A·x of the lanes from `begin` to `end`, (slice, lane) each."""
    zero, lanes = o.out.dtype.type(0), np.int64(o.lanes)
    for s in range(begin[0], end[0] + (end[1] > 0)):
        start, width = U(o.ptr[s]), (U(o.ptr[s + 1]) - U(o.ptr[s])) // o.lanes
        first, last = _lanes_of(o, s, begin, end)
        last = min(last, np.int64(o.n_rows) - s * lanes)
        for lane in range(first, last, BLOCK):
            row, rows = U(s * lanes + lane), U(min(BLOCK, last - lane))
            for q in range(o.p):
                for i in range(rows):
                    target = row + i
                    if len(o.perm):
                        target = U(o.perm[target])
                    o.out[target * o.p + q] = zero
                k, at = U(0), start + U(lane)
                while k + U(4) <= width:
                    _lane_sums(o, at, U(4), row, rows, q)
                    k, at = k + U(4), at + U(4) * o.lanes
                if k < width:
                    _lane_sums(o, at, width - k, row, rows, q)


@compiled
def transposed_lanes(o, begin, end):
    """x = Aᵀ·y of the lanes from `begin` to `end` alone."""
    values, y, x, p, n_cols = o.a, o.b, o.out, o.p, o.n_cols
    col_idx, ptr, lanes = o.col_idx, o.ptr, np.int64(o.lanes)
    x[:] = 0
    for s in range(begin[0], end[0] + (end[1] > 0)):
        first, last = _lanes_of(o, s, begin, end)
        last = min(last, np.int64(o.n_rows) - s * lanes)
        for k in range((U(ptr[s + 1]) - U(ptr[s])) // o.lanes):
            at = U(ptr[s]) + k * o.lanes
            for lane in range(first, last):
                c = U(np.uint32(col_idx[at + U(lane)]))
                if c < n_cols:
                    row = U(s * lanes + lane)
                    if len(o.perm):
                        row = U(o.perm[row])
                    _scatter(x, c, x.dtype.type(values[at + U(lane)]), y, row, p)


@compiled
def outer_lanes(o, begin, end):
    """Σ_p y[row, p]·x[col, p] at the entries of the lanes from `begin` to `end`, zero in padding."""
    zero, lanes = o.out.dtype.type(0), np.int64(o.lanes)
    for s in range(begin[0], end[0] + (end[1] > 0)):
        first, last = _lanes_of(o, s, begin, end)
        for k in range((U(o.ptr[s + 1]) - U(o.ptr[s])) // o.lanes):
            at = U(o.ptr[s]) + k * o.lanes
            for lane in range(first, last):
                total, c, row = zero, U(np.uint32(o.col_idx[at + U(lane)])), U(s * lanes + lane)
                if c < o.n_cols and row < o.n_rows:
                    if len(o.perm):
                        row = U(o.perm[row])
                    total = _inner(o, row, c, zero)
                o.out[at + U(lane)] = total


# --------------------------------------------------------------------------------------------------- whole diagonals


@compiled
def product_diagonals(o, first, last):
    """A·x of the rows from `first` to `last`."""
    values, x, y, p = o.values, o.x, o.y, o.p
    zero = y.dtype.type(0)
    for block in range(first, last, DIAGONAL_ROWS):
        stop = min(block + DIAGONAL_ROWS, last)
        for i in range(U(block * p), U(stop * p)):
            y[i] = zero
        for d in range(len(o.offsets)):
            offset = np.int64(o.offsets[d])
            begin, end = max(block, -offset), min(stop, o.n_cols - offset)
            if begin >= end:
                continue
            base, shifted = U(np.int64(o.start[d]) + begin), U(begin + offset)
            row, count = U(begin), U(end - begin)
            if p == 1 and o.masked < 2:
                for i in range(count):
                    v = type(zero)(values[base + i])
                    term = v * type(zero)(x[shifted + i])
                    y[row + i] += zero if o.masked and v == zero else term
            else:
                for i in range(count):
                    v, at = type(zero)(values[base + i]), base + i
                    entry = v != zero
                    if o.masked == 2:
                        entry = (o.pattern[at >> U(3)] >> (at & U(7))) & U(1) != U(0)
                    if entry or o.masked == 0:
                        for q in range(U(p)):
                            y[(row + i) * U(p) + q] += v * type(zero)(x[(shifted + i) * U(p) + q])
