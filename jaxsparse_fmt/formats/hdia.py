"""HDIA, hacked DIA (Barbieri et al., §3.3): slices ("hacks") of C rows, each with the diagonals that it needs.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 *]      [n_stored], * outside
         ⎢ 4 . 5 6 ⎥      offsets    [0 2 ‖ -2 0 1]                     [n_stored / C] int32, column minus row
         ⎣ . . . . ⎦      slice_ptr  [0 4 10]                           [n_slices + 1] int32 (C·hackOffsets)
                          pattern    [87 3]                            [⌈n_stored / 8⌉] uint8: `dia.py`
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

Bytes: n_stored·value + 4·n_stored / C + 4·(n_slices + 1); 4·n_rows for `perm`; and ⌈n_stored / 8⌉ for the pattern,
where there are holes: places · inside the matrix that hold no entry.
"""

from typing import Self

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint, implied, statistics
from jaxsparse_fmt.formats.base import AnyShards, Array, ByRule, Offset, Pointer, storage_format
from jaxsparse_fmt.kernels.layout.columns import Diagonal


@storage_format
class HDIA(ByRule):
    """HDIA with `slice_size` C rows a slice and a sort window of `sigma` rows; 1: the rows' own order."""

    offsets: Offset
    slice_ptr: Pointer
    pattern: Array | None
    perm: Array | None
    reads_pattern: AnyShards
    slice_size: int
    sigma: int

    name = "hdia"
    layout_options = ("slice_size", "sigma")

    @property
    def column(self) -> Diagonal:
        return Diagonal(self.reads_pattern)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, slice_size: int = 128, sigma: int = 1) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice; 128 suits the GPU kernels, the paper's hack is a multiple of 32.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.
        """
        C, sigma = building.slices(slice_size, sigma)
        perm = None if sigma == 1 else building.rows_of(csr, sigma).perm
        groups = implied.Groups(csr, Diagonal(), C, 1, f"diagonals of slices of {C} rows", perm)
        return groups.store(cls, target, perm=perm, slice_size=C, sigma=sigma)

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        if pattern.platform == "gpu":  # far slower on a CPU
            C, n_rows = 128, pattern.csr.shape[0]
            counted = statistics.touched(pattern.sample(C), Diagonal(), C, C)
            mean = counted.indices / max(-(-n_rows // C), 1)
            layout, words = {"slice_size": C, "sigma": 1}, f"{mean:.3g} diagonals a slice"
            yield from pattern.of_groups(cls.name, layout, counted, C, footprint.trips(mean), words)
