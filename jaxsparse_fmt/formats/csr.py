"""CSR, compressed sparse rows (Barbieri et al., §2.2).

         ⎡ 1 . 2 . ⎤      values   [1 2 3 4 5 6]      [nnz]
         ⎢ . 3 . . ⎥      col_idx  [0 2 1 0 2 3]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      row_ptr  [0 2 3 6 6]        [n_rows + 1] int32
         ⎣ . . . . ⎦

Bytes: nnz·(value + 4) + 4·(n_rows + 1). In the column-major family it is the slice of one row. No padding at all; on
a GPU one thread walks a row, so its loads do not coalesce.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import column_major


@column_major.register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CSR(column_major.ColumnMajor):
    name = "csr"

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        arrays = column_major.store(csr, cls.name, pitch=1, dtype=dtype, max_bytes=max_bytes)
        arrays["row_lengths"] = None
        return cls(**arrays, backend=backend)

    @property
    def row_ptr(self) -> jax.Array:
        """[n_rows + 1], where each row starts."""
        assert self.slice_ptr is not None
        return self.slice_ptr

    def _row_lengths(self) -> jax.Array:
        return jnp.diff(self.row_ptr)
