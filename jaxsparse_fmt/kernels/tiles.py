"""Kernel and reference of CSR5: tiles in which every lane takes as many entries, whatever rows they belong to.

A tile is `entries` × `lanes` places, stored entry by entry, so that loads coalesce. Its lanes take the entries of the
tile's rows in CSR's order, `entries` each: neighbours in a row lie in one lane, one behind the other. The index of a
row's last entry is marked, so a lane knows where to write a sum and begin the next:

    lane_row      [n_tiles·lanes] int32, the row of a lane's first entry; −1 − row where it began in a lane before
    hops          [n_tiles] int32, how many lanes the longest chain of lanes in a row's sum goes on for
    marked_col    [n_stored] int32, columns; the sign bit marks the last entry of a row; n_cols in padding
    marked_delta  [n_stored] uint16 instead, above the tile's least column `col_base` [n_tiles]: 0x8000 is the mark,
                  0x7FFF padding. Where some tiles are too wide for that, `index_start` [n_tiles] says where the deltas
                  of a tile begin, or as −1 − start where in `marked_col` its columns do

A row that goes on in further lanes is added up, in order, by the lane in which it begins: every lane leaves the sum of
what it has of an earlier lane's row in `heads`. A row never leaves its tile. So every run gives the same bits.

    values      [b, n_stored]
    x           [b, n_cols, p]
    y, pieces   [b, n_rows − n_pieces, p], [b, n_pieces, p]: the last rows may be pieces of others, whose sums the
                caller adds; cut out of one array, y would be copied

Traffic of a product, bytes: n_stored·(value + index) + 4·n_tiles·lanes + x + y, and heads: n_stored / entries numbers
for each column of x, of the type that sums run in, written once and read where rows go on.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels import columns, dialect, entries
from jaxsparse_fmt.kernels.address import Arrays, take
from jaxsparse_fmt.kernels.entries import accumulator

Array = jax.Array

MARK, NARROW_PADDING = 0x8000, 0x7FFF  # of a delta
WIDE_MARK, COLUMN = -(2**31), 2**31 - 1  # of a column
HOPS = 4  # lanes further on that a lane asks together whether its row goes on there; one where sums are wide


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the tiles of a matrix lie: static and hashable.

    Attributes:
      shape: of the matrix that is stored, in which a piece of a cut row is a row.
      n_stored: places.
      lanes, entries: of a tile.
      n_pieces: how many of the rows, the last ones, are pieces.
    """

    shape: tuple[int, int]
    n_stored: int
    lanes: int
    entries: int
    n_pieces: int = 0

    @property
    def n_tiles(self) -> int:
        return self.n_stored // (self.lanes * self.entries)

    def columns(self, arrays: Arrays) -> tuple[Array, Array]:
        """Of every place its column, n_cols in padding, and whether it is the last of its row: [n_stored]."""
        n_cols, tile = self.shape[1], self.lanes * self.entries
        if "marked_delta" not in arrays:
            return arrays["marked_col"] & COLUMN, arrays["marked_col"] < 0
        if "index_start" not in arrays:
            narrow, base = arrays["marked_delta"], jnp.repeat(arrays["col_base"], tile)
            return _widened(narrow, base, n_cols), narrow >= MARK
        start, place = arrays["index_start"], jnp.arange(tile, dtype=arrays["index_start"].dtype)
        narrow = arrays["marked_delta"].at[jnp.maximum(start, 0)[:, None] + place].get(mode="clip")
        wide = arrays["marked_col"].at[jnp.maximum(-1 - start, 0)[:, None] + place].get(mode="clip")
        is_narrow = (start >= 0)[:, None]
        col = jnp.where(is_narrow, _widened(narrow, arrays["col_base"][:, None], n_cols), wide & COLUMN)
        return col.reshape(-1), jnp.where(is_narrow, narrow >= MARK, wide < 0).reshape(-1)

    def places(self, arrays: Arrays) -> tuple[Array, Array, Array]:
        """Of every place its row, its column, n_cols in padding, and its number j in that row: [n_stored]."""
        n_rows, n_cols = self.shape
        col, last = self.columns(arrays)
        shape = (self.n_tiles, self.entries, self.lanes)
        last = last.reshape(shape).astype(jnp.int32)
        first = arrays["lane_row"]
        first = jnp.where(first < 0, -1 - first, first).reshape(self.n_tiles, 1, self.lanes)
        row = (first + jnp.cumsum(last, axis=1) - last).reshape(-1)
        index = index_dtype(self.n_stored)
        at = jnp.arange(self.n_stored, dtype=index).reshape(self.n_tiles, self.lanes, self.entries)
        at = jnp.swapaxes(at, 1, 2).reshape(-1)
        live = col < n_cols
        begin = jnp.full(n_rows, self.n_stored, index).at[jnp.where(live, row, n_rows)].min(at, mode="drop")
        row = jnp.minimum(row, n_rows - 1)
        return row, col, jnp.where(live, at - take(begin, row), 0).astype(jnp.int32)


