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
what it has of an earlier lane's row in `heads`. A row never leaves its tile. So every run gives the same bits. Sums go
to y as they are done, or where lanes share memory may be kept there (`kept_rows`) and written together.

    values      [b, n_stored]
    x           [b, n_cols, p]
    y, pieces   [b, n_rows − n_pieces, p], [b, n_pieces, p]: the last rows may be pieces of others, whose sums the
                caller adds; cut out of one array, y would be copied

Traffic of a product, bytes: n_stored·(value + index) + 4·n_tiles·lanes + x + y, and heads: n_stored / entries numbers
for each column of x, of the type that sums run in, written once and read where rows go on, in shared memory if there is
any. A sum written by itself takes a sector of 32 bytes to the L2 cache.
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
from jaxsparse_fmt.kernels.runs import Run

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
      kept_rows: no fewer than any tile has, if blocks that share memory keep the sums of one right-hand side there
        until they have them all; else 0.
    """

    shape: tuple[int, int]
    n_stored: int
    lanes: int
    entries: int
    n_pieces: int = 0
    kept_rows: int = 0

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
    piece_ptr: Array | None = None,  # [n_long + 1], its last the pieces that there are; None: as many as `tiles` says
) -> tuple[Array, Array]:  # [b, n_rows - n_pieces, p], [b, n_pieces, p]
    """A·x, of rows and of pieces, one block a tile."""
    (batch, _, p), dtype, n_rows = x.shape, jnp.result_type(values, x), tiles.shape[0]
    n_pieces = tiles.n_pieces
    block_columns = min(p, dialect.LAUNCH.columns_alone)
    column_blocks = -(-p // block_columns)
    shares = dialect.shares_memory(backend)
    n_heads = tiles.lanes * (block_columns if shares else batch * tiles.n_tiles * p)
    backend = columns.supported(backend, values, x, size=max(batch * n_rows * p, n_heads))
    if not dialect.is_pallas(backend):
        return product_reference(values, x, arrays, tiles=tiles)
    run, acc, scratch = Run.of(backend, p, x.dtype), accumulator(dtype), ("heads", n_heads)
    keeps = p == 1 and tiles.kept_rows > 0 and shares
    if keeps:
        scratch = ("kept", tiles.kept_rows + tiles.lanes)
    block = dialect.tile_block(tiles.lanes, p, keeps * jnp.dtype(acc).itemsize)
    kernel = functools.partial(
        product_kernel,
        tiles=tiles,
        p=p,
        block_columns=block_columns,
        run=run,
        column_blocks=column_blocks,
        unroll=math.gcd(block.unroll, tiles.entries),
        acc=acc,
        address_dtype=index_dtype(max(values.size, x.size, batch * n_rows * p, n_heads)),
    )
    sums = {"pieces": jax.ShapeDtypeStruct((batch * n_pieces * p,), dtype)} if n_pieces else {}
    y, *rest = dialect.launch(
        kernel,
        backend,
        name="tiles_kernel",
        block=block,
        blocks=batch * tiles.n_tiles * column_blocks,
        inputs={"values": values.reshape(-1), "x": x.reshape(-1), **arrays, "piece_ptr": piece_ptr if keeps else None},
        outputs={
            "y": jax.ShapeDtypeStruct((batch * (n_rows - n_pieces) * p,), dtype),
            **sums,
        },
        scratch={scratch[0]: jax.ShapeDtypeStruct(scratch[1:], acc)},
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
    pieces=None,  # [b·n_pieces·p], out
    heads=None,  # [b·n_tiles·p·lanes], scratch; of a block [block_columns·lanes] in memory that lanes share
    kept=None,  # [kept_rows + lanes], scratch there instead
    piece_ptr=None,  # [n_long + 1]
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
    C, n_cols = tiles.lanes, tiles.shape[1]
    block, count = d.program_id(), jnp.int32(column_blocks)
    # The blocks of a tile run side by side, so that it comes from memory once.
    first_column, of_batch = lax.rem(block, count) * jnp.int32(block_columns), lax.div(block, count)
    tile, batch = lax.rem(of_batch, jnp.int32(tiles.n_tiles)), lax.div(of_batch, jnp.int32(tiles.n_tiles))
    batch = batch.astype(address_dtype)
    of_p = run.columns(first_column, block_columns, p)
    lane = d.lanes()
    begins = d.load(lane_row, tile * jnp.int32(C) + lane)
    column = _columns_of(d, index, tile, tiles)

    def put(row, totals, live):
        """Stores sums of rows."""
        n_own = tiles.shape[0] - tiles.n_pieces
        row, own = row.astype(address_dtype), live if pieces is None else live & (row < n_own)
        for (q, inside), total in zip(of_p, totals, strict=True):
            at = run.places((batch * n_own + row) * p + q)
            d.store(y, at, total, run.beside(own & inside))
            if pieces is not None:
                at = run.places((batch * tiles.n_pieces + row - n_own) * p + q)
                d.store(pieces, at, total, run.beside(live & (row >= n_own) & inside))

    zero = tuple(run.along(d.full(0, acc)) for _ in of_p)
    if kept is None:
        own = d.own((batch * tiles.n_tiles + tile) * p + first_column, C)
        sums_of = _Sums(d, put, begins, run, zero, heads, own, [inside for _, inside in of_p])
    else:
        rows = d.load(lane_row, tile * jnp.int32(C)), _row_after(d, lane_row, piece_ptr, tile, tiles)
        sums_of = _KeptSums(d, put, begins, rows, kept, tiles.kept_rows)

    def trip(t, carry):
        sums, state = carry
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
            state = sums_of.ended(state, sums, last)
            sums = tuple(jnp.where(run.beside(last), jnp.zeros_like(s), s) for s in sums)
        return sums, state

    trips = jnp.int32(tiles.entries // unroll)
    sums, state = lax.fori_loop(jnp.int32(0), trips, trip, (zero, sums_of.begin()))
    row, is_open = sums_of.store_heads(state, sums)
    d.barrier()

    def ahead(lanes_on, live):
        """Whether this lane's last row goes on in the lane so many on, and what that lane has of it."""
        live = live & (lane + lanes_on < C)
        goes_on = live & (d.load(lane_row, tile * jnp.int32(C) + lane + lanes_on, live, 0) == -1 - row)
        return goes_on, sums_of.head(lanes_on, live if kept is None else goes_on)

    def added(sums, found):
        goes_on, more = found
        return tuple(jnp.where(run.beside(goes_on), s + m, s) for s, m in zip(sums, more, strict=True))

    together = HOPS if jnp.dtype(acc).itemsize * block_columns <= 4 else 1  # more would cost registers, and so warps

    def trip_ahead(t, sums):
        first = jnp.int32(2) + t * jnp.int32(together)
        return functools.reduce(added, [ahead(first + jnp.int32(k), open_row) for k in range(together)], sums)

    open_row, _ = neighbour = ahead(jnp.int32(1), is_open)
    trips = lax.div(d.load(hops, tile) + jnp.int32(together - 2), jnp.int32(together))
    sums = lax.fori_loop(jnp.int32(0), trips, trip_ahead, added(sums, neighbour))
    sums_of.finish(row, sums, open_row)


