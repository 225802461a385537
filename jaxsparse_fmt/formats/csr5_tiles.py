"""Building of CSR5's tiles: cuts rows into segments and distributes their entries over lanes (`csr5.py`)."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import Csr, CsrArrays
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu.over_rows import in_pieces
from jaxsparse_fmt.kernels.layout.address import expand_ptr, take
from jaxsparse_fmt.kernels.layout.tiles import MARK, NARROW_PADDING, SPAN, WINDOWS, in_turn, marked

LANES, ENTRIES = (128, 256, 512, 1024), (8, 16, 32, 64, 128)
# Rows longer than 1/32 tile are cut, but only if one exceeds 1/16 tile; in small matrices 1/2, as long as at most 2¹⁹
# places are wasted, which a GPU reads while it starts a kernel.
CUT, MOST_PART, SPARE = 32, 16, 2**19
SHORT = 10  # mean entries of a row, below which a lane takes few entries
KEPT_ROWS = LAUNCH.most_kept * 2 // 3  # most mean rows of a tile that keeps sums, since some tiles have more
GROWN = 2**15  # places to which a tile may grow
MANY_TILES = 200  # enough to keep a large GPU busy


def tile_for(nnz: int, n_rows: int, keep_sums: bool) -> tuple[int, int]:
    """The tile of a matrix, (lanes, entries): see `CSR5.from_csr`; from sweeps on an H100."""
    kept = (512, 16) if 512 * 16 * n_rows <= KEPT_ROWS * nnz else (512, 8)
    large = (512, 32) if nnz >= SHORT * n_rows else kept if keep_sums else (256, 16)
    return next((s for s in (large, (256, 16)) if nnz >= MANY_TILES * math.prod(s)), (256, 8))


def tiled(csr: Csr, keep_sums: bool) -> tuple[tuple[int, int], "Segments"]:
    """The tile of a matrix and its segments; a tile grows to twice the size if only then no row is cut."""
    lanes, entries = shape = tile_for(csr.nnz, csr.shape[0], keep_sums)
    segments = segments_of(csr, shape)
    if segments.cut is not None and lanes * entries < GROWN:
        larger = (2 * lanes, entries) if lanes < 512 else (lanes, 2 * entries)
        uncut = segments_of(csr, larger)
        if uncut.cut is None:
            return larger, uncut
    return shape, segments


def checked(tile_shape: Any) -> tuple[int, int]:
    if isinstance(tile_shape, tuple | list) and len(tile_shape) == 2:
        lanes, depth = tile_shape
        if all(isinstance(n, int | np.integer) for n in tile_shape) and lanes in LANES and depth in ENTRIES:
            return int(lanes), int(depth)
    raise ValueError(
        f"tile_shape must be (lanes, entries), lanes one of {', '.join(map(str, LANES))} and entries one of "
        f"{', '.join(map(str, ENTRIES))}; got {tile_shape!r}"
    )


@dataclasses.dataclass(frozen=True)
class Segments:
    """The segments that tiles hold in order: first all rows, the long ones cut, then the pieces cut off."""

    longest: int  # places of one; a row without entries has one, so that its sum is written
    last: int
    total: int
    n_pieces: int = 0
    cut: Any = None  # [n_long] rows with pieces; None: no row is cut
    piece_ptr: Any = None  # [n_long + 1] pointers to their pieces
    pieces: Any = ()  # the entries of each, and where they begin in CSR

    def window(self, size: int) -> int:
        """Entries from one tile's first segment to the next tile's, which leaves room for the longest segment."""
        return size - self.longest + 1

    def tiles(self, size: int) -> int:
        return (self.total - self.last) // self.window(size) + 1 if self.total else 0

    def places(self, xp: Any, indptr: Any) -> tuple[Any, Any, Any]:
        """The places of each, where its entries begin in CSR, and whether it has entries."""
        entries, source = xp.diff(indptr).astype(np.int32), indptr[:-1]
        if self.n_pieces:
            entries, source = (xp.concatenate(pair) for pair in zip((entries, source), self.pieces, strict=True))
        return xp.clip(entries, 1, self.longest), source, entries > 0


pytree(Segments, ["cut", "piece_ptr", "pieces"])


def segments_of(csr: Csr, tile_shape: tuple[int, int]) -> Segments:
    """The rows of `csr`, those too long for a tile cut into pieces: 1 / `CUT` of a tile, or more if few are wasted.

    Pieces take one more kernel, whose time grows with the most pieces of one row.
    """
    xp, size = building.namespace(csr.indptr), math.prod(tile_shape)
    if csr.shape[0] == 0:
        return Segments(0, 0, 0)
    longest, last, empty = map(int, np.asarray(_counted(xp, csr.indptr)))
    total = csr.nnz + empty
    spared = min(SPARE * size // max(total, 1), size // 2)
    if longest <= max(spared, size // MOST_PART):
        return Segments(max(longest, 1), max(last, 1), total)
    most = max(spared // 4, size // CUT)
    n_long, n_pieces, of_last = map(int, np.asarray(_counted_beyond(xp, csr.indptr, most)))
    last = (of_last - 1) % most + 1
    return Segments(most, last, total, n_pieces, *_cut(xp, csr.indptr, most, n_long, n_pieces))


@building.on_either()
def _counted(xp: Any, indptr: Any) -> Any:
    """The entries of the longest and of the last row, and the number of rows without entries."""
    lengths = xp.diff(indptr)
    return xp.stack([lengths.max(), lengths[-1], (lengths == 0).sum(dtype=indptr.dtype)])


@building.on_either()
def _counted_beyond(xp: Any, indptr: Any, most: int) -> Any:
    """The number of rows longer than `most`, that of their pieces, and the entries in the pieces of the last one."""
    rest = xp.maximum(xp.diff(indptr) - most, 0)
    last = xp.max(xp.where(rest > 0, xp.arange(rest.shape[0], dtype=np.int32), 0))
    return xp.stack([*(a.sum(dtype=indptr.dtype) for a in (rest > 0, -(-rest // most))), rest[last]])


@building.on_either(3, 4)
def _cut(xp: Any, indptr: Any, most: int, n_long: int, n_pieces: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """`cut`, `piece_ptr` and `pieces` of `Segments` for the rows longer than `most`."""
    rest = xp.diff(indptr) - most
    # jnp.nonzero would add all other rows to one place, by atomics one after the other.
    rows = _searched(xp, xp.cumsum(rest > 0), xp.arange(1, n_long + 1))
    rest, index = rest[rows], index_dtype(n_pieces)
    piece_ptr = building.starts(xp, -(-rest // most), index)
    owner = expand_ptr(xp, piece_ptr, n_pieces)
    before = (xp.arange(n_pieces, dtype=index) - piece_ptr[owner]).astype(indptr.dtype) * most
    lengths = xp.minimum(rest[owner] - before, most).astype(np.int32)
    source = (indptr[rows][owner] + most + before).astype(indptr.dtype)
    return rows.astype(np.int32), piece_ptr, (lengths, source)


def hot_first(csr: Csr, hot: int) -> tuple[Any, Csr]:
    """`col_order`, None if no column is hot, and the matrix with its columns in that order."""
    if hot == 0:
        return None, csr
    order, indices = _by_use(building.namespace(csr.indices), csr.indices, csr.shape[1], hot)
    return order, CsrArrays(csr.data, indices, csr.indptr, csr.shape)


@building.on_either(2, 3)
def _by_use(xp: Any, indices: Any, n_cols: int, hot: int) -> tuple[Any, Any]:
    """The order of the columns, the `hot` most used first, and the indices in that order."""
    used = np.bincount(indices, minlength=n_cols) if xp is np else jnp.bincount(indices, length=n_cols)
    by_use = xp.argsort(-used, stable=True)
    order = xp.concatenate([by_use[:hot], xp.sort(by_use[hot:])]).astype(np.int32)
    return order, take(xp.argsort(order).astype(np.int32), indices)


def arrays_of(
    csr: Csr, segments: Segments, n_tiles: int, shape: tuple[int, int], dtype: np.dtype
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """`values`, the most rows and hops of a tile, and the index arrays of the tiles by name."""
    xp = building.namespace(csr.data)
    if n_tiles == 0:
        return np.zeros(0, dtype), 0, 0, dict.fromkeys(("lane_row", "hops", "marked_col"), np.zeros(0, np.int32))
    if csr.nnz == 0:  # an entry that gathers may read
        csr = CsrArrays(xp.zeros(1, dtype), xp.zeros(1, np.int32), csr.indptr, csr.shape)
    values, col, last, lane_row, hops, most_rows, most_hops = _dealt(xp, csr, segments, n_tiles, shape, dtype)
    index = _narrowed(xp, col, last, n_tiles, csr.shape[1])
    return values, most_rows, most_hops, {"lane_row": lane_row, "hops": hops, **index}


def rounded(n: int) -> int:
    """n rounded up to one of 0, 1, 2, 3, 4, 6, 8, 12 and so on, so that few matrices differ in it."""
    power = 1 << max(n - 1, 0).bit_length()
    return power // 4 * 3 if n <= power // 4 * 3 else power


@building.on_either(3, 4, 5)
def _dealt(xp: Any, csr: Csr, segments: Segments, n_tiles: int, shape: tuple[int, int], dtype: np.dtype) -> Any:
    """Value and column of every place, and whether it is the last of its segment; `lane_row`, `hops`; the most rows
    and hops of a tile.
    """
    (lanes, depth), n_cols, total = shape, csr.shape[1], segments.total
    (lengths, source, real), window = segments.places(xp, csr.indptr), segments.window(lanes * depth)
    index, n = index_dtype(max(total, n_tiles * lanes * depth)), lengths.shape[0]
    ptr = building.starts(xp, lengths, index)  # of each row, in the order of all places that are not padding
    start, row_of = ptr[:-1], expand_ptr(xp, ptr, total)
    tile = (start // window).astype(np.int32)  # of each row; every window holds the start of a row
    first_row = _searched(xp, tile, xp.arange(n_tiles, dtype=np.int32))
    base = start[first_row]
    end = xp.concatenate([base[1:], xp.full(1, total, index)])

    def some(base: Any, end: Any) -> tuple[Any, ...]:
        """The results for some of the tiles."""

        def by_entry(a: Any) -> Any:
            return xp.swapaxes(a.reshape(by_lane), 1, 2).reshape(k, lanes * depth)

        # Gather in the order of CSR, in which neighbours read neighbours; then transpose every tile.
        k = base.shape[0]
        s = base[:, None] + xp.arange(lanes * depth, dtype=index)
        inside = s < end[:, None]
        s = xp.minimum(s, total - 1)
        row = take(row_of, s)
        by_lane = (k, lanes, depth)
        s = in_turn(xp, s.reshape(by_lane), row.reshape(by_lane)).reshape(s.shape)
        entry = inside & take(real, row)
        place = xp.where(entry, take(source, row) + (s - take(start, row)), 0)
        values = by_entry(xp.where(entry, take(csr.data, place), 0).astype(dtype))
        col = by_entry(xp.where(entry, take(csr.indices, place), n_cols).astype(np.int32))
        last = by_entry(inside & (s + 1 == take(ptr, row + 1)))
        row, s, inside = row[:, ::depth], s[:, ::depth], inside[:, ::depth]
        goes_on = inside & (s > take(start, row))
        lane_row = xp.where(inside, xp.where(goes_on, -1 - row, row), n).astype(np.int32)
        begin = (take(start, row) - base[:, None]) // depth  # the lane in which the row of a lane's first entry begins
        hops = xp.where(goes_on, xp.arange(lanes, dtype=index) - begin, 0).max(axis=1).astype(np.int32)
        return values, col, last, lane_row, hops

    values, col, last, lane_row, hops = in_pieces(some, base, end, places=lanes * depth)
    most_rows = xp.diff(first_row, append=n).max()
    return *(a.reshape(-1) for a in (values, col, last, lane_row)), hops, most_rows, hops.max()


def _searched(xp: Any, rising: Any, numbers: Any) -> Any:
    """The first index at which `rising` is at least each of a few numbers."""
    return xp.searchsorted(rising, numbers, **({} if xp is np else {"method": "scan_unrolled"}))


def _narrowed(xp: Any, col: Any, last: Any, n_tiles: int, n_cols: int) -> dict[str, Any]:
    """The columns with their marks: in 16 bits above the least column of a tile, if those of every tile fit; else in
    16 bits within windows, if those hold all columns; else in 32 bits.
    """
    flat, (col, last) = (col, last), (a.reshape(n_tiles, -1) for a in (col, last))
    for name, deltas in (("col_base", _above_least), ("windows", _within_windows)):
        some = slice(None, None, n_tiles // 8 + 1)  # a host first tries these tiles, which decide most often
        if xp is not np or _marked(xp, deltas, n_cols, col[some], last[some])[2]:
            delta, begin, fit = _marked(xp, deltas, n_cols, col, last)
            if fit:
                return {"marked_delta": delta, name: begin}
    return {"marked_col": _wide(xp, *flat)}


_wide = building.on_either()(marked)


@building.on_either(1, 2)
def _marked(xp: Any, deltas: Any, n_cols: int, col: Any, last: Any) -> tuple[Any, Any, Any]:
    """The deltas with marks of columns [n_tiles, places], what `deltas` gives of the tiles, and whether all fit."""

    def some(col: Any, last: Any) -> tuple[Any, Any, Any]:
        delta, begin = deltas(xp, n_cols, col)
        fit = xp.all((delta < NARROW_PADDING) | (col >= n_cols), axis=1)
        return (delta | last * np.int32(MARK)).astype(np.uint16), begin, fit

    delta, begin, fit = in_pieces(some, col, last)
    return delta.reshape(-1), begin.reshape(-1), xp.all(fit)


def _above_least(xp: Any, n_cols: int, col: Any) -> tuple[Any, Any]:
    """The differences of columns [k, places] to the least of their tile, and that column [k]."""
    least = col.min(axis=1)
    base = least * (least < n_cols)
    return xp.where(col < n_cols, col - base[:, None], NARROW_PADDING), base


def _within_windows(xp: Any, n_cols: int, col: Any) -> tuple[Any, Any]:
    """The deltas of columns [k, places], and the first columns of windows [k, WINDOWS].

    Each window begins at the least column after the window before it.
    """

    def next_window(number: Any, found: Any) -> Any:
        delta, begins, end = found
        ahead = xp.where(col >= end[:, None], col, n_cols)
        begin = ahead.min(axis=1)
        place = ahead - begin[:, None]
        delta = xp.where((place < SPAN) & (ahead < n_cols), number * SPAN + place, delta)
        begins = xp.where(xp.arange(WINDOWS) == number, (begin * (begin < n_cols))[:, None], begins)
        return delta.astype(np.int32), begins.astype(np.int32), begin + np.int32(SPAN)

    found = xp.full_like(col, NARROW_PADDING), xp.zeros((col.shape[0], WINDOWS), np.int32), xp.zeros_like(col[:, 0])
    if xp is not np:
        return lax.fori_loop(0, WINDOWS, next_window, found)[:2]
    for number in range(WINDOWS):
        found = next_window(number, found)
        if (found[2] >= n_cols).all():
            break
    return found[:2]
