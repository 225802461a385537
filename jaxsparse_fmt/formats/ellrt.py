"""ELLR-T (Vázquez et al. 2011; Barbieri et al., §4): ELLPACK-R with T threads a row and the storage permuted for them.

         ⎡ 1 . 2 . ⎤      T = 2: entries 2k and 2k + 1 of a row stand side by side
         ⎢ . 3 . . ⎥      values       [1 2 3 · 4 5 · · 0… | · · · · 6 · · · 0…]      [K·pitch·T], K = ⌈longest row / T⌉
         ⎢ 4 . 5 6 ⎥      col_idx      [0 2 1 4 0 2 4 4 4… | 4 4 4 4 3 4 4 4 4…]      [K·pitch·T] int32, 4 = n_cols
         ⎣ . . . . ⎦      row_lengths  [2 1 3 0]                                      [n_rows] int32

The pitch is n_rows rounded up to 32. Threads that share a row are neighbours; every load of a warp covers 32 places.

Bytes: K·pitch·T·(value + 4) + 4·n_rows.
"""

from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import storage_format
from jaxsparse_fmt.formats.csr import THREADS
from jaxsparse_fmt.formats.ellr import Padded, pitch_of
from jaxsparse_fmt.kernels.layout.address import Subwarp


@storage_format
class ELLRT(Padded):
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
