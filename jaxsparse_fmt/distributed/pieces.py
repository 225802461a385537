"""The rows of each shard on its process's host, in canonical CSR with all columns, and what travels between shards.

In this module a piece is the rows of one shard. Rows and columns are numbered as in the inner order without its empty
places: those of shard k are `starts[k]` to `starts[k + 1]` − 1. Processes exchange only rows and entries that cross
from one shard to another.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from jaxsparse_fmt._types import Csr, concrete
from jaxsparse_fmt.distributed.delivery import Messages, delivered, to_owners
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.even_blocks import block_size
from jaxsparse_fmt.distributed.halo import by_owner, exchange_on_host, needed
from jaxsparse_fmt.distributed.local import Shards
from jaxsparse_fmt.distributed.placement import local_parts
from jaxsparse_fmt.distributed.processes import everyones

Pieces = dict[int, Csr]  # by shard


def starts_of(over: Distribution) -> np.ndarray:
    """[parts + 1], the first number of each shard, and the total."""
    return np.concatenate([[0], np.cumsum(over.counts, dtype=np.int64)])


def pieces(A: Any, dtype: Any) -> Pieces:
    """The rows of each shard of this process, with entries of this dtype."""
    over, columns = A.range.over, starts_of(A.domain.over)
    mine = local_parts(over)
    own = {k: np.arange(columns[k], columns[k] + A.domain.over.size) for k in mine}
    halo = jax.tree.map(lambda a: {k: piece_of(a, k) for k in mine}, A.shards.halo)
    buffers = exchange_on_host(own, halo, over.mesh)

    def rows_of(k: int) -> Csr:
        with concrete():
            one = jax.tree.map(lambda a: jnp.asarray(piece_of(a, k)), A.shards)
            found = [tuple(map(np.asarray, of)) for of in _each_entry(one)]
        unknowns = np.concatenate([own[k], buffers[k]])
        nnz, n_rows = A.data_basis.over.counts[k], over.counts[k]
        col, data, lengths = np.zeros(nnz, np.int32), np.zeros(nnz, dtype), np.zeros(n_rows + 1, np.int64)
        for row, column, index, value in found:
            live = index < nnz
            col[index[live]], data[index[live]] = unknowns[column[live]], value[live]
            lengths[1:] += np.bincount(row[live], minlength=n_rows)[:n_rows]
        out = scipy.sparse.csr_array((data, col, np.cumsum(lengths)), shape=(n_rows, A.domain.n))
        out.has_canonical_format = True
        return out

    return of_each(rows_of, mine, over.mesh)


_each_entry = jax.jit(Shards.each_entry)


def to_scipy(A: Any) -> Csr:
    """All rows in canonical CSR in the user's order, on the host of each process, all of which must call this."""
    own = pieces(A, np.promote_types(A.dtype, np.float32))
    S = _stacked(*everyones(lambda: own, A.range.over.mesh).values())
    if A.range.route is None and A.domain.route is None:
        return S
    S = S.tocoo()
    csr = scipy.sparse.coo_array((S.data, (users_unknowns(A.range)[S.row], users_unknowns(A.domain)[S.col])), S.shape)
    return scipy.sparse.csr_array(csr).sorted_indices()


def users_unknowns(of: Any) -> np.ndarray:
    """[n] the user's number of each unknown of a basis, in the inner order; all processes must call this."""
    if of.route is None:
        return np.arange(of.n)
    mine, m = local_parts(of.over), block_size(of.over.counts)
    route = jax.tree.map(lambda a: {k: _flat_piece_of(a, k, of.devices) for k in mine}, of.route)
    blocks = {k: k * m + np.arange(m) for k in mine}
    received = exchange_on_host(blocks, route.how, of.over.mesh)
    own = {k: np.concatenate([blocks[k], received[k]])[route.slots[k][: of.over.counts[k]]] for k in mine}
    return np.concatenate([*everyones(lambda: own, of.over.mesh).values()])


def of_each(f: Callable[[int], Any], shards: Iterable[int], mesh: Mesh) -> dict[int, Any]:
    """f(k) for each shard k of this process; what f raises in one process, all processes raise."""
    made: dict[int, Any] = {}

    def make() -> dict[int, Any]:
        made.update({k: f(k) for k in shards})
        return {}

    everyones(make, mesh)
    return made


