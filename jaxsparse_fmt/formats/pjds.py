"""pJDS, padded jagged diagonals (Kreutzer et al., §II.A): sorted rows, in blocks of b_r padded to their longest.

         ⎡ 1 . 2 . ⎤      b_r = 2; rows in the order 2, 0 ‖ 1, 3
         ⎢ . 3 . . ⎥      values       [4 1 3 · | 5 2 | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4 | 2 2 | 3 4]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      col_start    [0 4 6 8]                  [longest row + 1] int32
                          row_lengths  [3 2 1 0]                  [n_rows] int32, in storage order (rowmax)
                          perm         [2 0 1 3]                  [n_rows] int32

The paper multiplies in the permuted basis: `basis.enter`, `in_basis @ x`, `basis.leave`. `A @ x` takes and gives the
user's order: columns keep their numbers, and sums go directly to their rows.

Bytes: n_stored·(value + 4) + 4·(longest row + 1) + 8·n_rows. A matrix of one full row
and otherwise single entries stores (b_r + 1)·n_rows − b_r places. A product reads one row length a tile of rows.
"""

import numpy as np

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import option, storage_format
from jaxsparse_fmt.formats.jds import JDS
from jaxsparse_fmt.kernels.layout.address import Jagged


@storage_format
class PJDS(JDS):
    """pJDS with blocks of `block_size` b_r rows; the paper's is the warp, 32."""

    block_size: int = option(32, lambda given, n_rows: building.positive("block_size", given))

    name = "pjds"
    _rule_of_rows = staticmethod(lambda n_rows, block_size: Jagged(n_rows))

    @staticmethod
    def _places(rows: building.Rows, address: Jagged, block_size: int) -> np.ndarray:
        blocks = -(-building.longer_than(rows) // block_size)  # a block is as long as its first row
        return np.minimum(blocks * block_size, address.n_rows)
