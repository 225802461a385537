"""The entries of a sharded matrix one by one, in canonical order of the user's rows, then columns."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt.distributed.halo import exchange
from jaxsparse_fmt.distributed.local import Shards

Array = jax.Array
Sharded = Any  # a ShardedMatrix, whose module imports this one


@jax.jit
def data(A: Sharded) -> Array:
    """The values [nnz]."""
    return A.data_basis.leave(A.range.over.each(lambda shards: _by_entry(A, shards.entries(), 3), A.shards))


@jax.jit
def values_of(A: Sharded, data: Array) -> tuple[Array, ...]:
    """The values of A's blocks if its entries are `data` [nnz]."""

    def stored(shards: Shards, own: Array) -> tuple[Array, ...]:
        found = (index for _, _, index, _ in shards.entries())
        return tuple(own.at[index].get(mode="fill", fill_value=0)[None] for index in found)

    return A.range.over.each(stored, A.shards, A.data_basis.enter(data))


@jax.jit
def coordinates(A: Sharded) -> tuple[Array, Array]:
    """Rows and columns [nnz]."""
    rows, cols, _ = in_pieces(A, A.range.unknowns(), A.domain.unknowns())
    return A.data_basis.leave(rows), A.data_basis.leave(cols)


@jax.jit
def in_pieces(A: Sharded, rows: Array, cols: Array) -> tuple[Array, Array, Array]:
    """Row, column and value of every entry, in the pieces of `A.data_basis`.

    Args:
      rows, cols: in pieces, the numbers that rows and columns get; those of the halo's columns are exchanged.
    """

    def found(shards: Shards, rows: Array, cols: Array) -> tuple[Array, Array, Array]:
        cols = jnp.concatenate([cols, exchange(cols, shards.halo)])
        of = shards.entries()
        return _by_entry(A, of, 0, rows), _by_entry(A, of, 1, cols), _by_entry(A, of, 3)

    return A.range.over.each(found, A.shards, rows, cols)


def _by_entry(A: Sharded, of: list[Any], which: int, names: Array | None = None) -> Array:
    """What `entries` tells in place `which`, or the name of that number, by entry; zero in empty places."""
    out = jnp.zeros(A.data_basis.over.size, of[0][which].dtype if names is None else names.dtype)
    for told in of:
        value = told[which] if names is None else jnp.take(names, told[which], mode="clip")
        out = out.at[told[2]].set(value, mode="drop", unique_indices=True)
    return out
