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

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, footprint, merging, statistics
from jaxsparse_fmt.formats.base import AnyShards, Array, ByRule, Offset, Pointer, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Diagonal, Rule, pack_pattern

BLOCK = 2**14  # chunks that the host works on at a time


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
        merged = merging.distinct(csr, perm, min(C, max(csr.shape[0], 1)), Diagonal())
        build = _on_host if merged is None else functools.partial(_on_device, merged)
        index, values, present = build(csr, perm, C, target)
        pattern, n_holes = pack_pattern(present)
        index |= {"pattern": pattern, "reads_pattern": n_holes > 0 and building.has_zeros(csr, target.dtype)}
        return building.made(cls, csr, target, values, **index, slice_size=C, sigma=sigma)

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        C, n_rows = 128, pattern.csr.shape[0]
        counted = statistics.diagonals_by_slice(pattern.sample(C), C) if pattern.on_gpu else None  # far slower on a CPU
        if counted is not None and pattern.is_padding_few(counted):
            n_slices = -(-n_rows // C)
            mean = counted.indices / max(n_slices, 1)
            nbytes = pattern.implied_bytes(counted) + footprint.pointer_bytes(n_slices, counted.places)
            layout, words = {"slice_size": C, "sigma": 1}, f"{mean:.3g} diagonals a slice"
            yield footprint.Storage(cls.name, layout, nbytes, counted.places, footprint.trips(mean), C, words=(words,))


def _sizes(csr: Csr, counts: np.ndarray, C: int, target: Target) -> np.ndarray:
    """`slice_ptr` of slices that have `counts` diagonals, after the check that they fit in memory."""
    cause = f"its {counts.size} slices have {counts.sum()} diagonals in all"
    building.check_memory(HDIA.name, int(counts.sum()) * C, csr, target, 4 / C, cause)
    return building.pointers(counts * C)


def _on_device(merged: Array, csr: Csr, perm: Any, C: int, target: Target):
    """The index arrays, `values`, and which places hold an entry or lie outside the matrix; as `_on_host`."""
    counts = np.asarray(merging.counts(merged)).astype(np.int64)
    slice_ptr = jnp.asarray(_sizes(csr, counts, C, target))
    rule = Rule(csr.shape, int(counts.sum()) * C, Slices(csr.shape[0], C), Diagonal())
    index = {"offsets": _in_chunks(merged, slice_ptr, rule), "slice_ptr": slice_ptr, "perm": perm}
    values, present = merging.place(csr, rule, index, target.dtype)
    return index, values, present


@functools.partial(jax.jit, static_argnums=2)
def _in_chunks(merged, slice_ptr, rule):
    owner, k = rule.address.owners(jnp, {"slice_ptr": slice_ptr}, rule.n_stored)
    return merged[k, owner]


def _on_host(csr: Csr, perm: Any, C: int, target: Target):
    csr, perm = building.on_host(csr), None if perm is None else np.asarray(perm)
    n_rows, span = csr.shape[0], sum(csr.shape)
    row = np.repeat(np.arange(n_rows), np.diff(csr.indptr))
    diagonal = csr.indices.astype(np.int64) - row + (n_rows - 1)  # from 0 on
    storage_row = row if perm is None else np.argsort(perm)[row]
    kept, chunk = np.unique(storage_row // C * span + diagonal, return_inverse=True)
    slice_ptr = _sizes(csr, np.bincount(kept // span, minlength=-(-n_rows // C)), C, target)
    offsets = kept % span - (n_rows - 1)
    values, present = np.zeros(kept.size * C, target.dtype), np.zeros((kept.size, C), bool)
    ragged = _reaching_out(csr.shape, kept // span, offsets, perm, C)
    for first in range(0, ragged.size, BLOCK):
        some = ragged[first : first + BLOCK]
        present[some] = ~_inside(csr.shape, kept[some] // span * C, offsets[some], perm, C)
    place = chunk * C + storage_row % C
    values[place], present.reshape(-1)[place] = csr.data, True
    return {"offsets": offsets.astype(np.int32), "slice_ptr": slice_ptr, "perm": perm}, values, present.reshape(-1)


def _reaching_out(shape: tuple[int, int], owner: np.ndarray, offsets: np.ndarray, perm: Any, C: int) -> np.ndarray:
    """The chunks that have a place outside the matrix, from the least and the last row of each slice."""
    n_rows, n_cols = shape
    start = np.arange(0, n_rows, C)
    rows = np.arange(n_rows) if perm is None else perm
    least, last = (f.reduceat(rows, start) if n_rows else rows for f in (np.minimum, np.maximum))
    inside = (least[owner] + offsets >= 0) & (last[owner] + offsets < n_cols) & (owner < n_rows // C)
    return np.flatnonzero(~inside)


def _inside(shape: tuple[int, int], first: np.ndarray, offsets: np.ndarray, perm: Any, C: int) -> np.ndarray:
    """Which places of chunks that begin with the storage rows `first` lie in the matrix, [n, C]."""
    n_rows, n_cols = shape
    row = first[:, None] + np.arange(C)  # rows behind the last do not exist
    matrix_row = row if perm is None else perm[np.minimum(row, n_rows - 1)]
    column = matrix_row + offsets[:, None]
    return (row < n_rows) & (column >= 0) & (column < n_cols)
