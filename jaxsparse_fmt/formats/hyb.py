"""HYB (Bell and Garland; Wang and Gu, §2.3.4): ELL of width K for what most rows have, the rest beside it.

         ⎡ 1 . 2 . ⎤      K = 1
         ⎢ . 3 . . ⎥      values     [1 3 4 ·  |  2 5 6]      [K·n_rows + n_tail]: ELL, then the rest by row
         ⎢ 4 . 5 6 ⎥      col_idx    [0 1 0 4]                [K·n_rows] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      tail_col   [2 2 3]                  [n_tail] int32
                          tail_rows  [0 2]                    [n_long] int32
                          tail_ptr   [0 1 3]                  [n_pieces + 1] int32
                          piece_ptr  None                     [n_long + 1] int32, where rows have several pieces

The rest is sorted COO whose row index is held once a row; `split.py` says how it is summed, without atomics. K is the
largest number that at least a third of the rows reach (`width="third"`, cuSPARSE's choice), the mean row length
(`width="mean"`), or given.

Bytes: K·n_rows·(value + 4) + n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1) [+ 4·(n_long + 1)].
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp

from jaxsparse_fmt import traffic
from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import split, storing
from jaxsparse_fmt.formats.by_rule import Array, register
from jaxsparse_fmt.kernels.address import Slices


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HYB(split.Split):
    """HYB with an ELL part of `width` columns."""

    col_idx: Array
    width: int

    name = "hyb"
    layout_options = ("width",)

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], max(self.shape[0], 1))

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None, width: int | str = "third") -> Self:
        """Splits the rows.

        Args:
          width: K, a number of columns from 0 up, "third" or "mean".

        Raises:
          ValueError: a negative number or another word.
        """
        rows, address = storing.rows_of(csr), Slices(csr.shape[0], max(csr.shape[0], 1))
        K = _width(width, rows.lengths)
        rows = dataclasses.replace(rows, lengths=rows.lengths.clip(max=K))
        n_head = int(rows.lengths.sum(dtype=index_dtype(csr.nnz)))
        n_stored = K * csr.shape[0] + csr.nnz - n_head
        storing.check_memory(cls.name, n_stored, csr, dtype, max_bytes)
        tail, arrays = split.tail_of(csr, K, dtype)
        values, col_idx = storing.fill(csr, rows, address, {}, K * csr.shape[0], dtype)
        values = jnp.concatenate([values, jnp.asarray(tail)]) if n_head < csr.nnz else values
        return cls(values, csr.shape, csr.nnz, backend, **arrays, col_idx=col_idx, width=K)


def _width(width: Any, lengths: Any) -> int:
    if isinstance(width, str):
        if width not in traffic.HYB_RULES:
            raise ValueError(f"width must be a number of columns, 'third' or 'mean'; got {width!r}")
        return traffic.hyb_width(lengths, width)
    if isinstance(width, bool) or not hasattr(width, "__index__"):
        raise TypeError(f"width must be an integer, a number of columns, 'third' or 'mean'; got {width!r}")
    return storing.positive("width", width, "column", least=0)
