"""SELL with 16-bit columns: HLL that stores column indices as differences and cuts the longest rows.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_main + n_tail]
         ⎢ 4 . 5 6 ⎥      delta      [0 1 | 0 * ‖ 0 * | 0 * | 0 *]      [n_main] uint16, * = 65535: padding
         ⎣ . . . . ⎦      col_base   [0   | 2   ‖ 0   | 2   | 3  ]      [n_main / C] int32, a chunk's least column
                          slice_ptr  [0 4 10]                           [n_slices + 1] int32
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

A slice in which a difference does not fit keeps 32-bit columns in `col_idx`; `index_start` [n_slices] then holds the
start of a slice's indices in `delta`, or −1 − their start in `col_idx`. Where no slice fits, there is only `col_idx`.
Rows longer than `max_width` continue in a tail of pieces (`long_rows.py`), so that one long row does not pad its slice.
Values may be narrower than the vectors (`dtype="bfloat16"` or "float32" under float64): sums use the wider type.

The order of summation is HLL's, and the results equal HLL's to the last bit. With sigma > 1 products write directly to
the user's rows, and the format has no basis to enter: renumbered columns would not fit 16 bits.

Bytes: n_main·(value + 2) + 4·n_main / C + 4·(n_slices + 1); where some slices are wide, 2 more for each of their places
and 4·n_slices for `index_start`; where all are, n_main·(value + 4) + 4·(n_slices + 1) instead. To these 4·n_rows for
`perm`, and for a tail n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1) [+ 4·(n_long + 1)], as in `long_rows.py`.
"""

import dataclasses
import math
from typing import Annotated, Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, Target, index_dtype
from jaxsparse_fmt.formats import building, footprint, long_rows, statistics
from jaxsparse_fmt.formats.base import Array, ColumnIndex, Pointer, ZeroPadded, padded_with, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices, take
from jaxsparse_fmt.kernels.layout.columns import PADDING, Delta, Explicit

Difference = Annotated[Array, padded_with(lambda A: PADDING)]  # between a column and the least column of its chunk
# A cut is worth its second pass if it saves this fraction of the places.
WORTH = 0.1
LONG = 2  # mean row lengths; no shorter row is cut


