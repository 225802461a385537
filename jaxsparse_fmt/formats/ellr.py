"""ELLPACK-R (Vázquez et al.), which Barbieri et al. §3.1 call ELL-G: ELL with row lengths and aligned columns.

         ⎡ 1 . 2 . ⎤      values       [1 3 4 · 0… | 2 · 5 · 0… | · · 6 · 0…]      [K·pitch], K = longest row
         ⎢ . 3 . . ⎥      col_idx      [0 1 0 4 4… | 2 4 2 4 4… | 4 4 3 4 4…]      [K·pitch] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥      row_lengths  [2 1 3 0]                                   [n_rows] int32
         ⎣ . . . . ⎦

The pitch is n_rows rounded up to 32, so that every column starts on a 128-byte boundary. A product reads each row up to
its own length: padding is stored but not read. `threads_per_row` threads may share a row; each takes every second or
fourth column, and the data do not change (Barbieri et al., end of §3.1).

Bytes: K·pitch·(value + 4) + 4·n_rows.
"""

import dataclasses
from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import ByRule, ColumnIndex, ZeroPadded, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices

ALIGNMENT = 32  # rows: 128 bytes of the 4-byte column indices


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Padded(ByRule):
    """The base of the formats that pad every row to the longest and read it up to its own length."""

    col_idx: ColumnIndex
    row_lengths: ZeroPadded


@storage_format
class ELLR(Padded):
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


def pitch_of(n_rows: int) -> int:
    """n_rows rounded up to whole 128-byte lines of indices, at least one."""
    return max(-(-n_rows // ALIGNMENT), 1) * ALIGNMENT
