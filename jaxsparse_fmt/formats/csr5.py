"""CSR5: tiles of equally many entries, whatever the rows (after Liu and Vinter, "CSR5: an efficient storage format for
cross-platform sparse matrix-vector multiplication", ICS 2015).

         ⎡ 1 . 2 . ⎤      a tile of 2 lanes × 4 entries
         ⎢ . . . . ⎥      values        [1 4 | 2 5 | · · | 3 ·]       [n_stored]
         ⎣ 3 . 4 5 ⎦      marked_delta  [0 2 | 2' 3' | *' * | 0 *]    [n_stored] uint16, * = 32767: padding
                          col_base      [0]                           [n_tiles] int32
                          lane_row      [0 -3]                        [n_tiles·lanes] int32
                          hops          [1]                           [n_tiles] int32

Tiles have `lanes` × `entries` places, stored entry by entry. Every lane takes the next `entries` of CSR's order; eight
lanes that hold one row take its entries in turn, so that they read neighbours of x together. A mark in the highest bit
of an index, ' here, ends a row; a row without entries has one place, for its mark. The second lane takes 4 and 5: its
first row, 2, began in an earlier lane, hence −1 − 2 in `lane_row`, and one hop.

All threads do the same work, so that uneven rows cost no time; `kernels/csr5.py` describes how the kernel separates the
sums of rows without atomics. If the columns of every tile span less than 2¹⁵, they are stored as differences of 16 bits
(`layout/tiles.py`); if they lie in 64 windows of 512 columns, as those of meshes do, as differences within windows,
which begin at `windows` [n_tiles·64] int32; else as columns of 32 bits in `marked_col`.

Each tile begins with a row, unlike the paper's tiles: it holds the rows whose first entry falls into its window of the
entries, and padding after the end of the last row. So no row is in two tiles. Rows that are too long for a tile
(`csr5_tiles.py`) continue in pieces: a piece is a segment after all rows, and a second pass adds the sums of a row's
pieces to the row, in order. So no product uses atomic adds.

If few columns hold most entries, as in power-law graphs, the `hot` most used columns can come first, so that the L1
cache holds them; the other columns keep their order. Storage column k is column `col_order`[k] of the matrix, [n_cols]
int32, and a product first copies x into that order. With `keep_sums` the block of a tile keeps its sums in shared
memory and writes them together, which saves sectors of the L2 cache if rows are short.

Bytes: n_stored·(value + 4) + 4·n_tiles·(lanes + 1); with 16 bits 2 less for each place, and 4·n_tiles more or, with
windows, 256·n_tiles; if rows are cut, 4·n_long + 4·(n_long + 1); with `hot` columns, 4·n_cols.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Self

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building, csr5_tiles, statistics
from jaxsparse_fmt.formats.base import (
    Array,
    ColumnIndex,
    Largest,
    LongRows,
    Pointer,
    ZeroPadded,
    array_fields,
    index_in_data,
    padded_with,
    storage_format,
)
from jaxsparse_fmt.formats.csr import THREADS
from jaxsparse_fmt.formats.footprint import PatternCounts, Storage
from jaxsparse_fmt.kernels import coordinates, csr5, spmv
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.layout.address import Slices, expand_ptr
from jaxsparse_fmt.kernels.layout.columns import Consecutive, Rule
from jaxsparse_fmt.kernels.layout.tiles import NARROW_PADDING, SPAN, WINDOWS, Tiles, marked

# Padding: one past the last row, where the previous tile's rows end.
LaneRow = Annotated[Array, padded_with(lambda A: A.shape[0] + A.n_pieces)]
MarkedDelta = Annotated[Array, padded_with(lambda A: NARROW_PADDING)]
HOT_BYTES = 2**18  # of x that the L1 cache of an H100 or H200 holds
SMALL_X = 2**20  # bytes of x, below which neither hot columns nor kept sums pay
# Misses of the L1 cache for an entry's x from which its memory does more for kept sums. By hand on an H100 and an H200:
# 0.86 to 1.0 of the time of sums written one by one from 0.27 on, but 2.3 times as much at 0.05.
KEPT_MISSES = 0.25
REACHES = ((1, NARROW_PADDING), (WINDOWS, SPAN))  # windows, and columns of one, that 16 bits reach
TRIPS = 3  # rounds of loads for which a product waits at least
JOINING = 2**20  # threads in all that add pieces, at most if a row gets several
NOT_OF_TILES = ("values", "long_rows", "piece_ptr", "col_order")


@storage_format
class CSR5(SparseMatrix):
    """CSR5 with tiles of `tile_shape` = (lanes, entries per lane), its `hot` most used columns first."""

    _: dataclasses.KW_ONLY
    lane_row: LaneRow
    hops: ZeroPadded
    marked_delta: MarkedDelta | None = None
    col_base: ZeroPadded | None = None
    windows: ZeroPadded | None = None
    marked_col: ColumnIndex | None = None
    long_rows: LongRows | None = None
    piece_ptr: Pointer | None = None
    col_order: Array | None = None
    n_pieces: Largest
    tile_shape: tuple[int, int]
    hot: int
    keep_sums: bool
    tile_rows: Largest  # an upper bound of the rows of a tile; 0 if sums are not kept
    most_hops: Largest  # an upper bound of the hops of a tile

    name = "csr5"
    layout_options = ("tile_shape", "hot", "keep_sums")
    _rises = False

    @property
    def _arrays(self) -> dict[str, Array]:
        """The arrays of the tiles by their names in `kernels/csr5.py`."""
        named = {name: vars(self)[name] for name in array_fields(type(self)) if name not in NOT_OF_TILES}
        return {name: a for name, a in named.items() if a is not None}

    @property
    def tiles(self) -> Tiles:
        """The layout of the tiles."""
        (n_rows, n_cols), kept_rows = self.shape, self.tile_rows if self.tile_rows <= LAUNCH.most_kept else 0
        shape = n_rows + self.n_pieces, n_cols
        return Tiles(shape, self.n_stored, *self.tile_shape, self.n_pieces, kept_rows, self.most_hops)

    def _wants_shared_memory(self, face: str, p: int) -> bool:
        return face == "product" and p == 1 and self.tiles.kept_rows > 0

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        x, rows, piece_ptr = self._ordered(x), self.long_rows, self.piece_ptr
        backend = spmv.supported(backend, values, x)
        y, sums = csr5.product(values, x, self._arrays, tiles=self.tiles, backend=backend, piece_ptr=piece_ptr)
        return y if rows is None or piece_ptr is None else _with_pieces(y, sums, rows, piece_ptr, backend)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        row, col, _ = self.tiles.places(self._arrays)
        sums = coordinates.transposed_reference(values, self._by_segments(y), row, col, n_cols=self.shape[1])
        if self.col_order is None:
            return sums
        return jnp.zeros_like(sums).at[:, self.col_order].set(sums, unique_indices=True)

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        row, col, _ = self.tiles.places(self._arrays)
        return coordinates.outer_reference(self._by_segments(y), self._ordered(x), row, col, n_cols=self.shape[1])

    def _ordered(self, x: Array) -> Array:
        """x [b, n_cols, p] in the order of the storage's columns."""
        return x if self.col_order is None else x.at[:, self.col_order].get(mode="promise_in_bounds")

    def _by_segments(self, y: Array) -> Array:
        """y [b, n_rows, p] of the rows, followed by that of the pieces."""
        if self.long_rows is None or self.piece_ptr is None:
            return y
        owner = self.long_rows[expand_ptr(jnp, self.piece_ptr, self.n_pieces)]
        # Without the barrier XLA would gather the pieces' y anew for every entry.
        return lax.optimization_barrier(jnp.concatenate([y, y.at[:, owner].get(mode="fill", fill_value=0)], axis=1))

    @standard_promotion
    def entries(self) -> tuple[Array, Array, Array, Array]:
        if self.n_stored == 0:
            nothing = jnp.zeros(0, jnp.int32)
            return nothing, nothing, nothing, self.values
        (row, col, j), rows, piece_ptr = self.tiles.places(self._arrays), self.long_rows, self.piece_ptr
        if self.col_order is not None:
            col = self.col_order.at[col].get(mode="fill", fill_value=self.shape[1])
        if rows is not None and piece_ptr is not None:
            owner = expand_ptr(jnp, piece_ptr, self.n_pieces)
            number = jnp.arange(self.n_pieces, dtype=piece_ptr.dtype) - piece_ptr[owner]
            every_row = jnp.arange(self.shape[0], dtype=jnp.int32)
            longest = jnp.max(j) + 1  # entries of a cut row's first segment, and of each of its pieces but the last
            before = jnp.concatenate([jnp.zeros_like(every_row), (number + 1).astype(jnp.int32) * longest])
            j, row = j + before[row], jnp.concatenate([every_row, rows[owner]])[row]
        is_end = self.tiles.columns(self._arrays)[1] & (col < self.shape[1])  # of a row or a piece
        ends = jnp.zeros(self.shape[0], jnp.int32).at[jnp.where(is_end, row, self.shape[0])]
        lengths = ends.max(j + 1, mode="drop")
        return row, col, index_in_data(self, row, j, col < self.shape[1], lengths), self.values

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with the arrays that other shards have: columns of 32 bits, windows, and empty pieces."""
        A = self
        if "marked_col" in names and A.marked_col is None:
            narrow = dict.fromkeys(("marked_delta", "col_base", "windows"))
            A = dataclasses.replace(A, **narrow, marked_col=marked(jnp, *A.tiles.columns(A._arrays)))
        if "windows" in names and A.col_base is not None:
            begins = A.col_base[:, None] + SPAN * jnp.arange(WINDOWS, dtype=jnp.int32)
            A = dataclasses.replace(A, col_base=None, windows=begins.reshape(-1))
        if "long_rows" not in names or A.long_rows is not None:
            return A
        return dataclasses.replace(A, long_rows=jnp.zeros(0, jnp.int32), piece_ptr=jnp.zeros(1, jnp.int32))

    @classmethod
    def from_csr(
        cls,
        csr: Csr,
        target: Target,
        *,
        tile_shape: tuple[int, int] | None = None,
        hot: int = 0,
        keep_sums: bool = False,
    ) -> Self:
        """Distributes the entries over the tiles.

        Args:
          tile_shape: (lanes, entries): 128, 256, 512 or 1024 lanes with 8, 16, 32, 64 or 128 entries each. None: 512
            lanes with 32 entries; with 16 or 8 if rows are short and sums are kept; 256 with 16 if rows are short, and
            256 with 16 or 8 if a large GPU would have too few tiles; twice as many lanes, or entries, if only then no
            row is cut.
          hot: the number of most used columns to store first; at most all. A product then also copies x, which pays if
            these columns hold most entries and fit the L1 cache: 2¹⁶ entries of x in float32.
          keep_sums: on a GPU with Mosaic, the block of a tile keeps the sums of a product with one vector in shared
            memory, which leaves less L1 cache, and writes them together, if no tile has more than 4,096 rows. This
            pays if rows are short and x is mostly read from the L2 cache.
        """
        if not isinstance(keep_sums, bool | np.bool_):
            raise TypeError(f"keep_sums must be True or False; got {keep_sums!r}")
        hot = min(building.positive("hot", hot, "column", least=0), csr.shape[1])
        if tile_shape is None:
            shape, segments = csr5_tiles.tiled(csr, bool(keep_sums))
        else:
            shape = csr5_tiles.checked(tile_shape)
            segments = csr5_tiles.segments_of(csr, shape)
        lanes, depth = shape
        size, n_tiles = lanes * depth, segments.tiles(lanes * depth)
        building.check_memory(cls.name, n_tiles * size, csr, target, index=4 + 4 / depth)
        order, csr = csr5_tiles.hot_first(csr, hot)
        values, most_rows, most_hops, index = csr5_tiles.arrays_of(csr, segments, n_tiles, shape, target.dtype)
        index |= {"long_rows": segments.cut, "piece_ptr": segments.piece_ptr, "col_order": order}
        sizes = {
            "n_pieces": segments.n_pieces,
            "tile_rows": csr5_tiles.rounded(int(most_rows)) if keep_sums else 0,
            # Kernels are the same for all smaller ones.
            "most_hops": max(csr5.MOST_TRIPS, 1 << (int(most_hops) - 1).bit_length()),
        }
        layout = {"tile_shape": shape, "hot": hot, "keep_sums": bool(keep_sums)}
        return building.made(cls, csr, target, values, **index, **sizes, **layout)

    @classmethod
    def _footprints(cls, pattern: PatternCounts) -> Iterator[Storage]:
        csr, (n_rows, n_cols) = pattern.csr, pattern.csr.shape
        if pattern.platform != "gpu":
            return
        x_bytes = max(pattern.dtype.itemsize, 4)  # values of 16 bits multiply an x of 32
        options = [(0, False)]
        if n_cols * x_bytes >= SMALL_X:
            options.append((min(HOT_BYTES // x_bytes, n_cols // 4), False))
            if pattern.shares_memory and pattern.misses >= KEPT_MISSES:
                options.append((0, True))
        for hot, keep_sums in options:
            (lanes, depth), segments = csr5_tiles.tiled(csr, keep_sums)
            n_tiles = segments.tiles(lanes * depth)
            places, n_segments = n_tiles * lanes * depth, n_rows + segments.n_pieces
            n_cut = 0 if segments.cut is None else segments.cut.shape[0]
            if keep_sums and csr5_tiles.KEPT_ROWS * n_tiles < n_segments:
                continue
            rows = max(round(n_rows / max(n_tiles, 1)), 1)
            # With hot columns first, 32 bits are counted, since windows then hold all columns of few matrices.
            held = [n for n, span in REACHES if not hot and statistics.are_within(pattern.sample(rows), rows, n, span)]
            index = (2 if held else 4) * places + 4 * n_tiles * (lanes + 1 + min(held, default=0))
            index += (8 * n_cut + 4 if n_cut else 0) + (4 * n_cols if hot else 0)
            words = [f"the {hot} most used columns first" if hot else f"columns in {16 if held else 32} bits"]
            words += ["sums written together"] if keep_sums else []
            words += [f"{n_cut} rows cut"] if n_cut else []
            yield Storage(
                cls.name,
                {"tile_shape": (lanes, depth), "hot": hot, "keep_sums": keep_sums},
                round(places * pattern.dtype.itemsize + index),
                places,
                TRIPS,
                miss_factor=pattern.miss_factor(hot) if hot else 1.0,
                written=0 if keep_sums else n_segments,
                copied=n_cols if hot else 0,
                words=tuple(words),
            )


def _with_pieces(
    y: Array,  # [b, n_rows, p]
    sums: Array,  # [b, n_pieces, p]
    rows: Array,  # [n_long]
    piece_ptr: Array,  # [n_long + 1]
    backend: str,
) -> Array:
    """y, with the sums of its pieces added, in order, to each of `rows`."""
    n_long, n_pieces = rows.shape[0], sums.shape[1]
    # One row may have nearly all pieces, so a row gets as many threads as cost little, whatever the mean.
    threads = max(t for t in THREADS if t == 1 or t * n_long <= JOINING)
    rule = Rule((n_long, n_pieces), n_pieces, Slices(n_long, 1, threads), Consecutive())
    return spmv.added(y, rows, sums, {"slice_ptr": piece_ptr}, rule=rule, backend=backend)
