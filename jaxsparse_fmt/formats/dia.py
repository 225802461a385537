"""DIA, storage by diagonals (Barbieri et al., §2.4 and §3.3): no column index at all.

         ⎡ 1 2 . 3 ⎤      values   [* * * 3 | * 2 6 8 | 1 5 7 9 | 2 6 8 * | 3 * * *]   [n_stored], * outside the matrix
         ⎢ 2 5 6 . ⎥      offsets  [-3 -1 0 1 3]           [diagonals] int32, column minus row
         ⎢ . 6 7 8 ⎥      start    [13 11 8 12 16]         [diagonals] int32, a product reads entry (r, c) at start + r
         ⎣ 3 . 8 9 ⎦      pattern  None                    [⌈n_stored / 8⌉] uint8, bits: 0 in holes; None without holes

Entry k of a row lies on diagonal k, in the column row + offsets[k]. A hole is a place inside the matrix that holds no
entry; `kernels/layout/columns.py` describes how `pattern` tells holes from entries that are zero.

Mirrored diagonals share reads, so that a product with a symmetric matrix reads half the bytes. A diagonal below the
main one is mirrored if it equals its image, the diagonal as far above, place by place. A product does not read a
mirrored diagonal: it reads the entry (r, r − d) at (r − d, r), d places before in the image, which it has read some d
rows before and which is still in the cache. It reads all other diagonals in place. `start` holds these places.

New entries by `with_data` need not be symmetric, so `start` then points every diagonal to its own places. A derivative
by `values` treats entries that share a place as one number; a derivative by `data`, through `with_data`, as two.

Bytes: n_stored·value + 8·diagonals, 4·diagonals more from 2³¹ places on; and ⌈n_stored / 8⌉ for the pattern where there
are holes. A product reads n_rows·value less for each mirrored diagonal.
"""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt._aligned import empty_aligned
from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import is_traced, standard_promotion
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.core.entry_index import Index, at_hand, put
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.formats import building, footprint, statistics
from jaxsparse_fmt.formats.base import AnyShards, Array, ByRule, Offset, Start, host_places, places_of, storage_format
from jaxsparse_fmt.kernels import sddmm, spmv, spmv_cpu
from jaxsparse_fmt.kernels.cpu import csr_operations
from jaxsparse_fmt.kernels.cpu.over_rows import in_some_piece
from jaxsparse_fmt.kernels.layout.address import Slices, Starts, take
from jaxsparse_fmt.kernels.layout.columns import Diagonal, Rule, pack_pattern, unpack_pattern


