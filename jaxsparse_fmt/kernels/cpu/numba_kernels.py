"""Numba kernels for the CPU, for rows and for diagonals, and what all kernels for the CPU share.

`ffi.py` imports this module only when a program first calls a kernel that no file holds, since Numba takes half a
second to import. Operands are pointers, which compile in half the time that arrays take. A kernel computes one member
of a batch:

    values             [n_stored]
    x, y               [n_cols·p], [n_rows·p]
    columns            [n_stored] int32 in rows; n_cols or more in padding, for which x is not read
    ptr                [n_slices + 1] int32 or int64: `row_ptr` if each slice is one row; for coordinates
                       `row_idx` [n_stored], which rises, and is n_rows in padding

A kernel adds the entries of a row of CSR or COO in fours, (e0 + e1) + (e2 + e3), and the fours in storage order, so
that four loads are in flight; the number of threads changes no bit. `_first_by_pointers`, `_first_by_indices` or
`lanes_before` cuts the rows into pieces.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

U = np.uint64
# Rows whose sums stay in the L1 or L2 cache while the kernel adds their diagonals, each a run of memory.
DIAGONAL_ROWS = 4096

# Without reference counts of arrays, since no kernel makes an array, and without wrappers for calls from Python, each
# of which takes Numba as long as a small function.
njit: Any = numba.njit  # whose types do not know all options
OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled, inlined = njit(**OPTIONS), njit(forceinline=True, **OPTIONS)


class Operands(NamedTuple):
    """The operands of every kernel: pointers, then uint64.

    Attributes:
      a, b, out: values, x, y for a product; values, y, x for a transposed product; y, x, values for an outer product.
      columns: the array from which columns are decoded, or the offsets of diagonals.
      ptr: slice_ptr; col_start of jagged chunks; the place of row 0 of each diagonal; or row_idx of coordinates.
      perm: [n_rows], storage row k is row perm[k] of the matrix, or n_perm = 0 for its own order; or lane_row of tiles.
      pattern: bits of the places that hold an entry, read only where `masked` is 2.
      base: col_base; start: index_start, read where `mixed`; wide: the columns of slices too wide for 16 bits.
      n_ptr, n_perm, n_places: the lengths of ptr, perm and the values.
      zero: of the dtype of sums and of the result.
      masked: 0: all places hold entries; 1: a value of zero is padding and adds nothing; 2: `pattern` decides.
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


# --------------------------------------------------------------------------------------------- where rows begin and end


@inlined
def place_of(o, k):
    """Where row, slice or chunk k begins; within the values whatever the pointers hold."""
    return min(U(o.ptr[k]), o.n_places)


@inlined
def extent(o, k):
    """How many places row, slice or chunk k has."""
    begin = place_of(o, k)
    return max(place_of(o, k + U(1)), begin) - begin


@inlined
def row_of(o, k):
    """The row of storage row k; a row of the matrix whatever `perm` holds."""
    return min(U(o.perm[k]), o.n_rows - U(1)) if o.n_perm else U(k)


@compiled
def _first_by_pointers(o, piece, pieces):
    """The first row of a piece; all pieces have equally many entries, where a row counts as one more."""
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
def _end_by_pointers(o, row, begin):
    return place_of(o, row + U(1))


@compiled
def _first_by_indices(o, piece, pieces):
    """The same row as `_first_by_pointers` gives, from the row of each entry."""
    rows, n_rows, low, high = o.ptr, np.int64(o.n_rows), 0, np.int64(o.n_ptr)
    target = (high + n_rows) * piece // pieces
    while low < high:  # the first entry with so many entries and rows before it
        middle = (low + high) // 2
        if np.int64(rows[middle]) + middle < target:
            low = middle + 1
        else:
            high = middle
    return max(0, min(n_rows, max(target - low, np.int64(rows[low - 1]) + 1 if low > 0 else 0)))


@compiled
def _begin_by_indices(o, row):
    low, high = U(0), o.n_ptr
    while low < high:
        middle = (low + high) // U(2)
        if U(o.ptr[middle]) < U(row):
            low = middle + U(1)
        else:
            high = middle
    return low


@inlined
def _end_by_indices(o, row, begin):
    """Tests four entries at a time, and the last three without a branch for each."""
    rows, end, n = o.ptr, begin, o.n_ptr
    while end + U(4) <= n and U(rows[end + U(3)]) == row:
        end += U(4)
    if end + U(3) <= n:
        return end + U(U(rows[end]) == row) + U(U(rows[end + U(1)]) == row) + U(U(rows[end + U(2)]) == row)
    while end < n and U(rows[end]) == row:
        end += U(1)
    return end


# -------------------------------------------------------------------------------------------------- rows of CSR and COO


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
    if k < end:  # without a branch for each, since the number left varies from row to row
        last = end - U(1)
        k1, k2 = min(k + U(1), last), min(k + U(2), last)
        b, c = _term(o, k1, p, q), _term(o, k2, p, q)
        rest = _term(o, k, p, q) + (b if k < k1 else o.zero)
        total += rest + (c if k1 < k2 else o.zero)
    return total


@inlined
def clear(o):
    for i in range(o.n_cols * o.p):
        o.out[i] = o.zero


@inlined
def scatter(o, c, v, row):
    """x[c] += v·y[row], for p columns. For one column a loop would take four times as long."""
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


@inlined
def clear_behind(o, last, piece, pieces):
    """Writes zeros to an outer product from place `last` on, behind the last row or chunk."""
    if piece == pieces - 1:
        for k in range(last, o.n_places):
            o.out[k] = o.zero


