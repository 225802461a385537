"""A basis, entered once: where a matrix's own order of unknowns differs from the user's.

A matrix whose rows are sorted, padded or spread over devices works fastest on vectors in its own order. A solver
enters that order once, iterates with `A.in_basis @ p`, and leaves once; the loop permutes nothing, unless a
preconditioner in the user's order makes it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Basis:
    """An order of n unknowns: place k of the inner order holds unknown perm[k] of the user's.

    Attributes:
      perm: [n] int32, a permutation; None where the two orders are the same, and both maps cost nothing.
    """

    perm: Array | None = None

    def enter(self, x: Array) -> Array:
        """The user's vector [n] or [n, p] in the inner order."""
        return x if self.perm is None else x[self.perm]

    def leave(self, y: Array) -> Array:
        """A vector in the inner order, back in the user's."""
        if self.perm is None:
            return y
        return jnp.zeros_like(y).at[self.perm].set(y, unique_indices=True)


IDENTITY = Basis()
