"""What one device of a sharded matrix holds, and what it does with it inside `shard_map`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxsparse_fmt import vectors
from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.matrix import SparseMatrix
from jaxsparse_fmt.partition.halo import Exchange, exchange

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """What the devices hold: arrays [shards, ...], or inside shard_map those of one shard.

    Attributes:
      parts: local and halo part; in mode "vector", or without a halo, one for all columns.
      send: [shards, k] int32, what each sends of its piece of x; None: nothing, or all of it.
      boundary: [shards, b] int32, the rows of the halo part, from n_rows on in padding; None: all rows.
    """

    parts: tuple[SparseMatrix, ...]
    send: Array | None
    boundary: Array | None
    halo: Exchange = dataclasses.field(metadata={"static": True})
    axis: str = dataclasses.field(metadata={"static": True})

    def product(self, x: Array) -> Array:
        """A·x on one device, from its piece of x [m] or [m, p] to its piece of y."""
        return self._summed([A.matvec(v) for A, v in self._terms(x)])

    def product_dot(self, x: Array, w: Array) -> tuple[Array, Array]:
        """A·x, and this device's share of wᵀ·A·x, [1]; for pieces of real vectors [m].

        What the halo adds comes after the exchange and is little, so that there y is not read again.
        """
        (A, v), *beyond = self._terms(x)
        y, share = A.matvec_dot(v, w)
        share = vectors.total(share)
        if not beyond:
            return y, share[None]
        ((B, h),) = beyond
        more = B.matvec(h)
        at_rows = w if self.boundary is None else w.at[self.boundary].get(mode="fill", fill_value=0)
        return self._summed([y, more]), (share + vectors.inner_product(at_rows, more))[None]

    def _terms(self, x: Array) -> list[tuple[SparseMatrix, Array]]:
        """The parts, each with what it multiplies."""
        if self.halo.kind == "none":
            return [(self.parts[0], x)]
        h = exchange(x, self.send, self.halo, self.axis)
        if len(self.parts) == 1:
            return [(self.parts[0], jnp.concatenate([x, h]))]
        local, beyond = self.parts
        return [(local, x), (beyond, h)]

    def _summed(self, products: list[Array]) -> Array:
        """y from those of the parts."""
        if len(products) == 1:
            return products[0]
        y, more = products
        if self.boundary is None:
            return y + more
        return y.at[self.boundary].add(more, mode="drop", unique_indices=True, indices_are_sorted=True)

    def places(self, part: Array | int) -> list[tuple[Array, Array, Array]]:
        """Of every stored place of each part, on one device: its row, its column among [x | halo], and its index in the
        shard's entries by row, then by unknown; a large one in padding.

        A part lists the entries of a row in the order of its own columns. Of the halo some come before the device's own
        unknowns: `left` of them in a row.

        Args:
          part: which shard this is.
        """
        n_rows = self.parts[0].shape[0]
        n_own = self.parts[0].shape[1] - (self.halo.width if len(self.parts) == 1 else 0)
        found = []
        for k, A in enumerate(self.parts):
            row, col, entry = A.coordinates()
            live = (col < A.shape[1]) & (row < A.shape[0])
            row = row if k == 0 or self.boundary is None else jnp.take(self.boundary, row, mode="clip")
            found.append((jnp.where(live, row, n_rows), col + n_own * k, entry, live))
        before = n_own + self.halo.before(part)

        def count(which: Callable[[Array], Array], k: int) -> Array:
            row, col, *_ = found[k]
            zero = jnp.zeros(n_rows, index_dtype(sum(A.nnz for A in self.parts)))
            return zero.at[jnp.where(which(col), row, n_rows)].add(1, mode="drop")

        own, halo = count(lambda c: c < n_own, 0), count(lambda c: c >= n_own, -1)
        left = count(lambda c: (c >= n_own) & (c < before), -1)
        first_own, first_halo = (jnp.cumsum(a) - a for a in (own, halo))
        out = []
        for k, (row, col, entry, live) in enumerate(found):
            at = functools.partial(jnp.take, indices=row, mode="clip")
            is_own = col < n_own
            if len(self.parts) == 1:
                rank = entry - at(first_own + first_halo) - jnp.where(is_own, 0, at(own))
            else:
                rank = entry - at((first_own, first_halo)[k])
            place = rank + jnp.where(is_own, at(left), jnp.where(rank < at(left), 0, at(own)))
            out.append((row, col, jnp.where(live, at(first_own + first_halo) + place, jnp.iinfo(place.dtype).max)))
        return out
