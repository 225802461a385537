"""DIA, storage by diagonals (Barbieri et al., §2.4 and §3.3): no column index at all.

         ⎡ 1 . 2 . ⎤      values   [* * 4 · | 1 3 5 · | · · 6 * | 2 · * *]      [diagonals·n_rows], * outside the matrix
         ⎢ . 3 . . ⎥      offsets  [-2 0 1 2]                                   [diagonals] int32, column minus row
         ⎢ 4 . 5 6 ⎥      pattern  [119 220]                                    [⌈places / 8⌉] uint8, bits: 0 at every ·
         ⎣ . . . . ⎦

Entry k of a row lies on diagonal k, in the column row + offsets[k]. A place inside the matrix that holds no entry, a
hole, must be told from one that holds a zero. `pattern` has a bit for every place, little-endian, 0 at holes; or where
that is shorter and no entry is zero it lists the holes, [holes] int32 (int64 from 2³¹ places); None without holes
(`kernels/column_rule.py`). Products read the bits; with a list they pass over values of zero.

Bytes: diagonals·(n_rows·value + 4), and for the pattern min(⌈diagonals·n_rows / 8⌉, 4·holes), the former where there
are holes and some entry is zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.kernels.address import Slices
from jaxsparse_fmt.kernels.column_rule import Diagonal, pack_pattern


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DIA(ByRule):
    offsets: Array
    pattern: Array | None

    name = "dia"

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], max(self.shape[0], 1))

    @property
    def column(self) -> Diagonal:
        return Diagonal()

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        csr = storing.on_host(csr)
        n_rows = csr.shape[0]
        row, diagonal = diagonals_of(csr)
        present = np.bincount(diagonal, minlength=1) > 0
        offsets = np.flatnonzero(present) - (n_rows - 1) if csr.nnz else np.zeros(0, np.int64)
        cause = f"its entries lie on {offsets.size} diagonals"
        storing.check_memory(cls.name, offsets.size * n_rows, csr, dtype, max_bytes, index=0, cause=cause)
        number = np.cumsum(present) - 1
        place = number[diagonal] * n_rows + row
        columns = np.arange(n_rows) + offsets[:, None]
        values, pattern = place_on_diagonals(csr, place, columns, dtype)
        return cls(values, csr.shape, csr.nnz, backend, jnp.asarray(offsets, np.int32), pattern)


def diagonals_of(csr: Csr) -> tuple[np.ndarray, np.ndarray]:
    """Of every entry its row and its diagonal, column − row + n_rows − 1: [nnz] int64."""
    row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    return row, csr.indices.astype(np.int64) - row + (csr.shape[0] - 1)


def place_on_diagonals(csr: Csr, place: np.ndarray, columns: np.ndarray, dtype: Any):
    """`values` and `pattern` from the place of every entry and the column of every place, [n_chunks, C]."""
    inside = ((columns >= 0) & (columns < csr.shape[1])).reshape(-1)
    values, present = np.zeros(inside.size, dtype), ~inside
    values[place], present[place] = csr.data, True
    pattern = pack_pattern(present, zeros_stored=bool(np.any(values[place] == 0)))
    return jnp.asarray(values), storing.on_device(pattern)
