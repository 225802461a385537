"""SELL with 16-bit columns: HLL whose slices hold each column index as a difference, and cut their longest rows.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 ·]      [n_main + n_tail]
         ⎢ 4 . 5 6 ⎥      delta      [0 1 | 0 * ‖ 0 * | 0 * | 0 *]      [n_main] uint16, * = 65535: padding
         ⎣ . . . . ⎦      col_base   [0   | 2   ‖ 0   | 2   | 3  ]      [n_main / C] int32, a chunk's least column
                          slice_ptr  [0 4 10]                           [n_slices + 1] int32
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

A slice in which a difference does not fit keeps 32-bit columns in `col_idx`; `index_start` [n_slices] then says where a
slice's indices begin, in `delta`, or as −1 − start in `col_idx`. Where none fits, `col_idx` is all there is. Rows
longer than `max_width` go on in a tail of pieces (`split.py`), which keeps a slice with one long row from being padded
to it. Values may be narrower than the vectors (`dtype="bfloat16"` or "float32" under float64): sums run in the wider
type.

The order of summation is HLL's, and so are the results, to the last bit. With sigma > 1 products write straight to the
user's rows, and the format has no basis to enter: renumbered columns would not fit 16 bits.

Bytes: n_main·(value + 2) + 4·n_main / C + 4·(n_slices + 1); where some slices are wide, 2 more for each of their places
and 4·n_slices for `index_start`; where all are, n_main·(value + 4) + 4·(n_slices + 1) instead. To these 4·n_rows for
`perm`, and for a tail n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1) [+ 4·(n_long + 1)], as in `split.py`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import split, storing
from jaxsparse_fmt.formats.by_rule import Array, register
from jaxsparse_fmt.kernels.address import Slices, take
from jaxsparse_fmt.kernels.column_rule import PADDING, Delta, Explicit

# A cut is worth its second pass if it saves this share of the places.
WORTH = 0.1
LONG = 2  # mean row lengths; no shorter row is cut


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SELL(split.Split):
    """SELL with slices of `slice_size` C rows, a sort window of `sigma` rows and at most `max_width` entries a row."""

    delta: Array | None
    col_base: Array | None
    slice_ptr: Array
    col_idx: Array | None
    index_start: Array | None
    perm: Array | None
    slice_size: int
    sigma: int
    max_width: int

    name = "sell"
    layout_options = ("slice_size", "sigma", "max_width")

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], self.slice_size)

    @property
    def column(self) -> Delta | Explicit:
        return Explicit() if self.delta is None else Delta()

    def with_both_widths(self) -> Self:
        """The same storage with all index arrays, as if some slices were narrow and some wide."""
        if self.index_start is not None:
            return self
        C, starts = self.slice_size, self.slice_ptr[:-1]
        if self.delta is None:
            base, delta = jnp.zeros(self.n_main // C, jnp.int32), jnp.full(C, PADDING, jnp.uint16)
            return dataclasses.replace(self, delta=delta, col_base=base, index_start=-1 - starts)
        return dataclasses.replace(self, col_idx=jnp.full(C, self.shape[1], jnp.int32), index_start=starts)

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
        max_width: int | None = None,
    ) -> Self:
        """Builds the slices.

        Args:
          slice_size: rows of a slice.
          sigma: rows of a window in which rows are sorted by falling length; 1 or at least `slice_size`.
          max_width: entries of a row in its slice, the rest goes to the tail; None: the power of two that stores the
            fewest places, or no cut where that saves little.

        Raises:
          ValueError: slice_size or max_width below 1, or sigma between 1 and slice_size.
        """
        C, sigma = storing.slices(slice_size, sigma)
        rows = storing.rows_of(csr, sigma)
        widths = storing.longest_by_slice(rows.lengths, C)
        longest = int(widths.max(initial=0))
        cut = best_cut(csr, widths, C) if max_width is None else storing.positive("max_width", max_width, "entry")
        widths, n_head = np.minimum(widths, cut), csr.nnz
        if cut < longest:
            rows = dataclasses.replace(rows, lengths=rows.lengths.clip(max=cut))
            n_head = int(rows.lengths.sum(dtype=index_dtype(csr.nnz)))
        n_main, n_tail = int(widths.sum()) * C, csr.nnz - n_head
        storing.check_memory(cls.name, n_main + n_tail, csr, dtype, max_bytes, index=2)
        tail, tail_arrays = split.tail_of(csr, cut, dtype) if n_tail else (None, dict.fromkeys(split.TAIL))
        slice_ptr = storing.pointers(widths * C)
        if storing.namespace(csr.data) is jnp:
            slice_ptr = jnp.asarray(slice_ptr)
        address, arrays = Slices(csr.shape[0], C), {"slice_ptr": slice_ptr}
        values, col_idx = storing.fill(csr, rows, address, arrays, n_main, dtype)
        values = jnp.concatenate([values, jnp.asarray(tail)]) if n_tail else values
        index = _narrow(col_idx, slice_ptr, widths, C, csr.shape[1])
        # Only now is it known how many slices are too wide for 16 bits.
        wide = sum(index[name].nbytes for name in ("delta", "col_idx") if index[name] is not None) + 4 * n_tail
        in_all = wide / max(n_main + n_tail, 1)
        storing.check_memory(cls.name, n_main + n_tail, csr, dtype, max_bytes, index=in_all)
        return cls(
            values,
            csr.shape,
            csr.nnz,
            backend,
            **tail_arrays,
            **index,
            slice_ptr=jnp.asarray(slice_ptr),
            perm=storing.on_device(rows.perm),
            slice_size=C,
            sigma=sigma,
            max_width=max(cut, 1),
        )


def best_cut(csr: Csr, widths: np.ndarray, C: int) -> int:
    """The longest that a row may be in its slice: the longest there is, or a power of two that saves places."""
    longest = int(widths.max(initial=0))
    if widths.sum() * C <= (1 + WORTH) * csr.nnz:
        return longest
    lengths = np.diff(np.asarray(csr.indptr))
    least = max(LONG * csr.nnz / csr.shape[0], 16)
    cuts = 1 << np.arange(math.ceil(math.log2(least)), max(longest, 1).bit_length())
    lengths = lengths[lengths > least]  # few, and no others are cut
    places = [C * int(np.minimum(widths, cut).sum()) + 2 * int(np.maximum(lengths - cut, 0).sum()) for cut in cuts]
    if not places or min(places) > (1 - WORTH) * widths.sum() * C:
        return longest
    return int(cuts[int(np.argmin(places))])


def _narrow(col_idx: Array, slice_ptr: Any, widths: np.ndarray, C: int, n_cols: int) -> dict[str, Any]:
    """`col_idx` [n_main] as differences, in the slices all of whose chunks fit 16 bits."""
    on_host = isinstance(slice_ptr, np.ndarray)
    columns, find = (np.asarray(col_idx), _differences) if on_host else (col_idx, _differences_on_device)
    base, delta, wide, n_wide = find(np if on_host else jnp, columns, slice_ptr, C, n_cols)
    n_wide = int(n_wide)
    if n_wide == 0:
        arrays = {"delta": delta, "col_idx": None, "index_start": None, "col_base": base}
    elif n_wide == widths.sum():
        arrays = {"delta": None, "col_idx": columns, "index_start": None, "col_base": None}
    else:
        wide = np.asarray(wide)
        is_wide = np.repeat(wide, widths)
        places = np.where(wide, 0, widths), np.where(wide, widths, 0)
        narrow_start, wide_start = ((np.cumsum(p) - p) * C for p in places)
        arrays = {
            "delta": storing.picked(delta.reshape(-1, C), ~is_wide).reshape(-1),
            "col_idx": storing.picked(columns.reshape(-1, C), is_wide).reshape(-1),
            "index_start": np.where(wide, -1 - wide_start, narrow_start).astype(slice_ptr.dtype),
            "col_base": base,
        }
    return {name: storing.on_device(a) for name, a in arrays.items()}


def _differences(xp: Any, col_idx: Any, slice_ptr: Any, C: int, n_cols: int) -> tuple[Any, Any, Any, Any]:
    """Of every chunk the least column, [n_main] the differences to it; which slices have a chunk that 16 bits do not
    hold, and how many chunks those slices have.
    """
    columns, chunks = col_idx.reshape(-1, C), slice_ptr // C
    live = columns < n_cols
    base = columns.min(axis=1, initial=n_cols)
    base = (base * (base < n_cols)).astype(np.int32)
    delta = (columns - base[:, None]) * live
    too_wide = delta.max(axis=1, initial=0) >= PADDING
    before = storing.starts(xp, too_wide, chunks.dtype)
    wide = take(before, chunks[1:]) > take(before, chunks[:-1])
    n_wide = xp.sum(xp.where(wide, xp.diff(chunks), 0))
    return base, (delta * live + PADDING * ~live).astype(np.uint16).reshape(-1), wide, n_wide


_differences_on_device = jax.jit(_differences, static_argnums=(0, 3, 4))
