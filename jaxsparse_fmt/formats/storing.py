"""From a canonical CSR matrix into a storage: sizes first, then every place asks for its entry.

`csr` has `indptr`, `indices`, `data`, `shape` and `nnz`: SciPy's on the host, or `CsrArrays` on a device. The same code
runs in NumPy and in JAX; only counts come to the host on the way, to make shapes, and no array as long as the entries.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt import traffic
from jaxsparse_fmt._types import Csr, index_dtype, owned, readable_bytes, x64_enabled
from jaxsparse_fmt.kernels.address import Address, Arrays, take

# Padding beyond this multiple of CSR's bytes is refused, unless it is small change anyway.
MAX_PADDING, SMALL_CHANGE = 10, 64 * 2**20
MAX_LANES = 2**31 - 2**16  # of all threads of a kernel, whose numbers are int32; the last block may reach beyond


class TooLarge(ValueError):
    """A storage that would take out of all proportion to the matrix, or more than was allowed."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a CSR matrix in storage order.

    Attributes:
      lengths: [n_rows] int32.
      perm: [n_rows] int32, storage row k is row perm[k]; None: the matrix's own order.
    """

    lengths: Any
    perm: Any = None

    @property
    def longest(self) -> int:
        return int(self.lengths.max()) if self.lengths.shape[0] else 0


def namespace(a: Any) -> Any:
    """Where a conversion of this array runs: NumPy, or jax.numpy for one on a device."""
    return np if isinstance(a, np.ndarray) else jnp


def rows_of(csr: Csr, sigma: int | None = 1) -> Rows:
    """The rows, sorted by falling length inside windows of `sigma` rows, stably; None sorts all of them."""
    xp, n_rows = namespace(csr.indptr), csr.shape[0]
    lengths = xp.diff(csr.indptr).astype(np.int32)
    if sigma == 1:
        return Rows(lengths)
    window = max(n_rows if sigma is None else min(sigma, n_rows), 1)
    one_key = (n_rows // window + 1) * (Rows(lengths).longest + 1) < 2**31
    return Rows(*(_sorted if xp is np else _sorted_on_device)(xp, lengths, window, one_key))


def _sorted(xp: Any, lengths: Any, window: int, one_key: bool) -> tuple[Any, Any]:
    """The lengths in their new order, and that order. One key sorts several times faster on a GPU than two."""
    of_window, longest = xp.arange(lengths.shape[0], dtype=np.int32) // window, lengths.max(initial=0)
    if one_key:
        perm = xp.argsort(of_window * (longest + 1) + (longest - lengths), stable=True)
    else:
        perm = xp.lexsort((-lengths, of_window))
    perm = perm.astype(np.int32)
    return take(lengths, perm), perm


_sorted_on_device = jax.jit(_sorted, static_argnums=(0, 3))


def longest_by_slice(lengths: Any, slice_size: int) -> np.ndarray:
    """The longest of the rows in each slice, int64 [n_slices] on the host."""
    if isinstance(lengths, np.ndarray):
        return traffic.longest_by_slice(lengths, slice_size)
    return np.asarray(_longest_on_device(lengths, slice_size)).astype(np.int64)


@functools.partial(jax.jit, static_argnums=1)
def _longest_on_device(lengths, slice_size):
    whole = jnp.pad(lengths, (0, -lengths.shape[0] % slice_size)).reshape(-1, slice_size)
    return jnp.max(whole, axis=1)


def longer_than(rows: Rows) -> np.ndarray:
    """How many of the sorted rows are longer than j, for every j below the longest: int64 on the host."""
    xp = namespace(rows.lengths)
    j = xp.arange(rows.longest, dtype=np.int32)
    return rows.lengths.shape[0] - np.asarray(xp.searchsorted(rows.lengths[::-1], j, side="right")).astype(np.int64)


def pointers(counts: Any) -> Any:
    """[0, counts[0], counts[0] + counts[1], …] in int32, or int64 where it must be; where `counts` are."""
    xp = namespace(counts)
    total = int(counts.sum(dtype=np.int64 if xp is np or x64_enabled() else np.float32))
    check_addressable(total)
    index = index_dtype(total)
    return starts(xp, counts, index)


def starts(xp: Any, counts: Any, index: Any) -> Any:
    """`pointers` of a known dtype: nothing comes to the host."""
    return xp.concatenate([xp.zeros(1, index), xp.cumsum(counts, dtype=index)])


def picked(a: Any, which: np.ndarray) -> Any:
    """a[which], of a boolean array on the host, in one call."""
    return a[which] if isinstance(a, np.ndarray) else _taken(a, np.flatnonzero(which))


_taken = jax.jit(take)


def check_addressable(n_stored: int) -> None:
    """Refuses what 32-bit JAX cannot count.

    Raises:
      ValueError: 2³¹ places or more.
    """
    if n_stored >= 2**31 and not x64_enabled():
        raise ValueError(
            f"the format would store {n_stored} places, which needs 64-bit offsets; call "
            "jax.config.update('jax_enable_x64', True) first"
        )


def fill(csr: Csr, rows: Rows, address: Address, arrays: Arrays, n_stored: int, dtype: Any) -> tuple[Any, Any]:
    """`values` and `col_idx` [n_stored] of a storage, with 0 and n_cols in padding."""
    if csr.nnz == 0 or n_stored == 0:
        return jnp.zeros(n_stored, dtype), jnp.full(n_stored, csr.shape[1], np.int32)
    if namespace(csr.data) is jnp:
        given = {k: jnp.asarray(a) for k, a in arrays.items()}
        of_csr, of_rows = (csr.indptr, csr.indices, csr.data), (rows.lengths, rows.perm)
        return _fill_on_device(*of_csr, *of_rows, given, address, n_stored, csr.shape[1], dtype)
    place, live = source(np, csr.indptr, rows, arrays, address, n_stored)
    values, col_idx = np.zeros(n_stored, dtype), np.full(n_stored, csr.shape[1], np.int32)
    place = place[live]
    values[live], col_idx[live] = csr.data[place], csr.indices[place]
    return jnp.asarray(values), jnp.asarray(col_idx)


def source(xp: Any, indptr: Any, rows: Rows, arrays: Arrays, address: Address, n_stored: int) -> tuple[Any, Any]:
    """Which entry of CSR each place holds, and whether it holds one: [n_stored]."""
    row, j = address.slots(xp, arrays, n_stored)
    lengths, perm = rows.lengths, rows.perm
    at = xp.minimum(row, lengths.shape[0] - 1)
    live = (row < lengths.shape[0]) & (j < lengths[at])
    first = indptr[:-1] if perm is None else indptr[:-1][perm]
    return first[at] + j, live


@functools.partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _fill_on_device(indptr, indices, data, lengths, perm, arrays, address, n_stored, n_cols, dtype):
    place, live = source(jnp, indptr, Rows(lengths, perm), arrays, address, n_stored)
    place = jnp.where(live, place, 0)
    values = data.at[place].get(mode="promise_in_bounds").astype(dtype)
    cols = indices.at[place].get(mode="promise_in_bounds").astype(jnp.int32)
    return jnp.where(live, values, 0), jnp.where(live, cols, n_cols)


def csr_arrays(csr: Csr, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """values [nnz], col_idx [nnz] int32 and row_ptr [n_rows + 1] on the device."""
    index = index_dtype(csr.nnz)
    return owned(csr.data, dtype), owned(csr.indices, np.int32), owned(csr.indptr, index)


def on_host(csr: Csr) -> Csr:
    """The matrix in NumPy arrays, where a device is not to convert it (`merging.distinct`)."""
    if namespace(csr.data) is np:
        return csr
    data, indices, indptr = (np.asarray(a) for a in (csr.data, csr.indices, csr.indptr))
    data = data.astype(np.float32) if data.itemsize == 2 else data  # SciPy holds no 16-bit floats
    return scipy.sparse.csr_array((data, indices, indptr), shape=csr.shape)


def sample(csr: Csr, rows: np.ndarray) -> Csr:
    """Some rows of the pattern in NumPy arrays; only they come to the host."""
    if namespace(csr.data) is np:
        return csr[rows]
    first, end = np.asarray(_taken(csr.indptr, np.stack([rows, rows + 1])))
    indptr = np.concatenate([[0], np.cumsum(end - first)])
    entry = np.arange(indptr[-1]) + np.repeat(first - indptr[:-1], end - first)
    indices = np.asarray(_taken(csr.indices, entry.astype(first.dtype)))
    return scipy.sparse.csr_array((np.ones(indices.size, bool), indices, indptr), shape=(rows.size, csr.shape[1]))


def on_device(a: Any) -> jax.Array | None:
    return None if a is None else jnp.asarray(a)


def check_memory(
    name: str, n_stored: int, csr: Csr, dtype: Any, max_bytes: int | None, index: float = 4, cause: str | None = None
) -> None:
    """Refuses a storage that would take out of all proportion to the matrix, before anything is allocated.

    Args:
      dtype: of the values.
      index: bytes of index for a stored place.
      cause: why it is so large, in words; None: the longest row is.

    Raises:
      TooLarge: says how much it would take, against how much in CSR, and which format fits. ValueError: 32-bit
        JAX cannot count so many places.
    """
    itemsize = np.dtype(dtype).itemsize
    needed = int(n_stored * (itemsize + index))
    in_csr = csr.nnz * (itemsize + 4) + 4 * csr.shape[0]
    if needed <= (max(SMALL_CHANGE, MAX_PADDING * in_csr) if max_bytes is None else max_bytes):
        check_addressable(n_stored)
        return
    if n_stored == csr.nnz:
        raise TooLarge(
            f"the matrix takes {readable_bytes(needed)} in {name!r}, without any padding; max_bytes={max_bytes} allows "
            "none"
        )
    lengths = np.diff(np.asarray(csr.indptr))
    hll = traffic.sliced_places(lengths, 32) * (itemsize + 4)
    better = "hll" if name != "hll" and hll <= 3 * in_csr else "csr"
    mean, longest = csr.nnz / max(csr.shape[0], 1), int(lengths.max(initial=0))
    if cause is None and longest > MAX_PADDING * mean:
        cause = f"its longest row has {longest} entries where the mean is {mean:.1f}"
    raise TooLarge(
        f"format {name!r} would take {readable_bytes(needed)} for a matrix of {readable_bytes(in_csr)} in CSR, because "
        f"{cause or f'it would store {n_stored} places for {csr.nnz} entries'}; use "
        f"format={better!r}, or format='auto' of from_scipy, or pass max_bytes={needed} to insist"
    )


def positive(option: str, value: Any, unit: str = "row", least: int = 1) -> int:
    """A layout option as an int.

    Raises:
      TypeError: no integer. ValueError: below `least`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{option} must be an integer, a number of {unit}s; got {value!r}") from None
    if number < least:
        raise ValueError(f"{option} must be at least {least} {unit}{'s' * (least != 1)}; got {number}")
    return number


def slices(slice_size: Any, sigma: Any) -> tuple[int, int]:
    """The layout options of a sliced format.

    Raises:
      ValueError: slice_size below 1, or sigma between 1 and slice_size, where sorting could not change a slice.
    """
    slice_size, sigma = positive("slice_size", slice_size), positive("sigma", sigma)
    if 1 < sigma < slice_size:
        raise ValueError(
            f"sigma={sigma} sorts inside windows smaller than a slice of {slice_size} rows, which changes no slice's "
            "width; use sigma=1, or at least slice_size"
        )
    return slice_size, sigma


def threads(value: Any, allowed: tuple[int, ...], n_rows: int) -> int:
    """The layout option `threads_per_row`.

    Raises:
      ValueError: not one of `allowed`, or more threads in all than a kernel counts.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value not in allowed:
        raise ValueError(f"threads_per_row must be one of {', '.join(map(str, allowed))}; got {value!r}")
    number = int(value)
    if number > 1 and number * n_rows >= MAX_LANES:
        raise ValueError(f"threads_per_row={number} on {n_rows} rows makes 2³¹ threads or more; use fewer")
    return number