@storage_format
class DIA(ByRule):
    """Whole diagonals.

    The transpose of whole diagonals has whole diagonals in the same places: entry (r, c) lies at start + r, which is
    (start − offset) + c. So Aᵀ·y is a product, too, and adds in a fixed order.
    """

    offsets: Offset
    start: Start
    pattern: Array | None
    reads_pattern: AnyShards

    name = "dia"
    _transposes = True
    _shares_places = True

    @staticmethod
    def _rule_of_rows(n_rows: int) -> Starts:
        return Starts(n_rows, max(n_rows, 1))

    @property
    def column(self) -> Diagonal:
        return Diagonal(self.reads_pattern)

    def to_scipy(self) -> Csr:
        n_cols = self.shape[1]
        by_rows = 4 * self.n_stored < self.offsets.shape[0] * n_cols  # what SciPy stores would be mostly empty
        if by_rows or self.dtype.itemsize == 2 or self.n_stored == 0 or is_traced(self):
            return super().to_scipy()
        found = self.diagonals_on_host()
        by_column = np.zeros((len(found), n_cols), self.dtype)  # as SciPy stores them
        for k, out, d in zip(found, by_column, found.values(), strict=True):
            out[max(k, 0) : max(k, 0) + d.size] = d
        S = scipy.sparse.csr_array(scipy.sparse.dia_array((by_column, [*found]), shape=self.shape))
        return S if S.nnz == self.nnz else super().to_scipy()  # SciPy leaves zeros out

    def diagonals_on_host(self) -> dict[int, np.ndarray]:
        """The numbers on each diagonal, by its offset, 0 in holes; views of `values`."""
        values, starts = np.asarray(self.values), np.asarray(self.start).tolist()
        (n_rows, n_cols), found = self.shape, {}
        for k, start in zip(np.asarray(self.offsets).tolist(), starts, strict=True):
            found[k] = values[start + max(-k, 0) : start + min(n_rows, n_cols - k)]
        return found

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        offsets, start, shape = self.offsets, self.start, self.shape
        if face == "transposed":
            offsets, start, shape = -offsets, start - offsets, shape[::-1]
        face = "outer" if face == "outer" else "product"
        return spmv_cpu.of_diagonals(face, a, b, offsets, start, self.pattern, self.reads_pattern, shape)

    def _native_index(self) -> Index | None:
        found = spmv_cpu.index_of_diagonals(self.offsets, self.pattern, self.shape, self.nnz)
        if found is None:
            return None
        entry, own = found[: self.n_stored], found[self.n_stored :]
        diagonal, row = jnp.divmod(own, self.shape[0])
        return Index(self.start.at[diagonal].get(mode="clip") + row.astype(self.start.dtype), entry, own)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        n_rows, n_cols = self.shape
        back = self._arrays | {"offsets": -self.offsets, "start": self.start - self.offsets}
        rule = Rule((n_cols, n_rows), self.n_stored, Starts(n_cols, n_cols), self.column)
        return spmv.product(values, y, back, rule=rule, backend=backend)

    @property
    def _in_place(self) -> tuple[dict[str, Array], Rule]:
        """The arrays and the rule by which every entry lies in its own place."""
        index = {name: a for name, a in self._arrays.items() if name != "start"}
        return index, Rule(self.shape, self.n_stored, Slices(self.shape[0], max(self.shape[0], 1)), Diagonal())

    def _outer_face(self, y: Array, x: Array, backend: str) -> Array:
        """The derivative by each place: the sum over all entries that share it."""
        (index, rule), (n_rows, n_cols) = self._in_place, self.shape
        v = sddmm.outer(y, x, index, rule=rule, backend=backend)
        if n_rows != n_cols:
            return v
        in_place, is_image = _shares(self.offsets, self.start, n_rows)

        def shared():
            mirrored = sddmm.outer(x, y, index, rule=rule, backend=backend)
            mirrored = jnp.where(jnp.repeat(is_image, n_rows), mirrored, 0)
            return jnp.where(jnp.repeat(in_place, n_rows), v + mirrored, 0)

        return lax.cond(jnp.all(in_place), lambda: v, shared)

    @property
    def nbytes_read(self) -> int:
        """Bytes of the arrays that `A @ x` reads; of a traced matrix, as if no diagonal were mirrored."""
        if isinstance(self.start, Tracer):
            return super().nbytes_read
        start = np.asarray(self.start)
        shared = int(np.count_nonzero(start != self.shape[0] * np.arange(start.shape[-1])))
        return super().nbytes_read - shared * self.shape[0] * self.dtype.itemsize

    @standard_promotion
    def entries(self) -> tuple[Array, Array, Array, Array]:
        return *places_of(self, *self._in_place), _read(self)

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        row, col = host_places(*self._in_place)
        place = (np.asarray(self.start)[:, None] + np.arange(self.shape[0])).reshape(-1)
        return row, col, take(np.asarray(self.values), place)

    def _diagonal_on_host(self, k: int) -> np.ndarray:
        if k:
            return super()._diagonal_on_host(k)
        found = np.zeros(min(self.shape), self.dtype)
        for place in np.asarray(self.start)[np.asarray(self.offsets) == 0]:
            found[:] = np.asarray(self.values)[place : place + found.size]
        return found

    def _refilled(self, values: Array) -> Self:
        def make() -> Array:
            return _starts_in_place(self.start, self.shape[0])

        # One array for all values: what is kept for a pattern is found by its arrays.
        is_known = not isinstance(self.start, Tracer)
        start = _starts.get((self.shape[0], self.start.shape), [self.offsets], make) if is_known else make()
        return dataclasses.replace(self, values=values, start=start)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        is_on_host = building.namespace(csr.data) is np
        offsets, values, pattern = (_built_on_host if is_on_host else _built_on_device)(csr, target)
        n_rows, n_cols = csr.shape
        start = np.arange(offsets.size) * n_rows
        sides = np.where(offsets < 0, -offsets, 0), np.where(offsets > 0, offsets, -1)
        _, below, above = np.intersect1d(*sides, return_indices=True)  # diagonals and their images
        if n_rows == n_cols and below.size:
            find = _mirrored_on_host if is_on_host else _mirrored
            mirrored = np.asarray(find(values, pattern, n_rows, below, above, offsets[above]))
            below, above = below[mirrored], above[mirrored]
            start[below] = start[above] + offsets[below]
        index = {"offsets": offsets.astype(np.int32), "start": start.astype(index_dtype(start.size * n_rows))}
        reads = pattern is not None and building.has_zeros(csr, target.dtype)
        return building.made(cls, csr, target, values, **index, pattern=pattern, reads_pattern=reads)

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        counted, n_rows = pattern.diagonals, max(pattern.csr.shape[0], 1)
        if counted is None:
            return
        # If products read the bits of `pattern`, a GPU would read them for both entries of a place, and Numba takes 12
        # times as long.
        bits = counted.holes > 0 and pattern.has_zeros
        if bits and pattern.platform != "gpu":
            return
        nbytes, trips = pattern.implied_bytes(counted) + 4 * counted.indices, footprint.trips(counted.indices)
        words = f"{counted.indices} diagonals"
        plain = footprint.Storage(cls.name, {}, nbytes, counted.places, trips, words=(words,))
        yield plain
        n, some = counted.indices, pattern.sample(1)
        if pattern.platform == "gpu" and n > 1 and not bits and statistics.is_mirrored(pattern.csr, some, n):
            mirrored = counted.indices // 2
            unread = mirrored * n_rows * pattern.dtype.itemsize
            shared = {"nbytes": nbytes - unread, "unread": unread}
            yield dataclasses.replace(plain, **shared, words=(f"{words}, {mirrored} of them mirrored",))


