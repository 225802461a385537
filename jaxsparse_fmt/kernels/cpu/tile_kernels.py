"""CSR5's tiles on a CPU, in Numba: a thread walks the rows of a tile in CSR's order, lane after lane.

Tiles are those of `layout/tiles.py`; a row never leaves its tile, so no two threads add to one row. The entries of a
row are added one by one. A tile fits the L1 or L2 cache, where the steps from entry to entry cost little.

The operands (`numba_kernels.Operands`): `columns` is marked_delta (uint16) or marked_col (int32), `wide` the marked_col
of tiles too wide for deltas, `perm` lane_row; `lanes` and `entries` are those of a tile.
"""

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu.numba_kernels import U, clear, compiled, inlined, inner, scatter

MARK, NARROW_PADDING = 0x8000, 0x7FFF  # `layout/tiles.py`'s


@inlined
def _narrow(columns, base, n_cols, at):
    delta = U(columns[at])
    low = delta & U(NARROW_PADDING)
    return n_cols if low == U(NARROW_PADDING) else base + low, delta >= U(MARK)


@inlined
def _wide(columns, base, n_cols, at):
    marked = columns[at]
    return U(np.uint32(marked) & np.uint32(0x7FFFFFFF)), marked < 0


def _rows_of(column_of: Any, face: str) -> Any:
    @compiled
    def rows(o, columns, index, base, tile, row, q):
        """Computes one face of a tile's rows, of which `row` is the first; returns the row behind the last."""
        total, first = o.zero, tile * o.lanes * o.entries
        for lane in range(o.lanes):
            for e in range(o.entries):
                place = e * o.lanes + lane
                c, ends = column_of(columns, base, o.n_cols, index + place)
                reads = c < o.n_cols and row < o.n_rows
                if face == "outer":
                    o.out[first + place] = inner(o, row, c) if reads else o.zero
                elif reads:
                    v = type(o.zero)(o.a[first + place])
                    if face == "product":
                        total += v * type(o.zero)(o.b[c * o.p + q])
                    else:
                        scatter(o, c, v, row)
                if ends:
                    if face == "product":
                        if row < o.n_rows:
                            o.out[row * o.p + q] = total
                        total = o.zero
                    row += U(1)
        return row

    return rows


def of_tiles(face: str, narrow: bool) -> Any:
    """The kernel of a face; `narrow`: tiles may store columns as 16-bit deltas."""
    narrow_rows, wide_rows = _rows_of(_narrow, face), _rows_of(_wide, face)

    @compiled
    def kernel(o, piece, pieces):
        size, n_tiles = o.lanes * o.entries, o.n_perm // o.lanes
        if face == "transposed":
            clear(o)
        for tile in range(n_tiles * U(piece) // U(pieces), n_tiles * U(piece + 1) // U(pieces)):
            row, after = min(U(o.perm[tile * o.lanes]), o.n_rows), o.n_rows
            if tile + U(1) < n_tiles:
                after = min(U(o.perm[(tile + U(1)) * o.lanes]), o.n_rows)
            start = np.int64(o.start[tile]) if o.mixed else np.int64(tile * size)
            for q in range(o.p if face == "product" else U(1)):
                if not narrow:
                    stop = wide_rows(o, o.columns, U(start), U(0), tile, row, q)
                elif start >= 0:
                    stop = narrow_rows(o, o.columns, U(start), U(o.base[tile]), tile, row, q)
                else:
                    stop = wide_rows(o, o.wide, U(-1 - start), U(0), tile, row, q)
                if face == "product":
                    for r in range(stop, after):  # pieces that only other shards have
                        o.out[r * o.p + q] = o.zero

    return kernel
