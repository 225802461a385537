"""CSR5: the entries dealt out evenly, whatever the rows (after Liu and Vinter, "CSR5: an efficient storage format for
cross-platform sparse matrix-vector multiplication", ICS 2015).

         ⎡ 1 . 2 . ⎤      a tile of 2 lanes × 4 entries
         ⎢ . . . . ⎥      values        [1 4 | 2 5 | · · | 3 ·]       [n_stored]
         ⎣ 3 . 4 5 ⎦      marked_delta  [0 2 | 2' 3' | *' * | 0 *]    [n_stored] uint16, * = 32767: padding
                          col_base      [0]                           [n_tiles] int32
                          lane_row      [0 -3]                        [n_tiles·lanes] int32
                          hops          [1]                           [n_tiles] int32

Tiles of `lanes` × `entries` places, stored entry by entry; every lane takes the next `entries` of CSR's order. A mark
in the highest bit of an index, ' here, ends a row; a row without entries has a place for it all the same. The second
lane takes 4 and 5 and so begins in row 2, which began in a lane before: hence −1 − 2 in `lane_row`, and one hop.

What a thread does is the same for all, so that uneven rows cost nothing, and a block works on neighbouring rows, so
that its x stays in the L1 cache. `kernels/tiles.py` says how the sums are told apart, without atomics. Columns are
stored above the tile's least one where they span less than 2¹⁵, else as they are, in 32 bits.

Unlike the paper's, tiles begin with rows: a tile holds the rows whose first entry falls into its share of the entries,
and the room that this needs is padding. So no row is in two tiles. Where some rows are longer than an eighth of a tile,
or 32 lanes, those longer than a 32nd of a tile go on in pieces, which are rows of their own behind the others and added
in a second pass (`split.py`).

Where few columns hold most entries, as in power-law graphs, the `hot` most used can come before all others, which keep
their order: storage column k is column `col_order`[k] of the matrix, [n_cols] int32, and a product first copies x into
that order. Each sector of 32 bytes in the L1 cache then holds 4 or 8 numbers that are wanted, where else it holds one.
The entries of a row stay in their order.

Where much of x comes from the L2 cache, that is what a product waits for, and every sum that a lane writes is one more
sector to it: many where rows are short. With `keep_sums` the block of a tile keeps them in shared memory and writes
them side by side.

Bytes: n_stored·(value + 4) + 4·n_tiles·(lanes + 1); in narrow tiles 2 less for each place, and 4·n_tiles, and where
there are both kinds 4·n_tiles; where rows are cut, 4·n_long + 4·(n_long + 1); with `hot` columns, 4·n_cols.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, CsrArrays, index_dtype
from jaxsparse_fmt.formats import split, storing
from jaxsparse_fmt.formats.by_rule import Array, array_fields, index_in_data, register
from jaxsparse_fmt.kernels import columns, tiles
from jaxsparse_fmt.kernels.address import expand_ptr, take
from jaxsparse_fmt.kernels.dialect import LAUNCH
from jaxsparse_fmt.kernels.tiles import MARK, NARROW_PADDING, WIDE_MARK, Tiles
from jaxsparse_fmt.matrix import SparseMatrix

LANES, ENTRIES = (128, 256, 512, 1024), (8, 16, 32, 64, 128)
CUT = 32  # a row goes on in pieces from this part of a tile on
MOST_HOPS, MOST_PART = 32, 8  # unless no row is longer than the entries of so many lanes, or than this part of a tile
SHORT = 10  # mean entries of a row, below which lanes take few
MANY_TILES = 900  # that keep a large GPU busy


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CSR5(SparseMatrix):
    """CSR5 with tiles of `tile_shape` = (lanes, entries a lane), its `hot` most used columns first."""

    lane_row: Array
    hops: Array
    marked_delta: Array | None
    col_base: Array | None
    marked_col: Array | None
    index_start: Array | None
    long_rows: Array | None
    piece_ptr: Array | None
    col_order: Array | None
    n_pieces: int
    tile_shape: tuple[int, int]
    hot: int
    keep_sums: bool
    tile_rows: int  # of a tile at most, or somewhat more; 0 where sums are not to be kept

    name = "csr5"
    layout_options = ("tile_shape", "hot", "keep_sums")

    @property
    def arrays(self) -> dict[str, Array]:
        """The index arrays; those of the tiles by their names in `kernels/tiles.py`."""
        named = {name: getattr(self, name) for name in array_fields(type(self)) if name != "values"}
        return {name: a for name, a in named.items() if a is not None}

    @property
    def structure(self) -> tuple[Array, ...]:
        return tuple(self.arrays.values())

    @property
    def faces(self) -> CSR5Faces:
        n_rows, n_cols = self.shape
        shape = n_rows + self.n_pieces, n_cols
        kept_rows = self.tile_rows if self.tile_rows <= LAUNCH.most_kept else 0
        lie = Tiles(shape, self.n_stored, *self.tile_shape, self.n_pieces, kept_rows)
        return CSR5Faces(lie, tuple(self.arrays))

    def coordinates(self) -> tuple[Array, Array, Array]:
        if self.n_stored == 0:
            nothing = jnp.zeros(0, jnp.int32)
            return nothing, nothing, nothing
        row, col, j = self.faces.places(self.structure)
        return row, col, index_in_data(self, row, j, col < self.shape[1])

    def with_one_width(self) -> Self:
        """The same storage with all columns in 32 bits."""
        if self.marked_delta is None:
            return self
        col, last = self.faces.tiles.columns(self.arrays)
        marked = jnp.where(last, col | jnp.int32(WIDE_MARK), col)
        return dataclasses.replace(self, marked_delta=None, col_base=None, index_start=None, marked_col=marked)

    @classmethod
    def from_csr(
        cls,
        csr: Csr,
        *,
        dtype: Any,
        backend: str,
        max_bytes: int | None,
        tile_shape: tuple[int, int] | None = None,
        hot: int = 0,
        keep_sums: bool = False,
    ) -> Self:
        """Deals out the entries.

        Args:
          tile_shape: (lanes, entries): 128, 256, 512 or 1024 lanes with 8, 16, 32, 64 or 128 entries each. None: 512
            or 256 lanes with 16 or 8 entries where rows are short, else 32 or 16; the less where a large GPU would have
            too few tiles.
          hot: how many of the most used columns are stored as the first ones; at most all. A product then also copies
            x, which pays where so many hold most entries and fit the L1 cache: 2¹⁶ numbers in float32.
          keep_sums: on a GPU with Mosaic, the block of a tile keeps the sums of a product with one vector in shared
            memory, which the L1 cache gives up, and writes them together, if no tile has more than 4,096 rows. It pays
            where rows are short and their x is mostly read from the L2 cache.

        Raises:
          ValueError: another shape, or hot below 0. TypeError: hot is no integer, or keep_sums no bool.
        """
        if not isinstance(keep_sums, bool | np.bool_):
            raise TypeError(f"keep_sums must be True or False; got {keep_sums!r}")
        hot = min(storing.positive("hot", hot, "column", least=0), csr.shape[1])
        lanes, depth = shape = tile_for(csr.nnz, csr.shape[0]) if tile_shape is None else _checked(tile_shape)
        size, rows = lanes * depth, rows_of(csr, shape)
        n_tiles = rows.tiles(size)
        storing.check_memory(cls.name, n_tiles * size, csr, dtype, max_bytes, index=4 + 4 / depth)
        order, csr = _hot_first(csr, hot)
        values, lanes_of, most_rows, index = _stored(csr, rows, n_tiles, shape, dtype)
        return cls(
            values,
            csr.shape,
            csr.nnz,
            backend,
            *map(jnp.asarray, lanes_of),
            **{name: storing.on_device(a) for name, a in index.items()},
            long_rows=storing.on_device(rows.cut),
            piece_ptr=storing.on_device(rows.piece_ptr),
            col_order=storing.on_device(order),
            n_pieces=rows.lengths.shape[0] - csr.shape[0],
            tile_shape=shape,
            hot=hot,
            keep_sums=bool(keep_sums),
            tile_rows=_rounded(int(most_rows)) if keep_sums else 0,
        )


@dataclasses.dataclass(frozen=True)
class CSR5Faces(split.ByPlaces):
    """The three faces over tiles, and over the pieces of rows that are cut."""

    tiles: Tiles
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        n_rows, n_cols = self.tiles.shape
        return n_rows - self.tiles.n_pieces, n_cols

    @property
    def n_stored(self) -> int:
        return self.tiles.n_stored

    def wants_shared_memory(self, face: str, p: int) -> bool:
        return face == "product" and p == 1 and self.tiles.kept_rows > 0

    def product(self, values, x, structure, backend):
        arrays, rows, piece_ptr, order = self._parts(structure)
        x = x if order is None else x.at[:, order].get(mode="promise_in_bounds")
        backend = columns.supported(backend, values, x)
        y, sums = tiles.product(values, x, arrays, tiles=self.tiles, backend=backend, piece_ptr=piece_ptr)
        return y if rows is None else split.with_pieces(y, sums, rows, piece_ptr, backend)

    def places(self, structure: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """As `Tiles.places`, for the matrix's own rows and columns."""
        arrays, rows, piece_ptr, order = self._parts(structure)
        row, col, j = self.tiles.places(arrays)
        if order is not None:
            col = order.at[col].get(mode="fill", fill_value=self.shape[1])
        if rows is None or piece_ptr is None:
            return row, col, j
        n_pieces, width = self.tiles.n_pieces, self.tiles.lanes * self.tiles.entries // CUT
        owner = expand_ptr(jnp, piece_ptr, n_pieces)
        number = jnp.arange(n_pieces, dtype=piece_ptr.dtype) - piece_ptr[owner]
        own = jnp.arange(self.shape[0], dtype=jnp.int32)
        of_row = jnp.concatenate([own, rows[owner]])
        before = jnp.concatenate([jnp.zeros_like(own), (number + 1).astype(jnp.int32) * width])
        return of_row[row], col, jnp.where(col < self.shape[1], j + before[row], 0)

    def _parts(self, structure: tuple[Array, ...]) -> tuple[Any, ...]:
        """The arrays of the tiles; and `long_rows`, `piece_ptr` and `col_order`, None where there are none."""
        arrays = dict(zip(self.names, structure, strict=True))
        return arrays, *(arrays.pop(name, None) for name in ("long_rows", "piece_ptr", "col_order"))