def _check(csr: Csr, count: int, target: Target, words: str = "") -> None:
    cause = f"its entries lie on {words}{count} diagonals"
    building.check_memory(DIA.name, count * csr.shape[0], csr, target, index=0, cause=cause)


def _built_on_host(csr: Csr, target: Target) -> tuple[np.ndarray, Any, Any]:
    """The offsets, int64 on the host; `values`; and `pattern`."""
    n_rows, n_cols = csr.shape
    diagonals = statistics.occupied(csr)
    offsets = diagonals.astype(np.int64) - (n_rows - 1)
    _check(csr, offsets.size, target)
    n_stored = offsets.size * n_rows
    values, full = empty_aligned((n_stored,), target.dtype, np.zeros), np.zeros((offsets.size, n_rows), bool)
    if csr_operations.serves(csr, dtype=target.dtype) and statistics.fits_table(csr):
        csr_operations.put_on_diagonals(csr, diagonals, values, full)
    else:
        row, col = building.entries(csr)
        place = np.searchsorted(offsets, col - row) * n_rows + row
        values[place] = csr.data
        full.reshape(-1)[place] = True
    for diagonal, offset in zip(full, offsets.tolist(), strict=True):  # places outside the matrix are not holes
        diagonal[: max(-offset, 0)] = diagonal[max(n_cols - offset, 0) :] = True
    return offsets, values, pack_pattern(full.reshape(-1))[0]


