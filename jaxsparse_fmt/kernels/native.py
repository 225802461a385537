"""Kernels for the CPU in Numba: plain arrays in, plain arrays out, over a range of rows. `columns_reference.py` says
the same of all rows. This file imports Numba, which takes half a second: only what runs such a kernel imports it.

All arrays are flat. Of a batch each kernel takes one member:

    values             [n_stored]
    x, y               [n_cols·p], [n_rows·p]
    col_idx            [n_stored] int32; from n_cols on in padding, whose x is never read
    ptr                [n_slices + 1] int32 or int64; with one row a slice, `row_ptr`
    perm               [n_rows]: storage row k is row perm[k] of the matrix; empty: the matrix's own order

Entries of a row are added in fours, (e0 + e1) + (e2 + e3), and the fours in storage order, in slices as in rows: four
loads are in flight, threads and formats change no bit. What runs where is nothing that a kernel knows: whoever calls
it cuts rows into pieces, by `rows_before` or `lanes_before`.

Indices are unsigned throughout, or Numba would ask of each whether it counts from the end: that halves the speed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

U = np.uint64
BLOCK = 128  # lanes whose sums lie in the L1 cache while their columns pass by
DIAGONAL_ROWS = 1024  # the same of diagonals

# Without counting references to the arrays: a call with five of them, one for each row, would take ten times as long as
# the row. Nothing here makes an array that would have to be freed.
njit: Any = numba.njit  # whose types do not know all options
compiled = njit(error_model="numpy", nogil=True, _nrt=False)
inlined = njit(error_model="numpy", nogil=True, _nrt=False, forceinline=True)


# --------------------------------------------------------------------------------------------------- pieces of the rows


@compiled
def rows_before(ptr, n_rows, piece, pieces):
    """The first row of a piece, where each has as many entries, a row counted as one more."""
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
    """The first slice of a piece, and its first lane in that slice, where pieces have as many places."""
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
def _term(values, x, col_idx, at, p, q, n_cols, zero):
    """values[at]·x[col, q], in the type of `zero`."""
    c = U(np.uint32(col_idx[at]))
    if c >= n_cols:
        return zero
    return type(zero)(values[at]) * type(zero)(x[c * p + q])


@inlined
def _row_sum(values, x, col_idx, begin, end, p, q, n_cols, zero):
    total, k = zero, begin
    while k + U(4) <= end:
        a = _term(values, x, col_idx, k, p, q, n_cols, zero)
        b = _term(values, x, col_idx, k + U(1), p, q, n_cols, zero)
        c = _term(values, x, col_idx, k + U(2), p, q, n_cols, zero)
        d = _term(values, x, col_idx, k + U(3), p, q, n_cols, zero)
        total += (a + b) + (c + d)
        k += U(4)
    if k < end:  # without a branch for each: how many are left is different in every row
        last = end - U(1)
        k1, k2 = min(k + U(1), last), min(k + U(2), last)
        b, c = _term(values, x, col_idx, k1, p, q, n_cols, zero), _term(values, x, col_idx, k2, p, q, n_cols, zero)
        rest = _term(values, x, col_idx, k, p, q, n_cols, zero) + (b if k < k1 else zero)
        total += rest + (c if k1 < k2 else zero)
    return total


@inlined
def _row_of_columns(values, x, col_idx, begin, end, p, n_cols, y, at, zero):
    """y[at : at + p], as `_row_sum` adds each of them, but four rows of x at a time, side by side."""
    for q in range(p):
        y[at + q] = zero
    k = begin
    while k + U(4) <= end:
        c0, c1 = U(np.uint32(col_idx[k])), U(np.uint32(col_idx[k + U(1)]))
        c2, c3 = U(np.uint32(col_idx[k + U(2)])), U(np.uint32(col_idx[k + U(3)]))
        if max(max(c0, c1), max(c2, c3)) < n_cols:
            v0, v1 = type(zero)(values[k]), type(zero)(values[k + U(1)])
            v2, v3 = type(zero)(values[k + U(2)]), type(zero)(values[k + U(3)])
            for q in range(p):
                a = v0 * type(zero)(x[c0 * p + q]) + v1 * type(zero)(x[c1 * p + q])
                y[at + q] += a + (v2 * type(zero)(x[c2 * p + q]) + v3 * type(zero)(x[c3 * p + q]))
        else:
            for q in range(p):
                y[at + q] += _row_sum(values, x, col_idx, k, k + U(4), p, q, n_cols, zero)
        k += U(4)
    if k < end:  # one to three
        c0, v0, left = U(np.uint32(col_idx[k])), type(zero)(values[k]), end - k
        c1, c2 = c0, c0
        if left > U(1):
            c1 = U(np.uint32(col_idx[k + U(1)]))
        if left > U(2):
            c2 = U(np.uint32(col_idx[k + U(2)]))
        if max(c0, max(c1, c2)) >= n_cols:
            for q in range(p):
                y[at + q] += _row_sum(values, x, col_idx, k, end, p, q, n_cols, zero)
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
def product_rows(values, x, col_idx, ptr, perm, y, p, n_cols, first, last):
    """A·x of the rows from `first` to `last`."""
    zero, p, n_cols = y.dtype.type(0), U(p), U(n_cols)
    begin = U(ptr[first])
    for r in range(U(first), U(last)):
        end, row = U(ptr[r + U(1)]), r
        if len(perm):
            row = U(perm[r])
        if p == U(1):
            y[row] = _row_sum(values, x, col_idx, begin, end, U(1), U(0), n_cols, zero)
        else:
            _row_of_columns(values, x, col_idx, begin, end, p, n_cols, y, row * p, zero)
        begin = end


@inlined
def _spread(x, c, v, y, row, p):
    """x[c] += v·y[row], of p columns. One is not worth a loop, which would take four times as long."""
    if p == U(1):
        x[c] += v * x.dtype.type(y[row])
    else:
        for q in range(p):
            x[c * p + q] += v * x.dtype.type(y[row * p + q])


@inlined
def _inner(y, row, x, c, p, zero):
    """Σ_p y[row, p]·x[c, p]."""
    if p == U(1):
        return type(zero)(y[row]) * type(zero)(x[c])
    total = zero
    for q in range(p):
        total += type(zero)(y[row * p + q]) * type(zero)(x[c * p + q])
    return total


@compiled
def transposed_rows(values, y, col_idx, ptr, perm, x, p, n_cols, first, last):
    """x = Aᵀ·y of the rows from `first` to `last` alone."""
    p, n_cols = U(p), U(n_cols)
    x[:] = 0
    for r in range(U(first), U(last)):
        row = r
        if len(perm):
            row = U(perm[r])
        for k in range(U(ptr[r]), U(ptr[r + U(1)])):
            c = U(np.uint32(col_idx[k]))
            if c < n_cols:
                _spread(x, c, x.dtype.type(values[k]), y, row, p)


@compiled
def outer_rows(y, x, col_idx, ptr, perm, values, p, n_cols, first, last):
    """Σ_p y[row, p]·x[col, p] at the entries of the rows from `first` to `last`."""
    zero, p, n_cols = values.dtype.type(0), U(p), U(n_cols)
    for r in range(U(first), U(last)):
        row = r
        if len(perm):
            row = U(perm[r])
        for k in range(U(ptr[r]), U(ptr[r + U(1)])):
            c = U(np.uint32(col_idx[k]))
            values[k] = _inner(y, row, x, c, p, zero) if c < n_cols else zero


# ----------------------------------------------------------------------------------------- lanes of slices, ELL to HLL


@compiled
def _lane_sums(values, x, col_idx, at, step, count, perm, y, row, rows, p, q, n_cols, zero):
    """Adds to y `count` entries, at most four, of each of `rows` lanes; the first are at `at`, the next `step` on."""
    for i in range(rows):
        total = _term(values, x, col_idx, at + i, p, q, n_cols, zero)
        if count > U(1):
            total += _term(values, x, col_idx, at + step + i, p, q, n_cols, zero)
        if count == U(3):
            total += _term(values, x, col_idx, at + step + step + i, p, q, n_cols, zero)
        elif count > U(3):
            c = _term(values, x, col_idx, at + step + step + i, p, q, n_cols, zero)
            total += c + _term(values, x, col_idx, at + step + step + step + i, p, q, n_cols, zero)
        target = row + i
        if len(perm):
            target = U(perm[target])
        y[target * p + q] += total


@compiled
def product_lanes(values, x, col_idx, ptr, perm, y, p, n_cols, n_rows, lanes, first, first_lane, last, last_lane):
    """A·x of the lanes from `first_lane` of slice `first` to `last_lane` of slice `last`."""
    zero, p, n_cols, step = y.dtype.type(0), U(p), U(n_cols), U(lanes)
    for s in range(first, last + (last_lane > 0)):
        start, width = U(ptr[s]), (U(ptr[s + 1]) - U(ptr[s])) // step
        begin, end = first_lane if s == first else 0, last_lane if s == last else lanes
        end = min(end, n_rows - s * lanes)
        for lane in range(begin, end, BLOCK):
            row, rows = U(s * lanes + lane), U(min(BLOCK, end - lane))
            for q in range(p):
                for i in range(rows):
                    target = row + i
                    if len(perm):
                        target = U(perm[target])
                    y[target * p + q] = zero
                k, at = U(0), start + U(lane)
                while k + U(4) <= width:
                    _lane_sums(values, x, col_idx, at, step, U(4), perm, y, row, rows, p, q, n_cols, zero)
                    k, at = k + U(4), at + U(4) * step
                if k < width:
                    _lane_sums(values, x, col_idx, at, step, width - k, perm, y, row, rows, p, q, n_cols, zero)


@compiled
def transposed_lanes(values, y, col_idx, ptr, perm, x, p, n_cols, n_rows, lanes, first, first_lane, last, last_lane):
    """x = Aᵀ·y of those lanes alone."""
    p, n_cols, step = U(p), U(n_cols), U(lanes)
    x[:] = 0
    for s in range(first, last + (last_lane > 0)):
        width = (U(ptr[s + 1]) - U(ptr[s])) // step
        begin, end = first_lane if s == first else 0, last_lane if s == last else lanes
        end = min(end, n_rows - s * lanes)
        for k in range(width):
            at = U(ptr[s]) + k * step
            for lane in range(begin, end):
                c = U(np.uint32(col_idx[at + U(lane)]))
                if c < n_cols:
                    row, v = U(s * lanes + lane), x.dtype.type(values[at + U(lane)])
                    if len(perm):
                        row = U(perm[row])
                    _spread(x, c, v, y, row, p)


@compiled
def outer_lanes(y, x, col_idx, ptr, perm, values, p, n_cols, n_rows, lanes, first, first_lane, last, last_lane):
    """Σ_p y[row, p]·x[col, p] at the entries of those lanes, zero in padding."""
    zero, p, n_cols, step = values.dtype.type(0), U(p), U(n_cols), U(lanes)
    for s in range(first, last + (last_lane > 0)):
        width = (U(ptr[s + 1]) - U(ptr[s])) // step
        begin, end = first_lane if s == first else 0, last_lane if s == last else lanes
        for k in range(width):
            at = U(ptr[s]) + k * step
            for lane in range(begin, end):
                total, c, row = zero, U(np.uint32(col_idx[at + U(lane)])), s * lanes + lane
                if c < n_cols and row < n_rows:
                    target = U(row)
                    if len(perm):
                        target = U(perm[target])
                    total = _inner(y, target, x, c, p, zero)
                values[at + U(lane)] = total


# --------------------------------------------------------------------------------------------------- whole diagonals


@compiled
def product_diagonals(values, x, offsets, start, pattern, y, p, n_cols, masked, first, last):
    """A·x of the rows from `first` to `last`, where entry d of row r is at start[d] + r and in column r + offsets[d].

    Args:
      pattern: [⌈n_stored / 8⌉] uint8, bits of the places that hold an entry; read only where `masked` is 2.
      masked: 1: a value of zero is padding, whose x does not count; 2: the pattern tells; 0: all places hold entries.
    """
    zero = y.dtype.type(0)
    for block in range(first, last, DIAGONAL_ROWS):
        stop = min(block + DIAGONAL_ROWS, last)
        for i in range(U(block * p), U(stop * p)):
            y[i] = zero
        for d in range(len(offsets)):
            offset = np.int64(offsets[d])
            begin, end = max(block, -offset), min(stop, n_cols - offset)
            if begin >= end:
                continue
            base, shifted = U(np.int64(start[d]) + begin), U(begin + offset)
            row, count = U(begin), U(end - begin)
            if p == 1 and masked < 2:
                for i in range(count):
                    v = type(zero)(values[base + i])
                    term = v * type(zero)(x[shifted + i])
                    y[row + i] += zero if masked and v == zero else term
            else:
                for i in range(count):
                    v, at = type(zero)(values[base + i]), base + i
                    entry = v != zero
                    if masked == 2:
                        entry = (pattern[at >> U(3)] >> (at & U(7))) & U(1) != U(0)
                    if entry or masked == 0:
                        for q in range(U(p)):
                            y[(row + i) * U(p) + q] += v * type(zero)(x[(shifted + i) * U(p) + q])
