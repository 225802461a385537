"""The entries of a sharded matrix one by one, in canonical order of the user's rows, then columns."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt.distributed.halo import exchange
from jaxsparse_fmt.distributed.local import Shards, on_each_device

Array = jax.Array
Sharded = Any  # a ShardedMatrix, whose module imports this one


@jax.jit
def data(A: Sharded) -> Array:
    """The values [nnz]."""

    def gathered(shards: Shards) -> Array:
        out = jnp.zeros(A.data_basis.over.size, shards.blocks[0].dtype)
        for _, _, index, value in shards.each_entry():
            out = out.at[index].set(value, mode="drop", unique_indices=True)
        return out

    return A.data_basis.leave(on_each_device(gathered, A.shards, A.range.over))


@jax.jit
def values_of(A: Sharded, data: Array) -> tuple[Array, ...]:
    """The values of A's blocks if its entries are `data` [nnz]."""

    def stored(shards: Shards, own: Array) -> tuple[Array, ...]:
        found = (index for _, _, index, _ in shards.each_entry())
        return tuple(own.at[index].get(mode="fill", fill_value=0)[None] for index in found)

    return on_each_device(stored, A.shards, A.range.over, A.data_basis.enter(data))


@jax.jit
def coordinates(A: Sharded) -> tuple[Array, Array]:
    """Rows and columns [nnz]; the columns of the halo come from an exchange of the unknowns' numbers."""

    def found(shards: Shards, rows: Array, cols: Array) -> tuple[Array, Array]:
        cols = jnp.concatenate([cols, exchange(cols, shards.halo, shards.axis)])
        row_of, col_of = jnp.zeros(A.data_basis.over.size, rows.dtype), jnp.zeros(A.data_basis.over.size, cols.dtype)
        for row, col, index, _ in shards.each_entry():
            row_of = row_of.at[index].set(jnp.take(rows, row, mode="clip"), mode="drop", unique_indices=True)
            col_of = col_of.at[index].set(jnp.take(cols, col, mode="clip"), mode="drop", unique_indices=True)
        return row_of, col_of

    rows, cols = on_each_device(found, A.shards, A.range.over, A.range.unknowns(), A.domain.unknowns())
    return A.data_basis.leave(rows), A.data_basis.leave(cols)
