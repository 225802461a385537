"""PELLR (Wang and Gu, §3): ELLPACK-R with its rows sorted by falling length, so that a warp's rows end together.

         ⎡ 1 . 2 . ⎤      rows in the order 2, 0, 1, 3
         ⎢ . 3 . . ⎥      values       [4 1 3 · 0… | 5 2 · · 0… | 6 · · · 0…]      [K·pitch], K = longest row
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4 4… | 2 2 4 4 4… | 3 4 4 4 4…]      [K·pitch] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      row_lengths  [3 2 1 0], or a warp's longest: [3]         [n_rows] or [⌈n_rows / 32⌉] int32
                          perm         [2 0 1 3]                                   [n_rows] int32

The pitch is n_rows rounded up to 32. Row lengths are stored per row or per warp (the paper's N_w numbers). Either way a
product reads one length for each tile of rows, the longest, and padding has the column index n_cols.

Bytes: K·pitch·(value + 4) + 8·n_rows, or 4·n_rows + 4·⌈n_rows / 32⌉ in place of the latter.
"""

from typing import Any

from jaxsparse_fmt.formats.base import Array, ZeroPadded, option, storage_format
from jaxsparse_fmt.formats.padded import Padded, pitch_of
from jaxsparse_fmt.kernels.layout.address import WARP, Slices

LENGTHS = {"row": 1, "warp": WARP}


def _checked(given: Any, n_rows: int) -> str:
    if not isinstance(given, str) or given not in LENGTHS:
        raise ValueError(f"lengths_per must be 'row' or 'warp'; got {given!r}")
    return given


@storage_format
class PELLR(Padded):
    row_lengths: ZeroPadded
    perm: Array | None
    lengths_per: str = option("warp", _checked)

    name = "pellr"
    _window = None
    _rule_of_rows = staticmethod(
        lambda n_rows, lengths_per: Slices(n_rows, pitch_of(n_rows), falling=LENGTHS[lengths_per])
    )
