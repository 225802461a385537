"""A basis, entered once: where a matrix's own order of unknowns differs from the user's.

A matrix whose rows are sorted, padded or spread over devices works fastest on vectors in its own order. A solver
enters that order once, iterates with `A.in_basis @ p`, and leaves once; the loop permutes nothing, unless a
preconditioner in the user's order makes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt import vectors

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

    @property
    def is_identity(self) -> bool:
        return self.perm is None

    @property
    def devices(self) -> int:
        """Over which vectors that have entered are spread."""
        return 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """In which programs over vectors that have entered are traced: what sums over them must know where they lie."""
        return vectors.distributed(None)

    def same(self, other: Basis) -> bool:
        """Whether vectors that have entered either have entered both, seen without a look at arrays."""
        return type(self) is type(other) and self.perm is other.perm

    def accept(self, x: Any) -> Any:
        """A concrete vector of the user, where it can be entered; refused in words where it cannot."""
        return x


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Between(Basis):
    """From vectors that have entered `outer` to those that have entered `inner`."""

    outer: Basis = dataclasses.field(kw_only=True)
    inner: Basis = dataclasses.field(kw_only=True)

    @property
    def is_identity(self) -> bool:
        return False

    def enter(self, x: Array) -> Array:
        return self.inner.enter(self.outer.leave(x))

    def leave(self, y: Array) -> Array:
        return self.outer.enter(self.inner.leave(y))


IDENTITY = Basis()
