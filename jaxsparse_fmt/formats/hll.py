"""HLL, hacked ELLPACK (Barbieri et al., §3.2): slices ("hacks") of C rows, each an ELL matrix of its own width.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      col_idx    [0 1 | 2 4 ‖ 0 4 | 2 4 | 3 4]      [n_stored] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      slice_ptr  [0, 4, 10]                         [n_slices + 1] int32 (hackOffsets)

With sigma > 1 rows are sorted by falling length inside windows of sigma rows, so that slices hold rows of similar
length. `perm` [n_rows] int32 maps storage rows to rows of the matrix; products write directly to the latter.

Bytes: n_stored·(value + 4) + 4·(n_slices + 1), and 4·n_rows for `perm`.
"""

from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, Pointer, storage_format


@storage_format
class HLL(ByRule):
    """HLL with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order."""

    col_idx: ColumnIndex
    slice_ptr: Pointer
    perm: Array | None
    slice_size: int
    sigma: int

    name = "hll"
    layout_options = ("slice_size", "sigma")

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, slice_size: int = 128, sigma: int = 1) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice; 128 suits the GPU kernels, the paper's hack is 32.
          sigma: rows of a sort window; 1 or at least `slice_size`.
        """
        slice_size, sigma = building.slices(slice_size, sigma)
        rows = building.rows_of(csr, sigma)
        places = building.longest_by_slice(rows.lengths, slice_size) * slice_size
        return cls._store(csr, target, rows, places, slice_size=slice_size, sigma=sigma)

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        yield pattern.of_slices(cls.name, 4)
