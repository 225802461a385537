"""Kernel and reference of CSR5, whose storage `layout/tiles.py` describes: one block a tile.

A lane's head is its sum of a row that began in an earlier lane; every lane stores its head. The lane in which a row
began adds up the heads of that row, in order. If they are many, rounds first make each head the sum of two or four, of
four or sixteen, and so on. A row never leaves its tile, so every run gives the same bits. The kernel stores each sum in
y when it is complete, or keeps the sums in shared memory (`kept_rows`) and writes them together.

    values      [b, n_stored]
    x           [b, n_cols, p]
    y, pieces   [b, n_rows − n_pieces, p], [b, n_pieces, p]: the last rows may be pieces of others, whose sums the
                caller adds; two arrays, since slicing one would copy y

Traffic of a product, bytes: n_stored·(value + index) + 4·n_tiles·lanes + x + y, and heads: n_stored / entries sums for
each column of x, written once and read once for each row that continues, in shared memory if there is any. A sum
written by itself takes a sector of 32 bytes to the L2 cache.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels import coordinates
from jaxsparse_fmt.kernels.backends import launch, pairs, selection, tuning
from jaxsparse_fmt.kernels.backends.pairs import where, widened
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.layout.address import Arrays
from jaxsparse_fmt.kernels.layout.tiles import Tiles
from jaxsparse_fmt.kernels.row_kernels import Pack, supported

HOPS = 4  # further lanes that a lane examines at once for the rest of its row; one if sums are wide
MOST_TRIPS = 16  # lanes that a lane examines in all; a round takes the time of four of them in succession (H100)


def product(
    values: Array,  # [b, n_stored]
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    tiles: Tiles,
    backend: str,
    piece_ptr: Array | None = None,  # [n_long + 1], its last the pieces that there are; None: `tiles.n_pieces`
) -> tuple[Array, Array]:  # [b, n_rows - n_pieces, p], [b, n_pieces, p]
    """A·x, of rows and of pieces, one block a tile."""
    (batch, _, p), dtype, n_rows, n_pieces = x.shape, jnp.result_type(values, x), tiles.shape[0], tiles.n_pieces
    acc = accumulator(dtype)
    block_columns, shares = min(p, tuning.LAUNCH.columns_alone), selection.shares_memory(backend)
    n_heads = tiles.lanes * (block_columns if shares else batch * tiles.n_tiles * p)
    backend = supported(backend, values, x, size=max(batch * n_rows * p, n_heads))
    if not selection.is_pallas(backend):
        return product_reference(values, x, arrays, tiles=tiles)
    keeps = p == 1 and tiles.kept_rows > 0 and shares
    block = tuning.tile_block(tiles.lanes, p, keeps * jnp.dtype(acc).itemsize)
    kernel = functools.partial(
        tiles_kernel,
        tiles=tiles,
        p=p,
        block_columns=block_columns,
        pack=Pack.of(backend, p, x.dtype),
        unroll=math.gcd(block.unroll, tiles.entries),
        acc=acc,
        address_dtype=index_dtype(pairs.reals(dtype) * max(values.size, x.size, batch * n_rows * p, n_heads)),
    )
    outputs = {"y": jax.ShapeDtypeStruct((batch * (n_rows - n_pieces) * p,), dtype)}
    if n_pieces:
        outputs["pieces"] = jax.ShapeDtypeStruct((batch * n_pieces * p,), dtype)
    scratch = {"kept": tiles.kept_rows + tiles.lanes} if keeps else {"heads": n_heads}
    y, *pieces = launch.launch(
        kernel,
        backend,
        block=block,
        blocks=batch * tiles.n_tiles * -(-p // block_columns),
        inputs={"values": values.reshape(-1), "x": x.reshape(-1), **arrays, "piece_ptr": piece_ptr if keeps else None},
        outputs=outputs,
        scratch={name: jax.ShapeDtypeStruct((n,), acc) for name, n in scratch.items()},
    )
    (pieces,) = pieces or [jnp.zeros(0, dtype)]
    return y.reshape(batch, n_rows - n_pieces, p), pieces.reshape(batch, n_pieces, p)


def product_reference(values, x, arrays: Arrays, *, tiles: Tiles) -> tuple[Array, Array]:
    """`product` in plain jnp."""
    row, col, _ = tiles.places(arrays)
    y = coordinates.product_reference(values, x, row, col, n_rows=tiles.shape[0], n_cols=tiles.shape[1])
    n_whole = tiles.shape[0] - tiles.n_pieces
    return y[:, :n_whole], y[:, n_whole:]


def tiles_kernel(
    d,
    *,
    tiles: Tiles,
    p: int,  # right-hand sides, `block_columns` of them a block
    block_columns: int,
    pack: Pack,
    unroll: int,
    acc: Any,
    address_dtype: Any,
    x,  # [b·n_cols·p]
    y,  # [b·(n_rows - n_pieces)·p], out
    values,  # [b·n_stored]
    **arrays,  # those of `layout/tiles.py`, and if given:
    # pieces     [b·n_pieces·p], out
    # heads      [b·n_tiles·p·lanes], scratch; of one block [block_columns·lanes] if lanes share memory
    # kept       [kept_rows + lanes], scratch there instead
    # piece_ptr  [n_long + 1]
):
    lane_row, pieces, kept = arrays["lane_row"], arrays.get("pieces"), arrays.get("kept")
    C, n_cols = tiles.lanes, tiles.shape[1]
    block, count = d.program_id(), jnp.int32(-(-p // block_columns))
    # The blocks of a tile run side by side, so that it comes from memory once.
    first_column, block = lax.rem(block, count) * jnp.int32(block_columns), lax.div(block, count)
    tile, batch = lax.rem(block, jnp.int32(tiles.n_tiles)), lax.div(block, jnp.int32(tiles.n_tiles))
    batch = batch.astype(address_dtype)
    columns = pack.columns(first_column, block_columns, p)
    lane = d.lanes()
    begins = d.load(lane_row, tile * jnp.int32(C) + lane)
    decoded = tiles.decoder(d, arrays, tile)

    def put(row, totals, live):
        """Stores sums of rows."""
        n_whole = tiles.shape[0] - tiles.n_pieces  # rows that are no pieces
        row, is_whole = row.astype(address_dtype), live if pieces is None else live & (row < n_whole)
        for (q, inside), total in zip(columns, totals, strict=True):
            place = pack.places((batch * n_whole + row) * p + q)
            d.store(y, place, total, pack.of_lanes(is_whole & inside))
            if pieces is not None:
                place = pack.places((batch * tiles.n_pieces + row - n_whole) * p + q)
                d.store(pieces, place, total, pack.of_lanes(live & (row >= n_whole) & inside))

    zero = tuple(pack.repeated(d.full(0, acc)) for _ in columns)
    if kept is None:
        first_head = d.part((batch * tiles.n_tiles + tile) * p + first_column, C)
        sums_of = _Sums(d, put, begins, arrays["heads"], first_head, pack, [inside for _, inside in columns])
    else:
        rows = d.load(lane_row, tile * jnp.int32(C)), _row_after(d, arrays, tile, tiles)
        sums_of = _KeptSums(d, put, begins, kept, rows, C)

    def multiplied(t):
        """For each entry of a trip the products, and whether a row ends."""
        places = [(t * jnp.int32(unroll) + jnp.int32(u)) * jnp.int32(C) + lane for u in range(unroll)]
        loaded = decoded(places)
        start = batch * tiles.n_stored + tile.astype(address_dtype) * (C * tiles.entries)
        vals = [d.load(values, start + place, once=True) for place in places]
        gathered = []
        for col, live, _ in loaded:
            base = (batch * n_cols + col.astype(address_dtype)) * p
            gathered.append(pack.load(d, x, base, columns, live))
        for v, xs, (_, _, last) in zip(vals, gathered, loaded, strict=True):
            v = pack.of_lanes(widened(v, acc))
            yield (v * widened(xq, acc) for xq in xs), last

    def trip(t, carry):
        sums, state = carry
        for products, last in multiplied(t):
            sums = tuple(s + product for s, product in zip(sums, products, strict=True))
            state = sums_of.ended(state, sums, last)
            sums = tuple(where(pack.of_lanes(last), jax.tree.map(jnp.zeros_like, s), s) for s in sums)
        return sums, state

    trips = jnp.int32(tiles.entries // unroll)
    sums, state = lax.fori_loop(jnp.int32(0), trips, trip, (zero, sums_of.begin(zero)))
    row, is_open = sums_of.store_heads(state, sums)
    d.barrier()

    def ahead(lanes_on, row, live):
        """Whether the lane `lanes_on` further continues `row`, and that lane's head."""
        live = live & (lane + lanes_on < C)
        continues = live & (d.load(lane_row, tile * jnp.int32(C) + lane + lanes_on, live, 0) == -1 - row)
        return continues, sums_of.head(lanes_on, live if kept is None else continues)

    def added(sums, found):
        continues, more = found
        return tuple(where(pack.of_lanes(continues), s + m, s) for s, m in zip(sums, more, strict=True))

    sum_bytes = jnp.dtype(acc).itemsize * block_columns  # more wide sums at once would cost registers
    bits, together = 2 if sum_bytes <= 8 else 1, HOPS if sum_bytes <= 4 else 1

    reach = 1  # lanes whose heads each head sums
    while tiles.most_hops > MOST_TRIPS * reach:
        found = [ahead(jnp.int32(k * reach), -1 - begins, begins < 0) for k in range(1 << bits)]
        d.barrier()
        sums_of.store_head(functools.reduce(added, found, zero), begins < 0)
        d.barrier()
        reach <<= bits

    def trip_ahead(t, sums):
        first = jnp.int32(1 + reach) + t * jnp.int32(together * reach)
        found = [ahead(first + jnp.int32(k * reach), row, open_row) for k in range(together)]
        return functools.reduce(added, found, sums)

    open_row, _ = neighbour = ahead(jnp.int32(1), row, is_open)
    trips = d.load(arrays["hops"], tile) + jnp.int32(reach * (together - 1) - 1)
    sums = lax.fori_loop(jnp.int32(0), lax.div(trips, jnp.int32(reach * together)), trip_ahead, added(sums, neighbour))
    sums_of.finish(row, sums, open_row)


