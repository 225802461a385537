"""ELL, the ITPACK format (Barbieri et al., §2.4): every row padded to the longest, stored column by column.

         ⎡ 1 . 2 . ⎤      values   [1 3 4 · | 2 · 5 · | · · 6 ·]      [K·n_rows], K = longest row
         ⎢ . 3 . . ⎥      col_idx  [0 1 0 4 | 2 4 2 4 | 4 4 3 4]      [K·n_rows] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥
         ⎣ . . . . ⎦

Bytes: K·n_rows·(value + 4). Products run over all K columns.
"""

from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint
from jaxsparse_fmt.formats.base import ByRule, ColumnIndex, storage_format


@storage_format
class ELL(ByRule):
    col_idx: ColumnIndex

    name = "ell"

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        rows = building.rows_of(csr)
        return cls._store(csr, target, rows, rows.longest * csr.shape[0])

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        longest, n_rows = pattern.longest, pattern.csr.shape[0]
        places = longest * n_rows
        yield footprint.Storage(cls.name, {}, places * (pattern.dtype.itemsize + 4), places, footprint.trips(longest))
