"""JDS, jagged diagonals (Cevahir et al., §3.1): rows sorted by falling length, their j-th entries side by side.

         ⎡ 1 . 2 . ⎤      rows in the order 2, 0, 1, 3; every jagged diagonal padded to 16 places
         ⎢ . 3 . . ⎥      values       [4 1 3 0… | 5 2 0… | 6 0…]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4… | 2 2 4… | 3 4…]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      col_start    [0 16 32 48]                    [longest row + 1] int32 (jd_ptr)
                          row_lengths  [3 2 1 0]                       [n_rows] int32, in storage order
                          perm         [2 0 1 3]                       [n_rows] int32

The product is CSR-like: one thread walks a row across the diagonals and writes its sum once, directly to its row.

Bytes: n_stored·(value + 4) + 4·(longest row + 1) + 8·n_rows, with n_stored = Σⱼ 16·⌈rows longer than j / 16⌉.
"""

import numpy as np

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, Pointer, ZeroPadded, storage_format
from jaxsparse_fmt.formats.padded import Padded
from jaxsparse_fmt.kernels.layout.address import Jagged

ALIGNMENT = 16  # places of a column


@storage_format
class JDS(Padded):
    col_start: Pointer
    row_lengths: ZeroPadded
    perm: Array | None

    name = "jds"
    _window = None
    _rule_of_rows = Jagged

    @staticmethod
    def _places(rows: building.Rows, address: Jagged) -> np.ndarray:
        return -(-building.longer_than(rows) // ALIGNMENT) * ALIGNMENT