def _row_after(d, arrays, tile, tiles: Tiles):
    """The row after the last one of a tile."""
    lane_row, piece_ptr = arrays["lane_row"], arrays.get("piece_ptr")
    following = d.load(lane_row, jnp.minimum(tile + 1, tiles.n_tiles - 1) * jnp.int32(tiles.lanes))
    end = jnp.int32(tiles.shape[0])
    if piece_ptr is not None:
        n_pieces = d.load(piece_ptr, jnp.int32(piece_ptr.shape[0] - 1)).astype(jnp.int32)
        end = jnp.int32(tiles.shape[0] - tiles.n_pieces) + n_pieces
    return jnp.where(tile + 1 < tiles.n_tiles, following, end)


class _Sums:
    """Stores a sum at the end of its row: in y, or as the lane's head if the row began in an earlier lane.

    `heads` has a place for every lane; the heads of a tile's lanes are neighbours, pack by pack of right-hand sides.
    """

    def __init__(self, d, put, begins, heads, first_head, pack: Pack, inside):
        self._d, self._put, self._begins, self._pack, self._heads = d, put, begins, pack, heads
        self._columns = [(k * d.rows * pack.length, exists) for k, exists in enumerate(inside)]
        self._first, self._one, self._nought = first_head, d.full(1, jnp.int32), d.full(0, jnp.int32)

    def begin(self, zero):
        """The state of a lane: its row, whether that began in an earlier lane, and its head."""
        row = jnp.where(self._begins < 0, -1 - self._begins, self._begins)
        return row, jnp.where(self._begins < 0, self._one, self._nought), zero

    def ended(self, state, sums, last):
        """The state after an entry that may be the last of its row."""
        row, in_head, head = state
        self._put(row, sums, last & (in_head == 0))
        of_lanes = self._pack.of_lanes
        head = tuple(where(of_lanes(last & (in_head > 0)), s, h) for s, h in zip(sums, head, strict=True))
        return jnp.where(last, row + self._one, row), jnp.where(last, self._nought, in_head), head

    def store_heads(self, state, sums):
        """Stores the heads, and returns the row that each lane ends in and whether that row began in the lane."""
        row, in_head, head = state
        head = tuple(where(self._pack.of_lanes(in_head > 0), s, h) for s, h in zip(sums, head, strict=True))
        self.store_head(head, self._d.lanes() < self._d.rows)
        return row, in_head == 0

    def store_head(self, head, live):
        for (k, inside), h in zip(self._columns, head, strict=True):
            self._d.store(self._heads, self._pack.places(self._at(0) + k), h, self._pack.of_lanes(live & inside))

    def head(self, lanes_on, live):
        """The head of the lane `lanes_on` further."""
        return self._pack.load(self._d, self._heads, self._at(lanes_on), self._columns, live)

    def finish(self, row, sums, open_row):
        """Stores the sums of rows that continued in further lanes."""
        self._put(row, sums, open_row)

    def _at(self, lanes_on):
        return self._first + (self._d.lanes() + lanes_on).astype(self._first.dtype) * self._pack.length


