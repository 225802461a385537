"""BiELL (Zheng, Gu, Gu and Liu 2014; Wang and Gu, §2.3.3): rows sorted inside a warp, in bisected groups.

A warp's 32 rows are sorted by falling length. Group 0 holds the columns that more than 16 rows reach, one thread a row;
group 1 holds what remains of the first 16 rows, two threads a row; … group 5 holds what only the longest row has, and
all 32 threads work on it. A column of a group is one place for each of the 32 lanes. Lanes that share a row add their
sums at the end of the group.

         ⎡ 1 . . . . ⎤   more than 4 rows have entries: group 2, four lanes a row | what one row has left: group 5
         ⎢ . . 2 . . ⎥   values       [3 1 2 8 9 · · ·, 4 · · · · · · ·, 5 · · · · · · ·, 6 ·… | 7 ·…]  [n_stored]
         ⎢ 3 4 5 6 7 ⎥   col_idx      [0 0 2 3 4 5 5 5, 1 5 5 5 5 5 5 5, 2 5 5 5 5 5 5 5, 3 5… | 4 5…]  [n_stored] int32
         ⎢ . . . 8 . ⎥   slice_ptr    [0 0 0 32 32 32 64]   [6·⌈n_rows / 32⌉ + 1] int32, where the groups start (I)
         ⎢ . . . . 9 ⎥   perm         [2 0 1 3 4 5]         [n_rows] int32; in col_idx 5 = n_cols: padding
         ⎣ . . . . . ⎦

Bytes: n_stored·(value + 4) + 24·⌈n_rows / 32⌉ + 4 + 4·n_rows.
"""

from typing import Any

import numpy as np

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, Pointer, storage_format
from jaxsparse_fmt.formats.padded import Padded
from jaxsparse_fmt.kernels.layout.address import GROUPS, WARP, Bisected


@storage_format
class BIELL(Padded):
    slice_ptr: Pointer
    perm: Array | None

    name = "biell"
    _window = WARP
    _rule_of_rows = Bisected

    @staticmethod
    def _places(rows: building.Rows, address: Bisected) -> np.ndarray:
        return WARP * np.asarray(_columns(building.namespace(rows.lengths), rows.lengths)).astype(np.int64)


@building.on_either()
def _columns(xp: Any, lengths: Any) -> Any:
    """Columns of 32 places in every group of every warp, int32 [6·warps], from the sorted row lengths."""
    warps = xp.pad(lengths, (0, -lengths.shape[0] % WARP)).reshape(-1, WARP)
    columns, taken = [], xp.zeros(warps.shape[0], np.int32)
    for g in range(GROUPS):
        # Group g must hold the rest of each row that group g + 1 leaves out, row 32 / 2^(g + 1) being the longest.
        left = xp.maximum(warps[:, WARP >> (g + 1)] - taken, 0)
        columns.append((left + (1 << g) - 1) >> g)
        taken = taken + (columns[-1] << g)
    return xp.stack(columns, axis=1).reshape(-1)