def product(
    values: Array,  # [b, n_stored]
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    tiles: Tiles,
    backend: str,
) -> tuple[Array, Array]:  # [b, n_rows - n_pieces, p], [b, n_pieces, p]
    """A·x, of rows and of pieces, one block a tile."""
    (batch, _, p), dtype, n_rows = x.shape, jnp.result_type(values, x), tiles.shape[0]
    n_pieces = tiles.n_pieces
    n_heads = batch * tiles.n_tiles * tiles.lanes * p
    backend = columns.supported(backend, values, x, size=max(batch * n_rows * p, n_heads))
    if not dialect.is_pallas(backend):
        return product_reference(values, x, arrays, tiles=tiles)
    block, run = dialect.tile_block(tiles.lanes, p), dialect.Run.of(backend, p, x.dtype)
    block_columns = min(p, dialect.LAUNCH.columns_alone)
    column_blocks = -(-p // block_columns)
    kernel = functools.partial(
        product_kernel,
        tiles=tiles,
        p=p,
        block_columns=block_columns,
        run=run,
        column_blocks=column_blocks,
        unroll=math.gcd(block.unroll, tiles.entries),
        acc=accumulator(dtype),
        address_dtype=index_dtype(max(values.size, x.size, batch * n_rows * p, n_heads)),
    )
    sums = {"pieces": jax.ShapeDtypeStruct((batch * n_pieces * p,), dtype)} if n_pieces else {}
    y, _, *rest = dialect.launch(
        kernel,
        backend,
        name="tiles_kernel",
        block=block,
        blocks=tiles.n_tiles * column_blocks * batch,
        inputs={"values": values.reshape(-1), "x": x.reshape(-1), **arrays},
        outputs={
            "y": jax.ShapeDtypeStruct((batch * (n_rows - n_pieces) * p,), dtype),
            "heads": jax.ShapeDtypeStruct((n_heads,), accumulator(dtype)),
            **sums,
        },
    )
    pieces = rest[0] if rest else jnp.zeros(0, dtype)
    return y.reshape(batch, n_rows - n_pieces, p), pieces.reshape(batch, n_pieces, p)


def product_reference(values, x, arrays: Arrays, *, tiles: Tiles) -> tuple[Array, Array]:
    """A·x in plain jnp, the same arguments as `product`."""
    row, col, _ = tiles.places(arrays)
    y = entries.product_reference(values, x, row, col, n_rows=tiles.shape[0], n_cols=tiles.shape[1])
    n_own = tiles.shape[0] - tiles.n_pieces
    return y[:, :n_own], y[:, n_own:]


def product_kernel(
    d,
    *,
    values,  # [b·n_stored]
    x,  # [b·n_cols·p]
    y,  # [b·(n_rows - n_pieces)·p], out
    heads,  # [b·n_tiles·lanes·p], out
    pieces=None,  # [b·n_pieces·p], out
    lane_row,
    hops,
    tiles: Tiles,
    p,
    block_columns,
    run,
    column_blocks,
    unroll,
    acc,
    address_dtype,
    **index,
):
    C, n_cols, n_own = tiles.lanes, tiles.shape[1], tiles.shape[0] - tiles.n_pieces
    block, count = d.program_id(), jnp.int32(column_blocks)
    of_batch = lax.div(block, jnp.int32(tiles.n_tiles))
    tile, batch = lax.rem(block, jnp.int32(tiles.n_tiles)), lax.div(of_batch, count).astype(address_dtype)
    of_p = run.columns(lax.rem(of_batch, count) * jnp.int32(block_columns), block_columns, p)
    lane, one, nought = d.lanes(), d.full(1, jnp.int32), d.full(0, jnp.int32)
    at = tile * jnp.int32(C) + lane
    begins = d.load(lane_row, at)
    column = _columns_of(d, index, tile, tiles)

    def put(row, totals, live):
        row, own = row.astype(address_dtype), live if pieces is None else live & (row < n_own)
        for (q, inside), total in zip(of_p, totals, strict=True):
            at = run.places((batch * n_own + row) * p + q)
            d.store(y, at, total, run.beside(own & inside))
            if pieces is not None:
                at = run.places((batch * tiles.n_pieces + row - n_own) * p + q)
                d.store(pieces, at, total, run.beside(live & (row >= n_own) & inside))

    def trip(t, carry):
        row, in_head, sums, head = carry
        places = [(t * jnp.int32(unroll) + jnp.int32(u)) * jnp.int32(C) + lane for u in range(unroll)]
        loaded = column(places)
        start = batch * tiles.n_stored + tile.astype(address_dtype) * (C * tiles.entries)
        vals = [d.load(values, start + place, once=True) for place in places]
        gathered = []
        for col, live, _ in loaded:
            base = (batch * n_cols + col.astype(address_dtype)) * p
            gathered.append(run.load(d, x, base, of_p, live))
        for v, xs, (_, _, last) in zip(vals, gathered, loaded, strict=True):
            sums = tuple(s + run.beside(v.astype(acc)) * xq.astype(acc) for s, xq in zip(sums, xs, strict=True))
            ends_head = last & (in_head > 0)
            put(row, sums, last & (in_head == 0))
            head = tuple(jnp.where(run.beside(ends_head), s, h) for s, h in zip(sums, head, strict=True))
            sums = tuple(jnp.where(run.beside(last), jnp.zeros_like(s), s) for s in sums)
            row, in_head = jnp.where(last, row + one, row), jnp.where(last, nought, in_head)
        return row, in_head, sums, head

    in_head = jnp.where(begins < 0, one, nought)
    zero = tuple(run.along(d.full(0, acc)) for _ in of_p)
    carry = jnp.where(begins < 0, -1 - begins, begins), in_head, zero, zero
    trips = jnp.int32(tiles.entries // unroll)
    row, in_head, sums, head = lax.fori_loop(jnp.int32(0), trips, trip, carry)

    def head_at(lanes_on):
        return ((batch * tiles.n_tiles * C) + (at + lanes_on).astype(address_dtype)) * p

    for (q, inside), s, h in zip(of_p, sums, head, strict=True):
        at_head = run.places(head_at(jnp.int32(0)) + q)
        d.store(heads, at_head, jnp.where(run.beside(in_head > 0), s, h), run.beside((lane < C) & inside))
    d.barrier()

    def ahead(lanes_on, live):
        """Whether this lane's last row goes on in the lane so many on, and what that lane has of an earlier row."""
        live = live & (lane + lanes_on < C)
        goes_on = live & (d.load(lane_row, at + lanes_on, live, 0) == -1 - row)
        return goes_on, run.load(d, heads, head_at(lanes_on), of_p, live)

    def added(sums, found):
        goes_on, more = found
        return tuple(jnp.where(run.beside(goes_on), s + m, s) for s, m in zip(sums, more, strict=True))

    together = HOPS if jnp.dtype(acc).itemsize * block_columns <= 4 else 1  # more would cost registers, and so warps

    def trip_ahead(t, sums):
        first = jnp.int32(2) + t * jnp.int32(together)
        return functools.reduce(added, [ahead(first + jnp.int32(k), open_row) for k in range(together)], sums)

    open_row, _ = neighbour = ahead(jnp.int32(1), in_head == 0)
    trips = lax.div(d.load(hops, tile) + jnp.int32(together - 2), jnp.int32(together))
    sums = lax.fori_loop(jnp.int32(0), trips, trip_ahead, added(sums, neighbour))
    put(row, sums, open_row)


def _columns_of(d, index, tile, tiles: Tiles):
    """A function that of some places of the tile gives (column, whether there is one, whether it is a row's last)."""
    n_cols, size = tiles.shape[1], tiles.lanes * tiles.entries
    address = index_dtype(tiles.n_stored)

    def wide(places, start, live=None):
        loaded = [d.load(index["marked_col"], start + place, live, n_cols, once=True) for place in places]
        found = [(lax.bitwise_and(c, d.full(COLUMN, jnp.int32)), c < 0) for c in loaded]
        return [(c, c < n_cols, last) for c, last in found]

    def narrow(places, start, live=None):
        base, low = d.load(index["col_base"], tile), d.full(NARROW_PADDING, jnp.int32)
        loaded = [d.load(index["marked_delta"], start + place, live, NARROW_PADDING, once=True) for place in places]
        loaded = [u.astype(jnp.int32) for u in loaded]
        found = [(lax.bitwise_and(u, low), u >= MARK) for u in loaded]
        return [(base + u, u != NARROW_PADDING, last) for u, last in found]

    own = tile.astype(address) * size
    if "marked_delta" not in index:
        return lambda places: wide(places, own)
    if "index_start" not in index:
        return lambda places: narrow(places, own)
    start = d.load(index["index_start"], tile)
    zero = d.full(0, start.dtype)

    def either(places):
        is_narrow = zero + start >= 0
        narrow_ones = narrow(places, jnp.maximum(start, 0), is_narrow)
        wide_ones = wide(places, jnp.maximum(-1 - start, 0), zero + start < 0)
        return [
            (jnp.where(is_narrow, a, b), jnp.where(is_narrow, i, j), jnp.where(is_narrow, k, m))
            for (a, i, k), (b, j, m) in zip(narrow_ones, wide_ones, strict=True)
        ]

    return either


def _widened(delta, base, n_cols: int):
    low = (delta & NARROW_PADDING).astype(jnp.int32)
    return jnp.where(low == NARROW_PADDING, n_cols, base + low)
