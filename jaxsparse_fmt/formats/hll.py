"""HLL, hacked ELLPACK (Barbieri et al., §3.2): slices ("hacks") of C rows, each an ELL matrix of its own width.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values       [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx      [0 1 | 2 4 ‖ 0 4 | 2 4 | 3 4]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      slice_ptr    [0, 4, 10]                         [n_slices + 1] int32 (hackOffsets)
                          row_lengths  [2 1 3 0]                          [n_rows] int32, in storage order

With sigma > 1 rows are sorted by falling length inside windows of sigma rows, so that slices hold rows of like
length; `perm` [n_rows] int32 says which row each storage row is, and products write straight to their rows.

Bytes: n_stored·(value + 4) + 4·n_rows + 4·(n_slices + 1), and 4·n_rows for `perm`. A product does not read
`row_lengths`.
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
class HLL(ByRule):
    """HLL with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order."""

    col_idx: Array
    slice_ptr: Array
    row_lengths: Array
    perm: Array | None
    slice_size: int
    sigma: int

    name = "hll"
    layout_options = ("slice_size", "sigma")

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], self.slice_size)

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
          slice_size: rows of a slice; 128 suits the GPU kernels, the paper's hack is 32.
          sigma: rows of a sort window; 1 or at least `slice_size`.

        Raises:
          ValueError: slice_size below 1, or sigma between 1 and slice_size, where sorting could not change a slice.
        """
        slice_size, sigma = storing.slices(slice_size, sigma)
        rows, address = storing.rows_of(csr, sigma), Slices(csr.shape[0], slice_size)
        counts = storing.longest_by_slice(rows.lengths, slice_size) * slice_size
        storing.check_memory(cls.name, int(counts.sum()), csr, dtype, max_bytes)
        slice_ptr = storing.pointers(counts)
        values, col_idx = storing.fill(csr, rows, address, {"slice_ptr": slice_ptr}, int(slice_ptr[-1]), dtype)
        index = jnp.asarray(slice_ptr), jnp.asarray(rows.lengths), storing.on_device(rows.perm)
        return cls(values, csr.shape, csr.nnz, backend, col_idx, *index, slice_size, sigma)
