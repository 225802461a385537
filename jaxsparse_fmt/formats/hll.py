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
import operator
from typing import Any, Self

import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import column_major


@column_major.register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HLL(column_major.ColumnMajor):
    """HLL with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order."""

    sigma: int = 1

    name = "hll"
    layout_options = ("slice_size", "sigma")

    @property
    def slice_size(self) -> int:
        return self.pitch

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
        slice_size, sigma = _positive("slice_size", slice_size), _positive("sigma", sigma)
        if 1 < sigma < slice_size:
            raise ValueError(
                f"sigma={sigma} sorts inside windows smaller than a slice of {slice_size} rows, which changes no "
                f"slice's width; use sigma=1, or at least slice_size"
            )
        perm = sort_in_windows(np.diff(csr.indptr), sigma) if sigma > 1 else None
        arrays = column_major.store(csr, cls.name, pitch=slice_size, dtype=dtype, max_bytes=max_bytes, perm=perm)
        return cls(**arrays, backend=backend, sigma=sigma)


def sort_in_windows(lengths: np.ndarray, sigma: int) -> np.ndarray:
    """The permutation [n_rows] that sorts rows by falling length inside windows of sigma rows, stably."""
    window = np.arange(len(lengths)) // min(sigma, max(len(lengths), 1))
    return np.lexsort((-lengths.astype(np.int64), window))


def _positive(option: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{option} must be an integer, a number of rows; got {value!r}") from None
    if number < 1:
        raise ValueError(f"{option} must be at least 1 row; got {number}")
    return number
