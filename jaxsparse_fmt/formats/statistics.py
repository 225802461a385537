"""Statistics of a pattern: the places, diagonals and blocks that a storage would hold, and the spread of columns.

Counts that need only row lengths are exact. Counts that need columns sample windows of rows spread evenly over the
matrix, some `ENTRIES` entries in all, and scale up; they are exact if the windows cover the whole matrix. No function
loops over rows, and only `diagonals` makes an array as long as the entries. On a device arrays as long as rows or
entries are counted there, and only samples come to the host.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.cpu import csr_operations
from jaxsparse_fmt.kernels.layout.address import prefix_length, take
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal

ENTRIES = 2**16  # about as many as a count samples
TABLE = 8  # possible diagonals for each entry up to which a table over all diagonals is made
SMALL = 2**16  # possible diagonals for which a table is small
GOLDEN = (5**0.5 - 1) / 2
LEAST_WINDOWS, MOST_ENTRIES = 4, 2**21  # at least so many windows are sampled, unless they have more entries


@dataclasses.dataclass(frozen=True)
class Counted:
    """Counts of a storage that has no index for each place."""

    places: int  # padding included
    indices: int  # offsets of diagonals, or columns of blocks
    holes: int  # places inside the matrix that hold no entry


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The entries of whole windows of rows that are spread evenly over a matrix, in NumPy arrays, int64."""

    shape: tuple[int, int]
    rows: np.ndarray  # [k] rising
    scale: float  # the ratio of all windows to those
    first: np.ndarray  # [k] the place in CSR of the first entry of each row
    lengths: np.ndarray  # [k] entries of each row
    number: np.ndarray  # [entries] the index in `rows` of each entry's row
    j: np.ndarray  # [entries] its position in the row
    col: np.ndarray  # [entries]

    @functools.cached_property
    def row(self) -> np.ndarray:
        """The row of each entry."""
        return self.rows[self.number]

    def distinct(self, major: Any, minor: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray]:
        return distinct(major, minor, span, self.lengths)

    def blocks(self, rows: int, cols: int, among: Any = slice(None)) -> int:
        """The number of blocks of `rows` × `cols` places that hold some of the entries, or of those `among` them."""
        block_col, most = self.col[among] // cols, self.shape[1] // cols + 1
        return self.distinct(self.number[among] // rows, block_col, most)[0].size


def sample(csr: Csr, window: int) -> Sample:
    """The rows of evenly spread windows of `window` rows, `ENTRIES` entries or some more."""
    n_rows = csr.shape[0]
    n_windows = -(-n_rows // window)
    of_window = max(csr.nnz / max(n_windows, 1), 1)
    taken = max(round(ENTRIES / of_window), min(LEAST_WINDOWS, round(MOST_ENTRIES / of_window)), 1)
    if taken >= n_windows:
        rows, scale = np.arange(n_rows), 1.0
    else:
        # One window in each of `taken` equal parts, scattered by the golden ratio: at equal distances all windows might
        # begin a plane of a grid.
        part = np.arange(taken)
        windows = np.unique(((part + (part + 1) * GOLDEN % 1) * (n_windows / taken)).astype(np.int64))
        rows = (windows[:, None] * window + np.arange(window)).reshape(-1)
        rows, scale = rows[rows < n_rows], n_windows / windows.size
    first, lengths, col = entries_of(csr, rows)
    number = np.repeat(np.arange(rows.size), lengths)
    j = np.arange(number.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Sample(csr.shape, rows, scale, first, lengths, number, j, col)


def entries_of(csr: Csr, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The place in CSR of the first entry of each of `rows`, their lengths, and the columns of their entries.

    int64 in NumPy; of a matrix on a device no other row comes to the host.
    """
    first, end = taken(csr.indptr, np.concatenate([rows, rows + 1])).reshape(2, -1)
    lengths = end - first
    entry = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    return first, lengths, taken(csr.indices, entry)


def taken(a: Any, index: np.ndarray) -> np.ndarray:
    """a[index] as int64 in NumPy."""
    if building.namespace(a) is np:
        return a[index].astype(np.int64)
    if index.size == 0:
        return np.zeros(0, np.int64)
    # As many as a power of two, so that few programs are compiled.
    padded = np.pad(index, (0, (1 << index.size.bit_length()) - index.size), mode="edge")
    return np.asarray(_taken(a, padded.astype(index_dtype(a.shape[0]))))[: index.size].astype(np.int64)


@jax.jit
def _taken(a: Any, index: Any) -> Any:
    return a.at[index].get(mode="clip")


def distinct(major: Any, minor: np.ndarray, span: int, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of entries, rising; `minor` is below `span`. np.unique is several times slower.

    Args:
      lengths: of the rows. Most equal pairs are neighbours or one row apart, and are left out before sorting.
    """
    keys = np.asarray(major * span + minor)
    if keys.size:
        fresh = np.ones(keys.size, bool)
        for apart in {1, int(np.median(lengths))} - {0}:
            fresh[apart:] &= keys[apart:] != keys[:-apart]
        keys = np.sort(keys[fresh])
    return np.divmod(keys[np.diff(keys, prepend=keys[:1] - 1) != 0], max(span, 1))


def are_slices_wide(some: Sample, slice_size: int, widest: int) -> bool:
    """Whether in some slice, for some j, the j-th entries of the rows span `widest` columns or more."""
    widths = np.pad(some.lengths, (0, -some.rows.size % slice_size)).reshape(-1, slice_size).max(axis=1, initial=0)
    column = (np.cumsum(widths) - widths)[some.number // slice_size] + some.j
    low, high = (np.full(widths.sum(), bound, np.int64) for bound in (some.shape[1], 0))
    np.minimum.at(low, column, some.col)
    np.maximum.at(high, column, some.col)
    return bool(np.any(high - low >= widest))


def are_within(some: Sample, block: int, windows: int, span: int) -> bool:
    """Whether `windows` windows of `span` columns hold the columns of every block of `block` rows.

    Each window begins at the least column after the window before it.
    """
    stride = some.shape[1] + span
    key = np.unique(some.number // block * stride + some.col)
    begin = np.flatnonzero(np.diff(key // stride, prepend=-1))
    end = np.append(begin[1:], key.size)
    for _ in range(windows):
        begin = np.minimum(np.searchsorted(key, key[np.minimum(begin, key.size - 1)] + span), end)
    return bool(np.all(begin == end))


def diagonals(csr: Csr, some: Sample, longest: int, most: int) -> Counted | None:
    """The places of DIA, exactly; None if it has more than `most` diagonals.

    Args:
      longest: the entries of the longest row.
    """
    n_rows, n_cols = csr.shape
    if longest > most or some.distinct(0, some.col - some.row + n_rows, n_rows + n_cols)[1].size > most:
        return None  # the usual case, found at little cost
    offset = occupied(csr, longest).astype(np.int64) - (n_rows - 1)
    if offset.size > most:
        return None
    inside = np.minimum(n_rows, n_cols - offset) - np.maximum(0, -offset)
    return Counted(offset.size * n_rows, offset.size, int(inside.sum()) - csr.nnz)


def occupied(csr: Csr, longest: int = 0) -> np.ndarray:
    """The diagonals that hold an entry, rising, as col − row + n_rows − 1; on a device needs the `longest` row."""
    if building.namespace(csr.data) is jnp:  # the choice of a format asks, and then the conversion
        return _kept.get("occupied", [csr.indices, csr.indptr], lambda: _occupied_on_device(csr, longest))
    return _occupied_on_host(csr)


@building.once
def _occupied_on_host(csr: Csr) -> np.ndarray:
    if csr_operations.pays(csr.nnz) and fits_table(csr):
        return csr_operations.occupied(csr)
    row, col = building.entries(csr)
    return np.unique(col - row).astype(np.int64) + (csr.shape[0] - 1)


def _occupied_on_device(csr: Csr, longest: int) -> np.ndarray:
    octets = np.asarray(_marked(csr, longest)) if csr.nnz else np.zeros(0, np.uint8)
    some = np.flatnonzero(octets.view(np.uint64))  # eight at a time, since most are 0
    eight, bit = np.nonzero(np.unpackbits(octets.reshape(-1, 8)[some], axis=1, bitorder="little"))
    return 64 * some[eight] + bit


_kept = Kept(8, "statistics of rows")


@functools.partial(jax.jit, static_argnums=1)
def _marked(csr: Csr, longest: int) -> Any:
    """A bit for each diagonal that holds an entry, in words of 64: by the first entry of all rows, the second, …"""
    size, n_rows = -(-sum(csr.shape) // 64) * 64, csr.shape[0]
    row, lengths = jnp.arange(n_rows, dtype=index_dtype(size)), jnp.diff(csr.indptr)

    def mark(j: Any, marks: Any) -> Any:
        entry = jnp.minimum(csr.indptr[:-1] + j.astype(csr.indptr.dtype), csr.nnz - 1)
        diagonal = jnp.where(j < lengths, take(csr.indices, entry) - row + (n_rows - 1), size)
        # A GPU writes slowly to one place from many threads, so a row leaves out the diagonal of the row before.
        fresh = diagonal != jnp.concatenate([jnp.full(1, size, diagonal.dtype), diagonal[:-1]])
        return marks.at[jnp.where(fresh, diagonal, size)].set(True, mode="drop")

    marks = lax.fori_loop(0, longest, mark, jnp.zeros(size, bool))
    return jnp.packbits(marks, bitorder="little")


def fits_table(csr: Csr) -> bool:
    """Whether a table over all possible diagonals is small, compared with the entries."""
    return sum(csr.shape) <= max(TABLE * csr.nnz, SMALL)


def is_mirrored(csr: Csr, some: Sample, longest: int) -> bool:
    """Whether each entry of the sample equals that at (column, row); no row has more than `longest` entries."""
    if csr.shape[0] != csr.shape[1] or some.col.size == 0:
        return csr.shape[0] == csr.shape[1]
    entry = some.first[some.number] + some.j
    entry, row, col = (a.astype(csr.indptr.dtype) for a in (entry, some.row, some.col))
    return bool(_are_mirrored(building.namespace(csr.data), csr, entry, row, col, longest))


@building.on_either(5)
def _are_mirrored(xp: Any, csr: Csr, entry: Any, row: Any, col: Any, longest: int) -> Any:
    """Whether these entries, of `row` and `col`, equal their images."""
    first = take(csr.indptr, col)
    count = take(csr.indptr, col + 1) - first

    def place(i: Any) -> Any:
        return xp.minimum(first + i, csr.nnz - 1)

    before = prefix_length(xp, lambda i: take(csr.indices, place(i)) < row, count, longest)
    same = (take(csr.indices, place(before)) == row) & (take(csr.data, place(before)) == take(csr.data, entry))
    return xp.all((before < count) & same)


def touched(some: Sample, column: Diagonal | Blocked, group: int, slice_rows: int) -> Counted:
    """The places of HDIA or BSR (`implied.Groups`): groups of `group` rows, in slices of `slice_rows`, unsorted."""
    n_rows, n_cols = some.shape
    owner, index = some.distinct(some.number // group, column.index_of(some.row, some.col) + n_rows, n_rows + n_cols)
    first, index = some.rows[owner * group], index - n_rows
    end, unit = np.minimum(first + group, n_rows), column.unit
    if isinstance(column, Diagonal):
        inside = np.minimum(end, n_cols - index) - np.maximum(first, -index)
    else:
        inside = (end - first) * np.minimum(unit, n_cols - index * unit)
    begin = np.flatnonzero(np.diff(owner, prepend=-1))
    lengths = np.diff(begin, append=owner.size)
    starts = np.flatnonzero(np.diff(owner[begin] * group // slice_rows, prepend=-1))
    width = np.maximum.reduceat(lengths, starts).sum() if starts.size else 0
    indices = round(width * some.scale) * (slice_rows // group)
    return Counted(indices * group * unit, indices, round((int(inside.sum()) - some.col.size) * some.scale))
