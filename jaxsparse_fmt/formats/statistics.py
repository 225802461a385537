"""Statistics of a pattern: the places, diagonals and blocks that a storage would hold, and the spread of columns.

Counts that need only row lengths are exact. Counts that need columns sample windows of rows spread evenly over the
matrix, some `ENTRIES` entries in all, and scale up; where the windows cover the whole matrix, these counts are exact
too. No function loops over rows, and only `diagonals` makes an array as long as the entries.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.models import traffic

ENTRIES = 2**17  # about as many as a count samples
TABLE = 8  # the most possible diagonals for each entry with which a table over all diagonals is made
BLOCK = 2**13  # rows that a pass over all entries takes at a time
LEAST_WINDOWS, MOST_ENTRIES = 4, 2**21  # windows that are always sampled, or fewer if they have more entries than this


@dataclasses.dataclass(frozen=True)
class Counted:
    """Counts of a storage that has no index for each place.

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
    n_rows = len(row_lengths)
    if sigma > 1:
        window = max(min(sigma, n_rows), 1)
        windows = np.pad(row_lengths, (0, -n_rows % window)).reshape(-1, window)
        row_lengths = np.sort(windows, axis=1)[:, ::-1].reshape(-1)[:n_rows]
    return traffic.longest_by_slice(row_lengths, slice_size)


