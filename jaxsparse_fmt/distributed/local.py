"""The shard of one device: its local and halo blocks, its product and its entries."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import vector_passes
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.halo import Exchange, exchange

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """The arrays of all devices, [shards, ...]; inside shard_map those of one shard.

    Attributes:
      blocks: the local and the halo block; in mode "vector", or without a halo, one block for all columns.
      boundary: [shards, b] int32, the rows of the halo block, from n_rows on in padding; None: all rows.
      numbers: [shards, nnz] the index of each entry of the last block in the shard's entries by row, then by unknown,
        and past their end in padding; None: there is no halo.
    """

    blocks: tuple[SparseMatrix, ...]
    boundary: Array | None
    numbers: Array | None
    halo: Exchange

    def product(self, x: Array) -> Array:
        """The device's piece of A·x, from its piece of x [m] or [m, p]."""
        (A, v), *beyond = self._terms(x)
        y = A.matvec(v)
        for B, h in beyond:
            y, h = _in_turn(y, h)
            y = self._summed(y, B.matvec(h))
        return y

    def product_dot(self, x: Array, w: Array) -> tuple[Array, vector_passes.Parts]:
        """The device's piece of A·x, and its summand of wᵀ·A·x in parts, for pieces of real vectors [m].

        The product with the halo block adds its own parts of the sum, so y is not read again.
        """
        (A, v), *beyond = self._terms(x)
        y, own = A.matvec_dot(v, w)
        own = own.of if isinstance(own, vector_passes.Parts) else own[None]
        for B, h in beyond:
            y, h = _in_turn(y, h)
            more = B.matvec(h)
            at_rows = w if self.boundary is None else w.at[self.boundary].get(mode="fill", fill_value=0)
            # As many sums as there are parts, each with a part as a term more: XLA makes them in one kernel.
            terms = jnp.pad(at_rows * more, (0, -more.shape[0] % own.shape[0])).reshape(own.shape[0], -1)
            own = jnp.sum(terms + jnp.pad(own[:, None], ((0, 0), (0, terms.shape[1] - 1))), axis=1)
            y = self._summed(y, more)
        return y, vector_passes.Parts(own)

    def _terms(self, x: Array) -> list[tuple[SparseMatrix, Array]]:
        """The blocks, each with the vector that it multiplies."""
        h = exchange(x, self.halo)
        if len(self.blocks) == 1:
            return [(self.blocks[0], jnp.concatenate([x, h]))]
        local, beyond = self.blocks
        return [(local, x), (beyond, h)]

    def _summed(self, y: Array, more: Array) -> Array:
        """The sum of the blocks' products."""
        if self.boundary is None:
            return y + more
        return y.at[self.boundary].add(more, mode="drop", unique_indices=True, indices_are_sorted=True)

    def entries(self) -> list[tuple[Array, Array, Array, Array]]:
        """For every stored place of each block, on one device: its row, its column among [x | halo], its index in the
        shard's entries by row, then by unknown, and its number; the largest integer as index in padding.
        """
        n_rows, last = self.blocks[0].shape[0], len(self.blocks) - 1
        n_own = self.blocks[0].shape[1] - (self.halo.width if last == 0 else 0)
        indices, out = [self.numbers], []
        if last == 1:  # the entries of the local block have the indices that those of the halo leave, in their order
            free = jnp.ones(sum(A.nnz for A in self.blocks), bool).at[self.numbers].set(False, mode="drop")
            indices = [jnp.nonzero(free, size=self.blocks[0].nnz)[0], self.numbers]
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
