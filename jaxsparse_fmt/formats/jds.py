"""Jagged diagonals: rows sorted by falling length, their j-th entries side by side, for every j a column with padding.

One thread walks a row across the columns and writes its sum once, directly to its row. Both formats reproduce their
papers: `format="auto"` never takes them.
"""

import dataclasses
from typing import Any, Self

import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, Pointer, ZeroPadded, storage_format
from jaxsparse_fmt.kernels.layout.address import Jagged

ALIGNMENT = 16  # places of a column of JDS


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class JaggedDiagonals(ByRule):
    """The common base."""

    col_idx: ColumnIndex
    col_start: Pointer
    row_lengths: ZeroPadded
    perm: Array | None

    @staticmethod
    def _rule_of_rows(n_rows: int, **layout: Any) -> Jagged:
        del layout
        return Jagged(n_rows)


@storage_format
class JDS(JaggedDiagonals):
    """JDS (Cevahir et al., §3.1): every jagged diagonal padded to 16 places.

         ⎡ 1 . 2 . ⎤      rows in the order 2, 0, 1, 3
         ⎢ . 3 . . ⎥      values       [4 1 3 0… | 5 2 0… | 6 0…]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4… | 2 2 4… | 3 4…]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      col_start    [0 16 32 48]                    [longest row + 1] int32 (jd_ptr)
                          row_lengths  [3 2 1 0]                       [n_rows] int32, in storage order
                          perm         [2 0 1 3]                       [n_rows] int32

    Bytes: n_stored·(value + 4) + 4·(longest row + 1) + 8·n_rows, with n_stored = Σⱼ 16·⌈rows longer than j / 16⌉.
    """

    name = "jds"

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        rows = building.rows_of(csr, sigma=None)
        return cls._store(csr, target, rows, -(-building.longer_than(rows) // ALIGNMENT) * ALIGNMENT)


@storage_format
class PJDS(JaggedDiagonals):
    """pJDS (Kreutzer et al., §II.A), padded jagged diagonals: rows in blocks of b_r, padded to their longest.

         ⎡ 1 . 2 . ⎤      b_r = 2; rows in the order 2, 0 ‖ 1, 3
         ⎢ . 3 . . ⎥      values       [4 1 3 · | 5 2 | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4 | 2 2 | 3 4]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      col_start    [0 4 6 8]                  [longest row + 1] int32
                          row_lengths  [3 2 1 0]                  [n_rows] int32, in storage order (rowmax)
                          perm         [2 0 1 3]                  [n_rows] int32

    The paper multiplies in the permuted basis: `basis.enter`, `in_basis @ x`, `basis.leave`. `A @ x` takes and gives
    the user's order: columns keep their numbers, and sums go directly to their rows.

    Bytes: n_stored·(value + 4) + 4·(longest row + 1) + 8·n_rows. A matrix of one full row and otherwise single entries
    stores (b_r + 1)·n_rows − b_r places. A product reads one row length a tile of rows.
    """

    block_size: int

    name = "pjds"
    layout_options = ("block_size",)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, block_size: int = 32) -> Self:
        """Sorts the rows and builds the columns.

        Args:
          block_size: b_r, rows that are padded together; the paper's is the warp, 32.
        """
        block_size = building.positive("block_size", block_size)
        rows = building.rows_of(csr, sigma=None)
        blocks = -(-building.longer_than(rows) // block_size)  # a block is as long as its first row
        counts = np.minimum(blocks * block_size, csr.shape[0])
        return cls._store(csr, target, rows, counts, block_size=block_size)
