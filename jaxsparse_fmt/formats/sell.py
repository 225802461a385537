"""SELL with 16-bit columns: HLL that stores column indices as differences.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      delta      [0 1 | 0 * ‖ 0 * | 0 * | 0 *]      [n_stored] uint16, * = 65535: padding
         ⎣ . . . . ⎦      col_base   [0   | 2   ‖ 0   | 2   | 3  ]      [n_stored / C] int32, a chunk's least column
                          slice_ptr  [0 4 10]                           [n_slices + 1] int32
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

If a difference does not fit, the matrix has columns of 32 bits in `col_idx`, and neither `delta` nor `col_base`.
Values may be narrower than the vectors (`dtype="bfloat16"` or "float32" under float64): sums use the wider type.

The order of summation is HLL's, and the results equal HLL's to the last bit. With sigma > 1 products write directly to
the user's rows, and the format has no basis to enter: renumbered columns would not fit 16 bits.

Bytes: n_stored·(value + 2) + 4·n_stored / C + 4·(n_slices + 1), or n_stored·(value + 4) + 4·(n_slices + 1) with 32
bits; and 4·n_rows for `perm`.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint, statistics
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, Pointer, ZeroPadded, padded_with, storage_format
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.cpu.over_rows import in_pieces
from jaxsparse_fmt.kernels.layout.columns import PADDING, Delta, Explicit

Difference = Annotated[Array, padded_with(lambda A: PADDING)]  # between a column and the least column of its chunk


@storage_format
class SELL(ByRule):
    """SELL with slices of `slice_size` C rows and a sort window of `sigma` rows."""

    delta: Difference | None
    col_base: ZeroPadded | None
    slice_ptr: Pointer
    col_idx: ColumnIndex | None
    perm: Array | None
    slice_size: int
    sigma: int

    name = "sell"
    layout_options = ("slice_size", "sigma")
    _narrows: ClassVar[bool] = True  # columns to 16 bits, if all fit

    @property
    def column(self) -> Delta | Explicit:
        return Explicit() if self.delta is None else Delta()

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with columns of 32 bits, if other shards have those."""
        if "col_idx" not in names or self.delta is None:
            return self
        col_idx = self._rule.col_idx(self._arrays) if self.n_stored else jnp.zeros(0, jnp.int32)
        return dataclasses.replace(self, delta=None, col_base=None, col_idx=col_idx)

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        if face != "outer":
            return None
        y = a if self.perm is None else a.at[:, self.perm].get(mode="promise_in_bounds")
        columns = self._rule.col_idx(self._arrays)
        return spmv_cpu.outer_of_slices(y, b, self.slice_ptr, columns, self.slice_size)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, slice_size: int = 128, sigma: int = 1) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice; 128 suits the GPU kernels.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.
        """
        C, sigma = building.slices(slice_size, sigma)
        rows = building.rows_of(csr, sigma)
        places = building.longest_by_slice(rows.lengths, C) * C
        building.check_memory(cls.name, int(places.sum()), csr, target, index=2 if cls._narrows else 4)
        arrays = cls._filled(csr, target, rows, cls._rule_of_rows(csr.shape[0], C), places) | {"perm": rows.perm}
        arrays |= {"delta": None, "col_base": None}
        if cls._narrows:
            col_idx = arrays["col_idx"]
            base, delta, fit = _differences(building.namespace(col_idx), col_idx, C, csr.shape[1])
            if fit:
                arrays |= {"delta": delta, "col_base": base, "col_idx": None}
            else:
                building.check_memory(cls.name, col_idx.size, csr, target)
        return building.made(cls, csr, target, **arrays, slice_size=C, sigma=sigma)

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        C = pattern.slice_size
        if not statistics.are_slices_wide(pattern.sample(C), C, PADDING):  # else it stores what "hll" does
            yield pattern.of_slices(cls.name, 2, index_of_chunk=4, words=("columns in 16 bits",))


@building.on_either(2, 3)
def _differences(xp: Any, col_idx: Any, C: int, n_cols: int) -> tuple[Any, Any, Any]:
    """The least column of every chunk, the differences to it [n_stored], and whether all fit 16 bits."""

    def of_chunks(columns: Any) -> tuple[Any, Any, Any]:
        live = columns < n_cols
        base = columns.min(axis=1, initial=n_cols)
        base = (base * (base < n_cols)).astype(np.int32)
        delta = (columns - base[:, None]) * live
        too_wide = delta.max(axis=1, initial=0) >= PADDING
        return base, (delta * live + PADDING * ~live).astype(np.uint16), too_wide

    base, delta, too_wide = in_pieces(of_chunks, col_idx.reshape(-1, C))
    return base, delta.reshape(-1), ~xp.any(too_wide)