def _row_after(d, lane_row, piece_ptr, tile, tiles: Tiles):
    """The row behind the last one of a tile."""
    following = d.load(lane_row, jnp.minimum(tile + 1, tiles.n_tiles - 1) * jnp.int32(tiles.lanes))
    end = jnp.int32(tiles.shape[0])
    if piece_ptr is not None:
        n_pieces = d.load(piece_ptr, jnp.int32(piece_ptr.shape[0] - 1)).astype(jnp.int32)
        end = jnp.int32(tiles.shape[0] - tiles.n_pieces) + n_pieces
    return jnp.where(tile + 1 < tiles.n_tiles, following, end)


class _Sums:
    """Sums leave where a row ends: to y, or as the sum of a lane's head, what it has of an earlier lane's row. Every
    lane has a head; run by run of its right-hand sides, those of all lanes lie side by side, and those of a tile.
    """

    def __init__(self, d, put, begins, run, zero, heads, own, inside):
        self._d, self._put, self._begins, self._run, self._heads = d, put, begins, run, heads
        self._columns = [(k * d.rows * run.length, exists) for k, exists in enumerate(inside)]
        self._own, self._zero = own, zero
        self._one, self._nought = d.full(1, jnp.int32), d.full(0, jnp.int32)

    def begin(self):
        row = jnp.where(self._begins < 0, -1 - self._begins, self._begins)
        return row, jnp.where(self._begins < 0, self._one, self._nought), self._zero

    def ended(self, state, sums, last):
        row, in_head, head = state
        beside = self._run.beside
        self._put(row, sums, last & (in_head == 0))
        head = tuple(jnp.where(beside(last & (in_head > 0)), s, h) for s, h in zip(sums, head, strict=True))
        return jnp.where(last, row + self._one, row), jnp.where(last, self._nought, in_head), head

    def store_heads(self, state, sums):
        """Also the row that each lane ends in, and whether that is its own."""
        row, in_head, head = state
        for (k, inside), s, h in zip(self._columns, sums, head, strict=True):
            of_head, at = jnp.where(self._run.beside(in_head > 0), s, h), self._run.places(self._at(0) + k)
            self._d.store(self._heads, at, of_head, self._run.beside((self._d.lanes() < self._d.rows) & inside))
        return row, in_head == 0

    def head(self, lanes_on, live):
        return self._run.load(self._d, self._heads, self._at(lanes_on), self._columns, live)

    def finish(self, row, sums, open_row):
        self._put(row, sums, open_row)

    def _at(self, lanes_on):
        return self._own + (self._d.lanes() + lanes_on).astype(self._own.dtype) * self._run.length


