"""The entries of a sharded matrix: one by one on the devices, in canonical order of rows, then columns; and on the host
of a process as the rows of each of its shards, in canonical CSR with all columns.

On the host rows and columns have the numbers of the inner order without its empty places: those of shard k are
`starts[k]` to `starts[k + 1]` − 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import in_trace, is_traced
from jaxsparse_fmt._types import Csr, check_known
from jaxsparse_fmt.distributed.delivery import Pieces, stacked
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.halo import exchange
from jaxsparse_fmt.distributed.local import Shards
from jaxsparse_fmt.distributed.processes import everyones, of_each, together

Array = jax.Array
Sharded = Any  # a ShardedMatrix, whose module imports this one


@jax.jit
def data(A: Sharded) -> Array:
    """The values [nnz], with zeros after them if `data_basis` is padded."""
    return A.data_basis.leave(A.range.over.each(lambda shards: _by_entry(A, shards.entries(), 3), A.shards))


@jax.jit
def values_of(A: Sharded, data: Array) -> tuple[Array, ...]:
    """The values of A's blocks if its entries are `data` [nnz]."""

    def stored(shards: Shards, piece: Array) -> tuple[Array, ...]:
        return tuple(piece.at[index].get(mode="fill", fill_value=0)[None] for _, _, index, _ in shards.entries())

    return A.range.over.each(stored, A.shards, A.data_basis.enter(data))


@jax.jit
def coordinates(A: Sharded) -> tuple[Array, Array, Array]:
    """Rows, columns and numbers [nnz], in even blocks as `data`; beyond the matrix where that has padding."""
    rows, cols, _ = entries_by_piece(A, A.range.unknowns(), A.domain.unknowns())
    number = A.data_basis.numbers()
    rows, cols = (
        jnp.where(number < A.nnz, A.data_basis.leave(ids), end) for ids, end in zip((rows, cols), A.shape, strict=True)
    )
    return rows, cols, number


@jax.jit
def entries_by_piece(A: Sharded, rows: Array, cols: Array) -> tuple[Array, Array, Array]:
    """Row, column and value of every entry, in the pieces of `A.data_basis`.

    Args:
      rows, cols: in pieces, the numbers that rows and columns get; those of the halo's columns are exchanged.
    """

    def found(shards: Shards, rows: Array, cols: Array) -> tuple[Array, Array, Array]:
        cols = jnp.concatenate([cols, exchange(cols, shards.halo)])
        stored = shards.entries()
        return _by_entry(A, stored, 0, rows), _by_entry(A, stored, 1, cols), _by_entry(A, stored, 3)

    return A.range.over.each(found, A.shards, rows, cols)


def _by_entry(A: Sharded, stored: list[Any], which: int, names: Array | None = None) -> Array:
    """What `Shards.entries` has in place `which`, or the name of that number, by entry; zero in empty places."""
    out = jnp.zeros(A.data_basis.over.size, stored[0][which].dtype if names is None else names.dtype)
    for block in stored:
        value = block[which] if names is None else jnp.take(names, block[which], mode="clip")
        out = out.at[block[2]].set(value, mode="drop", unique_indices=True)
    return out


# ------------------------------------------------------------------------------------ on the host


def pieces(A: Any, dtype: Any) -> Pieces:
    """The rows of each shard of this process, with entries of this dtype; all processes must call this."""
    over, nnz = A.range.over, A.data_basis.over.counts
    arrays = untraced(_named, A, over.mesh)
    row, col, value = ({k: a[: nnz[k]] for k, a in over.on_host(array).items()} for array in arrays)

    def rows_of(k: int) -> Csr:
        ptr = np.concatenate([[0], np.cumsum(np.bincount(row[k] - over.starts[k], minlength=over.counts[k]))])
        shape = over.counts[k], int(A.domain.over.starts[-1])
        out = scipy.sparse.csr_array((value[k].astype(dtype), col[k], ptr), shape=shape)
        out.has_canonical_format = True
        return out

    return of_each(rows_of, over.mine, over.mesh)


def to_scipy(A: Any) -> Csr:
    """All rows in canonical CSR in the user's order, on the host of each process, all of which must call this."""
    check_known(A)
    rows = pieces(A, np.promote_types(A.dtype, np.float32))
    S = stacked(*everyones(lambda: rows, A.range.over.mesh).values())
    if A.range.route is None and A.domain.route is None:
        return S
    S = S.tocoo()
    row, col = (users_unknowns(basis)[number] for basis, number in ((A.range, S.row), (A.domain, S.col)))
    return scipy.sparse.csr_array(scipy.sparse.coo_array((S.data, (row, col)), S.shape)).sorted_indices()


def users_unknowns(basis: Any) -> np.ndarray:
    """[n] the user's number of each unknown, in the inner order; all processes must call this."""
    return _joined(basis.over, untraced(type(basis).unknowns, basis, basis.over.mesh))


def _joined(over: Distribution, a: Array) -> np.ndarray:
    """[n, ...] an array in pieces, without their empty places, on the host of each process."""
    parts = {k: piece[: over.counts[k]] for k, piece in over.on_host(a).items()}
    return np.concatenate([*everyones(lambda: parts, over.mesh).values()])


@jax.jit
def _named(A: Any) -> tuple[Array, ...]:
    """Row, column and value of every entry, by the numbers of the inner order without its empty places."""
    return entries_by_piece(A, *(inner_numbers(basis.over) for basis in (A.range, A.domain)))


def inner_numbers(over: Distribution) -> Array:
    first = jnp.asarray(over.starts[:-1, None], index_dtype(over.places))
    return (first + jnp.arange(over.size, dtype=first.dtype)[None]).reshape(-1)


def untraced(f: Any, arrays: Any, mesh: Any) -> Any:
    """f(arrays), which a traced function may close over: in a thread, since shard_map is refused inside that trace."""
    if is_traced(arrays) or not in_trace():
        return f(arrays)  # of traced arrays JAX refuses to read the result, in words

    def called(_: Any) -> Any:
        with jax.set_mesh(mesh):
            return f(arrays)

    return together(called, (0,))[0]
