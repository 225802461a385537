"""The shard of one device: its local and halo blocks, its product and its entries."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core import mesh_axes, vector_passes
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.halo import Exchange, exchange

Array = jax.Array
ONCE: Any = {"mode": "drop", "unique_indices": True, "indices_are_sorted": True}


@pytree
class Shards:
    """The arrays of all devices, [shards, ...]; inside shard_map those of one shard.

    Attributes:
      blocks: the local and the halo block; in mode "vector", or without a halo, one block for all columns.
      boundary: [shards, b] integers, the rows of the halo block, from n_rows on in padding; None: all rows.
      entry_index: [shards, nnz] the index of each entry of the last block among the shard's entries by row, then by
        unknown, and past their end in padding; None: there is no halo.
    """

    blocks: tuple[SparseMatrix, ...]
    boundary: Array | None
    entry_index: Array | None
    halo: Exchange

    def product(self, x: Array) -> Array:
        """The device's piece of A·x, from its piece of x [m] or [m, p]."""
        (A, v), *beyond = self._terms(x)
        y = A @ v
        for B, h in beyond:
            y, h = _in_turn(y, h)
            more = B @ h
            y = y + more if self.boundary is None else y.at[self.boundary].add(more, **ONCE)
        return y

    def transposed(self, y: Array, size: int) -> Array:
        """The device's piece [size] or [size, p] of Aᵀ·y, from its piece of y: sums for the halo travel back."""
        dtype = jnp.result_type(self.blocks[0].dtype, y.dtype)
        x = mesh_axes.varying(jnp.zeros((size, *y.shape[1:]), dtype), y)
        # Without entries the product does not vary over the devices, as y does.
        return jax.linear_transpose(lambda x: mesh_axes.varying(self.product(x), y), x)(y.astype(dtype))[0]

    def product_sums(self, x: Array, what: vector_passes.Pass, *others: Array) -> tuple[Array, Any]:
        """The device's piece of A·x, and its summands of the sums of a pass over A·x and `others`, in parts; real [m].

        The product with the halo block adds by how much it changes the terms of its rows: no other row is read again.
        """
        (A, v), *beyond = self._terms(x)
        y, sums = A._matvec_sums(v, what, *others)
        parts = jnp.stack([a.summands if isinstance(a, vector_passes.Parts) else a[None] for a in sums])
        for B, h in beyond:
            y, h = _in_turn(y, h)
            before, *there = map(self._at_boundary, (y, *others))
            # Without the barrier XLA reads y itself after it has changed, and copies it before.
            before, now = lax.optimization_barrier((before, before + B @ h))
            both = (what.each((), piece, *there)[1] for piece in (now, before))
            terms = jnp.stack([a * b - c * d for (a, b), (c, d) in zip(*both, strict=True)])
            # As many sums as there are parts, each with a part as a term more: XLA makes them in one kernel.
            terms = jnp.pad(terms, ((0, 0), (0, -terms.shape[1] % parts.shape[1]))).reshape(*parts.shape, -1)
            parts = jnp.sum(terms + jnp.pad(parts[..., None], ((0, 0), (0, 0), (0, terms.shape[2] - 1))), axis=2)
            y = now if self.boundary is None else y.at[self.boundary].set(now, **ONCE)
        return y, tuple(map(vector_passes.Parts, parts))

    def _at_boundary(self, v: Array) -> Array:
        """v at the rows of the halo block; zeros in padding."""
        return v if self.boundary is None else v.at[self.boundary].get(mode="fill", fill_value=0)

    def _terms(self, x: Array) -> list[tuple[SparseMatrix, Array]]:
        """The blocks, each with the vector that it multiplies."""
        h = exchange(x, self.halo)
        if len(self.blocks) == 1:
            return [(self.blocks[0], jnp.concatenate([x, h]))]
        local, beyond = self.blocks
        return [(local, x), (beyond, h)]

    def entries(self) -> list[tuple[Array, Array, Array, Array]]:
        """For every stored place of each block, on one device: its row, its column among [x | halo], its index in the
        shard's entries by row, then by unknown, and its number; the largest integer as index in padding.
        """
        n_rows, last = self.blocks[0].shape[0], len(self.blocks) - 1
        n_own = self.blocks[0].shape[1] - (self.halo.width if last == 0 else 0)
        indices, out = [self.entry_index], []
        if last == 1:  # the entries of the local block have the indices that those of the halo leave, in their order
            free = jnp.ones(sum(A.nnz for A in self.blocks), bool).at[self.entry_index].set(False, mode="drop")
            indices = [jnp.nonzero(free, size=self.blocks[0].nnz)[0], self.entry_index]
        for k, (A, index) in enumerate(zip(self.blocks, indices, strict=True)):
            row, col, entry, value = A.entries()
            live = (col < A.shape[1]) & (row < A.shape[0])
            row = row if k == 0 or self.boundary is None else jnp.take(self.boundary, row, mode="clip")
            entry = entry if index is None else jnp.take(index, entry, mode="clip")
            entry = jnp.where(live, entry, jnp.iinfo(entry.dtype).max)
            out.append((jnp.where(live, row, n_rows), col + n_own * k, entry, value))
        return out


def _in_turn(y: Array, h: Array) -> tuple[Array, Array]:
    """y and h, to be read once y is there: XLA would wait for the halo first where its buffers then take less memory.

    Both must be used: for one that is not, the transpose of a barrier makes a zero that vmap cannot map.
    """
    return lax.optimization_barrier((y, h))
