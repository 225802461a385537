"""The programs of `_device_shards` for one device inside shard_map, beside those of `_device_programs`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import CsrArrays
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.distributed.halo import passed
from jaxsparse_fmt.kernels.layout.address import expand_ptr, put, row_pointers, take
from solvers.precond import _device_programs as programs
from solvers.precond._device_programs import Links, csr

NONE = np.iinfo(np.int32).max  # as the number of a column


@functools.partial(jax.jit, static_argnums=0)
def begun(n: int, near: Array | None, links: Links) -> tuple[Array, Array]:
    """The near-null vector, of ones if None, padded by its first entry, and zeros [n]."""
    near = jnp.ones(1) if near is None else near.astype(np.float64)
    padded = jnp.pad(near, (0, n - near.shape[0]), constant_values=0)
    return jnp.where(lax.iota(np.int32, n) < jnp.minimum(links.count, near.shape[0]), padded, near[0]), jnp.zeros(n)


@jax.jit
def longest_row(S: Any) -> Array:
    return jnp.max(jnp.diff(S.csr_arrays().indptr))


@functools.partial(jax.jit, static_argnums=(0, 1))
def own_rows(n: int, size: int, shards: Any, links: Links, count: Array) -> tuple[Array, Array]:
    """Keys and values of the rows of a device's shard, as of `summed`, in places of [own | halo]."""
    parts = zip(*shards.entries(), strict=True)
    row, col, index, value = (jnp.concatenate(part) for part in parts)
    inside = index < count  # padding comes after the device's entries
    col = jnp.where(col < size, col, col - size + links.own)
    row, col = (ids.astype(np.int32) for ids in (row, col))
    return programs.summed(inside, row, col, value.astype(np.float64), (n, n), None)[:2]


@functools.partial(jax.jit, static_argnums=(0, 1))
def outside(room: int, extra: int, S: Any, first: Array, count: Array) -> tuple[Array, Array, Array]:
    """The columns in which S has entries of other devices, rising [room], and the numbers of these entries [extra].

    And how many columns and entries there are, and the longest row.
    """
    _, col, ptr = S.csr_arrays()
    beyond = programs._live(S) & ((col < first) | (col >= first + count))
    place = jnp.cumsum(beyond, dtype=np.int32) - 1
    entry = put("set", jnp.full(extra, S.nnz), place, lax.iota(np.int32, S.nnz), beyond, unique_indices=True)
    ids = lax.sort(jnp.where(entry < S.nnz, take(col, jnp.minimum(entry, S.nnz - 1)), NONE))
    new = on_device.flags(ids) & (ids < NONE)
    found = put("set", jnp.full(room, NONE), jnp.cumsum(new, dtype=np.int32) - 1, ids, new, unique_indices=True)
    return found, entry, programs._stacked(jnp.sum(new), place[-1] + 1, jnp.max(jnp.diff(ptr)))


@functools.partial(jax.jit, static_argnums=0)
def placed(shape: tuple[int, int], S: Any, first: Array, ids: Array, entry: Array, slots: Array, links: Links) -> Any:
    """S with its columns in places of [own | halo]: those of `ids`, rising, have these slots of the halo."""
    data, col, ptr = S.csr_arrays()
    number = jnp.searchsorted(ids, take(col, jnp.minimum(entry, S.nnz - 1)))
    slot = links.own + take(slots, jnp.minimum(number, ids.shape[0] - 1))
    col = jnp.where(programs._live(S), col - first, 0)
    return csr((data, put("set", col, entry, slot.astype(np.int32), unique_indices=True), ptr), shape)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def moved(longest: int, room: int, back: bool, S: Any, links: Links) -> tuple[Array, ...]:
    """Row, column and value [room] of the halo's entries from their owners, by row, and how many there are; or `back`,
    those of the halo's rows of S to their owners. Rows have at most `longest` entries.
    """
    how = links.how
    row, col, data = jnp.zeros(room, np.int32), jnp.zeros(room, np.int32), jnp.zeros(room)
    if how.send is None:
        return row, col, data, jnp.zeros((), np.int32)
    halo = links.own + lax.iota(np.int32, how.width)
    cols, terms = (passed(a, how, back) for a in _rows(S, halo if back else how.send, longest))
    live = cols.reshape(-1) > 0
    place = jnp.where(live, jnp.cumsum(live, dtype=np.int32) - 1, room)
    rows = jnp.broadcast_to((how.send if back else halo).astype(np.int32)[:, None], cols.shape)
    found = zip((row, col, data), (rows, cols - 1, terms), strict=True)
    return *(put("set", out, place, a.reshape(-1), unique_indices=True) for out, a in found), jnp.sum(live)


