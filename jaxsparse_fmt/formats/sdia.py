"""SDIA, diagonals of which mirror images share their places: half the values of a symmetric matrix.

         ⎡ 1 2 . 3 ⎤      values   [1 5 7 9 | 2 6 8 * | 3 * * *]     [n_stored], * outside the matrix
         ⎢ 2 5 6 . ⎥      offsets  [-3 -1 0 1 3]                     [diagonals] int32, column minus row
         ⎢ . 6 7 8 ⎥      start    [5 3 0 4 8]                       [diagonals] int32, entry (r, c) is at start + r
         ⎣ 3 . 8 9 ⎦

A diagonal below the main one whose entries equal, place by place, those of the diagonal as far above is not stored: the
entry (r, r − d) is that at (r − d, r), d places before. It was read some d rows ago, and comes from the cache. Any
other diagonal is stored as in DIA (`dia.py`), so that every matrix has a place here, and `pattern` means the same.

New entries by `with_data` need not be symmetric, and so its result is a DIA. It is made of a DIA, too, which must fit.

Bytes: n_stored·value + 8·diagonals, 4·diagonals more from 2³¹ places on, and the pattern's as in DIA.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import dia, storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.formats.dia import DIA, DiagonalFaces
from jaxsparse_fmt.kernels import columns
from jaxsparse_fmt.kernels.address import Slices, Starts, take
from jaxsparse_fmt.kernels.column_rule import Diagonal, is_read, pack_pattern, unpack_pattern
from jaxsparse_fmt.kernels.rule import Rule
from jaxsparse_fmt.matrix import concrete


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SDIA(ByRule):
    offsets: Array
    start: Array
    pattern: Array | None

    name = "sdia"
    transposes = True
    shares_places = True

    @property
    def address(self) -> Starts:
        return Starts(self.shape[0], max(self.shape[0], 1))

    @property
    def column(self) -> Diagonal:
        return Diagonal()

    @property
    def faces(self) -> SharedFaces:
        return SharedFaces(Rule(self.shape, self.n_stored, self.address, self.column), tuple(self.arrays_read))

    def coordinates(self) -> tuple[Array, Array, Array]:
        """As of `unshared`, which has more places."""
        return self.unshared.coordinates()

    @property
    def unshared(self) -> DIA:
        """The same matrix with a place of its own for every entry."""
        at, inside = self._places()
        values = jnp.where(inside, self.values.at[at].get(mode="clip"), 0)
        traced = any(isinstance(a, Tracer) for a in self.structure)
        with contextlib.nullcontext() if traced else concrete():
            pattern = None if self.pattern is None else self._pattern_of_all()
        return DIA(values, self.shape, self.nnz, self.backend, self.offsets, pattern)

    def _pattern_of_all(self) -> Array:
        """The pattern of `unshared`, in bits."""
        at, inside = self._places()
        present = unpack_pattern(self.pattern, self.n_stored).at[at].get(mode="clip")
        bits = jnp.packbits(present | ~inside, bitorder="little")
        return bits if is_read(self.pattern) else bits.view(jnp.int8)

    def _places(self) -> tuple[Array, Array]:
        """Of every place of `unshared` the place here, and whether it lies in the matrix."""
        n_rows, n_cols = self.shape
        row = jnp.arange(n_rows, dtype=self.start.dtype)
        col = row + self.offsets[:, None]
        return (self.start[:, None] + row).reshape(-1), ((col >= 0) & (col < n_cols)).reshape(-1)

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        most = None if max_bytes is None else 2 * max_bytes  # twice what it takes at best
        try:
            offsets, values, pattern = dia.stored(csr, dtype, most)
        except storing.TooLarge as error:
            raise storing.TooLarge(f"on the way to 'sdia': {error}") from None
        n_rows, n_cols = csr.shape
        A = DIA(values, csr.shape, csr.nnz, backend, jnp.asarray(offsets.astype(np.int32)), pattern)
        number = np.arange(offsets.size)
        below, above = _pairs(offsets) if n_rows == n_cols else (number[:0], number[:0])
        if below.size:
            mirrored = np.asarray(_mirrored(A, below, above, offsets[above]))
            below, above = below[mirrored], above[mirrored]
        kept = np.delete(number, below)
        cause = f"of its {offsets.size} diagonals {below.size} mirror others"
        storing.check_memory(cls.name, kept.size * n_rows, csr, dtype, max_bytes, index=0, cause=cause)
        first = np.zeros(offsets.size, np.int64)
        first[kept] = np.arange(kept.size) * n_rows
        first[below] = first[above] + offsets[below]
        start = jnp.asarray(first.astype(index_dtype(kept.size * n_rows)))
        if below.size:
            values, present, zeros = _kept(A, kept)
            pattern = None if pattern is None else pack_pattern(present, zeros)
        return cls(values, csr.shape, csr.nnz, backend, A.offsets, start, pattern)


class SharedFaces(DiagonalFaces):
    """The three faces over diagonals that may share places: a place is the derivative by all its entries."""

    def outer(self, y, x, structure, backend):
        arrays, (n_rows, n_cols) = self.arrays(structure), self.shape
        offsets, start, stored = arrays["offsets"], arrays["start"], self.n_stored // n_rows
        # A diagonal that is stored starts at a multiple of n_rows; another one its offset before its image, which does.
        own = start % n_rows == 0
        number = jnp.where(own, start // n_rows, stored)
        kept = jnp.zeros(stored, offsets.dtype).at[number].set(offsets, mode="drop")
        rule = Rule(self.shape, self.n_stored, Slices(n_rows, n_rows), Diagonal())
        index = {name: a for name, a in arrays.items() if name != "start"} | {"offsets": kept}
        v = columns.outer(y, x, index, rule=rule, backend=backend)
        if n_rows != n_cols:
            return v
        image = jnp.where(own, stored, (start - offsets) // n_rows)
        shared = jnp.zeros(stored, bool).at[image].set(True, mode="drop")
        mirrored = columns.outer(x, y, index, rule=rule, backend=backend)
        return v + jnp.where(jnp.repeat(shared, n_rows, total_repeat_length=self.n_stored), mirrored, 0)


def _pairs(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The diagonals below the main one that have an image above it, and their images."""
    _, below, above = np.intersect1d(
        np.where(offsets < 0, -offsets, 0), np.where(offsets > 0, offsets, -1), return_indices=True
    )
    return below, above