def piece_of(a: Any, k: int) -> np.ndarray:
    """The part of shard k of an array [parts, ...], on the host of a process that has this shard."""
    return _flat_piece_of(a, k, a.shape[0])[0] if isinstance(a, jax.Array) else np.asarray(a)[k]


def _flat_piece_of(a: jax.Array, k: int, parts: int) -> np.ndarray:
    """The part [m] of shard k of an array [parts·m]."""
    m = a.shape[0] // parts
    begin = k * m
    found = (s for s in a.addressable_shards if begin in range(*s.index[0].indices(a.shape[0])))
    shard = next(found)
    return np.asarray(shard.data)[begin - (shard.index[0].start or 0) :][:m]


def fetched(wanted: dict[int, np.ndarray], B: Any, starts: np.ndarray, mesh: Mesh) -> Any:
    """The rows of B, matrices or arrays by shard, with the numbers that each shard wants, rising."""
    asked = delivered(lambda: {k: by_owner(rows, starts) for k, rows in wanted.items()}, mesh)
    sent = lambda: {k: {t: B[k][rows - starts[k]] for t, rows in of.items()} for k, of in asked.items()}  # noqa: E731
    of = delivered(sent, mesh)
    return of_each(lambda k: _stacked(B[k][:0], *of[k].values()), of, mesh)


def meeting(A: Pieces, B: Pieces, starts: np.ndarray, mesh: Mesh) -> dict[int, tuple[Csr, Csr, np.ndarray, np.ndarray]]:
    """For each shard its rows of A, the rows of B that their columns name, and the rising numbers of these rows and of
    the columns in them.

    The two matrices are the factors of its rows of A·B, without empty columns, so that scratch is of the shard's size.

    Args:
      starts: [parts + 1] of A's columns and B's rows.
    """
    wanted = of_each(lambda k: needed(A[k].indices, starts[k], starts[k + 1]), A, mesh)
    others = fetched(wanted, B, starts, mesh)

    def met(k: int) -> tuple[Csr, Csr, np.ndarray, np.ndarray]:
        S = A[k]
        (start, stop), first = starts[k : k + 2], np.searchsorted(wanted[k], starts[k])
        own, above = (S.indices >= start) & (S.indices < stop), S.indices >= stop
        col = np.searchsorted(wanted[k], S.indices) + np.where(above, stop - start, 0)
        col[own] = S.indices[own] - start + first
        rows = _stacked(others[k][:first], B[k], others[k][first:])
        left = scipy.sparse.csr_array((S.data, col.astype(np.int32), S.indptr), shape=(S.shape[0], rows.shape[0]))
        left.has_canonical_format = True
        columns, at = np.unique(rows.indices, return_inverse=True)
        right = scipy.sparse.csr_array((rows.data, at.astype(np.int32), rows.indptr), (rows.shape[0], columns.size))
        return left, right, np.concatenate([wanted[k][:first], np.arange(start, stop), wanted[k][first:]]), columns

    return of_each(met, A, mesh)


def turned(A: Pieces, rows: np.ndarray, columns: np.ndarray, mesh: Mesh) -> Pieces:
    """The rows of Aᵀ of each shard, which are A's columns there; entries in columns of other shards travel."""

    def moved() -> Messages:
        away: Messages = {}
        for k, S in A.items():
            row = np.repeat(np.arange(rows[k], rows[k + 1]), np.diff(S.indptr))
            owner = np.searchsorted(columns, S.indices, side="right") - 1
            away[k] = to_owners(owner, row, S.indices, S.data)
        return away

    parts = delivered(moved, mesh)

    def turn(k: int) -> Csr:
        none = A[k].indices[:0], A[k].indices[:0], A[k].data[:0]
        row, col, data = (np.concatenate(a) for a in zip(none, *parts[k].values(), strict=True))
        order, count = np.lexsort((row, col)), int(columns[k + 1] - columns[k])
        ptr = np.concatenate([[0], np.cumsum(np.bincount(col - columns[k], minlength=count))])
        out = scipy.sparse.csr_array((data[order], row[order].astype(np.int32), ptr), shape=(count, int(rows[-1])))
        out.has_canonical_format = True
        return out

    return of_each(turn, A, mesh)


def _stacked(*parts: Any) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