def _built_on_device(csr: Csr, target: Target) -> tuple[np.ndarray, Any, Any]:
    """As `_built_on_host`."""
    longest = building.rows_of(csr).longest
    _check(csr, longest, target, "at least ")
    offsets = statistics.occupied(csr, longest).astype(np.int64) - (csr.shape[0] - 1)
    _check(csr, offsets.size, target)
    if offsets.size == 0:
        return offsets, np.zeros(0, target.dtype), None
    inside = np.minimum(csr.shape[0], csr.shape[1] - offsets) - np.maximum(0, -offsets)
    has_holes = int(inside.sum()) > csr.nnz
    return offsets, *_placed(csr, offsets.astype(np.int32), target.dtype, longest, has_holes)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _placed(csr: Csr, offsets: Array, dtype: np.dtype, longest: int, has_holes: bool) -> tuple[Array, Array | None]:
    """`values` and `pattern`: by the first entry of all rows, the second, and so on, which mostly are neighbours."""
    (n_rows, n_cols), n_stored = csr.shape, offsets.shape[0] * csr.shape[0]
    row, lengths = jnp.arange(n_rows, dtype=index_dtype(n_stored)), jnp.diff(csr.indptr)
    col = jnp.arange(n_rows, dtype=index_dtype(sum(csr.shape))) + offsets[:, None]
    outside = ((col < 0) | (col >= n_cols)).reshape(-1) if has_holes else jnp.zeros(0, bool)

    def put(j: Array, arrays: tuple[Array, Array]) -> tuple[Array, Array]:
        values, present = arrays
        entry = jnp.minimum(csr.indptr[:-1] + j.astype(csr.indptr.dtype), csr.nnz - 1)
        diagonal = (take(csr.indices, entry) - row).astype(offsets.dtype)
        k = jnp.searchsorted(offsets, diagonal, method="scan_unrolled").astype(row.dtype)
        place = lax.optimization_barrier(jnp.where(j < lengths, k * n_rows + row, n_stored))
        values = values.at[place].set(take(csr.data, entry).astype(dtype), mode="drop", unique_indices=True)
        return values, present.at[place].set(True, mode="drop", unique_indices=True) if has_holes else present

    values, present = lax.fori_loop(0, longest, put, (jnp.zeros(n_stored, dtype), outside))
    return values, jnp.packbits(present, bitorder="little") if has_holes else None


_starts = Kept(4096, "starts of diagonals")


def _starts_in_place(start: Array, n_rows: int) -> Array:
    """The `start` that points every diagonal to its own places; of stacked matrices, too."""
    if at_hand(start):
        found = (0 * np.asarray(start) + n_rows * np.arange(start.shape[-1])).astype(start.dtype)
        return start if np.array_equal(start, found) else put(found, start)
    return 0 * start + n_rows * jnp.arange(start.shape[-1], dtype=start.dtype)


@jax.jit
def _read(A: DIA) -> Array:
    """`values` as products read them, [n_stored]."""
    if A.n_stored == 0:
        return A.values
    n_rows, n_cols = A.shape
    row = jnp.arange(n_rows, dtype=A.start.dtype)[None, :]
    place, col = A.start[:, None] + row, row + A.offsets[:, None]
    read = jnp.where((col >= 0) & (col < n_cols), A.values.at[place].get(mode="clip"), 0)
    return read.reshape(-1).astype(A.dtype)  # of flags too


def _shares(offsets: Array, start: Array, n_rows: int) -> tuple[Array, Array]:
    """Whether each diagonal is read in place, and whether it is the image of a mirrored one: [diagonals] each."""
    count = offsets.shape[0]
    in_place = start == jnp.arange(count, dtype=start.dtype) * n_rows
    image = jnp.where(in_place, count, (start - offsets) // max(n_rows, 1))
    return in_place, jnp.zeros_like(in_place).at[image].set(True, mode="drop")


def _mirrored_on_host(values, pattern, n_rows: int, below, above, distance) -> np.ndarray:
    """As `_mirrored`, in NumPy."""
    grids, differ = [values], np.zeros(below.size, bool)
    if pattern is not None:
        grids.append(unpack_pattern(pattern, values.size))
    for grid in grids:
        grid = grid.reshape(-1, n_rows)
        for k in np.flatnonzero(~differ):
            b, a, d = below[k], above[k], distance[k]
            differ[k] = in_some_piece(lambda x, y: not np.array_equal(x, y), grid[a, : n_rows - d], grid[b, d:])
    return ~differ


@functools.partial(jax.jit, static_argnums=2)
def _mirrored(values, pattern, n_rows: int, below, above, distance) -> Array:
    """Whether each diagonal `below` equals its image `above`, `distance` rows before, holes included: [k] bool."""
    row = jnp.arange(n_rows, dtype=jnp.int32)
    present = None if pattern is None else unpack_pattern(pattern, values.size).reshape(-1, n_rows)
    values = values.reshape(-1, n_rows)

    def equal(pair):
        b, a, d = pair
        place = jnp.minimum(row + d.astype(row.dtype), n_rows - 1)
        same = values[a] == take(values[b], place)
        same = same if present is None else same & (present[a] == take(present[b], place))
        return jnp.all(same | (row + d >= n_rows))

    return lax.map(equal, (below, above, distance))
