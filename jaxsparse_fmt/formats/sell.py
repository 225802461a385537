"""SELL with 16-bit columns: HLL that stores column indices as differences.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_stored]
         ⎢ 4 . 5 6 ⎥      delta      [0 1 | 0 * ‖ 0 * | 0 * | 0 *]      [n_stored] uint16, * = 65535: padding
         ⎣ . . . . ⎦      col_base   [0   | 2   ‖ 0   | 2   | 3  ]      [n_stored / C] int32, a chunk's least column
                          slice_ptr  [0 4 10]                           [n_slices + 1] int32
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

A slice in which a difference does not fit keeps 32-bit columns in `col_idx`; `index_start` [n_slices] then holds the
start of a slice's indices in `delta`, or −1 − their start in `col_idx`. Where no slice fits, there is only `col_idx`.
Values may be narrower than the vectors (`dtype="bfloat16"` or "float32" under float64): sums use the wider type.

The order of summation is HLL's, and the results equal HLL's to the last bit. With sigma > 1 products write directly to
the user's rows, and the format has no basis to enter: renumbered columns would not fit 16 bits.

Bytes: n_stored·(value + 2) + 4·n_stored / C + 4·(n_slices + 1); where some slices are wide, 2 more for each of their
places and 4·n_slices for `index_start`; where all are, n_stored·(value + 4) + 4·(n_slices + 1) instead. To these
4·n_rows for `perm`.
"""

import dataclasses
from typing import Annotated, Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint, statistics
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, Pointer, ZeroPadded, padded_with, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices, take
from jaxsparse_fmt.kernels.layout.columns import PADDING, Delta, Explicit

Difference = Annotated[Array, padded_with(lambda A: PADDING)]  # between a column and the least column of its chunk


@storage_format
class SELL(ByRule):
    """SELL with slices of `slice_size` C rows and a sort window of `sigma` rows."""

    delta: Difference | None
    col_base: ZeroPadded | None
    slice_ptr: Pointer
    col_idx: ColumnIndex | None
    index_start: Array | None
    perm: Array | None
    slice_size: int
    sigma: int

    name = "sell"
    layout_options = ("slice_size", "sigma")

    @property
    def column(self) -> Delta | Explicit:
        return Explicit() if self.delta is None else Delta()

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with the arrays of both narrow and wide slices, if other shards have both."""
        A, C, starts = self, self.slice_size, self.slice_ptr[:-1]
        if not {"delta", "col_idx"} <= names or A.index_start is not None:
            return A
        if A.delta is None:
            base, delta = jnp.zeros(A.n_stored // C, jnp.int32), jnp.full(C, PADDING, jnp.uint16)
            return dataclasses.replace(A, delta=delta, col_base=base, index_start=-1 - starts)
        return dataclasses.replace(A, col_idx=jnp.full(C, A.shape[1], jnp.int32), index_start=starts)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, slice_size: int = 128, sigma: int = 1) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.
        """
        C, sigma = building.slices(slice_size, sigma)
        rows = building.rows_of(csr, sigma)
        widths = building.longest_by_slice(rows.lengths, C)
        n_stored = int(widths.sum()) * C
        building.check_memory(cls.name, n_stored, csr, target, index=2)
        slice_ptr = building.pointers(widths * C)
        if building.namespace(csr.data) is jnp:
            slice_ptr = jnp.asarray(slice_ptr)
        address, arrays = Slices(csr.shape[0], C), {"slice_ptr": slice_ptr}
        values, col_idx = building.fill(csr, rows, address, arrays, n_stored, target.dtype)
        index = _narrow(col_idx, slice_ptr, widths, C, csr.shape[1])
        # The number of slices too wide for 16 bits is known from here on.
        wide = sum(index[name].nbytes for name in ("delta", "col_idx") if index[name] is not None)
        building.check_memory(cls.name, n_stored, csr, target, index=wide / max(n_stored, 1))
        index |= {"slice_ptr": slice_ptr, "perm": rows.perm}
        return building.made(cls, csr, target, values, **index, slice_size=C, sigma=sigma)

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        for C, sigma, widths in pattern.slices:
            if sigma > 1:  # the x of a block of sorted rows would not fit the L1 cache: up to three times as long
                continue
            columns, wide = int(widths.sum()), statistics.wide_fraction(pattern.csr, C, PADDING)
            places = columns * C
            index = 4 * places  # indices of 32 bits, or of 16 with a base for each column of a slice
            if wide < 1:
                index = round((2 + 2 * wide) * places) + 4 * columns + (4 * widths.size if wide else 0)
            yield footprint.Storage(
                cls.name,
                {"slice_size": C, "sigma": 1},
                places * pattern.itemsize + index + footprint.pointer_bytes(widths.size, places),
                places,
                footprint.trips(int(widths.max(initial=0))),
                C,
                rate=("sell" if wide < 1 else "hll") + (" 32" if C == 32 else ""),
                by_columns=footprint.are_even(widths),
                words=(f"{1 - wide:.0%} of columns in 16 bits",),
            )


def _narrow(col_idx: Array, slice_ptr: Any, widths: np.ndarray, C: int, n_cols: int) -> dict[str, Any]:
    """The index arrays, with `col_idx` [n_stored] as differences in the slices all of whose chunks fit 16 bits."""
    base, delta, wide, n_wide = _differences(building.namespace(slice_ptr), col_idx, slice_ptr, C, n_cols)
    n_wide = int(n_wide)
    if n_wide == 0:
        return {"delta": delta, "col_idx": None, "index_start": None, "col_base": base}
    if n_wide == widths.sum():
        return {"delta": None, "col_idx": col_idx, "index_start": None, "col_base": None}
    wide = np.asarray(wide)
    is_wide = np.repeat(wide, widths)
    places = np.where(wide, 0, widths), np.where(wide, widths, 0)
    narrow_start, wide_start = ((np.cumsum(p) - p) * C for p in places)
    return {
        "delta": building.picked(delta.reshape(-1, C), ~is_wide).reshape(-1),
        "col_idx": building.picked(col_idx.reshape(-1, C), is_wide).reshape(-1),
        "index_start": np.where(wide, -1 - wide_start, narrow_start).astype(slice_ptr.dtype),
        "col_base": base,
    }


@building.on_either(3, 4)
def _differences(xp: Any, col_idx: Any, slice_ptr: Any, C: int, n_cols: int) -> tuple[Any, Any, Any, Any]:
    """The least column of every chunk, the differences to it [n_stored], which slices are wide, and their chunks.

    A slice is wide if it has a chunk that does not fit 16 bits.
    """

    def of_chunks(columns: Any) -> tuple[Any, Any, Any]:
        live = columns < n_cols
        base = columns.min(axis=1, initial=n_cols)
        base = (base * (base < n_cols)).astype(np.int32)
        delta = (columns - base[:, None]) * live
        too_wide = delta.max(axis=1, initial=0) >= PADDING
        return base, (delta * live + PADDING * ~live).astype(np.uint16), too_wide

    base, delta, too_wide = building.by_rows(xp, of_chunks, col_idx.reshape(-1, C))
    chunks = slice_ptr // C
    before = building.starts(xp, too_wide, chunks.dtype)
    wide = take(before, chunks[1:]) > take(before, chunks[:-1])
    n_wide = xp.sum(xp.where(wide, xp.diff(chunks), 0))
    return base, delta.reshape(-1), wide, n_wide
