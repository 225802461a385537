"""DIA, storage by diagonals (Barbieri et al., §2.4 and §3.3): no column index at all.

         ⎡ 1 . 2 . ⎤      values   [* * 4 · | 1 3 5 · | · · 6 * | 2 · * *]      [diagonals·n_rows], * outside the matrix
         ⎢ . 3 . . ⎥      offsets  [-2 0 1 2]                                   [diagonals] int32, column minus row
         ⎢ 4 . 5 6 ⎥      pattern  [119 -36]                                    [⌈places / 8⌉] int8, bits: 0 at every ·
         ⎣ . . . . ⎦

Entry k of a row lies on diagonal k, in the column row + offsets[k]. A hole is a place inside the matrix that holds no
entry; `kernels/layout/columns.py` describes how `pattern` tells holes from entries that are zero. It is None without
holes.

Bytes: diagonals·(n_rows·value + 4), and for the pattern min(⌈diagonals·n_rows / 8⌉, 4·holes), the former where there
are holes and some entry is zero.
"""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, Target, index_dtype
from jaxsparse_fmt.formats import building, footprint, merging, statistics
from jaxsparse_fmt.formats.base import Array, ByRule, Offset, storage_format
from jaxsparse_fmt.kernels import spmv, spmv_cpu
from jaxsparse_fmt.kernels.layout.address import Slices, Starts
from jaxsparse_fmt.kernels.layout.columns import Diagonal, Rule, pack_pattern, packed

SOME_ROWS = 4096  # the rows whose diagonals are found first
SLICE_ROWS = 128


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WholeDiagonals(ByRule):
    """The common base of DIA and SDIA: formats of whole diagonals.

    The transpose of whole diagonals has whole diagonals in the same places: entry (r, c) lies at start + r, which is
    (start − offset) + c. So Aᵀ·y is a product, too, and adds in a fixed order.
    """

    offsets: Offset

    transposes = True

    @property
    def column(self) -> Diagonal:
        return Diagonal()

    def to_scipy(self) -> Csr:
        n, n_cols = self.shape
        if n != n_cols or self.dtype.itemsize == 2 or self.nnz == 0:
            return super().to_scipy()
        offsets = np.asarray(self.offsets)
        by_column = np.zeros((offsets.size, n), self.dtype)  # as SciPy stores them
        diagonals = np.asarray(self.each_entry()[3]).reshape(-1, n)
        for offset, out, diagonal in zip(offsets, by_column, diagonals, strict=True):
            first, end = max(-offset, 0), n - max(offset, 0)
            out[first + offset : end + offset] = diagonal[first:end]
        S = scipy.sparse.csr_array(scipy.sparse.dia_array((by_column, offsets), shape=self.shape))
        return S if S.nnz == self.nnz else super().to_scipy()  # SciPy leaves zeros out

    def _start(self) -> Array:
        start = self.arrays.get("start")
        if start is None:
            start = jnp.arange(self.offsets.shape[0], dtype=index_dtype(self.n_stored)) * self.shape[0]
        return start

    def native_face(self, face: str, a: Array, b: Array) -> Array | None:
        if face == "outer":
            return None
        offsets, start, shape = self.offsets, self._start(), self.shape
        if face == "transposed":
            offsets, start, shape = -offsets, start - offsets, shape[::-1]
        return spmv_cpu.product_of_diagonals(a, b, offsets, start, self.arrays.get("pattern"), shape)

    def transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        n_rows, n_cols = self.shape
        back = self.arrays | {"offsets": -self.offsets, "start": self._start() - self.offsets}
        rule = Rule((n_cols, n_rows), self.n_stored, Starts(n_cols, n_cols), Diagonal())
        return spmv.product(values, y, back, rule=rule, backend=backend)


@storage_format
class DIA(WholeDiagonals):
    pattern: Array | None

    name = "dia"

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        offsets, values, pattern = arrays_of(csr, target, cls.name)
        return building.made(cls, csr, target, values, offsets=offsets.astype(np.int32), pattern=pattern)

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        counted, n_rows = pattern.diagonals, max(pattern.csr.shape[0], 1)
        if counted is not None:
            nbytes, trips = pattern.implied_bytes(counted), footprint.trips(counted.indices)
            yield footprint.Storage(
                cls.name, {}, nbytes, counted.places, trips, n_rows, words=(f"{counted.indices} diagonals",)
            )


