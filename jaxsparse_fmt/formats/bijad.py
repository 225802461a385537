"""BiJAD (Zheng, Gu, Gu and Liu 2014; Wang and Gu, §2.3.5): BiELL with all rows sorted together.

         ⎡ 1 . 2 . ⎤   more than 2 rows have entries: group 3, eight lanes a row
         ⎢ . 3 . . ⎥   values       [4 1 3 ·, 5 2 · ·, 6 ·…]   [n_stored]
         ⎢ 4 . 5 6 ⎥   col_idx      [0 0 1 4, 2 2 4 4, 3 4…]   [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦   slice_ptr    [0 0 0 0 32 32 32]         [6·⌈n_rows / 32⌉ + 1] int32, where the groups start (I)
                       perm         [2 0 1 3]                  [n_rows] int32

`biell.py` describes how the rows of a warp share its lanes; up to 32 rows the two formats store the same. In larger
matrices a warp holds rows of similar length and hardly any padding, and its sums go to rows far apart.

Bytes: n_stored·(value + 4) + 24·⌈n_rows / 32⌉ + 4 + 4·n_rows.
"""

from jaxsparse_fmt.formats.base import storage_format
from jaxsparse_fmt.formats.biell import BIELL


@storage_format
class BIJAD(BIELL):
    name = "bijad"
    _window = None
