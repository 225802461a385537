"""The size of a storage in bytes, places and loads, counted before anything is stored.

Every format that `format="auto"` may take yields a `Storage` for each layout that may be fast, by its method
`_footprints`; `choose/ranking.py` ranks them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import building, statistics
from jaxsparse_fmt.formats.statistics import Counted

SLICES = {"gpu": 128, "cpu": 1024}  # rows; the GPU's kernels work on 128, a CPU is faster with long columns
MOST_PADDING = 3.0  # places an entry; no diagonal or block is worth more
WINDOW = 128  # rows that a sample takes together, for slices of all sizes that divide it
L1_ROWS = 512  # neighbouring rows whose x the L1 cache of a multiprocessor holds, which works on several blocks
SECTOR = 32  # bytes that the L1 cache loads from the L2 at a time
UNROLL = 4  # entries whose loads a thread of the GPU's kernels issues together


@dataclasses.dataclass(frozen=True)
class Storage:
    """The counts of a format's storage of a matrix, by which the ranking goes."""

    format: str
    layout: dict[str, Any]
    nbytes: int  # read by a product
    places: int  # stored, padding included
    trips: int  # rounds of loads that the thread of the longest row makes
    by_columns: bool = True  # whether plain XLA adds column by column of the storage (`kernels/spmv.py`)
    miss_factor: float = 1.0  # on the L1 cache's misses for the pattern's reads of x
    written: int = 0  # rows whose sums are stored one by one
    copied: int = 0  # entries of x that a separate kernel first copies into another order
    unread: int = 0  # bytes of values that no product reads
    words: tuple[str, ...] = ()  # remarks for the reason of the choice


Storages = Iterator[Storage]


@dataclasses.dataclass(frozen=True, eq=False)
class PatternCounts:
    """A canonical matrix, and counts that the footprints of several formats share, each made once."""

    csr: Csr  # on the host or on a device
    dtype: np.dtype  # of the stored values
    platform: str  # "gpu" or "cpu", that of the products
    shares_memory: bool = False  # whether the GPU has a dialect in which the lanes of a block share memory

    @property
    def a_sector(self) -> int:
        """Entries of x in a sector; values of 16 bits multiply an x of 32."""
        return SECTOR // max(self.dtype.itemsize, 4)

    @functools.cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(self.widths.max(initial=0))

    @functools.cached_property
    def has_zeros(self) -> bool:
        """Whether some entry is zero in the stored dtype."""
        return building.has_zeros(self.csr, self.dtype)

    @functools.cached_property
    def widths(self) -> np.ndarray:
        """The longest row of each slice of `slice_size` rows, int64 [n_slices]."""
        return building.longest_by_slice(building.rows_of(self.csr).lengths, self.slice_size)

    @functools.cached_property
    def sample(self) -> Callable[[int], statistics.Sample]:
        """sample(window), as in `statistics.sample`, of windows of `WINDOW` rows if those hold whole ones."""
        kept = functools.cache(functools.partial(statistics.sample, self.csr))
        return lambda window: kept(WINDOW if WINDOW % window == 0 else window)

    @functools.cached_property
    def misses(self) -> float:
        """Misses of the L1 cache for an entry's x, 0 to 1: the sectors of x that blocks of rows read, by entries."""
        some = self.sample(min(L1_ROWS, max(self.csr.shape[0], 1)))
        return some.blocks(L1_ROWS, self.a_sector) / max(some.number.size, 1)

    def miss_factor(self, hot: int) -> float:
        """The fraction of `misses` that is left if the `hot` most used columns are neighbours and stay in the cache.

        Every other block of the sample decides which columns are hot, and the remaining blocks count their misses: a
        column that only one block uses often is not hot. If all columns are used equally, a cache of `hot` entries of x
        holds hot / n_cols of them in any order, so that this fraction is no gain.
        """
        some, n_cols = self.sample(L1_ROWS), self.csr.shape[1]
        decides = some.number // L1_ROWS % 2 == 0
        if decides.all():
            return 1.0
        column, used = np.unique(some.col[decides], return_counts=True)
        is_hot = np.zeros(n_cols, bool)
        is_hot[column[np.argsort(-used, stable=True)[:hot]]] = True
        missed = functools.partial(some.blocks, L1_ROWS, self.a_sector)
        return min(missed(~decides & ~is_hot[some.col]) / missed(~decides) + hot / n_cols, 1.0)

    @property
    def slice_size(self) -> int:
        """Rows of a slice that may be fast."""
        return min(SLICES[self.platform], max(self.csr.shape[0], 1))

    def of_slices(self, name: str, index: int, index_of_chunk: int = 0, words: tuple[str, ...] = ()) -> Storage:
        """Slices in which a place has `index` bytes of index, and `slice_size` places `index_of_chunk` more."""
        C, chunks, n_slices, longest = self.slice_size, int(self.widths.sum()), self.widths.size, self.longest
        nbytes = chunks * (C * (self.dtype.itemsize + index) + index_of_chunk) + pointer_bytes(n_slices, chunks * C)
        even = longest <= 2 * (chunks // max(n_slices, 1))  # no slice is twice as wide as the mean: XLA goes by columns
        layout, steps = {"slice_size": C, "sigma": 1}, trips(longest) + 1  # for the slice's bounds
        return Storage(name, layout, nbytes, chunks * C, steps, by_columns=even, words=words)

    @functools.cached_property
    def diagonals(self) -> Counted | None:
        """The places of whole diagonals; None if there are too many."""
        most = int(MOST_PADDING * self.csr.nnz / max(self.csr.shape[0], 1))
        return statistics.diagonals(self.csr, self.sample(1), self.longest, most)

    def of_groups(self, name: str, layout: Any, counted: Counted, rows: int, steps: int, words: str) -> "Storages":
        """`implied.Groups` in slices of `rows`; nothing if they have too much padding."""
        if counted.places <= MOST_PADDING * self.csr.nnz:
            nbytes = self.implied_bytes(counted) + pointer_bytes(-(-self.csr.shape[0] // rows), counted.places)
            yield Storage(name, layout, nbytes, counted.places, steps, words=(words,))

    def implied_bytes(self, counted: Counted) -> int:
        """Bytes of values, of offsets or block columns, and of `pattern` if products read it."""
        bits = -(-counted.places // 8) if counted.holes > 0 and self.has_zeros else 0
        return counted.places * self.dtype.itemsize + 4 * counted.indices + bits


def trips(entries: float, threads: int = 1) -> int:
    """Rounds of loads of a row of `entries` entries that `threads` threads share."""
    return math.ceil(entries / (threads * UNROLL))


def pointer_bytes(n_slices: int, places: int) -> int:
    """Bytes of the slice pointers of a storage of `places` places."""
    return (n_slices + 1) * (4 if places < 2**31 else 8)


def bytes_moved(storage: int, shape: tuple[int, int], vector_bytes: int, copied: int = 0) -> int:
    """The least bytes that y = A·x moves: `storage` of A, x and y once each, and a copy of `copied` entries of x."""
    return storage + vector_bytes * (sum(shape) + 2 * copied)


def csr_bytes(csr: Csr, value_bytes: int) -> int:
    """Bytes of a matrix in CSR with values of `value_bytes` bytes and 32-bit indices and pointers."""
    return csr.nnz * (value_bytes + 4) + 4 * (csr.shape[0] + 1)
