"""ELL, the ITPACK format (Barbieri et al., §2.4): every row padded to the longest, stored column by column.

         ⎡ 1 . 2 . ⎤      values       [1 3 4 · | 2 · 5 · | · · 6 ·]      [K·n_rows], K = longest row
         ⎢ . 3 . . ⎥      col_idx      [0 1 0 4 | 2 4 2 4 | 4 4 3 4]      [K·n_rows] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥      row_lengths  [2 1 3 0]                          [n_rows] int32
         ⎣ . . . . ⎦

Bytes: K·n_rows·(value + 4) + 4·n_rows. Products run over all K columns; the row lengths serve conversion only.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.kernels.address import Slices


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ELL(ByRule):
    col_idx: Array
    row_lengths: Array

    name = "ell"

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], max(self.shape[0], 1))

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        rows, address = storing.rows_of(csr), Slices(csr.shape[0], max(csr.shape[0], 1))
        n_stored = rows.longest * address.lanes
        storing.check_memory(cls.name, n_stored, csr, dtype, max_bytes)
        values, col_idx = storing.fill(csr, rows, address, {}, n_stored, dtype)
        return cls(values, csr.shape, csr.nnz, backend, col_idx, jnp.asarray(rows.lengths))
