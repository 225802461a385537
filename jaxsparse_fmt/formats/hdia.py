"""HDIA, hacked DIA (Barbieri et al., §3.3): slices ("hacks") of C rows, each with the diagonals that it needs.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 *]      [n_stored], * outside
         ⎢ 4 . 5 6 ⎥      offsets    [0 2 ‖ -2 0 1]                     [n_stored / C] int32, column minus row
         ⎣ . . . . ⎦      slice_ptr  [0 4 10]                           [n_slices + 1] int32 (C·hackOffsets)
                          pattern    [87 3]                            [⌈n_stored / 8⌉] uint8 or [holes] int32: `dia.py`
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

Bytes: n_stored·value + 4·n_stored / C + 4·(n_slices + 1); 4·n_rows for `perm`; and for the pattern, with "holes" the
places · inside the matrix that hold no entry, min(⌈n_stored / 8⌉, 4·holes), the former where there are holes and some
entry is zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.formats.dia import diagonals_of, place_on_diagonals
from jaxsparse_fmt.kernels.address import Slices
from jaxsparse_fmt.kernels.column_rule import Diagonal


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HDIA(ByRule):
    """HDIA with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order."""

    offsets: Array
    slice_ptr: Array
    pattern: Array | None
    perm: Array | None
    slice_size: int
    sigma: int

    name = "hdia"
    layout_options = ("slice_size", "sigma")

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], self.slice_size)

    @property
    def column(self) -> Diagonal:
        return Diagonal()

    @classmethod
    def from_csr(
        cls,
        csr: Csr,
        *,
        dtype: Any,
        backend: str,
        max_bytes: int | None,
        slice_size: int = 128,
        sigma: int = 1,
    ) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice; 128 suits the GPU kernels, the paper's hack is a multiple of 32.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.

        Raises:
          ValueError: slice_size below 1, or sigma between 1 and slice_size.
        """
        C, sigma = storing.slices(slice_size, sigma)
        csr = storing.on_host(csr)
        n_rows, rows = csr.shape[0], storing.rows_of(csr, sigma)
        n_slices = -(-n_rows // C)
        row, diagonal = diagonals_of(csr)
        storage_row = row if rows.perm is None else _inverse(rows.perm)[row]
        span = sum(csr.shape)
        kept, chunk = np.unique(storage_row // C * span + diagonal, return_inverse=True)
        counts = np.bincount(kept // span, minlength=n_slices) * C
        cause = f"its {n_slices} slices have {kept.size} diagonals in all"
        storing.check_memory(cls.name, kept.size * C, csr, dtype, max_bytes, 4 / C, cause)
        slice_ptr = storing.pointers(counts)
        offsets = kept % span - (n_rows - 1)
        in_chunk = (kept // span * C)[:, None] + np.arange(C)  # the storage rows of a chunk; behind the last, none
        clipped = np.minimum(in_chunk, max(n_rows - 1, 0))
        columns = (clipped if rows.perm is None else rows.perm[clipped]) + offsets[:, None]
        place = chunk * C + storage_row % C
        values, pattern = place_on_diagonals(csr, place, np.where(in_chunk < n_rows, columns, -1), dtype)
        index = jnp.asarray(offsets, np.int32), jnp.asarray(slice_ptr), pattern, storing.on_device(rows.perm)
        return cls(values, csr.shape, csr.nnz, backend, *index, C, sigma)


def _inverse(perm: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(perm)
    inverse[perm] = np.arange(perm.size, dtype=perm.dtype)
    return inverse
