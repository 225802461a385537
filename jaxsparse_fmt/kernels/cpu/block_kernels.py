"""The product of BSR with one right-hand side, in Numba, for whole blocks of a size that is known to the compiler.

The kernel loads the numbers of x for a block once, and adds the block's rows side by side. Where such a number is not
finite, or its column lies beyond the matrix, the kernel adds the block place by place, since a hole does not read x; in
other blocks a hole adds 0·x = 0. The storage is that of `chunk_kernels.py`. A row adds its entries in a block from left
to right, then the blocks in order.
"""

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu.chunk_kernels import lanes_before
from jaxsparse_fmt.kernels.cpu.numba_kernels import U, compiled, extent, inlined, is_hole, place_of


def _tuple_of(n: int, item: Any) -> Any:
    """The function that returns (item(0, ...), ..., item(n - 1, ...)), which LLVM keeps in registers."""
    if n == 1:
        return inlined(lambda *a: (item(U(0), *a),))
    before, last = _tuple_of(n - 1, item), U(n - 1)
    return inlined(lambda *a: (*before(*a), item(last, *a)))


def of_blocks(size: int) -> Any:
    """The product of the rows of a piece, in blocks of size × size."""

    load = _tuple_of(size, inlined(lambda j, o, column: type(o.zero)(o.b[column + j])))

    @inlined
    def row_total(i, o, at, xs):
        total, place = type(o.zero)(o.a[at + i]) * xs[0], at + i
        for x in xs[1:]:
            place += o.lanes
            total += type(o.zero)(o.a[place]) * x
        return total

    totals = _tuple_of(size, row_total)

    @compiled
    def add_place_by_place(o, at, column, row, rows):
        for i in range(rows):
            total, place = o.zero, at + i
            for j in range(U(size)):
                if column + j < o.n_cols:
                    v = type(o.zero)(o.a[place])
                    total += o.zero if is_hole(o, place, v) else v * type(o.zero)(o.b[column + j])
                place += o.lanes
            o.out[row + i] += total

    @compiled
    def add_column(o, block, at, row, rows):
        """Adds a block to each block row of `rows` rows; the first block has the index `block` and the place `at`."""
        whole = rows // U(size)
        for b in range(whole + U(rows > whole * U(size))):
            column = U(np.uint32(o.columns[block + b])) * U(size)
            if b < whole and column + U(size) <= o.n_cols:
                xs = load(o, column)
                total = xs[0]
                for x in xs[1:]:
                    total += x
                if o.masked == U(0) or total * o.zero == o.zero:  # else some x may be infinite, or not a number
                    sums = totals(o, at, xs)
                    for i in range(size):
                        o.out[row + U(i)] += sums[i]
                    at += U(size)
                    row += U(size)
                    continue
            if column < o.n_cols:
                add_place_by_place(o, at, column, row, min(U(size), rows - b * U(size)))
            at += U(size)
            row += U(size)

    @compiled
    def product(o, piece, pieces):
        n, lanes, wide = U(size), np.int64(o.lanes), o.lanes * U(size)
        begin = lanes_before(o, lanes, piece, pieces, 16 * size)
        end = lanes_before(o, lanes, piece + 1, pieces, 16 * size)
        for s in range(begin[0], end[0] + (end[1] > 0)):
            first, last = begin[1] if s == begin[0] else 0, end[1] if s == end[0] else lanes
            last = min(last, np.int64(o.n_rows) - s * lanes)
            row, rows = U(s * lanes + first), U(max(last - first, 0))
            for r in range(row, row + rows):
                o.out[r] = o.zero
            for k in range(extent(o, U(s)) // wide):
                at = place_of(o, s) + k * wide
                add_column(o, (at // n + U(first)) // n, at + U(first), row, rows)

    return product
