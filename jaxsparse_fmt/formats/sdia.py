"""SDIA: DIA whose mirrored diagonals share reads; a product with a symmetric matrix reads half the bytes.

         ⎡ 1 2 . 3 ⎤      values   [* * * 3 | * 2 6 8 | 1 5 7 9 | 2 6 8 * | 3 * * *]   [n_stored], * outside the matrix
         ⎢ 2 5 6 . ⎥      offsets  [-3 -1 0 1 3]           [diagonals] int32, column minus row
         ⎢ . 6 7 8 ⎥      start    [13 11 8 12 16]         [diagonals] int32, a product reads entry (r, c) at start + r
         ⎣ 3 . 8 9 ⎦

The storage is that of DIA (`dia.py`), and `start` holds the place at which a product reads each diagonal. A diagonal
below the main one is mirrored if its entries equal, place by place, those of the diagonal as far above, its image. A
product does not read it: it reads the entry (r, r − d) at (r − d, r), d places before in the image, which it read some
d rows before and which is still in the cache. It reads all other diagonals at their own places.

New entries by `with_data` need not be symmetric, so `start` then points every diagonal to its own places. A derivative
by `values` treats entries that share a place as one number; a derivative by `data`, through `with_data`, as two.

Bytes: n_stored·value + 8·diagonals, 4·diagonals more from 2³¹ places on, and the pattern's as in DIA. A product reads
n_rows·value less for each mirrored diagonal.
"""

import contextlib
import dataclasses
import functools
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt._types import Csr, Target, concrete, index_dtype, standard_promotion
from jaxsparse_fmt.formats import building, dia, footprint, statistics
from jaxsparse_fmt.formats.base import Array, Start, storage_format
from jaxsparse_fmt.formats.dia import DIA, WholeDiagonals
from jaxsparse_fmt.kernels import sddmm
from jaxsparse_fmt.kernels.layout.address import Slices, Starts, take
from jaxsparse_fmt.kernels.layout.columns import Diagonal, Rule, unpack_pattern


