"""HLL, hacked ELLPACK (Barbieri et al., §3.2): slices ("hacks") of C rows, each an ELL matrix of its own width.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx    [0 1 | 2 4 ‖ 0 4 | 2 4 | 3 4]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      slice_ptr  [0, 4, 10]                         [n_slices + 1] int32 (hackOffsets)

With sigma > 1 rows are sorted by falling length inside windows of sigma rows, so that slices hold rows of similar
length. `perm` [n_rows] int32 maps storage rows to rows of the matrix; products write directly to the latter.

Bytes: n_stored·(value + 4) + 4·(n_slices + 1), and 4·n_rows for `perm`.
"""

from jaxsparse_fmt.formats import footprint
from jaxsparse_fmt.formats.base import storage_format
from jaxsparse_fmt.formats.sell import SELL


@storage_format
class HLL(SELL):
    """HLL with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order.

    It is SELL with columns of 32 bits; the paper's hack is 32 rows.
    """

    name = "hll"
    _narrows = False

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        yield pattern.of_slices(cls.name, 4)
