"""Numba kernels for the CPU, for storage in chunks: a chunk holds one entry of each row of a slice.

A chunk has one place for each lane of its slice. A storage is two functions: `slice_of` reads what the places of a
slice share,

    (its first place, the first in `columns`, the number of its first chunk, whether `columns` holds deltas)

and another reads the column of a place from that, the chunk, the lane and the row. `of_chunks` makes the three kernels:

    lanes      ELL to HLL: 32 bits
    deltas     SELL: 16 bits above the chunk's least column; 32 bits in slices that are too wide
    offsets    HDIA, DIA: row + offset
    blocks     BSR: the column of a block of block_rows × block_columns
    jagged     JDS, pJDS: one slice, whose chunks hold ever fewer rows; 32 bits

Operands and padding are those of `numba_kernels.py`. `row_of` tests `n_perm` in loops over lanes: LLVM moves the test
out of such a loop, but not out of a larger one, where it costs a tenth of the speed. The product goes through memory in
order, chunk after chunk, and keeps the sums of a block of lanes in the L1 cache. A row adds its entries one by one.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from jaxsparse_fmt.kernels.cpu.numba_kernels import (
    U,
    clear,
    clear_behind,
    compiled,
    extent,
    inlined,
    inner,
    is_hole,
    place_of,
    row_of,
    scatter,
)

LARGEST = 0xFFFE  # delta; one more is padding
BLOCK = 2048  # lanes whose sums stay in the L1 cache


@intrinsic
def _room(typing, zero):
    """A pointer to `BLOCK` numbers on the stack, which LLVM knows to lie apart from all operands."""
    number = types.unliteral(zero)

    def code(context, builder, signature, args):
        return cgutils.alloca_once(builder, context.get_data_type(number), ir.IntType(64)(BLOCK))

    return types.CPointer(number)(number), code


room: Any = _room  # callers leave out `typing`


@compiled
def lanes_before(o, lanes, piece, pieces, step):
    """The first slice of a piece, and its first lane there, a multiple of `step`; pieces have equally many places."""
    ptr, n_slices = o.ptr, np.int64(o.n_ptr) - 1
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
    width = np.int64(extent(o, U(low))) // lanes
    lane = 0 if width == 0 else min(max(target - np.int64(ptr[low]), 0) // width, lanes)
    return low, lane // step * step


# --------------------------------------------------------------------------------------------- slices and their columns


@inlined
def _slice(o, s):
    first = place_of(o, s)
    return first, first, first // o.lanes, False


@inlined
def _column_in_full(o, of, k, lane, row):
    return np.uint32(o.columns[of[1] + k * o.lanes + lane])


@inlined
def _slice_of_deltas(o, s):
    first = place_of(o, s)
    if not o.mixed:
        return first, first, first // o.lanes, True
    start = np.int64(o.start[s])
    return first, U(start if start >= 0 else -1 - start), first // o.lanes, start >= 0


@inlined
def _column_in_32_bits(o, of, k, lane, row):
    return np.uint32(o.wide[of[1] + k * o.lanes + lane])


@inlined
def _delta(o, of, k, lane, row):
    return np.uint32(o.columns[of[1] + k * o.lanes + lane])


@inlined
def _column_of_offsets(o, of, k, lane, row):
    return np.uint32(np.int32(row) + o.columns[of[2] + k])  # a negative column becomes a very large one


@inlined
def _column_of_blocks(o, of, k, lane, row):
    across = np.uint32(k) // np.uint32(o.block_columns)
    first = of[0] // (o.block_rows * o.block_columns)
    block = first + U(across) * (o.lanes // o.block_rows) + U(np.uint32(lane) // np.uint32(o.block_rows))
    return np.uint32(U(np.uint32(o.columns[block])) * o.block_columns + (k - U(across) * o.block_columns))


@inlined
def _whole(o, s):
    return U(0), U(0), U(0), False


@inlined
def _column_of_jagged(o, of, k, lane, row):
    return np.uint32(o.columns[place_of(o, k) + lane])


# ------------------------------------------------------------------------------------------------------- three kernels


def of_chunks(slice_of: Any, *columns_of: Any, holes: bool = False, jagged: bool = False) -> tuple[Any, Any, Any]:
    """The kernels of a storage: the product, transposed product and outer product of the lanes of a piece.

    Args:
      columns_of: reads a column; or two functions, the second for slices of deltas.
      holes: whether places may have a valid column and hold no entry; jagged: whether chunks differ in length.
    """
    in_full, narrow = columns_of[0], columns_of[-1]

    @inlined
    def range_of(o, of, k, deltas):
        """The least column of a chunk, and the largest number there that is no padding; there are columns."""
        last = o.n_cols - U(1)
        if deltas:
            least = min(U(np.uint32(o.base[of[2] + k])), last)
            return least, np.uint32(min(last - least, U(LARGEST)))
        return U(0), np.uint32(last)

    @inlined
    def column_of(o, of, k, lane, row):
        """The column of a place; n_cols in padding."""
        least, largest = range_of(o, of, k, of[3])
        c = narrow(o, of, k, lane, row) if of[3] else in_full(o, of, k, lane, row)
        return least + U(c) if c <= largest and o.n_cols > U(0) else o.n_cols

    @compiled
    def bounds(o, piece, pieces):
        """The number of lanes of a slice; the begin and the end of a piece, each as (slice, lane)."""
        lanes = np.int64(o.lanes)
        if jagged:
            lanes = np.int64(o.n_rows)  # and the padding of the first chunk, the longest
            if o.n_ptr > U(1):
                lanes = max(lanes, np.int64(extent(o, U(0))))
            return lanes, (0, lanes * piece // pieces), (0, lanes * (piece + 1) // pieces)
        return lanes, lanes_before(o, lanes, piece, pieces, 16), lanes_before(o, lanes, piece + 1, pieces, 16)

    @inlined
    def width(o, s):
        return o.n_ptr - U(1) if jagged else extent(o, U(s)) // o.lanes

    @inlined
    def length(o, k):
        return extent(o, k) if jagged else o.lanes

    @inlined
    def place(o, of, k, lane):
        return place_of(o, k) + lane if jagged else of[0] + k * o.lanes + lane

    def of_columns(decoded: Any, deltas: bool) -> Any:
        @inlined
        def term(o, of, k, lane, row, least, largest):
            """values[at]·x[col] without a branch, so that LLVM adds vectors of lanes; padding reads some other x."""
            at, c = place(o, of, k, lane), decoded(o, of, k, lane, row)
            v = type(o.zero)(o.a[at])
            product = v * type(o.zero)(o.b[least + U(min(c, largest))])
            return o.zero if c > largest or (holes and is_hole(o, at, v)) else product

        @compiled
        def add_chunks(o, of, n, first, begin, end):
            """The product of the lanes from `begin` to `end`, chunk after chunk; row `first` is lane 0."""
            sums = room(o.zero)
            for i in range(end - begin):
                sums[i] = o.zero
            for k in range(n if o.n_cols else U(0)):
                if jagged and length(o, k) <= begin:  # later chunks have no place there either
                    break
                least, largest = range_of(o, of, k, deltas)
                for i in range(min(end, length(o, k)) - begin):
                    row = first + begin + i
                    if holes:  # columns follow from rows
                        row = row_of(o, row)
                    sums[i] += term(o, of, k, begin + i, row, least, largest)
            for i in range(end - begin):
                o.out[row_of(o, first + begin + i)] = sums[i]

        return add_chunks

    add_in_full, add_narrow = of_columns(in_full, False), of_columns(narrow, len(columns_of) > 1)

    @compiled
    def add_columns(o, of, n, first, begin, end):
        """The same for several right-hand sides."""
        for lane in range(begin, end):
            row = row_of(o, first + lane)
            for q in range(o.p):
                o.out[row * o.p + q] = o.zero
        for k in range(n):
            if jagged and length(o, k) <= begin:
                break
            for lane in range(begin, min(end, length(o, k))):
                row = row_of(o, first + lane)
                c, at = column_of(o, of, k, lane, row), place(o, of, k, lane)
                if c < o.n_cols:
                    v = type(o.zero)(o.a[at])
                    if not (holes and is_hole(o, at, v)):
                        for q in range(o.p):
                            o.out[row * o.p + q] += v * type(o.zero)(o.b[c * o.p + q])

    @compiled
    def product(o, piece, pieces):
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            n, of, row = width(o, s), slice_of(o, s), U(s * lanes)
            first, last = begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            last = min(last, np.int64(o.n_rows) - s * lanes)
            for block in range(first, last, BLOCK):
                lane, stop = U(block), U(min(block + BLOCK, last))
                if o.p > U(1):
                    add_columns(o, of, n, row, lane, stop)
                elif of[3]:
                    add_narrow(o, of, n, row, lane, stop)
                else:
                    add_in_full(o, of, n, row, lane, stop)

    @compiled
    def transposed(o, piece, pieces):
        """Aᵀ·y of these lanes alone."""
        clear(o)
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            of, first, last = slice_of(o, s), begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            last = min(last, np.int64(o.n_rows) - s * lanes)
            for k in range(width(o, s)):
                for lane in range(U(max(first, 0)), min(U(max(last, 0)), length(o, U(k)))):
                    row = row_of(o, U(s * lanes) + lane)
                    c, at = column_of(o, of, U(k), lane, row), place(o, of, U(k), lane)
                    if c < o.n_cols:
                        v = type(o.zero)(o.a[at])
                        if not (holes and is_hole(o, at, v)):
                            scatter(o, c, v, row)

    @compiled
    def outer(o, piece, pieces):
        """Σ_p y[row, p]·x[col, p] at the entries of these lanes, zero in padding; holes count as entries."""
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            of, first, last = slice_of(o, s), begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            for k in range(width(o, s)):
                for lane in range(U(first), min(U(last), length(o, U(k)))):
                    total, row = o.zero, U(s * lanes) + lane
                    if row < o.n_rows:
                        row = row_of(o, row)
                        c = column_of(o, of, U(k), lane, row)
                        if c < o.n_cols:
                            total = inner(o, row, c)
                    o.out[place(o, of, U(k), lane)] = total
        clear_behind(o, place_of(o, o.n_ptr - U(1)), piece, pieces)

    return product, transposed, outer


KERNELS = {
    "lanes": of_chunks(_slice, _column_in_full),
    "deltas": of_chunks(_slice_of_deltas, _column_in_32_bits, _delta),
    "offsets": of_chunks(_slice, _column_of_offsets, holes=True),
    "blocks": of_chunks(_slice, _column_of_blocks, holes=True),
    "jagged": of_chunks(_whole, _column_of_jagged, jagged=True),
}