@storage_format
class SELL(long_rows.Split):
    """SELL with slices of `slice_size` C rows, a sort window of `sigma` rows and at most `max_width` entries a row."""

    delta: Difference | None
    col_base: ZeroPadded | None
    slice_ptr: Pointer
    col_idx: ColumnIndex | None
    index_start: Array | None
    perm: Array | None
    slice_size: int
    sigma: int
    max_width: int

    name = "sell"
    layout_options = ("slice_size", "sigma", "max_width")

    @property
    def column(self) -> Delta | Explicit:
        return Explicit() if self.delta is None else Delta()

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with the arrays of both narrow and wide slices, if other shards have both."""
        A, C, starts = super().with_arrays(names), self.slice_size, self.slice_ptr[:-1]
        if not {"delta", "col_idx"} <= names or A.index_start is not None:
            return A
        if A.delta is None:
            base, delta = jnp.zeros(A.n_main // C, jnp.int32), jnp.full(C, PADDING, jnp.uint16)
            return dataclasses.replace(A, delta=delta, col_base=base, index_start=-1 - starts)
        return dataclasses.replace(A, col_idx=jnp.full(C, A.shape[1], jnp.int32), index_start=starts)

    @classmethod
    def from_csr(
        cls, csr: Csr, target: Target, *, slice_size: int = 128, sigma: int = 1, max_width: int | None = None
    ) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.
          max_width: the most entries of a row in its slice, the rest goes to the tail; None: the power of two that
            stores the fewest places, or no cut where a cut saves little.
        """
        C, sigma = building.slices(slice_size, sigma)
        rows = building.rows_of(csr, sigma)
        widths = building.longest_by_slice(rows.lengths, C)
        longest = int(widths.max(initial=0))
        cut = best_cut(csr, widths, C) if max_width is None else building.positive("max_width", max_width, "entry")
        widths, n_head = np.minimum(widths, cut), csr.nnz
        if cut < longest:
            rows = dataclasses.replace(rows, lengths=rows.lengths.clip(max=cut))
            n_head = int(rows.lengths.sum(dtype=index_dtype(csr.nnz)))
        n_main, n_tail = int(widths.sum()) * C, csr.nnz - n_head
        building.check_memory(cls.name, n_main + n_tail, csr, target, index=2)
        slice_ptr = building.pointers(widths * C)
        if building.namespace(csr.data) is jnp:
            slice_ptr = jnp.asarray(slice_ptr)
        address, arrays = Slices(csr.shape[0], C), {"slice_ptr": slice_ptr}
        values, col_idx = building.fill(csr, rows, address, arrays, n_main, target.dtype)
        index = _narrow(col_idx, slice_ptr, widths, C, csr.shape[1])
        # The number of slices too wide for 16 bits is known from here on.
        wide = sum(index[name].nbytes for name in ("delta", "col_idx") if index[name] is not None) + 4 * n_tail
        in_all = wide / max(n_main + n_tail, 1)
        building.check_memory(cls.name, n_main + n_tail, csr, target, index=in_all)
        values, tail = long_rows.with_tail(values, csr, cut) if n_tail else (values, dict.fromkeys(long_rows.TAIL))
        index |= {"slice_ptr": slice_ptr, "perm": rows.perm}
        return building.made(
            cls, csr, target, values, **tail, **index, slice_size=C, sigma=sigma, max_width=max(cut, 1)
        )

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        for C, sigma, widths in pattern.slices:
            if sigma == 1:  # the x of a block of sorted rows would not fit the L1 cache: up to three times as long
                yield cls._footprint(pattern, C, widths)

    @classmethod
    def _footprint(cls, pattern: footprint.PatternCounts, C: int, widths: np.ndarray) -> footprint.Storage:
        csr, itemsize, cut = pattern.csr, pattern.itemsize, best_cut(pattern.csr, widths, C)
        widths, tail = np.minimum(widths, cut), footprint.tail(pattern.lengths, cut, itemsize, long_rows.PIECE)
        columns, longest = int(widths.sum()), int(widths.max(initial=0))
        places, wide = columns * C, statistics.wide_fraction(csr, C, max(cut, 1), PADDING)
        index = 4 * places  # indices of 32 bits, or of 16 with a base for each column of a slice
        if wide < 1:
            index = round((2 + 2 * wide) * places) + 4 * columns + (4 * widths.size if wide else 0)
        return footprint.Storage(
            cls.name,
            {"slice_size": C, "sigma": 1, "max_width": max(cut, 1)},
            places * itemsize + index + footprint.pointer_bytes(widths.size, places) + tail.nbytes,
            places,
            footprint.trips(longest),
            C,
            tail,
            rate=("sell" if wide < 1 else "hll") + (" 32" if C == 32 else ""),
            by_columns=footprint.are_even(widths),
            words=(f"{1 - wide:.0%} of columns in 16 bits",),
        )


def best_cut(csr: Csr, widths: np.ndarray, C: int) -> int:
    """The most entries of a row in its slice: the longest row, or a power of two that saves places."""
    longest = int(widths.max(initial=0))
    if widths.sum() * C <= (1 + WORTH) * csr.nnz:
        return longest
    lengths = np.diff(np.asarray(csr.indptr))
    least = max(LONG * csr.nnz / csr.shape[0], 16)
    cuts = 1 << np.arange(math.ceil(math.log2(least)), max(longest, 1).bit_length())
    lengths = lengths[lengths > least]  # few rows; no others are cut
    places = [C * int(np.minimum(widths, cut).sum()) + 2 * int(np.maximum(lengths - cut, 0).sum()) for cut in cuts]
    if not places or min(places) > (1 - WORTH) * widths.sum() * C:
        return longest
    return int(cuts[int(np.argmin(places))])


def _narrow(col_idx: Array, slice_ptr: Any, widths: np.ndarray, C: int, n_cols: int) -> dict[str, Any]:
    """The index arrays, with `col_idx` [n_main] as differences in the slices all of whose chunks fit 16 bits."""
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
    """The least column of every chunk, the differences to it [n_main], which slices are wide, and their chunks' number.

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
