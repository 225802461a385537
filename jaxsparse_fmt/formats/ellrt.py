"""ELLR-T (Vázquez et al. 2011; Barbieri et al., §4): ELLPACK-R with T threads a row and the storage permuted for them.

         ⎡ 1 . 2 . ⎤      T = 2: entries 2k and 2k + 1 of a row stand side by side
         ⎢ . 3 . . ⎥      values       [1 2 3 · 4 5 · · 0… | · · · · 6 · · · 0…]      [K·pitch·T], K = ⌈longest row / T⌉
         ⎢ 4 . 5 6 ⎥      col_idx      [0 2 1 4 0 2 4 4 4… | 4 4 4 4 3 4 4 4 4…]      [K·pitch·T] int32, 4 = n_cols
         ⎣ . . . . ⎦      row_lengths  [2 1 3 0]                                      [n_rows] int32

The pitch is n_rows rounded up to 32. Threads that share a row are neighbours; every load of a warp covers 32 places.

Bytes: K·pitch·T·(value + 4) + 4·n_rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.formats.ellr import pitch_of
from jaxsparse_fmt.kernels.address import Spread


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ELLRT(ByRule):
    col_idx: Array
    row_lengths: Array
    threads_per_row: int

    name = "ellrt"
    layout_options = ("threads_per_row",)
    unread = ()

    @property
    def address(self) -> Spread:
        return _address(self.shape[0], self.threads_per_row)

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None, threads_per_row: int = 2) -> Self:
        """Builds the columns.

        Args:
          threads_per_row: 1, 2, 4, 8, 16 or 32; a row is padded to a multiple of it.

        Raises:
          ValueError: another number of threads.
        """
        threads = storing.threads(threads_per_row, (1, 2, 4, 8, 16, 32), csr.shape[0])
        rows, address = storing.rows_of(csr), _address(csr.shape[0], threads)
        n_stored = -(-rows.longest // threads) * address.lanes
        storing.check_memory(cls.name, n_stored, csr, dtype, max_bytes)
        values, col_idx = storing.fill(csr, rows, address, {}, n_stored, dtype)
        return cls(values, csr.shape, csr.nnz, backend, col_idx, jnp.asarray(rows.lengths), threads)


def _address(n_rows: int, threads: int) -> Spread:
    return Spread(n_rows, pitch_of(n_rows) * threads, threads)
