"""The tiles of CSR5: every lane holds equally many entries, whatever rows they belong to.

A tile is `entries` × `lanes` places, stored entry by entry, so that loads coalesce. Each of its lanes holds the next
`entries` entries of the tile's rows in CSR's order; eight lanes that hold one row take its entries in turn. A mark in
the index of an entry ends a row:

    lane_row      [n_tiles·lanes] int32, the row of a lane's first entry; −1 − row if it began in an earlier lane
    hops          [n_tiles] int32, the most lanes over which a row continues after the lane in which it begins
    marked_col    [n_stored] int32, columns; the sign bit is the mark; n_cols in padding
    marked_delta  [n_stored] uint16 instead, above the tile's least column `col_base` [n_tiles]: 0x8000 is the mark,
                  0x7FFF padding
    windows       [n_tiles·64] int32 instead of `col_base`, the first columns of a tile's 64 windows of 512 columns: 6
                  bits of a delta number the window, and 9 are the column in it
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.layout.address import Arrays, take, when_run

MARK, NARROW_PADDING = 0x8000, 0x7FFF  # of a delta
WIDE_MARK, COLUMN = -(2**31), 2**31 - 1  # of a column
WINDOWS, SHIFT = 64, 9  # of a tile, and the bits of a place in one
SPAN = 1 << SHIFT
IN_TURN = 8  # lanes that take the entries of a row in turn


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Sizes of a matrix's tiles: static and hashable."""

    shape: tuple[int, int]  # of the stored matrix, in which a piece of a cut row counts as a row
    n_stored: int  # places
    lanes: int  # of a tile
    entries: int  # of a tile's lane
    n_pieces: int = 0  # the number of rows, the last ones, that are pieces
    # An upper bound of the rows of a tile, if a block keeps the sums of one right-hand side in shared memory.
    kept_rows: int = 0
    most_hops: int = 0  # an upper bound of the hops of a tile

    @property
    def n_tiles(self) -> int:
        return self.n_stored // (self.lanes * self.entries)

    def columns(self, arrays: Arrays) -> tuple[Array, Array]:
        """The column of every place (n_cols in padding), and whether it is the last of its row: [n_stored]."""
        n_cols, tile = self.shape[1], self.lanes * self.entries
        if "marked_delta" not in arrays:
            return arrays["marked_col"] & COLUMN, arrays["marked_col"] < 0
        narrow = arrays["marked_delta"]
        low = (narrow & NARROW_PADDING).astype(jnp.int32)
        if "windows" in arrays:
            first = jnp.repeat(jnp.arange(0, self.n_tiles * WINDOWS, WINDOWS, dtype=jnp.int32), tile)
            col = take(arrays["windows"], first + low // SPAN) + low % SPAN
        else:
            col = jnp.repeat(arrays["col_base"], tile) + low
        return jnp.where(low == NARROW_PADDING, n_cols, col), narrow >= MARK

    def places(self, arrays: Arrays) -> tuple[Array, Array, Array]:
        """Row, column (n_cols in padding) and j in the row, of every place: [n_stored] each."""
        n_rows, n_cols = self.shape
        arrays = {name: when_run(a) for name, a in arrays.items()}
        col, last = self.columns(arrays)
        shape = (self.n_tiles, self.entries, self.lanes)
        last = last.reshape(shape)
        lane_row = arrays["lane_row"].reshape(self.n_tiles, 1, self.lanes)
        row = jnp.where(lane_row < 0, -1 - lane_row, lane_row) + _before(last)
        is_first = jnp.concatenate([lane_row >= 0, last[:, :-1]], axis=1)
        row, is_first = row.reshape(-1), is_first.reshape(-1)
        index = index_dtype(self.n_stored)
        entry = jnp.arange(self.n_stored, dtype=index).reshape(self.n_tiles, self.lanes, self.entries)
        entry = jnp.swapaxes(in_turn(jnp, entry, jnp.swapaxes(row.reshape(shape), 1, 2)), 1, 2).reshape(-1)
        live = col < n_cols
        begin = jnp.zeros(n_rows, index).at[jnp.where(live & is_first, row, n_rows)]
        # Of each row; atomics for every place would cost more.
        begin = begin.set(entry, mode="drop", unique_indices=True)
        row = jnp.minimum(row, n_rows - 1)
        return row, col, jnp.where(live, entry - take(begin, row), 0).astype(jnp.int32)

    def decoder(self, d: Any, index: Arrays, tile: Any) -> Any:
        """In a kernel, the function of places of a trip that gives for each its column, whether there is one, and
        whether the entry is the last of its row.
        """
        n_cols, size = self.shape[1], self.lanes * self.entries
        address = index_dtype(self.n_stored)

        first = tile.astype(address) * size

        def wide(places):
            loaded = [d.load(index["marked_col"], first + place, None, n_cols, once=True) for place in places]
            found = [(lax.bitwise_and(c, d.full(COLUMN, jnp.int32)), c < 0) for c in loaded]
            return [(c, c < n_cols, last) for c, last in found]

        def narrow(places):
            base = None if "windows" in index else d.load(index["col_base"], tile)
            low = d.full(NARROW_PADDING, jnp.int32)
            loaded = [d.load(index["marked_delta"], first + place, None, NARROW_PADDING, once=True) for place in places]
            loaded = [u.astype(jnp.int32) for u in loaded]
            found = [(lax.bitwise_and(u, low), u >= MARK) for u in loaded]
            if base is not None:
                return [(base + u, u != NARROW_PADDING, last) for u, last in found]
            shift, within = d.full(SHIFT, jnp.int32), d.full(SPAN - 1, jnp.int32)
            windows = [tile * jnp.int32(WINDOWS) + lax.shift_right_logical(u, shift) for u, _ in found]
            begins = [d.load(index["windows"], window) for window in windows]
            cols = [begin + lax.bitwise_and(u, within) for begin, (u, _) in zip(begins, found, strict=True)]
            return [(col, u != NARROW_PADDING, last) for col, (u, last) in zip(cols, found, strict=True)]

        return narrow if "marked_delta" in index else wide


def in_turn(xp: Any, entry: Any, row: Any) -> Any:
    """The entry of each place if `IN_TURN` lanes that hold one row, without padding, take its entries in turn.

    Such lanes read neighbours of x together: far fewer lines of the L1 cache if rows are dense. `entry` and `row` of
    each place [n_tiles, lanes, entries] are in the order of the entries; padding repeats an entry.
    """
    n_tiles, lanes, entries = shape = entry.shape
    group = min(IN_TURN, lanes)
    entry, row = (a.reshape(n_tiles, lanes // group, group, entries) for a in (entry, row))
    first, last = entry[..., :1, :1], entry[..., -1:, -1:]
    whole = (row[..., :1, :1] == row[..., -1:, -1:]) & (last - first == group * entries - 1)
    turn = xp.arange(entries) * group + xp.arange(group)[:, None]
    return xp.where(whole, first + turn.astype(entry.dtype), entry).reshape(shape)


def marked(xp: Any, col: Any, last: Any) -> Any:
    """Columns of 32 bits with their marks."""
    return xp.where(last, col | np.int32(WIDE_MARK), col)


def _before(flags: Array) -> Array:
    """The number of flags set before each place of its lane, [n_tiles, entries, lanes].

    A running sum takes XLA for CUDA several passes over the numbers; bits of a word need one over the flags.
    """
    tiles, entries, lanes = flags.shape
    bit = lax.iota(jnp.uint32, min(entries, 32))[:, None]
    bits = flags.reshape(tiles, -1, bit.shape[0], lanes).astype(jnp.uint32) << bit
    word = jnp.sum(bits, axis=2, dtype=jnp.uint32)
    count = lax.population_count(word)
    within = lax.population_count(word[:, :, None] & ((jnp.uint32(1) << bit) - 1))
    return ((jnp.cumsum(count, axis=1) - count)[:, :, None] + within).astype(jnp.int32).reshape(flags.shape)
