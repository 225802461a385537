"""The size of a storage in bytes, places and threads' steps, counted before anything is stored.

Every format that `format="auto"` may take yields a `Storage` for each layout that may be fast, from `_footprints`
beside `from_csr`; `choose/ranking.py` turns these into seconds.
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
    """The counts of a format's storage of a matrix, by which the ranking goes.

    Attributes:
      nbytes: read by a product.
      places: stored, padding included.
      trips: rounds of loads that the thread of the longest row makes.
      by_columns: whether XLA goes by columns (`kernels/spmv.py`).
      cut: rows that continue in pieces, whose sums another kernel adds.
      misses: of the L1 cache for an entry's x, 0 to 1; as `_footprints` yields it, the factor on the pattern's misses.
      written: rows that are written one by one, when their sums are complete.
      copied: numbers of x that a separate kernel copies into another order before the product.
      unread: bytes of values that are stored but that no product reads.
      words: a remark for the reason of the choice.
    """

    format: str
    layout: dict[str, Any]
    nbytes: int
    places: int
    trips: int
    by_columns: bool = True
    cut: int = 0
    misses: float = 1.0
    written: int = 0
    copied: int = 0
    unread: int = 0
    words: tuple[str, ...] = ()


Storages = Iterator[Storage]


@dataclasses.dataclass(frozen=True, eq=False)
class PatternCounts:
    """A canonical matrix, and the counts that the footprints of several formats share, each made once.

    Attributes:
      csr: on the host or on a device.
      dtype: of the stored values.
      platform: "gpu" or "cpu", where products would run.
      shares_memory: whether the GPU has a dialect in which the lanes of a block share memory.
    """

    csr: Csr
    dtype: np.dtype
    platform: str
    shares_memory: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.platform == "gpu"

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def a_sector(self) -> int:
        """Numbers of x in a sector; values of 16 bits multiply an x of 32."""
        return SECTOR // max(self.itemsize, 4)

    @functools.cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(self.widths(128).max(initial=0))

    @functools.cached_property
    def has_zeros(self) -> bool:
        """Whether some entry is zero in the stored dtype."""
        return building.has_zeros(self.csr, self.dtype)

    @functools.cached_property
    def widths(self) -> Callable[..., np.ndarray]:
        """widths(slice_size): the longest row of each slice, int64 [n_slices]."""
        lengths = building.rows_of(self.csr).lengths
        of_some = building.longest_by_slice(lengths, building.SOME)

        def widths(slice_size: int) -> np.ndarray:
            if slice_size % building.SOME == 0:
                return building.longest_by_slice(of_some, slice_size // building.SOME)
            return building.longest_by_slice(lengths, slice_size)

        return functools.cache(widths)

    @functools.cached_property
    def sample(self) -> Callable[[int], statistics.Sample]:
        """sample(window), as in `statistics.sample`, of windows of `WINDOW` rows where those hold whole ones."""
        of = functools.cache(functools.partial(statistics.sample, self.csr))
        return lambda window: of(WINDOW if WINDOW % window == 0 else window)

    @functools.cached_property
    def misses(self) -> Callable[[int], float]:
        """misses(block), as in `statistics.misses`."""
        some = lambda block: self.sample(min(block, max(self.csr.shape[0], 1)))  # noqa: E731
        return functools.cache(lambda block: statistics.misses(some(block), block, self.a_sector))

    def missed_beside(self, block: int, hot: int) -> float:
        """As `statistics.missed_beside`."""
        return statistics.missed_beside(self.sample(block), block, self.a_sector, hot)

    @property
    def slice_size(self) -> int:
        """Rows of a slice that may be fast."""
        return min(SLICES[self.platform], max(self.csr.shape[0], 1))

    def of_slices(self, name: str, index: int, index_of_chunk: int = 0, words: tuple[str, ...] = ()) -> Storage:
        """Slices in which a place has `index` bytes of index, and `slice_size` places `index_of_chunk` more."""
        C, widths = self.slice_size, self.widths(self.slice_size)
        chunks, n_slices, longest = int(widths.sum()), widths.size, int(widths.max(initial=0))
        nbytes = chunks * (C * (self.itemsize + index) + index_of_chunk) + pointer_bytes(n_slices, chunks * C)
        even = longest <= 2 * (chunks // max(n_slices, 1))  # no slice is twice as wide as the mean: XLA goes by columns
        layout, steps = {"slice_size": C, "sigma": 1}, trips(longest) + 1  # for the slice's bounds
        return Storage(name, layout, nbytes, chunks * C, steps, by_columns=even, words=words)

    @functools.cached_property
    def diagonals(self) -> Counted | None:
        """The places of whole diagonals; None where there are too many."""
        most = int(MOST_PADDING * self.csr.nnz / max(self.csr.shape[0], 1))
        return statistics.diagonals(self.csr, self.sample(1), self.longest, most)

    def of_groups(self, name: str, layout: Any, counted: Counted, rows: int, steps: int, words: str) -> "Storages":
        """`implied.Groups` in slices of `rows`; nothing where they have too much padding."""
        if counted.places <= MOST_PADDING * self.csr.nnz:
            nbytes = self.implied_bytes(counted) + pointer_bytes(-(-self.csr.shape[0] // rows), counted.places)
            yield Storage(name, layout, nbytes, counted.places, steps, words=(words,))

    def implied_bytes(self, counted: Counted) -> int:
        """Bytes of values, of offsets or block columns, and of the bits that tell holes from zeros, if read."""
        bits = -(-counted.places // 8) if counted.holes > 0 and self.has_zeros else 0
        return counted.places * self.itemsize + 4 * counted.indices + bits


def trips(entries: float, threads: int = 1) -> int:
    """Rounds of loads of a row of `entries` entries that `threads` threads share."""
    return math.ceil(entries / (threads * UNROLL))


def pointer_bytes(n_slices: int, places: int) -> int:
    """Bytes of the slice pointers of a storage of `places` places."""
    return (n_slices + 1) * (4 if places < 2**31 else 8)
