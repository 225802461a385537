"""Numba kernels for the CPU, for rows and for diagonals; `c_functions.py` makes a C function of each.

`ffi.py` imports them only when a program calls a kernel that no file holds, since Numba takes half a second to
import. Operands are pointers, which compile in half the time of arrays. A kernel computes one member of a batch:

    values             [n_stored]
    x, y               [n_cols·p], [n_rows·p]
    columns            [n_stored] int32, n_cols or more in padding, which reads no x; or [diagonals] int32, the column
                       minus the row
    ptr                int32 or int64: `row_ptr` [n_rows + 1]; or [diagonals], the place of row 0 of each diagonal

A kernel adds the entries of a row in fours, (e0 + e1) + (e2 + e3), and the fours in storage order. So four loads are in
flight, and the number of threads changes no bit.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

U = np.uint64
# Rows whose sums stay in the L1 or L2 cache while the kernel adds their diagonals, each a run of memory.
DIAGONAL_ROWS = 4096

# No reference counts of arrays, since no kernel makes an array; no wrappers for calls from Python, since Numba compiles
# each for as long as a small function.
njit: Any = numba.njit  # whose types do not know all options
OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled, inlined = njit(**OPTIONS), njit(forceinline=True, **OPTIONS)


class Operands(NamedTuple):
    """The operands of every kernel: pointers, then uint64.

    Attributes:
      a, b, out: values, x, y for a product; values, y, x for a transposed product; y, x, values for an outer product.
      pattern: bits of the places that hold an entry, read only if `masked` is 2.
      n_ptr, n_places: the lengths of ptr and of the values.
      masked: 0: all places hold entries; 1: a value of zero is padding and adds nothing; 2: `pattern` decides.
      zero: of the dtype of sums and of the result.
    """

    a: Any
    b: Any
    out: Any
    columns: Any
    ptr: Any
    pattern: Any
    n_rows: Any
    n_cols: Any
    p: Any
    n_ptr: Any
    n_places: Any
    masked: Any
    zero: Any


@inlined
def quotient(a, b):
    """a / b; infinity for b = 0, where Numba would raise an error for complex numbers."""
    return type(b)(np.inf) if b == type(b)(0) else a / b


# --------------------------------------------------------------------------------------------------------------- rows


@inlined
def _place_of(o, row):
    """The place where a row begins, at most n_places even if the pointers are wrong."""
    return min(U(o.ptr[row]), o.n_places)


@compiled
def _first_row(o, piece, pieces):
    """The first row of a piece. All pieces have equal work: the entries, and one more for each row."""
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
def _term(o, place, p, q):
    """values[at]·x[col, q] of a product, in the type of sums."""
    c = U(np.uint32(o.columns[place]))
    if c >= o.n_cols:
        return o.zero
    return type(o.zero)(o.a[place]) * type(o.zero)(o.b[c * p + q])


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
    if k < end:  # without a branch for each, since the number left varies from row to row
        last = end - U(1)
        k1, k2 = min(k + U(1), last), min(k + U(2), last)
        b, c = _term(o, k1, p, q), _term(o, k2, p, q)
        rest = _term(o, k, p, q) + (b if k < k1 else o.zero)
        total += rest + (c if k1 < k2 else o.zero)
    return total


@inlined
def _scatter(o, c, v, row):
    """x[c] += v·y[row], for p columns; without a loop for one column, which would take four times as long."""
    if o.p == U(1):
        o.out[c] += v * type(o.zero)(o.b[row])
    else:
        for q in range(o.p):
            o.out[c * o.p + q] += v * type(o.zero)(o.b[row * o.p + q])


@inlined
def _inner(o, row, c):
    """Σ_p y[row, p]·x[c, p] of an outer product."""
    if o.p == U(1):
        return type(o.zero)(o.a[row]) * type(o.zero)(o.b[c])
    total = o.zero
    for q in range(o.p):
        total += type(total)(o.a[row * o.p + q]) * type(total)(o.b[c * o.p + q])
    return total


@compiled
def product_rows(o, piece, pieces):
    """A·x of the rows of a piece, for one right-hand side."""
    first, last = _first_row(o, piece, pieces), _first_row(o, piece + 1, pieces)
    begin = _place_of(o, first)
    for row in range(U(first), U(last)):
        end = _place_of(o, row + U(1))
        o.out[row] = _row_sum(o, begin, end, U(1), U(0))
        begin = end


@compiled
def columns_rows(o, piece, pieces):
    """A·x for several right-hand sides, each added as `_row_sum` adds it, from four rows of x side by side.

    With two right-hand sides the kernel reads each row once per side, which takes less time.
    """
    cast, columns, values, x, y, p, n_cols = type(o.zero), o.columns, o.a, o.b, o.out, o.p, o.n_cols
    first, last_row = _first_row(o, piece, pieces), _first_row(o, piece + 1, pieces)
    k = _place_of(o, first)
    for row in range(U(first), U(last_row)):
        end = _place_of(o, row + U(1))
        base = row * p
        if p == U(2):
            for q in range(p):
                y[base + q] = _row_sum(o, k, end, p, q)
            k = end
            continue
        for q in range(p):
            y[base + q] = o.zero
        while k < end:
            last = end - U(1)
            k1, k2, k3 = min(k + U(1), last), min(k + U(2), last), min(k + U(3), last)
            c0, c1 = U(np.uint32(columns[k])), U(np.uint32(columns[k1]))
            c2, c3 = U(np.uint32(columns[k2])), U(np.uint32(columns[k3]))
            v0, v1, v2, v3 = cast(values[k]), cast(values[k1]), cast(values[k2]), cast(values[k3])
            if max(max(c0, c1), max(c2, c3)) >= n_cols:
                for q in range(p):
                    y[base + q] += _row_sum(o, k, min(k + U(4), end), p, q)
            elif k2 < k3:
                for q in range(p):
                    a = v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])
                    y[base + q] += a + (v2 * cast(x[c2 * p + q]) + v3 * cast(x[c3 * p + q]))
            elif k1 < k2:
                for q in range(p):
                    y[base + q] += (v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])) + v2 * cast(x[c2 * p + q])
            elif k < k1:
                for q in range(p):
                    y[base + q] += v0 * cast(x[c0 * p + q]) + v1 * cast(x[c1 * p + q])
            else:
                for q in range(p):
                    y[base + q] += v0 * cast(x[c0 * p + q])
            k += U(4)
        k = end


@compiled
def transposed_rows(o, piece, pieces):
    """x = Aᵀ·y of the rows of a piece alone."""
    for i in range(o.n_cols * o.p):
        o.out[i] = o.zero
    first, last = _first_row(o, piece, pieces), _first_row(o, piece + 1, pieces)
    begin = _place_of(o, first)
    for row in range(U(first), U(last)):
        end = _place_of(o, row + U(1))
        for k in range(begin, end):
            c = U(np.uint32(o.columns[k]))
            if c < o.n_cols:
                _scatter(o, c, type(o.zero)(o.a[k]), row)
        begin = end


@compiled
def outer_rows(o, piece, pieces):
    """Σ_p y[row, p]·x[col, p] at the entries of the rows of a piece."""
    first, last = _first_row(o, piece, pieces), _first_row(o, piece + 1, pieces)
    begin = _place_of(o, first)
    for row in range(U(first), U(last)):
        end = _place_of(o, row + U(1))
        for k in range(begin, end):
            c = U(np.uint32(o.columns[k]))
            o.out[k] = _inner(o, row, c) if c < o.n_cols else o.zero
        begin = end
    if piece == pieces - 1:
        for k in range(_place_of(o, o.n_rows), o.n_places):
            o.out[k] = o.zero


@compiled
def outer_slices(o, piece, pieces):
    """Σ_p y[row, p]·x[col, p] at the places of the slices of a piece; `masked` is the number of rows of a slice."""
    n_slices = np.int64(o.n_ptr) - 1
    first, last = U(n_slices * piece // pieces), U(n_slices * (piece + 1) // pieces)
    begin = _place_of(o, first)
    for s in range(first, last):
        end = _place_of(o, s + U(1))
        while begin < end:  # the entries j of all rows of the slice
            row = s * o.masked
            for k in range(begin, min(begin + o.masked, end)):
                c = U(np.uint32(o.columns[k]))
                o.out[k] = _inner(o, row, c) if c < o.n_cols and row < o.n_rows else o.zero
                row += U(1)
            begin += o.masked
        begin = end
    if piece == pieces - 1:
        for k in range(begin, o.n_places):
            o.out[k] = o.zero


@compiled
def taken_places(o, piece, pieces):
    """a [n_cols] at the places `columns`, 0 where they are past the end."""
    for k in range(o.n_places * U(piece) // U(pieces), o.n_places * U(piece + 1) // U(pieces)):
        c = U(np.uint32(o.columns[k]))
        o.out[k] = o.a[c] if c < o.n_cols else o.zero


@compiled
def solved_rows(o, piece, pieces):
    """y of (I + N)·y = x for a strictly triangular N.

    `masked` has two bits: 1 for an upper triangular N, 2 for (I + N)ᵀ·y = x.
    """
    y, p = o.out, o.p
    upper, transposed = o.masked & U(1) == U(1), o.masked & U(2) == U(2)
    s = Operands(o.a, y, y, o.columns, o.ptr, o.pattern, o.n_rows, o.n_cols, p, o.n_ptr, o.n_places, o.masked, o.zero)
    for i in range(o.n_rows * p):
        y[i] = type(o.zero)(o.b[i])
    for i in range(o.n_rows):
        row = o.n_rows - U(1) - i if upper != transposed else i
        begin, end = _place_of(o, row), _place_of(o, row + U(1))
        if transposed:
            for k in range(begin, end):
                c = U(np.uint32(o.columns[k]))
                if c < o.n_cols:
                    _scatter(s, c, -type(o.zero)(o.a[k]), row)
        elif p == U(1):
            y[row] -= _row_sum(s, begin, end, U(1), U(0))
        else:
            for k in range(begin, end):
                c, v = U(np.uint32(o.columns[k])), type(o.zero)(o.a[k])
                if c < o.n_cols:
                    for q in range(p):
                        y[row * p + q] -= v * y[c * p + q]


# --------------------------------------------------------------------------------------------------------- diagonals


@inlined
def _is_hole(o, place, v):
    """Whether a place with a valid column holds no entry."""
    if o.masked == U(2):
        return (o.pattern[place >> U(3)] >> (place & U(7))) & U(1) == U(0)
    return o.masked == U(1) and v == o.zero


@compiled
def _add_run(o, place, row, column, count, tested):
    """Adds `count` places of a diagonal to y, from this place, row and column on."""
    values, x, y, p = o.a, o.b, o.out, o.p
    if p == U(1) and not tested:
        for i in range(count):
            y[row + i] += type(o.zero)(values[place + i]) * type(o.zero)(x[column + i])
        return
    for i in range(count):
        v = type(o.zero)(values[place + i])
        if not (tested and _is_hole(o, place + i, v)):
            for q in range(p):
                y[(row + i) * p + q] += v * type(o.zero)(x[(column + i) * p + q])


@inlined
def _finite(o, begin, end):
    """Whether the results from `begin` to `end` are finite, and so unspoilt by holes, which have added 0·x = 0."""
    found = True
    for i in range(begin, end):
        found &= o.out[i] * o.zero == o.zero
    return found


@compiled
def product_diagonals(o, piece, pieces):
    """A·x of the rows of a piece; if the sums are not finite, once more with a test of each place.

    Entry d of row r is in column r + columns[d] at ptr[d] + r. Places outside the values are not read.
    """
    n_rows = np.int64(o.n_rows)
    row, last, tested = n_rows * piece // pieces, n_rows * (piece + 1) // pieces, False
    while row < last:
        stop = min(row + max(DIAGONAL_ROWS // np.int64(o.p), 64), last)
        for i in range(U(row) * o.p, U(stop) * o.p):
            o.out[i] = o.zero
        for d in range(o.n_ptr):
            offset, place = np.int64(o.columns[d]), np.int64(o.ptr[d])
            begin, end = max(row, -offset, -place), min(stop, np.int64(o.n_cols) - offset, np.int64(o.n_places) - place)
            if begin < end:
                _add_run(o, U(place + begin), U(begin), U(begin + offset), U(end - begin), tested)
        tested = not (tested or o.masked == U(0) or _finite(o, U(row) * o.p, U(stop) * o.p))
        row = row if tested else stop


@compiled
def outer_diagonals(o, piece, pieces):
    """Σ_p y[row, p]·x[col, p] at the places of the rows of a piece, the sum over all entries that share a place.

    A diagonal d is stored in its own places, from n_rows·d on, or in those of its image, whose row is its column.
    """
    n_rows, n_cols = np.int64(o.n_rows), np.int64(o.n_cols)
    row, last = n_rows * piece // pieces, n_rows * (piece + 1) // pieces
    while row < last:
        stop = min(row + DIAGONAL_ROWS, last)
        for d in range(o.n_ptr):
            for k in range(U(d * o.n_rows) + U(row), U(d * o.n_rows) + U(stop)):
                o.out[k] = o.zero
        for d in range(o.n_ptr):
            offset, start = np.int64(o.columns[d]), np.int64(o.ptr[d])
            shift = np.int64(0) if start == np.int64(d) * n_rows else offset
            begin, end = max(row - shift, np.int64(0), -offset, -start), min(stop - shift, n_rows, n_cols - offset)
            end = min(end, np.int64(o.n_places) - start)
            if begin < end:
                _sample_run(o, U(start + begin), U(begin), U(begin + offset), U(end - begin))
        row = stop


@compiled
def _sample_run(o, place, row, column, count):
    """Adds the products of `count` entries of a diagonal to their places."""
    if o.masked == U(0):
        for i in range(count):
            o.out[place + i] += _inner(o, row + i, column + i)
        return
    for i in range(count):
        if not _is_hole(o, place + i, o.zero):
            o.out[place + i] += _inner(o, row + i, column + i)


@compiled
def index_diagonals(o, piece, pieces):
    """The entry of `data` at each place, p in padding, and after all places the place of each of the p entries."""
    k = U(0)
    for row in range(o.n_rows):
        for d in range(o.n_ptr):
            place, column = U(d) * o.n_rows + row, np.int64(row) + np.int64(o.columns[d])
            if 0 <= column < np.int64(o.n_cols) and k < o.p and not _is_hole(o, place, o.zero):
                o.out[place] = np.int32(k)
                o.out[o.n_places + k] = np.int32(place)
                k += U(1)
            else:
                o.out[place] = np.int32(o.p)
    for i in range(o.n_places + k, o.n_places + o.p):
        o.out[i] = np.int32(o.n_places)
