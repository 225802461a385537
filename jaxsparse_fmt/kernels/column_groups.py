"""Several right-hand sides: the ones that a lane computes, and the number that it loads at once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt.kernels.backends.tuning import LAUNCH


@dataclasses.dataclass(frozen=True)
class Pack:
    """`length` right-hand sides, neighbours in a row of x, that a lane loads at once: a second axis [lanes, length].

    A pack of one has no second axis.
    """

    length: int

    @classmethod
    def of(cls, dialect: str, p: int, dtype: Any) -> Pack:
        """The longest pack that divides p. Mosaic GPU loads one right-hand side at a time."""
        most = max(LAUNCH.pack_bytes // jnp.dtype(dtype).itemsize, 1)
        return cls(1 if dialect == "mosaic" else math.gcd(p, most, LAUNCH.columns_a_lane))

    def columns(self, first: jax.Array, count: int, p: int, lanes: int = 1) -> list[tuple[Any, Any]]:
        """The packs of a lane, where `lanes` lanes share `count` of p right-hand sides.

        Returns:
          (index of the first right-hand side, whether it exists) of each.
        """
        exact = p % count == 0
        return [(first + q, exact or first + q < p) for q in range(0, count, lanes * self.length)]

    def places(self, first: jax.Array) -> jax.Array:
        """The indices of the packs that begin at `first` [lanes]."""
        return first if self.length == 1 else first[:, None] + jnp.arange(self.length, dtype=first.dtype)

    def load(
        self, d: Any, ref: Any, base: jax.Array, columns: list[tuple[Any, Any]], live: jax.Array
    ) -> list[jax.Array]:
        """The packs `columns` of the rows of `ref` that begin at `base` [lanes]."""
        return [d.load(ref, self.places(base + q), self.beside(live & inside), 0) for q, inside in columns]

    def beside(self, a: jax.Array) -> jax.Array:
        """a [lanes] in a shape that broadcasts against packs."""
        return a if self.length == 1 else a[:, None]

    def along(self, a: jax.Array) -> jax.Array:
        """a [lanes], repeated for each right-hand side of a pack."""
        return a if self.length == 1 else jnp.broadcast_to(a[:, None], (*a.shape, self.length))


class LaneGroups:
    """The dialect `d` in groups of n neighbouring lanes: `lanes()` numbers the groups, `column()` the lanes of each."""

    def __init__(self, d: Any, n: int):
        self._d, self._n, self.rows = d, n, d.rows // n
        self.full, self.load, self.store, self.sum_threads = d.full, d.load, d.store, d.sum_threads

    def lanes(self) -> jax.Array:
        return lax.div(self._d.lanes(), self._d.full(self._n, jnp.int32))

    def column(self) -> jax.Array:
        return lax.rem(self._d.lanes(), self._d.full(self._n, jnp.int32))
