"""A basis: a matrix's own order of unknowns, which a solver enters once.

A solver enters that order once, iterates with `A.in_basis @ p`, and leaves once. The loop permutes nothing, unless a
preconditioner works in the user's order.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import vector_passes


@pytree
@dataclasses.dataclass(frozen=True)
class Basis:
    """An order of n unknowns: place k of the inner order holds unknown perm[k] of the user's.

    Attributes:
      perm: [n] int32, a permutation; None where the two orders are the same, and both maps cost nothing, and in the
        basis of a sharded matrix, which stores no permutation.
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
        """The number of devices that hold the parts of a vector that has entered."""
        return 1

    def same(self, other: "Basis") -> bool:
        """Whether both are the same map, decided without reading arrays."""
        return type(self) is type(other) and self.perm is other.perm

    def agree(self, given: Callable[[], dict[str, Any]]) -> None:
        """Raises an error if arguments, by name, differ between the processes that solve together; not inside a trace.

        Of arrays on devices only dtype and shape are compared.
        """

    def placed(self, x: Any) -> Any:
        """x, a concrete vector of the user, where the basis can take it; raises an error if it cannot."""
        return x

    def noise(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A user's vector [n] or [n, p] of `vector_passes.noise`, where `placed` would put it."""
        return vector_passes.noise(math.prod(shape), dtype).reshape(shape)

    def accept(self, x: Any, given: Any = None) -> Any:
        """`placed(x)`, of a vector on which all processes `agree`; `given` is what the user passed for it, if not x."""
        return self.placed(x)


IDENTITY = Basis()
