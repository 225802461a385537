"""The entries of a sharded matrix one by one, in canonical order of the user's rows, then columns."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt.distributed.halo_exchange import exchange
from jaxsparse_fmt.distributed.local import Shards, on_each_device

Array = jax.Array
Sharded = Any  # a ShardedMatrix, whose module imports this one


@jax.jit
def data(A: Sharded) -> Array:
    """The values [nnz]."""

    def gathered(shards: Shards) -> Array:
        out = jnp.zeros(A.entries.over.size, shards.blocks[0].dtype)
        for (_, _, place), block in zip(shards.places(), shards.blocks, strict=True):
            out = out.at[place].set(block.each_entry()[3], mode="drop", unique_indices=True)
        return out

    return A.entries.leave(on_each_device(gathered, A.shards, A.range.over))


def stored(shards: Shards, own: Array) -> tuple[Array, ...]:
    """The values [1, n_stored] of one shard's blocks, from its entries in their order."""
    places = (place for _, _, place in shards.places())
    return tuple(own.at[place].get(mode="fill", fill_value=0)[None] for place in places)


@jax.jit
def values_of(A: Sharded, data: Array) -> tuple[Array, ...]:
    """The values of A's blocks if its entries are `data` [nnz]."""
    return on_each_device(stored, A.shards, A.range.over, A.entries.enter(data))


@jax.jit
def coordinates(A: Sharded) -> tuple[Array, Array]:
    """Rows and columns [nnz]; the columns of the halo come from an exchange of the unknowns' numbers."""

    def found(shards: Shards, rows: Array, cols: Array) -> tuple[Array, Array]:
        cols = jnp.concatenate([cols, exchange(cols, shards.halo, shards.axis)])
        row_of, col_of = jnp.zeros(A.entries.over.size, rows.dtype), jnp.zeros(A.entries.over.size, cols.dtype)
        for row, col, place in shards.places():
            row_of = row_of.at[place].set(jnp.take(rows, row, mode="clip"), mode="drop", unique_indices=True)
            col_of = col_of.at[place].set(jnp.take(cols, col, mode="clip"), mode="drop", unique_indices=True)
        return row_of, col_of

    rows, cols = on_each_device(found, A.shards, A.range.over, A.range.unknowns(), A.domain.unknowns())
    return A.entries.leave(rows), A.entries.leave(cols)


places = jax.jit(Shards.places)
