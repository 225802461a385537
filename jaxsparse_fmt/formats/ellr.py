"""ELLPACK-R (Vázquez et al.), which Barbieri et al. §3.1 call ELL-G: ELL with row lengths and aligned columns.

         ⎡ 1 . 2 . ⎤      values       [1 3 4 · 0… | 2 · 5 · 0… | · · 6 · 0…]      [K·pitch], K = longest row
         ⎢ . 3 . . ⎥      col_idx      [0 1 0 4 4… | 2 4 2 4 4… | 4 4 3 4 4…]      [K·pitch] int32, 4 = n_cols: padding
         ⎢ 4 . 5 6 ⎥      row_lengths  [2 1 3 0]                                   [n_rows] int32
         ⎣ . . . . ⎦

The pitch is n_rows rounded up to 32, so that every column starts on a 128-byte boundary. Each row stops at its own
length: padding is stored but not read.

Bytes: K·pitch·(value + 4) + 4·n_rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import column_major

ALIGNMENT = 32  # rows: 128 bytes of the 4-byte column indices


@column_major.register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ELLR(column_major.ColumnMajor):
    name = "ellr"
    stops_at_row_length = True

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        pitch = max(-(-csr.shape[0] // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        arrays = column_major.store(csr, cls.name, pitch=pitch, dtype=dtype, max_bytes=max_bytes)
        arrays["slice_ptr"] = None
        return cls(**arrays, backend=backend)
