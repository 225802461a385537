"""JDS, jagged diagonals (Cevahir et al., §3.1): rows sorted by falling length, entry j of all that have one together.

         ⎡ 1 . 2 . ⎤      rows in the order 2, 0, 1, 3; every jagged diagonal padded to 16 places
         ⎢ . 3 . . ⎥      values       [4 1 3 0… | 5 2 0… | 6 0…]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 0 1 4… | 2 2 4… | 3 4…]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      col_start    [0 16 32 48]                    [longest row + 1] int32 (jd_ptr)
                          row_lengths  [3 2 1 0]                       [n_rows] int32, in storage order
                          perm         [2 0 1 3]                       [n_rows] int32

The product is CSR-like: one thread walks a row across the diagonals and writes its sum once, straight to its row.

Bytes: n_stored·(value + 4) + 4·(longest row + 1) + 8·n_rows, with n_stored = Σⱼ 16·⌈rows longer than j / 16⌉.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.kernels.address import Jagged

ALIGNMENT = 16  # places of a jagged diagonal


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SortedColumns(ByRule):
    """Jagged storage: what JDS and pJDS share."""

    col_idx: Array
    col_start: Array
    row_lengths: Array
    perm: Array | None

    unread = ()

    @property
    def address(self) -> Jagged:
        return Jagged(self.shape[0])

    @classmethod
    def _store(cls, csr: Csr, rows: storing.Rows, counts: np.ndarray, dtype, backend, max_bytes, **options) -> Self:
        """From `counts` [longest row], the places of every column."""
        storing.check_memory(cls.name, int(counts.sum()), csr, dtype, max_bytes)
        col_start = storing.pointers(counts)
        arrays = {"col_start": col_start}
        values, col_idx = storing.fill(csr, rows, Jagged(csr.shape[0]), arrays, int(col_start[-1]), dtype)
        index = jnp.asarray(col_start), jnp.asarray(rows.lengths), jnp.asarray(rows.perm)
        return cls(values, csr.shape, csr.nnz, backend, col_idx, *index, **options)


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class JDS(SortedColumns):
    name = "jds"

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        rows = storing.rows_of(csr, sigma=None)
        longer = storing.longer_than(rows)
        return cls._store(csr, rows, -(-longer // ALIGNMENT) * ALIGNMENT, dtype, backend, max_bytes)