def are_slices_wide(csr: Csr, slice_size: int, widest: int) -> bool:
    """Whether in some slice, for some j, the j-th entries of the rows span `widest` columns or more."""
    rows, _ = _sample(csr, slice_size)
    lengths = (csr.indptr[rows + 1] - csr.indptr[rows]).astype(np.int64)
    widths = np.pad(lengths, (0, -rows.size % slice_size)).reshape(-1, slice_size).max(axis=1, initial=0)
    number, j, col = _entries(csr, rows)
    column = (np.cumsum(widths) - widths)[number // slice_size] + j
    low, high = (np.full(widths.sum(), bound, np.int64) for bound in (csr.shape[1], 0))
    np.minimum.at(low, column, col)
    np.maximum.at(high, column, col)
    return bool(np.any(high - low >= widest))


def are_blocks_wide(csr: Csr, block: int, widest: int) -> bool:
    """Whether the columns of some block of `block` rows span `widest` or more."""
    rows, _ = _sample(csr, block)
    number, _, col = _entries(csr, rows)
    begin = np.flatnonzero(np.diff(number // block, prepend=-1))
    if begin.size == 0:
        return False
    return bool(np.any(np.maximum.reduceat(col, begin) - np.minimum.reduceat(col, begin) >= widest))


def misses(csr: Csr, block: int, sigma: int, a_sector: int) -> float:
    """Distinct sectors of x that blocks of `block` rows read, divided by their entries: misses of the L1 cache.

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
    """The fraction of `misses` that is left where the `hot` most used columns lie side by side and stay in the cache.

    Every other block of the sample decides which columns are hot, and the remaining blocks count their misses: a column
    that only one block uses often is not hot. Where all columns are used equally, a cache of `hot` numbers holds the
    same fraction of them in any order, so that this fraction is no gain.
    """
    rows, _ = _sample(csr, block)
    number, _, col = _entries(csr, rows)
    decides = number // block % 2 == 0
    if decides.all():
        return 1.0
    column, used = np.unique(col[decides], return_counts=True)
    hottest = column[np.argsort(-used, stable=True)[:hot]]
    number, col = number[~decides], col[~decides]
    sectors = number // block * (csr.shape[1] // a_sector + 1) + col // a_sector
    left = _distinct(sectors[~np.isin(col, hottest)]).size / _distinct(sectors).size
    return min(left + hot / csr.shape[1], 1.0)


def diagonals(csr: Csr, most: int) -> Counted | None:
    """The places of DIA, exactly; None where it has more than `most` diagonals."""
    n_rows, n_cols = csr.shape
    rows, _ = _sample(csr, 1)
    row, _, col = _entries(csr, rows)
    if _distinct(col - rows[row]).size > most:
        return None  # the usual case, found at little cost
    offset = occupied(csr).astype(np.int64) - (n_rows - 1)
    if offset.size > most:
        return None
    inside = np.minimum(n_rows, n_cols - offset) - np.maximum(0, -offset)
    return Counted(offset.size * n_rows, offset.size, int(inside.sum()) - csr.nnz)


def by_rows(csr: Csr) -> Iterator[tuple[slice, np.ndarray]]:
    """The entries of some rows at a time, few enough for the cache, and their diagonals, col − row + n_rows − 1."""
    n_rows, n_cols = csr.shape
    index = csr.indices.dtype if n_rows + n_cols < 2**31 else np.int64
    for first in range(0, n_rows, BLOCK):
        ptr = csr.indptr[first : first + BLOCK + 1]
        before = np.arange(first - n_rows + 1, first + ptr.size - n_rows, dtype=index)
        entries = slice(ptr[0], ptr[-1])
        yield entries, csr.indices[entries] - np.repeat(before, np.diff(ptr))


def occupied(csr: Csr) -> np.ndarray:
    """The diagonals that hold an entry, rising, as col − row + n_rows − 1."""
    if not fits_table(csr):
        return np.unique(np.concatenate([diagonal for _, diagonal in by_rows(csr)]))
    present = np.zeros(sum(csr.shape), bool)
    for _, diagonal in by_rows(csr):
        present[diagonal] = True
    return np.flatnonzero(present)


def fits_table(csr: Csr) -> bool:
    """Whether a table over all possible diagonals is small beside the entries."""
    return sum(csr.shape) <= max(TABLE * csr.nnz, BLOCK)


def is_mirrored(csr: Csr) -> bool:
    """Whether each entry of the sample has an equal entry at its mirror image, (column, row)."""
    if csr.shape[0] != csr.shape[1]:
        return False
    rows, _ = _sample(csr, 1)
    number, j, col = _entries(csr, rows)
    row, (low, high) = rows[number], (csr.indptr[col].astype(np.int64), csr.indptr[col + 1].astype(np.int64))
    last = csr.nnz - 1
    end = high
    while np.any(low < high):  # finds the first entry no less than `row` in each row `col`, which rises
        middle = (low + high) // 2
        less = (low < high) & (csr.indices[np.minimum(middle, last)] < row)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    at = np.minimum(low, last)
    same = csr.data[at] == csr.data[csr.indptr[row] + j]
    return bool(np.all((low < end) & (csr.indices[at] == row) & same))


def diagonals_by_slice(csr: Csr, slice_size: int) -> Counted:
    """The places of HDIA with unsorted rows."""
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
    """The distinct keys, rising; np.unique is several times slower."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=keys[:1] - 1) != 0]


def _sample(csr: Csr, window: int) -> tuple[np.ndarray, float]:
    """The rows [k] of evenly spread whole windows, int64 and rising; and the ratio of all windows to those."""
    n_rows = csr.shape[0]
    n_windows = -(-n_rows // window)
    of_window = max(csr.nnz / max(n_windows, 1), 1)
    taken = max(round(ENTRIES / of_window), min(LEAST_WINDOWS, round(MOST_ENTRIES / of_window)), 1)
    if taken >= n_windows:
        return np.arange(n_rows), 1.0
    windows = (np.arange(taken) * 2 + 1) * n_windows // (2 * taken)
    rows = (windows[:, None] * window + np.arange(window)).reshape(-1)
    return rows[rows < n_rows], n_windows / taken


def _entries(csr: Csr, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every entry of `rows`: the index of its row in `rows`, its position in the row, and its column; int64."""
    first = csr.indptr[rows].astype(np.int64)
    lengths = csr.indptr[rows + 1] - first
    number = np.repeat(np.arange(rows.size), lengths)
    j = np.arange(number.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return number, j, csr.indices[first[number] + j].astype(np.int64)
