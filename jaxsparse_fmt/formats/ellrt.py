"""ELLR-T (Vázquez et al. 2011; Barbieri et al., §4): ELLPACK-R with T threads a row and the storage permuted for them.

         ⎡ 1 . 2 . ⎤      T = 2: entries 2k and 2k + 1 of a row stand side by side
         ⎢ . 3 . . ⎥      values       [1 2 3 · 4 5 · · 0… | · · · · 6 · · · 0…]      [K·pitch·T], K = ⌈longest row / T⌉
         ⎢ 4 . 5 6 ⎥      col_idx      [0 2 1 4 0 2 4 4 4… | 4 4 4 4 3 4 4 4 4…]      [K·pitch·T] int32, 4 = n_cols
         ⎣ . . . . ⎦      row_lengths  [2 1 3 0]                                      [n_rows] int32

The pitch is n_rows rounded up to 32. Threads that share a row are neighbours; every load of a warp covers 32 places.

Bytes: K·pitch·T·(value + 4) + 4·n_rows.
"""

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import ZeroPadded, option, storage_format
from jaxsparse_fmt.formats.csr import THREADS
from jaxsparse_fmt.formats.padded import Padded, pitch_of
from jaxsparse_fmt.kernels.layout.address import Subwarp


@storage_format
class ELLRT(Padded):
    row_lengths: ZeroPadded
    threads_per_row: int = option(2, building.threads(*THREADS))

    name = "ellrt"
    _rule_of_rows = staticmethod(
        lambda n_rows, threads_per_row: Subwarp(n_rows, pitch_of(n_rows) * threads_per_row, threads_per_row)
    )

    @staticmethod
    def _places(rows: building.Rows, address: Subwarp, threads_per_row: int) -> int:
        return -(-rows.longest // threads_per_row) * address.lanes
