"""HDIA, hacked DIA (Barbieri et al., §3.3): slices ("hacks") of C rows, each with the diagonals that it needs.

         ⎡ 1 . 2 . ⎤      C = 2
         ⎢ . 3 . . ⎥      values     [1 3 | 2 · ‖ 4 · | 5 · | 6 *]      [n_stored], * outside
         ⎢ 4 . 5 6 ⎥      offsets    [0 2 ‖ -2 0 1]                     [n_stored / C] int32, column minus row
         ⎣ . . . . ⎦      slice_ptr  [0 4 10]                           [n_slices + 1] int32 (C·hackOffsets)
                          pattern    [87 3]                            [⌈n_stored / 8⌉] int8 or [holes] int32: `dia.py`
                          perm       [n_rows] int32, with sigma > 1: storage row k is row perm[k]

Bytes: n_stored·value + 4·n_stored / C + 4·(n_slices + 1); 4·n_rows for `perm`; and for the pattern, with "holes" the
places · inside the matrix that hold no entry, min(⌈n_stored / 8⌉, 4·holes), the former where there are holes and some
entry is zero.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import merging, storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.kernels.address import Slices
from jaxsparse_fmt.kernels.column_rule import Diagonal, pack_pattern
from jaxsparse_fmt.kernels.rule import Rule


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
        perm = None if sigma == 1 else storing.rows_of(csr, sigma).perm
        merged = merging.distinct(csr, perm, min(C, max(csr.shape[0], 1)), Diagonal())
        build = _on_host if merged is None else functools.partial(_on_device, merged)
        index, values, pattern = build(csr, perm, C, dtype, max_bytes)
        return cls(values, csr.shape, csr.nnz, backend, **index, pattern=pattern, slice_size=C, sigma=sigma)


def _sizes(csr: Csr, counts: np.ndarray, C: int, dtype: Any, max_bytes: int | None) -> np.ndarray:
    """`slice_ptr` of slices that have `counts` diagonals, if they do not take too much memory."""
    cause = f"its {counts.size} slices have {counts.sum()} diagonals in all"
    storing.check_memory(HDIA.name, int(counts.sum()) * C, csr, dtype, max_bytes, 4 / C, cause)
    return storing.pointers(counts * C)


def _on_device(merged: Array, csr: Csr, perm: Any, C: int, dtype: Any, max_bytes: int | None):
    """The index arrays, `values` and `pattern`; as `_on_host`."""
    counts = np.asarray(merging.counts(merged)).astype(np.int64)
    slice_ptr = jnp.asarray(_sizes(csr, counts, C, dtype, max_bytes))
    rule = Rule(csr.shape, int(counts.sum()) * C, Slices(csr.shape[0], C), Diagonal())
    index = {"offsets": _in_chunks(merged, slice_ptr, rule), "slice_ptr": slice_ptr, "perm": perm}
    values, present = merging.place(csr, rule, index, dtype)
    return index, values, merging.pattern(csr, present, dtype)


@functools.partial(jax.jit, static_argnums=2)
def _in_chunks(merged, slice_ptr, rule):
    owner, k = rule.address.owners(jnp, {"slice_ptr": slice_ptr}, rule.n_stored)
    return merged[k, owner]


def _on_host(csr: Csr, perm: Any, C: int, dtype: Any, max_bytes: int | None):
    csr, perm = storing.on_host(csr), None if perm is None else np.asarray(perm)
    n_rows, span = csr.shape[0], sum(csr.shape)
    row, diagonal = _diagonals_of(csr)
    storage_row = row if perm is None else _inverse(perm)[row]
    kept, chunk = np.unique(storage_row // C * span + diagonal, return_inverse=True)
    slice_ptr = _sizes(csr, np.bincount(kept // span, minlength=-(-n_rows // C)), C, dtype, max_bytes)
    offsets = kept % span - (n_rows - 1)
    in_chunk = (kept // span * C)[:, None] + np.arange(C)  # the storage rows of a chunk; behind the last, none
    clipped = np.minimum(in_chunk, max(n_rows - 1, 0))
    columns = (clipped if perm is None else perm[clipped]) + offsets[:, None]
    place = chunk * C + storage_row % C
    perm = storing.on_device(perm)
    index = {"offsets": jnp.asarray(offsets, np.int32), "slice_ptr": jnp.asarray(slice_ptr), "perm": perm}
    return index, *_place_on_diagonals(csr, place, np.where(in_chunk < n_rows, columns, -1), dtype)


def _inverse(perm: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(perm)
    inverse[perm] = np.arange(perm.size, dtype=perm.dtype)
    return inverse


def _diagonals_of(csr: Csr) -> tuple[np.ndarray, np.ndarray]:
    """Of every entry its row and its diagonal, column − row + n_rows − 1: [nnz] int64."""
    row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    return row, csr.indices.astype(np.int64) - row + (csr.shape[0] - 1)


def _place_on_diagonals(csr: Csr, place: np.ndarray, columns: np.ndarray, dtype: Any):
    """`values` and `pattern` from the place of every entry and the column of every place, [n_chunks, C]."""
    inside = ((columns >= 0) & (columns < csr.shape[1])).reshape(-1)
    values, present = np.zeros(inside.size, dtype), ~inside
    values[place], present[place] = csr.data, True
    pattern = pack_pattern(present, zeros_stored=bool(np.any(values[place] == 0)))
    return jnp.asarray(values), storing.on_device(pattern)