@storage_format
class SDIA(WholeDiagonals):
    start: Start
    pattern: Array | None

    name = "sdia"
    shares_places = True

    @property
    def address(self) -> Starts:
        return Starts(self.shape[0], max(self.shape[0], 1))

    def outer_face(self, y: Array, x: Array, backend: str) -> Array:
        """The derivative by each place: the sum over all entries that share it."""
        n_rows, n_cols = self.shape
        rule = Rule(self.shape, self.n_stored, Slices(n_rows, n_rows), Diagonal())
        index = {name: a for name, a in self.arrays.items() if name != "start"}
        v = sddmm.outer(y, x, index, rule=rule, backend=backend)
        if n_rows != n_cols:
            return v
        own, imaged = _shares(self.offsets, self.start, n_rows)

        def shared():
            mirrored = sddmm.outer(x, y, index, rule=rule, backend=backend)
            mirrored = jnp.where(_each(imaged, self.n_stored), mirrored, 0)
            return jnp.where(_each(own, self.n_stored), v + mirrored, 0)

        return lax.cond(jnp.all(own), lambda: v, shared)

    @property
    def nbytes_read(self) -> int:
        """Bytes of the arrays that `A @ x` reads; of a traced matrix, as if no diagonal were mirrored."""
        if isinstance(self.start, Tracer):
            return super().nbytes_read
        shared = int(np.count_nonzero(np.asarray(self.start) != np.asarray(self._own_start())))
        return super().nbytes_read - shared * self.shape[0] * self.dtype.itemsize

    def coordinates(self) -> tuple[Array, Array, Array]:
        return self._as_dia(self.values).coordinates()

    @standard_promotion
    def each_entry(self) -> tuple[Array, Array, Array, Array]:
        return *self.coordinates(), _read(self)

    def _as_dia(self, values: Array) -> DIA:
        return DIA(values, self.shape, self.nnz, self.backend, self.offsets, self.pattern)

    def _own_start(self) -> Array:
        traced = isinstance(self.start, Tracer)
        with contextlib.nullcontext() if traced else concrete():
            return _own(self.start, self.shape[0])

    def _refilled(self, values: Array) -> Self:
        return dataclasses.replace(self, values=values, start=self._own_start())

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        offsets, values, pattern = dia.arrays_of(csr, target, cls.name)
        n_rows, n_cols = csr.shape
        A = building.made(DIA, csr, target, values, offsets=offsets.astype(np.int32), pattern=pattern)
        start = np.arange(offsets.size) * n_rows
        if n_rows == n_cols:
            sides = np.where(offsets < 0, -offsets, 0), np.where(offsets > 0, offsets, -1)
            _, below, above = np.intersect1d(*sides, return_indices=True)  # diagonals and their images
            if below.size:
                mirrored = np.asarray(_mirrored(A, below, above, offsets[above]))
                below, above = below[mirrored], above[mirrored]
            start[below] = start[above] + offsets[below]
        start = start.astype(index_dtype(A.n_stored))
        return building.made(cls, csr, target, A.values, offsets=A.offsets, start=start, pattern=A.pattern)

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        counted, csr, n_rows = pattern.diagonals, pattern.csr, max(pattern.csr.shape[0], 1)
        # Kernels that distinguish holes from zeros by bits would read the bits for both entries of a place.
        if counted is None or not pattern.on_gpu or counted.indices < 2 or (counted.holes and pattern.has_zeros):
            return
        if statistics.is_mirrored(csr):
            read = (counted.indices + 1) // 2
            half = statistics.Counted(read * n_rows, 2 * counted.indices, counted.holes // 2)
            nbytes, trips = pattern.implied_bytes(half), footprint.trips(counted.indices)
            unread = (counted.indices - read) * n_rows * pattern.itemsize
            words = f"{counted.indices} diagonals, {counted.indices - read} of them mirrored"
            yield footprint.Storage(cls.name, {}, nbytes, half.places, trips, n_rows, unread=unread, words=(words,))


@functools.partial(jax.jit, static_argnums=1)
def _own(start: Array, n_rows: int) -> Array:
    """The `start` that points every diagonal to its own places; of stacked matrices, too."""
    return jnp.zeros_like(start) + n_rows * jnp.arange(start.shape[-1], dtype=start.dtype)


@jax.jit
def _read(A: SDIA) -> Array:
    """`values` as products read them, [n_stored]."""
    if A.n_stored == 0:
        return A.values
    n_rows, n_cols = A.shape
    row = jnp.arange(n_rows, dtype=A.start.dtype)
    at, col = A.start[:, None] + row, row + A.offsets[:, None]
    return jnp.where((col >= 0) & (col < n_cols), A.values.at[at].get(mode="clip"), 0).reshape(-1)


def _shares(offsets: Array, start: Array, n_rows: int) -> tuple[Array, Array]:
    """Whether each diagonal is read at its own places, and whether a mirrored one is also read there: [diagonals]."""
    count = offsets.shape[0]
    own = start == jnp.arange(count, dtype=start.dtype) * n_rows
    image = jnp.where(own, count, (start - offsets) // max(n_rows, 1))  # a mirrored one begins its offset before that
    return own, jnp.zeros_like(own).at[image].set(True, mode="drop")


def _each(of_diagonals: Array, n_stored: int) -> Array:
    """A flag of each diagonal, repeated for each of its places: [n_stored]."""
    count = of_diagonals.shape[0]
    return jnp.broadcast_to(of_diagonals[:, None], (count, n_stored // max(count, 1))).reshape(-1)


@jax.jit
def _mirrored(A: DIA, below, above, distance) -> Array:
    """Whether each of the diagonals `below` equals that `above`, holes included, `distance` places before: [k] bool."""
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