class _KeptSums:
    """As `_Sums`, but sums of one right-hand side stay in shared memory until the block writes them to y together.

    kept    [head by lane | row by row, kept_rows of them]

    A masked load of Mosaic GPU reads place 0 for a dead lane: a head, which no warp writes after the barrier.
    """

    def __init__(self, d, put, begins, kept, rows, lanes):
        self._d, self._put, self._begins, self._kept = d, put, begins, kept
        self._heads, self._n = jnp.int32(lanes), rows[1] - rows[0]
        self._first = rows[0] - self._heads  # the row that place 0 would hold

    def begin(self, zero):
        """The state of a lane: the place of its next sum, and the place after that."""
        del zero
        place = self._begins - self._first
        following = jnp.where(self._begins < 0, -self._begins - self._first, place + 1)
        return jnp.where(self._begins < 0, self._d.lanes(), place), following

    def ended(self, state, sums, last):
        place, following = state
        self._d.store(self._kept, place, sums[0], last)
        return jnp.where(last, following, place), jnp.where(last, following + 1, following)

    def store_heads(self, state, sums):
        place, _ = state
        self._d.store(self._kept, place, sums[0], place == self._d.lanes())
        return place + self._first, place >= self._heads

    def store_head(self, head, live):
        self._d.store(self._kept, self._d.lanes(), head[0], live)

    def head(self, lanes_on, live):
        return (self._d.load(self._kept, self._d.lanes() + lanes_on, live, 0),)

    def finish(self, row, sums, open_row):
        d = self._d
        d.store(self._kept, row - self._first, sums[0], open_row)
        d.barrier()

        def copy(t, _):
            nth = t * jnp.int32(d.rows) + d.lanes()
            live, place = nth < self._n, self._heads + nth
            self._put(self._first + place, (d.load(self._kept, place, live, 0),), live)
            return ()

        lax.fori_loop(jnp.int32(0), lax.div(self._n + jnp.int32(d.rows - 1), jnp.int32(d.rows)), copy, ())