def of_rows(first_of: Any, begin_of: Any, end_of: Any) -> tuple[Any, Any, Any, Any]:
    """The kernels of `abi.FACES_OF_ROWS`.

    Args:
      first_of: the first row of a piece; begin_of: the first place of a row; end_of: the place behind its last.
    """

    @compiled
    def product(o, piece, pieces):
        """A·x of the rows of a piece, for one right-hand side."""
        first, last = first_of(o, piece, pieces), first_of(o, piece + 1, pieces)
        begin = begin_of(o, first)
        for row in range(U(first), U(last)):
            end = end_of(o, row, begin)
            o.out[row] = _row_sum(o, begin, end, U(1), U(0))
            begin = end

    @compiled
    def columns(o, piece, pieces):
        """A·x for several right-hand sides, each added as `_row_sum` adds it, from four rows of x side by side.

        With two right-hand sides the kernel reads each row once per side, which takes less time.
        """
        cast, columns, values, x, y, p, n_cols = type(o.zero), o.columns, o.a, o.b, o.out, o.p, o.n_cols
        first, last_row = first_of(o, piece, pieces), first_of(o, piece + 1, pieces)
        k = begin_of(o, first)
        for row in range(U(first), U(last_row)):
            end = end_of(o, row, k)
            at = row * p
            if p == U(2):
                for q in range(p):
                    y[at + q] = _row_sum(o, k, end, p, q)
                k = end
                continue
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
            k = end

    @compiled
    def transposed(o, piece, pieces):
        """x = Aᵀ·y of the rows of a piece alone."""
        clear(o)
        first, last = first_of(o, piece, pieces), first_of(o, piece + 1, pieces)
        begin = begin_of(o, first)
        for row in range(U(first), U(last)):
            end = end_of(o, row, begin)
            for k in range(begin, end):
                c = U(np.uint32(o.columns[k]))
                if c < o.n_cols:
                    scatter(o, c, type(o.zero)(o.a[k]), row)
            begin = end

    @compiled
    def outer(o, piece, pieces):
        """Σ_p y[row, p]·x[col, p] at the entries of the rows of a piece."""
        first, last = first_of(o, piece, pieces), first_of(o, piece + 1, pieces)
        begin = begin_of(o, first)
        for row in range(U(first), U(last)):
            end = end_of(o, row, begin)
            for k in range(begin, end):
                c = U(np.uint32(o.columns[k]))
                o.out[k] = inner(o, row, c) if c < o.n_cols else o.zero
            begin = end
        clear_behind(o, begin_of(o, o.n_rows), piece, pieces)

    return product, transposed, outer, columns


KERNELS = {
    "rows": of_rows(_first_by_pointers, place_of, _end_by_pointers),
    "coordinates": of_rows(_first_by_indices, _begin_by_indices, _end_by_indices),
}


# --------------------------------------------------------------------------------------------------------- diagonals


@inlined
def is_hole(o, at, v):
    """Whether the place `at`, whose column is valid, holds no entry."""
    if o.masked == U(2):
        return (o.pattern[at >> U(3)] >> (at & U(7))) & U(1) == U(0)
    return o.masked == U(1) and v == o.zero


@compiled
def _add_run(o, at, row, column, count, tested):
    """Adds `count` places of a diagonal to y, from the place `at`, the row `row` and the column `column` on."""
    values, x, y, p = o.a, o.b, o.out, o.p
    if p == U(1) and not tested:
        for i in range(count):
            y[row + i] += type(o.zero)(values[at + i]) * type(o.zero)(x[column + i])
        return
    for i in range(count):
        v = type(o.zero)(values[at + i])
        if not (tested and is_hole(o, at + i, v)):
            for q in range(p):
                y[(row + i) * p + q] += v * type(o.zero)(x[(column + i) * p + q])


@inlined
def finite(o, begin, end):
    """Whether the numbers of the result from `begin` to `end` are finite: then holes have added 0·x = 0 to them."""
    found = True
    for i in range(begin, end):
        found &= o.out[i] * o.zero == o.zero
    return found


@compiled
def product_diagonals(o, piece, pieces):
    """A·x of the rows of a piece; rows that get an infinity or a NaN are added anew with a test for each place.

    Entry d of row r is in column r + columns[d] at ptr[d] + r. With `lanes`, diagonals are those of slices of so many
    rows, whose entries begin at ptr[slice], diagonal after diagonal. Places outside the values are not read.
    """
    n_rows, lanes = np.int64(o.n_rows), np.int64(o.lanes)
    row, last, tested = n_rows * piece // pieces, n_rows * (piece + 1) // pieces, False
    while row < last:
        stop, n, chunk, first = min(row + DIAGONAL_ROWS, last), np.int64(o.n_ptr), 0, 0
        if lanes:
            s = row // lanes
            stop, first = min(stop, (s + 1) * lanes), np.int64(place_of(o, s))
            n, chunk = np.int64(extent(o, U(s))) // lanes, first // lanes
            first -= s * lanes
        for i in range(U(row) * o.p, U(stop) * o.p):
            o.out[i] = o.zero
        for d in range(n):
            offset, at = np.int64(o.columns[chunk + d]), first + d * lanes if lanes else np.int64(o.ptr[d])
            begin, end = max(row, -offset, -at), min(stop, np.int64(o.n_cols) - offset, np.int64(o.n_places) - at)
            if begin < end:
                _add_run(o, U(at + begin), U(begin), U(begin + offset), U(end - begin), tested)
        tested = not (tested or o.masked == U(0) or finite(o, U(row) * o.p, U(stop) * o.p))
        row = row if tested else stop