@jax.jit
def joined(S: Any, A: Any, row: Array, col: Array, data: Array, count: Array) -> tuple[Any, Array]:
    """S with the halo's entries, which come after its own; and the products of two entries in A·S."""
    end, values, columns, ptr = S.shape[0], *S.csr_arrays()
    more = row_pointers(jnp.where(lax.iota(np.int32, row.shape[0]) < count, row, end), end)
    begin = (ptr[-1],)
    values = lax.dynamic_update_slice(jnp.pad(values, (0, data.shape[0])), data, begin)
    columns = lax.dynamic_update_slice(jnp.pad(columns, (0, col.shape[0])), col, begin)
    ptr = ptr + more.astype(ptr.dtype)
    products = jnp.where(programs._live(A), take(jnp.diff(ptr), A.csr_arrays().indices), 0)
    return csr((values, columns, ptr), S.shape), programs._stacked(jnp.sum(products, dtype=np.float64), count)


def _rows(S: Any, rows: Array, width: int) -> tuple[Array, Array]:
    """The columns + 1 and the values of rows, [rows, width], zero past their ends."""
    data, col, ptr = S.csr_arrays()
    number = lax.iota(np.int32, width)
    inside = number < (take(ptr, rows + 1) - take(ptr, rows))[:, None]
    index = jnp.where(inside, take(ptr, rows)[:, None] + number, 0)
    return jnp.where(inside, take(col, index) + 1, 0), jnp.where(inside, take(data, index), 0)


@jax.jit
def folded(own: Array, S: Any, row: Array, col: Array, data: Array, count: Array) -> tuple[Any, ...]:
    """As `summed`, of the rows of S before `own`, and of entries that other devices have sent."""
    values, columns, _ = S.csr_arrays()
    rows = expand_ptr(jnp, programs._pointers(S), S.nnz)
    inside = jnp.concatenate([programs._live(S) & (rows < own), lax.iota(np.int32, row.shape[0]) < count])
    row, col, data = (jnp.concatenate(pair) for pair in ((rows, row), (columns, col), (values, data)))
    *terms, found = programs.summed(inside, row, col, data, S.shape, None)
    return *terms, jnp.append(found, count)


@functools.partial(jax.jit, static_argnums=(*range(8),))
def trimmed(
    own: int, n: int, m: int, halo: int, below: int, whole: int, nnz: int, inside: int, A: Any, R: Any, P: Any, d: Array
) -> tuple[Any, ...]:
    """A, R, P and d [n] without padding; if the next level is `whole`, of so many rows, P's columns are its own.

    Args:
      own: places of a device's own unknowns.
      n, m: rows of this level and the next.
      halo, below: places of A's halo and of P's.
    """
    if whole:
        data, col, _ = P.csr_arrays()
        col = jnp.where(programs._live(P), col, whole)
        turned, _ = entry_index.transposed(CsrArrays(data, col, programs._pointers(P), (P.shape[0], whole)))
        R = csr(turned, (whole, P.shape[0]))
        ends = whole, P.shape[1], (n, whole)
    else:
        ends = m, own, (n, m + below)
    R = shrunk(own, ends[0], n, ends[2][::-1], inside, R)
    P = shrunk(ends[1], n, m, ends[2], inside, P)
    return shrunk(own, n, n, (n, n + halo), nnz, A), R, P, d[:n]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def shrunk(own: int, n_rows: int, n_cols: int, shape: tuple[int, int], nnz: int, S: Any) -> Any:
    """S without padding: its halo, in rows or columns from `own` on, follows n_rows or n_cols of the device's own."""
    data, col, ptr = S.csr_arrays()
    col = jnp.where(col < own, col, col - own + n_cols)
    ptr = jnp.concatenate([ptr[: n_rows + 1], ptr[own + 1 :][: shape[0] - n_rows]])
    return csr((data[:nnz], col[:nnz], ptr), shape)
