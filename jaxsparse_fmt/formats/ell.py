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

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import column_major


@column_major.register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ELL(column_major.ColumnMajor):
    name = "ell"

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        pitch = max(csr.shape[0], 1)
        arrays = column_major.store(csr, cls.name, pitch=pitch, dtype=dtype, max_bytes=max_bytes)
        arrays["slice_ptr"] = None
        return cls(**arrays, backend=backend)