def tile_for(nnz: int, n_rows: int) -> tuple[int, int]:
    """The tile of a matrix, (lanes, entries): see `CSR5.from_csr`. From sweeps on an H200."""
    shapes = ((512, 16), (256, 8)) if nnz < SHORT * n_rows else ((512, 32), (256, 32), (256, 16))
    return next((s for s in shapes if nnz >= MANY_TILES * s[0] * s[1]), shapes[-1])


def _checked(tile_shape: Any) -> tuple[int, int]:
    if isinstance(tile_shape, tuple | list) and len(tile_shape) == 2:
        lanes, depth = tile_shape
        if all(hasattr(n, "__index__") for n in tile_shape) and lanes in LANES and depth in ENTRIES:
            return int(lanes), int(depth)
    raise ValueError(
        f"tile_shape must be (lanes, entries), lanes one of {', '.join(map(str, LANES))} and entries one of "
        f"{', '.join(map(str, ENTRIES))}; got {tile_shape!r}"
    )


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows as tiles hold them: first all rows, the long ones cut, then the pieces that this leaves.

    Attributes:
      lengths: [k] places of each; a row without entries has one, so that its sum is written.
      source: [k] where its entries begin in CSR.
      real: [k] whether it has entries.
      longest, last, total: of `lengths`.
      cut, piece_ptr: the rows that have pieces [n_long], and which pieces those are [n_long + 1]; None: no row does.
    """

    lengths: Any
    source: Any
    real: Any
    longest: int
    last: int
    total: int
    cut: Any = None
    piece_ptr: Any = None

    def window(self, size: int) -> int:
        """Every tile begins with the first row that begins in the next so many places, and has room for its last."""
        return size - self.longest + 1

    def tiles(self, size: int) -> int:
        return (self.total - self.last) // self.window(size) + 1 if self.total else 0


def rows_of(csr: Csr, tile_shape: tuple[int, int]) -> Rows:
    """The rows, if all are short enough for a tile; else cut, and in pieces, of at most a part of it (`CUT`).

    A sum over many lanes holds up its tile, and pieces cost a kernel more.
    """
    xp, (lanes, depth) = storing.namespace(csr.indptr), tile_shape
    if csr.shape[0] == 0:
        return Rows(xp.zeros(0, np.int32), None, None, 0, 0, 0)
    count, lay = (_counted, _laid) if xp is np else (_counted_on_device, _laid_on_device)
    longest, last, empty = map(int, np.asarray(count(xp, csr.indptr)))
    most, fits = lanes * depth // CUT, longest <= min(MOST_HOPS * depth, lanes * depth // MOST_PART)
    pieces = None if fits else split.pieces_beyond(csr, most, most)
    total = csr.nnz + empty
    if pieces is None:
        lengths, source, real = lay(xp, csr.indptr, max(longest, 1))
        return Rows(lengths, source, real, max(longest, 1), max(last, 1), total)
    lengths, source, real = lay(xp, csr.indptr, most, pieces.lengths, pieces.source)
    return Rows(lengths, source, real, most, pieces.last, total, pieces.rows, pieces.piece_ptr)


def _counted(xp: Any, indptr: Any) -> Any:
    """Entries of the longest and of the last row, and rows without any."""
    lengths = xp.diff(indptr)
    return xp.stack([lengths.max(), lengths[-1], (lengths == 0).sum(dtype=indptr.dtype)])


def _laid(xp: Any, indptr: Any, most: int, *of_pieces: Any) -> tuple[Any, Any, Any]:
    """`lengths`, `source` and `real` of the rows, cut at `most`, and of the pieces behind them."""
    lengths = xp.diff(indptr).astype(np.int32)
    own = xp.clip(lengths, 1, most), indptr[:-1], lengths > 0
    if not of_pieces:
        return own
    behind = *of_pieces, xp.ones(of_pieces[0].shape, bool)
    return tuple(xp.concatenate(pair) for pair in zip(own, behind, strict=True))


_counted_on_device = jax.jit(_counted, static_argnums=0)
_laid_on_device = jax.jit(_laid, static_argnums=0)


def _hot_first(csr: Csr, hot: int) -> tuple[Any, Csr]:
    """`col_order`, and the matrix with its columns renumbered so; None where no column is hot."""
    if hot == 0:
        return None, csr
    xp = storing.namespace(csr.indices)
    order, indices = (_by_use if xp is np else _by_use_on_device)(xp, csr.indices, csr.shape[1], hot)
    return order, CsrArrays(csr.data, indices, csr.indptr, csr.shape)


def _by_use(xp: Any, indices: Any, n_cols: int, hot: int) -> tuple[Any, Any]:
    """The `hot` most used columns, then the others; and the indices numbered so."""
    used = np.bincount(indices, minlength=n_cols) if xp is np else jnp.bincount(indices, length=n_cols)
    by_use = xp.argsort(-used, stable=True)
    order = xp.concatenate([by_use[:hot], xp.sort(by_use[hot:])]).astype(np.int32)
    return order, take(xp.argsort(order).astype(np.int32), indices)


_by_use_on_device = jax.jit(_by_use, static_argnums=(0, 2, 3))


def _stored(
    csr: Csr, rows: Rows, n_tiles: int, shape: tuple[int, int], dtype: Any
) -> tuple[Array, Any, Any, dict[str, Any]]:
    """`values`; `lane_row` and `hops`; rows of a tile at most; and the arrays of the columns by name."""
    xp, size = storing.namespace(csr.data), shape[0] * shape[1]
    if n_tiles == 0:
        nothing = np.zeros(0, np.int32)
        none = dict.fromkeys(("marked_delta", "col_base", "index_start"))
        return jnp.zeros(0, dtype), (nothing, nothing), 0, {"marked_col": nothing, **none}
    deal = functools.partial(_dealt, np) if xp is np else _dealt_on_device
    entries_of = (csr.data, csr.indices) if csr.nnz else (xp.zeros(1, csr.data.dtype), xp.zeros(1, np.int32))
    given = *entries_of, rows.lengths, rows.source, rows.real, rows.window(size)
    sizes = n_tiles, rows.total, shape, csr.shape[1], np.dtype(dtype)
    values, col, last, lane_row, hops, most_rows = deal(*given, *sizes)
    index = _narrowed(xp, col, last, n_tiles, csr.shape[1])
    return jnp.asarray(values), (lane_row, hops), most_rows, index


def _rounded(n: int) -> int:
    """The least of 0, 1, 2, 3, 4, 6, 8, 12 and so on that is no less than n, so that few matrices differ in it."""
    power = 1 << max(n - 1, 0).bit_length()
    return power // 4 * 3 if n <= power // 4 * 3 else power


def _dealt(xp: Any, data, indices, lengths, source, real, window, n_tiles: int, total: int, shape, n_cols: int, dtype):
    """Every place asks for its entry -> values, columns, whether it is the last of its row, `lane_row`, `hops`, rows of
    a tile at most.
    """
    lanes, depth = shape
    index, n = index_dtype(max(total, n_tiles * lanes * depth)), lengths.shape[0]
    lengths = lengths.astype(index)
    start = xp.cumsum(lengths, dtype=index) - lengths  # of each row, in the order of all places that are not padding
    tile = (start // window).astype(np.int32)  # of each row; no window is without the start of one
    if xp is np:
        first_row = np.flatnonzero(np.diff(tile, prepend=-1))
    else:
        first_row = jnp.searchsorted(tile, jnp.arange(n_tiles, dtype=np.int32), method="scan_unrolled")
    base = start[first_row]
    end = xp.concatenate([base[1:], xp.full(1, total, index)])
    final = start + lengths - 1
    if xp is np:
        ends = np.zeros(total, bool)
        ends[final] = True
    else:
        ends = jnp.zeros(total, bool).at[final].set(True, unique_indices=True, indices_are_sorted=True)
    row_of = (xp.cumsum(ends, dtype=np.int32) - ends).astype(np.int32)

    # In the order of CSR, in which neighbours ask for neighbours; then tile by tile turned into that of the storage.
    s = base[:, None] + xp.arange(lanes * depth, dtype=index)
    inside = s < end[:, None]
    s = xp.minimum(s, total - 1)
    row = row_of[s]
    entry = inside & real[row]
    at = xp.where(entry, source[row] + (s - start[row]), 0)
    turned = lambda a: xp.swapaxes(a.reshape(n_tiles, lanes, depth), 1, 2).reshape(-1)  # noqa: E731
    values = turned(xp.where(entry, data[at], 0).astype(dtype))
    col = turned(xp.where(entry, indices[at], n_cols).astype(np.int32))
    last = turned(inside & ends[s])
    row, s, inside = row[:, ::depth], s[:, ::depth], inside[:, ::depth]
    goes_on = inside & (s > start[row])
    lane_row = xp.where(inside, xp.where(goes_on, -1 - row, row), n).astype(np.int32).reshape(-1)
    begin = (start[row] - base[:, None]) // depth  # the lane in which the row of a lane's first entry begins
    hops = xp.where(goes_on, xp.arange(lanes, dtype=index) - begin, 0).max(axis=1).astype(np.int32)
    return values, col, last, lane_row, hops, xp.diff(first_row, append=n).max()


_dealt_on_device = jax.jit(functools.partial(_dealt, jnp), static_argnums=(6, 7, 8, 9, 10))


def _narrowed(xp: Any, col: Any, last: Any, n_tiles: int, n_cols: int) -> dict[str, Any]:
    """The columns with marks in them, in 16 bits above the least one where a tile's fit."""
    mark = _marked if xp is np else _marked_on_device
    wide, delta, base, fits = mark(xp, col, last, n_tiles, n_cols)
    fits = np.asarray(fits)
    if fits.all():
        return {"marked_delta": delta, "col_base": base, "marked_col": None, "index_start": None}
    if not fits.any():
        return {"marked_delta": None, "col_base": None, "marked_col": wide, "index_start": None}
    number = np.where(fits, np.cumsum(fits) - 1, np.cumsum(~fits) - 1) * (col.shape[0] // n_tiles)
    start = np.where(fits, number, -1 - number).astype(index_dtype(col.shape[0]))
    kept = (delta, fits), (wide, ~fits)
    narrow, rest = (storing.picked(a.reshape(n_tiles, -1), which).reshape(-1) for a, which in kept)
    return {"marked_delta": narrow, "col_base": base, "marked_col": rest, "index_start": start}


def _marked(xp: Any, col: Any, last: Any, n_tiles: int, n_cols: int) -> tuple[Any, Any, Any, Any]:
    """[n_stored] columns -> marked; as marked differences; [n_tiles] their bases; and whether those fit."""
    col, last = col.reshape(n_tiles, -1), last.reshape(n_tiles, -1)
    live = col < n_cols
    base = xp.where(live, col, n_cols).min(axis=1)
    base = xp.where(base < n_cols, base, 0).astype(np.int32)
    difference = xp.where(live, col - base[:, None], 0)
    fits = difference.max(axis=1) < NARROW_PADDING
    delta = xp.where(live, difference, NARROW_PADDING) | last * np.int32(MARK)
    wide = xp.where(last, col | np.int32(WIDE_MARK), col)
    return wide.reshape(-1), delta.astype(np.uint16).reshape(-1), base, fits


_marked_on_device = jax.jit(_marked, static_argnums=(0, 3, 4))
