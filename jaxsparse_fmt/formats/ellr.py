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

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import ZeroPadded, option, storage_format
from jaxsparse_fmt.formats.padded import Padded, pitch_of
from jaxsparse_fmt.kernels.layout.address import Slices


@storage_format
class ELLR(Padded):
    row_lengths: ZeroPadded
    threads_per_row: int = option(1, building.threads(1, 2, 4))

    name = "ellr"
    _rule_of_rows = staticmethod(lambda n_rows, threads_per_row: Slices(n_rows, pitch_of(n_rows), threads_per_row))
