"""ELL, the ITPACK format (Barbieri et al., §2.4): every row padded to the longest, stored column by column.

         ⎡ 1 . 2 . ⎤      values   [1 3 4 · | 2 · 5 · | · · 6 ·]      [K·n_rows], K = longest row
         ⎢ . 3 . . ⎥      col_idx  [0 1 0 4 | 2 4 2 4 | 4 4 3 4]      [K·n_rows] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥
         ⎣ . . . . ⎦

Bytes: K·n_rows·(value + 4). Products run over all K columns.
"""

from jaxsparse_fmt.formats import footprint
from jaxsparse_fmt.formats.base import storage_format
from jaxsparse_fmt.formats.padded import Padded


@storage_format
class ELL(Padded):
    name = "ell"

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        longest, places = pattern.longest, pattern.longest * pattern.csr.shape[0]
        yield footprint.Storage(cls.name, {}, places * (pattern.dtype.itemsize + 4), places, footprint.trips(longest))
