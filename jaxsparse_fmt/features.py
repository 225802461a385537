"""What a storage of a pattern would hold, counted without storing it: places, diagonals, blocks, spans of columns.

Counts that need only row lengths are exact. Those that need columns look at windows of rows spread evenly over the
matrix, some `ENTRIES` entries in all, and scale up; where that is the whole matrix they are exact too. Nothing loops
over rows, and but for `diagonals` nothing is as long as the entries.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import dia

ENTRIES = 2**17  # looked at by a count that samples, more or less
LEAST_WINDOWS, MOST_ENTRIES = 4, 2**21  # windows that are looked at in any case, or fewer if those have more entries


@dataclasses.dataclass(frozen=True)
class Counted:
    """The places of a storage that has no index for each of them.

    Attributes:
      places: padding included.
      indices: offsets of diagonals, or columns of blocks.
      holes: places inside the matrix that hold no entry.
    """

    places: int
    indices: int
    holes: int


def slice_widths(row_lengths: np.ndarray, slice_size: int, sigma: int = 1) -> np.ndarray:
    """The longest row of each slice, int64 [n_slices], rows sorted by falling length in windows of `sigma`.

    Args:
      sigma: 1, or a multiple of slice_size.
    """
    n_slices = -(-len(row_lengths) // slice_size)
    window = min(max(sigma, slice_size), max(n_slices, 1) * slice_size)
    rows = np.pad(row_lengths, (0, -len(row_lengths) % window)).reshape(-1, window)
    rows = rows if sigma == 1 else np.sort(rows, axis=1)[:, ::-1]
    return rows.reshape(-1, slice_size).max(axis=1, initial=0)[:n_slices].astype(np.int64)


def wide_share(csr: Csr, slice_size: int, max_width: int, widest: int) -> float:
    """The share of the places, in slices of rows of at most `max_width` entries, that 16-bit differences do not reach.

    Those are all places of a slice in which the j-th entries span `widest` columns or more, for some j.
    """
    rows, _ = _sample(csr, slice_size)
    lengths = np.minimum(csr.indptr[rows + 1] - csr.indptr[rows], max_width).astype(np.int64)
    widths = np.pad(lengths, (0, -rows.size % slice_size)).reshape(-1, slice_size).max(axis=1, initial=0)
    if not widths.any():
        return 0.0
    number, j, col = _entries(csr, rows, lengths)
    column = (np.cumsum(widths) - widths)[number // slice_size] + j
    place = column * slice_size + number % slice_size
    low, high = (np.full((widths.sum(), slice_size), bound, np.int32) for bound in (csr.shape[1], -1))
    low.flat[place] = high.flat[place] = col
    too_wide = high.max(axis=1) - low.min(axis=1) >= widest
    wide = np.logical_or.reduceat(too_wide, (np.cumsum(widths) - widths)[widths > 0])
    return float(widths[widths > 0][wide].sum() / widths.sum())


def misses(csr: Csr, block: int, sigma: int, a_sector: int) -> float:
    """Different sectors of x that blocks of `block` rows read, over their entries: what an L1 cache asks the L2 for.

    Args:
      sigma: rows are sorted as in `slice_widths`.
      a_sector: numbers of x in a sector.
    """
    window = min(max(sigma, block), max(csr.shape[0], 1))
    rows, _ = _sample(csr, window)
    if sigma > 1:
        rows = rows[np.lexsort((csr.indptr[rows] - csr.indptr[rows + 1], rows // window))]
    number, _, col = _entries(csr, rows)
    sectors = csr.shape[1] // a_sector + 1
    return _distinct(number // block * sectors + col // a_sector).size / max(col.size, 1)


def missed_beside(csr: Csr, block: int, a_sector: int, hot: int) -> float:
    """The share of `misses` that is left where the `hot` most used columns lie side by side and stay in the cache.

    Every other block of the sample tells which columns those are, and the rest of the sample what is left of its own
    misses: a column that one block alone uses often is not hot. Where all columns are used alike, a cache of `hot`
    numbers holds as large a share of them in any order, so that share is no gain.
    """
    rows, _ = _sample(csr, block)
    number, _, col = _entries(csr, rows)
    tells = number // block % 2 == 0
    if tells.all():
        return 1.0
    column, used = np.unique(col[tells], return_counts=True)
    hottest = column[np.argsort(-used, stable=True)[:hot]]
    number, col = number[~tells], col[~tells]
    sectors = number // block * (csr.shape[1] // a_sector + 1) + col // a_sector
    left = _distinct(sectors[~np.isin(col, hottest)]).size / _distinct(sectors).size
    return min(left + hot / csr.shape[1], 1.0)


def wide_blocks(csr: Csr, block: int, widest: int) -> float:
    """The share of blocks of `block` rows whose columns span as many as `widest`, or more."""
    rows, _ = _sample(csr, block)
    number, _, col = _entries(csr, rows)
    begin = np.flatnonzero(np.diff(number // block, prepend=-1))
    if begin.size == 0:
        return 0.0
    return float(np.mean(np.maximum.reduceat(col, begin) - np.minimum.reduceat(col, begin) >= widest))


def diagonals(csr: Csr, most: int) -> Counted | None:
    """The places of DIA, exactly; None where it has more than `most` diagonals."""
    n_rows, n_cols = csr.shape
    rows, _ = _sample(csr, 1)
    row, _, col = _entries(csr, rows)
    if _distinct(col - rows[row]).size > most:
        return None  # the usual case, and cheap
    offset = np.flatnonzero(dia.occupied(csr)) - (n_rows - 1)
    if offset.size > most:
        return None
    inside = np.minimum(n_rows, n_cols - offset) - np.maximum(0, -offset)
    return Counted(offset.size * n_rows, offset.size, int(inside.sum()) - csr.nnz)


def is_mirrored(csr: Csr) -> bool:
    """Whether all entries looked at have an equal one at the place that mirrors theirs."""
    if csr.shape[0] != csr.shape[1]:
        return False
    rows, _ = _sample(csr, 1)
    number, j, col = _entries(csr, rows)
    row, (low, high) = rows[number], (csr.indptr[col].astype(np.int64), csr.indptr[col + 1].astype(np.int64))
    last = csr.nnz - 1
    end = high
    while np.any(low < high):  # of each row `col`, which rises, the first entry that is no less than `row`
        middle = (low + high) // 2
        less = (low < high) & (csr.indices[np.minimum(middle, last)] < row)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    at = np.minimum(low, last)
    same = csr.data[at] == csr.data[csr.indptr[row] + j]
    return bool(np.all((low < end) & (csr.indices[at] == row) & same))


def diagonals_by_slice(csr: Csr, slice_size: int) -> Counted:
    """The places of HDIA without sorting."""
    n_rows, n_cols = csr.shape
    rows, scale = _sample(csr, slice_size)
    row, _, col = _entries(csr, rows)
    row = rows[row]
    kept = _distinct(row // slice_size * (n_rows + n_cols) + (col - row + n_rows))
    first, offset = kept // (n_rows + n_cols) * slice_size, kept % (n_rows + n_cols) - n_rows
    end = np.minimum(first + slice_size, n_rows)
    inside = np.minimum(end, n_cols - offset) - np.maximum(first, -offset)
    indices = round(kept.size * scale)
    return Counted(indices * slice_size, indices, round((int(inside.sum()) - row.size) * scale))


def blocks(csr: Csr, block_shape: tuple[int, int], slice_rows: int) -> Counted:
    """The places of BSR in slices of `slice_rows` rows, each padded to its longest row of blocks."""
    (r, c), (n_rows, n_cols) = block_shape, csr.shape
    across = -(-n_cols // c)
    rows, scale = _sample(csr, slice_rows)
    row, _, col = _entries(csr, rows)
    row = rows[row]
    block_row, block_col = np.divmod(_distinct(row // r * across + col // c), max(across, 1))
    inside = np.minimum(r, n_rows - block_row * r) * np.minimum(c, n_cols - block_col * c)
    begin = np.flatnonzero(np.diff(block_row, prepend=-1))
    lengths = np.diff(begin, append=block_row.size)
    starts = np.flatnonzero(np.diff(block_row[begin] * r // slice_rows, prepend=-1))
    width = np.maximum.reduceat(lengths, starts).sum() if starts.size else 0
    indices = round(width * scale) * (slice_rows // r)
    return Counted(indices * r * c, indices, round((int(inside.sum()) - row.size) * scale))


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Rising. np.unique hashes its way there, several times slower."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=keys[:1] - 1) != 0]


def _sample(csr: Csr, window: int) -> tuple[np.ndarray, float]:
    """Rows [k], int64 and rising, of evenly spread whole windows; and all windows over those taken."""
    n_rows = csr.shape[0]
    n_windows = -(-n_rows // window)
    of_window = max(csr.nnz / max(n_windows, 1), 1)
    taken = max(round(ENTRIES / of_window), min(LEAST_WINDOWS, round(MOST_ENTRIES / of_window)), 1)
    if taken >= n_windows:
        return np.arange(n_rows), 1.0
    windows = (np.arange(taken) * 2 + 1) * n_windows // (2 * taken)
    rows = (windows[:, None] * window + np.arange(window)).reshape(-1)
    return rows[rows < n_rows], n_windows / taken


def _entries(
    csr: Csr,
    rows: np.ndarray,  # [k]
    lengths: np.ndarray | None = None,  # [k], how many entries of each are wanted; None: all
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every entry of `rows` the number of its row among them, its j in that row and its column, int64."""
    first = csr.indptr[rows].astype(np.int64)
    wanted = csr.indptr[rows + 1] - first if lengths is None else lengths
    number = np.repeat(np.arange(rows.size), wanted)
    j = np.arange(number.size) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    return number, j, csr.indices[first[number] + j].astype(np.int64)
