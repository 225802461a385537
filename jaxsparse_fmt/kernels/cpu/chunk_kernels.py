"""Numba kernels for the CPU, for storage in chunks: a chunk holds one entry of each row of a slice.

A chunk has one place for each lane of its slice. A kernel first reads the chunk's head, which its places share:

    (address of lane 0, place of lane 0 in `columns`, base of the columns, lanes that have a place)

and then decodes the column of a place from the head, the lane and the row. `of_chunks` makes the three kernels from
the two functions of a storage:

    lanes      ELL to HLL: 32 bits
    deltas     SELL: 16 bits above the chunk's least column; 32 bits in slices that are too wide
    offsets    HDIA, DIA: row + offset
    blocks     BSR: the column of a block of block_rows × block_columns
    jagged     JDS, pJDS: one slice, whose chunks hold ever fewer rows; 32 bits

Operands, padding and the order of sums are those of `numba_kernels.py`, so results equal those of CSR to the last bit
where no padding lies between entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import (
    BLOCK,
    U,
    clear,
    clear_behind,
    compiled,
    inlined,
    inner,
    is_hole,
    scatter,
)

PADDING = 0xFFFF  # `layout/columns.py`'s


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
    width = (np.int64(ptr[low + 1]) - np.int64(ptr[low])) // lanes
    lane = 0 if width == 0 else min((target - np.int64(ptr[low])) // width, lanes)
    return low, lane // step * step


# ------------------------------------------------------------------------------------- the head of a chunk, the column


@inlined
def _head_of_lanes(o, s, k):
    at = U(o.ptr[s]) + k * o.lanes
    return at, at, np.int64(0), o.lanes


@inlined
def _column_in_full(o, head, lane, row):
    return U(np.uint32(o.columns[head[1] + lane]))


@inlined
def _head_of_deltas(o, s, k):
    at = U(o.ptr[s]) + k * o.lanes
    index, base = at, np.int64(o.base[at // o.lanes])
    if o.mixed:
        start = np.int64(o.start[s])
        index = U(start if start >= 0 else -1 - start) + k * o.lanes
        base = base if start >= 0 else -1  # not a least column: stands for 32 bits
    return at, index, base, o.lanes


@inlined
def _column_of_deltas(o, head, lane, row):
    if head[2] < 0:
        return U(np.uint32(o.wide[head[1] + lane]))
    delta = U(o.columns[head[1] + lane])
    return o.n_cols if delta == U(PADDING) else U(head[2]) + delta


@inlined
def _head_of_offsets(o, s, k):
    at = U(o.ptr[s]) + k * o.lanes
    return at, at, np.int64(o.columns[at // o.lanes]), o.lanes


@inlined
def _column_of_offsets(o, head, lane, row):
    return U(np.int64(row) + head[2])  # a negative column becomes a very large one


@inlined
def _head_of_blocks(o, s, k):
    at = U(o.ptr[s]) + k * o.lanes
    chunk = at // o.lanes
    return at, chunk // o.block_columns * (o.lanes // o.block_rows), np.int64(chunk % o.block_columns), o.lanes


@inlined
def _column_of_blocks(o, head, lane, row):
    block = head[1] + (U(np.uint32(lane) // np.uint32(o.block_rows)) if o.block_rows > U(1) else lane)
    return U(np.uint32(o.columns[block])) * o.block_columns + U(head[2])


@inlined
def _head_of_jagged(o, s, k):
    at = U(o.ptr[k])
    return at, at, np.int64(0), U(o.ptr[k + U(1)]) - at


# ------------------------------------------------------------------------------------------------------- three kernels


def of_chunks(head_of: Any, column_of: Any, *, holes: bool = False, jagged: bool = False) -> tuple[Any, Any, Any]:
    """The kernels of a storage: the product, transposed product and outer product of the lanes of a piece.

    Args:
      holes: whether places may have a valid column and hold no entry; jagged: whether chunks differ in length.
    """

    @compiled
    def bounds(o, piece, pieces):
        """The number of lanes of a slice; the begin and the end of a piece, each as (slice, lane)."""
        lanes = np.int64(o.lanes)
        if jagged:
            lanes = np.int64(o.n_rows)  # and the padding of the first chunk, the longest
            if o.n_ptr > U(1):
                lanes = max(lanes, np.int64(o.ptr[1]) - np.int64(o.ptr[0]))
            return lanes, (0, lanes * piece // pieces), (0, lanes * (piece + 1) // pieces)
        return lanes, lanes_before(o, lanes, piece, pieces, 16), lanes_before(o, lanes, piece + 1, pieces, 16)

    @inlined
    def width(o, s):
        return o.n_ptr - U(1) if jagged else (U(o.ptr[s + 1]) - U(o.ptr[s])) // o.lanes

    @inlined
    def term(o, head, lane, row, q):
        if jagged and lane >= head[3]:
            return o.zero
        c = column_of(o, head, lane, row)
        if c >= o.n_cols:
            return o.zero
        v = type(o.zero)(o.a[head[0] + lane])
        product = v * type(o.zero)(o.b[c * o.p + q])  # before the test, since holes would make a branch hard to predict
        return o.zero if holes and is_hole(o, head[0] + lane, v) else product

    @compiled
    def add_chunks(o, heads, count, first, lane, rows, q):
        """Adds an entry of each of `count` chunks to y, in `rows` lanes from `lane` on; row `first` is lane 0."""
        for i in range(rows):
            at, row = lane + i, first + lane + i
            if o.n_perm:
                row = U(o.perm[row])
            total = term(o, heads[0], at, row, q)
            if count > U(1):
                total += term(o, heads[1], at, row, q)
            if count == U(3):
                total += term(o, heads[2], at, row, q)
            elif count > U(3):
                total += term(o, heads[2], at, row, q) + term(o, heads[3], at, row, q)
            o.out[row * o.p + q] += total

    @compiled
    def product(o, piece, pieces):
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            n = width(o, s)
            first, last = begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            last = min(last, np.int64(o.n_rows) - s * lanes)
            for block in range(first, last, BLOCK):
                lane, rows = U(block), U(min(BLOCK, last - block))
                for q in range(o.p):
                    for i in range(rows):
                        row = U(s * lanes) + lane + i
                        if o.n_perm:
                            row = U(o.perm[row])
                        o.out[row * o.p + q] = o.zero
                    k = U(0)
                    while k < n:
                        h0 = head_of(o, s, k)
                        if jagged and h0[3] <= lane:  # later chunks have no place there either
                            break
                        h1, h2 = head_of(o, s, min(k + U(1), n - U(1))), head_of(o, s, min(k + U(2), n - U(1)))
                        heads = h0, h1, h2, head_of(o, s, min(k + U(3), n - U(1)))
                        if k + U(4) <= n:
                            add_chunks(o, heads, U(4), U(s * lanes), lane, rows, q)
                        else:
                            add_chunks(o, heads, n - k, U(s * lanes), lane, rows, q)
                        k += U(4)

    @compiled
    def transposed(o, piece, pieces):
        """Aᵀ·y of these lanes alone."""
        clear(o)
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            first, last = begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            last = min(last, np.int64(o.n_rows) - s * lanes)
            for k in range(width(o, s)):
                head = head_of(o, s, U(k))
                for lane in range(U(max(first, 0)), min(U(max(last, 0)), head[3])):
                    row = U(s * lanes) + lane
                    if o.n_perm:
                        row = U(o.perm[row])
                    c = column_of(o, head, lane, row)
                    if c < o.n_cols:
                        v = type(o.zero)(o.a[head[0] + lane])
                        if not (holes and is_hole(o, head[0] + lane, v)):
                            scatter(o, c, v, row)

    @compiled
    def outer(o, piece, pieces):
        """Σ_p y[row, p]·x[col, p] at the entries of these lanes, zero in padding; holes count as entries."""
        lanes, begin, end = bounds(o, piece, pieces)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            first, last = begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            for k in range(width(o, s)):
                head = head_of(o, s, U(k))
                for lane in range(U(first), min(U(last), head[3])):
                    total, row = o.zero, U(s * lanes) + lane
                    if row < o.n_rows:
                        if o.n_perm:
                            row = U(o.perm[row])
                        c = column_of(o, head, lane, row)
                        if c < o.n_cols:
                            total = inner(o, row, c)
                    o.out[head[0] + lane] = total
        clear_behind(o, U(o.ptr[o.n_ptr - U(1)]), piece, pieces)

    return product, transposed, outer


KERNELS = {
    "lanes": of_chunks(_head_of_lanes, _column_in_full),
    "deltas": of_chunks(_head_of_deltas, _column_of_deltas),
    "offsets": of_chunks(_head_of_offsets, _column_of_offsets, holes=True),
    "blocks": of_chunks(_head_of_blocks, _column_of_blocks, holes=True),
    "jagged": of_chunks(_head_of_jagged, _column_in_full, jagged=True),
}