class _KeptSums:
    """Sums of one right-hand side stay in the block's own memory, until it writes those of its rows to y together:

    kept    [row by row, kept_rows of them | head by lane]
    """

    def __init__(self, d, put, begins, rows, kept, kept_rows):
        self._d, self._put, self._begins, self._kept = d, put, begins, kept
        self._first, self._n, self._heads = rows[0], rows[1] - rows[0], jnp.int32(kept_rows)

    def begin(self):
        """Where the next sum goes, and that after it."""
        place = self._begins - self._first
        following = jnp.where(self._begins < 0, -self._begins - self._first, place + 1)
        return jnp.where(self._begins < 0, self._heads + self._d.lanes(), place), following

    def ended(self, state, sums, last):
        place, following = state
        self._d.store(self._kept, place, sums[0], last)
        return jnp.where(last, following, place), jnp.where(last, following + 1, following)

    def store_heads(self, state, sums):
        """Also the row that each lane ends in, and whether that may be its own."""
        place, _ = state
        # A lane of padding is in row n_rows, at any place: if this is its own head's, nobody reads that.
        self._d.store(self._kept, place, sums[0], place == self._heads + self._d.lanes())
        return place + self._first, place < self._heads

    def head(self, lanes_on, live):
        return (self._d.load(self._kept, self._heads + self._d.lanes() + lanes_on, live, 0),)

    def finish(self, row, sums, open_row):
        d = self._d
        d.store(self._kept, row - self._first, sums[0], open_row)
        d.barrier()

        def copy(t, _):
            place = t * jnp.int32(d.rows) + d.lanes()
            live = place < self._n
            self._put(self._first + place, (d.load(self._kept, place, live, 0),), live)
            return ()

        lax.fori_loop(jnp.int32(0), lax.div(self._n + jnp.int32(d.rows - 1), jnp.int32(d.rows)), copy, ())


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
