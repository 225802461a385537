"""The formats that pad every row to the longest and store column by column.

ELL is ITPACK's; ELLR, ELLRT and PELLR follow papers, and `format="auto"` never takes them. Their pitch is n_rows
rounded up to 32, so that every column starts on a 128-byte boundary, and their products read no row beyond its length.
"""

import dataclasses
from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, ZeroPadded, storage_format
from jaxsparse_fmt.formats.csr import THREADS
from jaxsparse_fmt.kernels.layout.address import WARP, Slices, Subwarp

ALIGNMENT = 32  # rows: 128 bytes of the 4-byte column indices
LENGTHS = {"row": 1, "warp": WARP}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Padded(ByRule):
    """The common base."""

    col_idx: ColumnIndex
    row_lengths: ZeroPadded


@storage_format
class ELL(Padded):
    """ELL, the ITPACK format (Barbieri et al., §2.4).

         ⎡ 1 . 2 . ⎤      values       [1 3 4 · | 2 · 5 · | · · 6 ·]      [K·n_rows], K = longest row
         ⎢ . 3 . . ⎥      col_idx      [0 1 0 4 | 2 4 2 4 | 4 4 3 4]      [K·n_rows] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥      row_lengths  [2 1 3 0]                          [n_rows] int32
         ⎣ . . . . ⎦

    Bytes: K·n_rows·(value + 4) + 4·n_rows. Products run over all K columns; only conversions read the row lengths.
    """

    name = "ell"
    _unread = ("row_lengths",)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        rows = building.rows_of(csr)
        return cls._store(csr, target, rows, rows.longest * csr.shape[0])

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        longest, n_rows = pattern.longest, pattern.csr.shape[0]
        places = longest * n_rows
        yield footprint.Storage(cls.name, {}, places * (pattern.itemsize + 4), places, footprint.trips(longest), n_rows)


@storage_format
class ELLR(Padded):
    """ELLPACK-R (Vázquez et al.), which Barbieri et al. §3.1 call ELL-G.

         ⎡ 1 . 2 . ⎤      values       [1 3 4 · 0… | 2 · 5 · 0… | · · 6 · 0…]      [K·pitch], K = longest row
         ⎢ . 3 . . ⎥      col_idx      [0 1 0 4 4… | 2 4 2 4 4… | 4 4 3 4 4…]      [K·pitch] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥      row_lengths  [2 1 3 0]                                   [n_rows] int32
         ⎣ . . . . ⎦

    `threads_per_row` threads may share a row; each takes every second or fourth column, and the data do not change
    (Barbieri et al., end of §3.1). Bytes: K·pitch·(value + 4) + 4·n_rows.
    """

    threads_per_row: int

    name = "ellr"
    layout_options = ("threads_per_row",)

    @staticmethod
    def _rule_of_rows(n_rows: int, threads_per_row: int) -> Slices:
        return Slices(n_rows, pitch_of(n_rows), threads_per_row)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, threads_per_row: int = 1) -> Self:
        """Builds the columns.

        Args:
          threads_per_row: 1, 2 or 4, on a GPU.
        """
        rows, threads = building.rows_of(csr), building.threads(threads_per_row, (1, 2, 4), csr.shape[0])
        return cls._store(csr, target, rows, rows.longest * pitch_of(csr.shape[0]), threads_per_row=threads)


@storage_format
class ELLRT(Padded):
    """ELLR-T (Vázquez et al. 2011; Barbieri et al., §4): T threads a row, and the storage permuted for them.

         ⎡ 1 . 2 . ⎤      T = 2: entries 2k and 2k + 1 of a row stand side by side
         ⎢ . 3 . . ⎥      values       [1 2 3 · 4 5 · · 0… | · · · · 6 · · · 0…]      [K·pitch·T], K = ⌈longest row / T⌉
         ⎢ 4 . 5 6 ⎥      col_idx      [0 2 1 4 0 2 4 4 4… | 4 4 4 4 3 4 4 4 4…]      [K·pitch·T] int32, 4 = n_cols
         ⎣ . . . . ⎦      row_lengths  [2 1 3 0]                                      [n_rows] int32

    Threads that share a row are neighbours; every load of a warp covers 32 places.
    Bytes: K·pitch·T·(value + 4) + 4·n_rows.
    """

    threads_per_row: int

    name = "ellrt"
    layout_options = ("threads_per_row",)

    @staticmethod
    def _rule_of_rows(n_rows: int, threads_per_row: int) -> Subwarp:
        return Subwarp(n_rows, pitch_of(n_rows) * threads_per_row, threads_per_row)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, threads_per_row: int = 2) -> Self:
        """Builds the columns.

        Args:
          threads_per_row: 1, 2, 4, 8, 16 or 32; a row is padded to a multiple of it.
        """
        rows, T = building.rows_of(csr), building.threads(threads_per_row, THREADS, csr.shape[0])
        return cls._store(csr, target, rows, -(-rows.longest // T) * T * pitch_of(csr.shape[0]), threads_per_row=T)


@storage_format
class PELLR(Padded):
    """PELLR (Wang and Gu, §3): ELLPACK-R with rows sorted by falling length, so that a warp's rows end together.

         ⎡ 1 . 2 . ⎤      rows in the order 2, 0, 1, 3
         ⎢ . 3 . . ⎥      values       [4 1 3 · 0… | 5 2 · · 0… | 6 · · · 0…]      [K·pitch], K = longest row
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4 4… | 2 2 4 4 4… | 3 4 4 4 4…]      [K·pitch] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      row_lengths  [3 2 1 0], or a warp's longest: [3]         [n_rows] or [⌈n_rows / 32⌉] int32
                          perm         [2 0 1 3]                                   [n_rows] int32

    Row lengths are stored per row or per warp (the paper's N_w numbers). Either way a product reads one length for
    each tile of rows, the longest, and padding has the column index n_cols.

    Bytes: K·pitch·(value + 4) + 8·n_rows, or 4·n_rows + 4·⌈n_rows / 32⌉ in place of the latter.
    """

    perm: Array | None
    lengths_per: str

    name = "pellr"
    layout_options = ("lengths_per",)

    @staticmethod
    def _rule_of_rows(n_rows: int, lengths_per: str) -> Slices:
        return Slices(n_rows, pitch_of(n_rows), falling=LENGTHS[lengths_per])

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, lengths_per: str = "warp") -> Self:
        """Sorts the rows and builds the columns.

        Args:
          lengths_per: "row", or "warp" for the longest row of every 32.
        """
        if not isinstance(lengths_per, str) or lengths_per not in LENGTHS:
            raise ValueError(f"lengths_per must be 'row' or 'warp'; got {lengths_per!r}")
        rows = building.rows_of(csr, sigma=None)
        lengths = rows.lengths[:: LENGTHS[lengths_per]]  # sorted: a warp's first row is its longest
        places = rows.longest * pitch_of(csr.shape[0])
        return cls._store(csr, target, rows, places, row_lengths=lengths, lengths_per=lengths_per)


def pitch_of(n_rows: int) -> int:
    """n_rows rounded up to whole 128-byte lines of indices, at least one."""
    return max(-(-n_rows // ALIGNMENT), 1) * ALIGNMENT
