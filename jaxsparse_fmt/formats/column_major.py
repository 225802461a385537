"""What CSR, ELL, ELLPACK-R and HLL share: one flat column-major storage (`kernels/columns.py` has the address rule)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, readable_bytes, x64_enabled
from jaxsparse_fmt.kernels import columns
from jaxsparse_fmt.matrix import SparseMatrix

Array = jax.Array

# Padding beyond this multiple of CSR's bytes is refused, unless it is small change anyway.
MAX_PADDING, SMALL_CHANGE = 10, 64 * 2**20


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ColumnMajor(SparseMatrix):
    """Rows in slices of `pitch` lanes, stored entry by entry across the lanes of a slice.

    Attributes:
      col_idx: [n_stored] int32, n_cols in padding.
      slice_ptr: [n_slices + 1], where each slice starts; None: one slice.
      row_lengths: [n_rows] int32 in storage order; None where `slice_ptr` tells them.
      perm: [n_rows] int32, storage row k is row perm[k]; None: the matrix's own order.
      pitch: lanes of a slice, C in the formulas.
    """

    col_idx: Array
    slice_ptr: Array | None
    row_lengths: Array | None
    perm: Array | None
    pitch: int

    stops_at_row_length = False

    @property
    def faces(self) -> ColumnFaces:
        given = (self.slice_ptr is not None, self.stops_at_row_length, self.perm is not None)
        return ColumnFaces(self.shape, self.n_stored, self.pitch, given)

    @property
    def structure(self) -> tuple[Array, ...]:
        lengths = self.row_lengths if self.stops_at_row_length else None
        return tuple(a for a in (self.col_idx, self.slice_ptr, lengths, self.perm) if a is not None)

    def _row_lengths(self) -> Array:
        """[n_rows] in storage order."""
        assert self.row_lengths is not None
        return self.row_lengths

    def coordinates(self) -> tuple[Array, Array, Array]:
        n_rows, n_cols = self.shape
        cols, starts, widths = columns.chunks(self.col_idx, self.slice_ptr, self.pitch)
        owner = columns.owners(widths, cols.shape[0])
        lengths = self._row_lengths()
        storage_row = jnp.arange(n_rows, dtype=jnp.int32)
        row = storage_row if self.perm is None else self.perm
        # Where each row's entries begin in canonical order, which counts rows in the matrix's own order.
        in_order = lengths if self.perm is None else jnp.zeros_like(lengths).at[row].set(lengths)
        first = (jnp.cumsum(in_order, dtype=_index_dtype(self.nnz)) - in_order)[row]
        lanes = [columns.in_slices(a, self.pitch)[owner] for a in (row, first)]
        j = jnp.arange(cols.shape[0], dtype=starts.dtype) - starts[owner]
        entry = jnp.where(cols < n_cols, lanes[1] + j[:, None], self.nnz)
        return lanes[0].reshape(-1), self.col_idx, entry.reshape(-1)


@dataclasses.dataclass(frozen=True)
class ColumnFaces:
    """The three faces over the column-major storage. `given` says which optional arrays `structure` holds."""

    shape: tuple[int, int]
    n_stored: int
    pitch: int
    given: tuple[bool, bool, bool]

    def _unpack(self, structure):
        rest = iter(structure)
        return next(rest), *(next(rest) if given else None for given in self.given)

    def product(self, values, x, structure, backend):
        col_idx, slice_ptr, row_lengths, perm = self._unpack(structure)
        layout: dict[str, Any] = {"shape": self.shape, "slice_size": self.pitch}
        return columns.product(values, col_idx, x, slice_ptr, row_lengths, perm, **layout, backend=backend)

    def transposed(self, values, y, structure, backend):
        del backend  # plain jnp everywhere
        col_idx, slice_ptr, _, perm = self._unpack(structure)
        return columns.transposed_reference(
            values, col_idx, y, slice_ptr, perm, shape=self.shape, slice_size=self.pitch
        )

    def outer(self, y, x, structure, backend):
        col_idx, slice_ptr, _, perm = self._unpack(structure)
        return columns.outer(y, col_idx, x, slice_ptr, perm, shape=self.shape, slice_size=self.pitch, backend=backend)


def _index_dtype(size: int) -> Any:
    return np.int32 if size < 2**31 else np.int64


def store(
    csr: Csr,
    name: str,
    *,
    pitch: int,
    dtype: Any,
    max_bytes: int | None,
    perm: np.ndarray | None = None,
) -> dict[str, Any]:
    """The arrays of `ColumnMajor` for a canonical CSR matrix, in time linear in its entries and no loop over them.

    Raises:
      ValueError: the padded storage would take more than `max_bytes` (by default 64 MiB or ten times CSR, whichever is
        more); or more than 2³¹ places in 32-bit JAX.
    """
    n_rows, n_cols = csr.shape
    lengths = np.diff(csr.indptr)
    order = slice(None) if perm is None else perm
    in_storage = lengths[order]
    widths = longest_by_slice(in_storage, pitch)
    n_stored = pitch * int(widths.sum())
    check_memory(name, n_stored, csr, np.dtype(dtype).itemsize, max_bytes)
    if n_stored >= 2**31 and not x64_enabled():
        raise ValueError(
            f"format {name!r} would store {n_stored} places, which needs 64-bit offsets; call "
            "jax.config.update('jax_enable_x64', True) first"
        )
    index = _index_dtype(n_stored)
    slice_ptr = np.concatenate([[0], np.cumsum(widths * pitch)]).astype(index)

    # Entry k of CSR is entry k − indptr[row] of its row: a base per row, and a stride of one pitch.
    storage_row = np.arange(n_rows, dtype=index)
    base = np.empty(n_rows, index)
    base[order] = slice_ptr[storage_row // pitch] + storage_row % pitch if n_rows else 0
    base -= csr.indptr[:-1].astype(index) * index(pitch)  # may wrap; adding k·pitch wraps back
    place = np.arange(csr.nnz, dtype=index)
    place *= index(pitch)
    place += np.repeat(base, lengths)

    values, col_idx = np.zeros(n_stored, dtype), np.full(n_stored, n_cols, np.int32)
    values[place], col_idx[place] = csr.data, csr.indices
    return {
        "values": jnp.asarray(values),
        "col_idx": jnp.asarray(col_idx),
        "slice_ptr": jnp.asarray(slice_ptr),
        "row_lengths": jnp.asarray(in_storage.astype(np.int32)),
        "perm": None if perm is None else jnp.asarray(perm.astype(np.int32)),
        "shape": (n_rows, n_cols),
        "nnz": int(csr.nnz),
        "pitch": pitch,
    }


def longest_by_slice(lengths: np.ndarray, slice_size: int) -> np.ndarray:
    """The longest of the rows in each slice, int64 [n_slices]; allocates nothing larger."""
    if len(lengths) == 0:
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(lengths, np.arange(0, len(lengths), slice_size)).astype(np.int64)


def check_memory(name: str, n_stored: int, csr: Csr, itemsize: int, max_bytes: int | None) -> None:
    """Refuses a storage that would take out of all proportion to the matrix, before anything is allocated.

    Raises:
      ValueError: says how much it would take, against how much in CSR, and which format fits.
    """
    needed = n_stored * (itemsize + 4)
    in_csr = csr.nnz * (itemsize + 4) + 4 * csr.shape[0]
    limit = max(SMALL_CHANGE, MAX_PADDING * in_csr) if max_bytes is None else max_bytes
    if needed <= limit:
        return
    lengths = np.diff(csr.indptr)
    if name == "csr":
        raise ValueError(
            f"the matrix takes {readable_bytes(needed)} in CSR, without any padding; max_bytes={max_bytes} allows none"
        )
    hll = 32 * int(longest_by_slice(lengths, 32).sum()) * (itemsize + 4)
    better = "hll" if name != "hll" and hll <= 3 * in_csr else "csr"
    longest = int(lengths.max(initial=0))
    raise ValueError(
        f"format {name!r} would take {readable_bytes(needed)} for a matrix of {readable_bytes(in_csr)} in CSR, "
        f"because its longest row has {longest} entries where the mean is {csr.nnz / max(csr.shape[0], 1):.1f}; use "
        f"format={better!r} or format='auto', or pass max_bytes={needed} to insist"
    )


def register(cls: type[Any]) -> type[Any]:
    """Makes a column-major format a pytree: arrays are leaves, the rest is static."""
    arrays = ["values", "col_idx", "slice_ptr", "row_lengths", "perm"]
    meta = [f.name for f in dataclasses.fields(cls) if f.name not in arrays]
    return jax.tree_util.register_dataclass(cls, data_fields=arrays, meta_fields=meta)