def _check(csr: Csr, offsets: np.ndarray, target: Target, name: str) -> None:
    n_stored, cause = offsets.size * csr.shape[0], f"its entries lie on {offsets.size} diagonals"
    building.check_memory(name, n_stored, csr, target, index=0, cause=cause)


def arrays_of(csr: Csr, target: Target, name: str) -> tuple[np.ndarray, Any, Any]:
    """The offsets, int64 on the host; `values`, and `pattern`; of the format `name`."""
    on_device = None if building.namespace(csr.data) is np else _on_device(csr, target, name)
    return on_device or _on_host(csr, target, name)


def _on_host(csr: Csr, target: Target, name: str):
    csr, (n_rows, n_cols) = building.on_host(csr), csr.shape
    diagonals = statistics.occupied(csr)
    offsets = diagonals.astype(np.int64) - (n_rows - 1)
    _check(csr, offsets, target, name)
    n_stored = offsets.size * n_rows
    # An entry lies `column` places behind the place on its diagonal where column 0 would be.
    start = np.arange(offsets.size) * n_rows - offsets
    table = None
    if statistics.fits_table(csr):
        table = np.zeros(n_rows + n_cols, np.intp)  # the dtype by which NumPy indexes
        table[diagonals] = start
    values, full = np.zeros(n_stored, target.dtype), np.zeros((offsets.size, n_rows), bool)
    for entries, diagonal in statistics.by_rows(csr):
        begin = start[np.searchsorted(diagonals, diagonal)] if table is None else table[diagonal]
        place = begin + csr.indices[entries]
        values[place] = csr.data[entries]
        full.reshape(-1)[place] = True
    for diagonal, offset in zip(full, offsets.tolist(), strict=True):  # places outside the matrix are not holes
        diagonal[: max(-offset, 0)] = diagonal[max(n_cols - offset, 0) :] = True
    zero = bool(np.any(csr.data.astype(target.dtype, copy=False) == 0))
    return offsets, values, pack_pattern(full.reshape(-1), zero)


def _on_device(csr: Csr, target: Target, name: str):
    """As `arrays_of`; None where the host must do it.

    It first tries the diagonals of some rows. Mostly these are all diagonals, and no pass over the entries is needed.
    """
    n_rows = csr.shape[0]
    some = [np.linspace(0, n_rows - 1, SOME_ROWS).astype(np.int32)] if n_rows > SOME_ROWS else []
    for rows in (*some, None):
        n_looked_at = max(n_rows if rows is None else rows.size, 1)
        merged = merging.distinct(csr, building.on_device(rows), n_looked_at, Diagonal())
        if merged is None:
            return None
        offsets = np.asarray(merged).astype(np.int64)
        offsets = offsets[offsets != merging.NONE]
        if rows is None:
            _check(csr, offsets, target, name)
        elif not _fits(csr, offsets, target, name):
            continue
        values, present = _place(csr, offsets, target.dtype)
        n_inside = np.minimum(n_rows, csr.shape[1] - offsets) - np.maximum(0, -offsets)
        pattern, n_holes = packed(present, merging.any_zero(csr.data, target.dtype))
        if rows is None or int(n_inside.sum()) - n_holes == csr.nnz:
            return offsets, values, pattern
    return None


def _fits(*storage: Any) -> bool:
    try:
        _check(*storage)
    except ValueError:
        return False
    return True


def _place(csr: Csr, offsets: np.ndarray, dtype: Any) -> tuple[Any, Any]:
    """`values`, and a mask of the places that hold an entry or lie outside the matrix.

    It works slice by slice, so that a slice's rows stay in the cache during the search, and transposes the result.
    """
    C, n_rows = min(SLICE_ROWS, max(csr.shape[0], 1)), csr.shape[0]
    slice_ptr = building.pointers(np.full(-(-n_rows // C), offsets.size * C))
    rule = Rule(csr.shape, int(slice_ptr[-1]), Slices(n_rows, C), Diagonal())
    index = {"offsets": np.tile(offsets.astype(np.int32), slice_ptr.size - 1), "slice_ptr": slice_ptr}
    placed = merging.place(csr, rule, {name: jnp.asarray(a) for name, a in index.items()}, dtype)
    return _turn(placed, offsets.size, C, n_rows)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _turn(arrays, n_diagonals, C, n_rows):
    """[n_slices, diagonals, C] as [diagonals, n_rows], both flat."""

    def turned(a):
        return a.reshape(-1, n_diagonals, C).swapaxes(0, 1).reshape(n_diagonals, -1)[:, :n_rows].reshape(-1)

    return tuple(map(turned, arrays)) if n_diagonals else arrays