@jax.jit
def _mirrored(A: DIA, below, above, distance) -> Array:
    """Whether each of the diagonals `below` equals, holes and all, that `above`, `distance` places before: [k] bool."""
    n_rows = A.shape[0]
    values, row = A.values.reshape(-1, n_rows), jnp.arange(n_rows, dtype=jnp.int32)
    present = None if A.pattern is None else unpack_pattern(A.pattern, A.n_stored).reshape(-1, n_rows)

    def equal(pair):
        b, a, d = pair
        at = jnp.minimum(row + d.astype(row.dtype), n_rows - 1)
        same = values[a] == take(values[b], at)
        same = same if present is None else same & (present[a] == take(present[b], at))
        return jnp.all(same | (row + d >= n_rows))

    return lax.map(equal, (below, above, distance))


@jax.jit
def _kept(A: DIA, kept) -> tuple[Array, Array, Array]:
    """Of the diagonals `kept` the values, which places hold an entry or lie outside, and whether any entry is zero."""
    n_rows, n_cols = A.shape
    values = A.values.reshape(-1, n_rows)[kept].reshape(-1)
    if A.pattern is None:
        return values, jnp.ones_like(values, bool), jnp.array(False)
    present = unpack_pattern(A.pattern, A.n_stored).reshape(-1, n_rows)[kept].reshape(-1)
    col = jnp.arange(n_rows, dtype=jnp.int32) + A.offsets[kept][:, None]
    inside = ((col >= 0) & (col < n_cols)).reshape(-1)
    return values, present, jnp.any(present & inside & (values == 0))
