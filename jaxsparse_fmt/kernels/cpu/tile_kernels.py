"""The product of CSR5's tiles on a CPU, in Numba: a thread walks the rows of a tile in CSR's order, lane after lane.

Tiles are those of `layout/tiles.py`; a row never leaves its tile, so no two threads add to one row. The entries of a
row are added one by one. A tile fits the L1 or L2 cache, where the steps from entry to entry cost little.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import U, compiled, inlined

MARK, NARROW_PADDING = 0x8000, 0x7FFF  # `layout/tiles.py`'s


class Tiles(NamedTuple):
    """The operands; from n_rows on uint64.

    Attributes:
      values, x, y: [n_stored], [n_cols·p], [n_rows·p].
      columns: marked_delta (uint16) or marked_col (int32); wide: the `marked_col` of tiles too wide for deltas.
      start: [n_tiles] index_start, read where `mixed`; base: [n_tiles] col_base, of deltas.
      lanes, entries: of a tile.
    """

    values: Any
    x: Any
    y: Any
    columns: Any
    start: Any
    lane_row: Any
    base: Any
    wide: Any
    n_rows: Any
    n_cols: Any
    p: Any
    lanes: Any
    entries: Any
    mixed: Any


@inlined
def _narrow(columns, base, n_cols, at):
    delta = U(columns[at])
    low = delta & U(NARROW_PADDING)
    return n_cols if low == U(NARROW_PADDING) else base + low, delta >= U(MARK)


@inlined
def _wide(columns, base, n_cols, at):
    marked = columns[at]
    return U(np.uint32(marked) & np.uint32(0x7FFFFFFF)), marked < 0


def _rows_of(column_of: Any) -> Any:
    @compiled
    def rows(o, columns, index, base, tile, row, q):
        """Stores the sums of a tile's rows, of which `row` is the first; returns the row behind the last."""
        zero = o.y.dtype.type(0)
        total, first = zero, tile * o.lanes * o.entries
        for lane in range(o.lanes):
            for e in range(o.entries):
                place = e * o.lanes + lane
                c, ends = column_of(columns, base, o.n_cols, index + place)
                if c < o.n_cols:
                    total += type(zero)(o.values[first + place]) * type(zero)(o.x[c * o.p + q])
                if ends:
                    if row < o.n_rows:
                        o.y[row * o.p + q] = total
                    total = zero
                    row += U(1)
        return row

    return rows


_narrow_rows, _wide_rows = _rows_of(_narrow), _rows_of(_wide)


def product(narrow: bool) -> Any:
    """The product of the tiles from `begin` to `end`, whose columns are deltas or not."""

    @compiled
    def product(o, begin, end, n_tiles):
        size, zero = o.lanes * o.entries, o.y.dtype.type(0)
        for tile in range(U(begin), U(end)):
            row, after = U(o.lane_row[tile * o.lanes]), o.n_rows
            if tile + U(1) < U(n_tiles):
                after = min(U(o.lane_row[(tile + U(1)) * o.lanes]), o.n_rows)
            start = np.int64(o.start[tile]) if o.mixed else np.int64(tile * size)
            for q in range(o.p):
                if not narrow:
                    stop = _wide_rows(o, o.columns, U(start), U(0), tile, row, q)
                elif start >= 0:
                    stop = _narrow_rows(o, o.columns, U(start), U(o.base[tile]), tile, row, q)
                else:
                    stop = _wide_rows(o, o.wide, U(-1 - start), U(0), tile, row, q)
                for r in range(stop, after):  # pieces that only other shards have
                    o.y[r * o.p + q] = zero

    return product


NARROW_PRODUCT, WIDE_PRODUCT = product(True), product(False)
