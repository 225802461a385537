"""Several right-hand sides: which of them a lane has, and how many it reads at once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt.kernels.dialect import LAUNCH


@dataclasses.dataclass(frozen=True)
class Run:
    """So many right-hand sides, side by side in a row of x, that a lane reads in one load: an axis behind the lanes,
    which runs of one go without.
    """

    length: int

    @classmethod
    def of(cls, dialect: str, p: int, dtype: Any) -> Run:
        """The longest for p right-hand sides, none of which may be cut off. Mosaic GPU reads one at a time."""
        most = max(LAUNCH.run_bytes // jnp.dtype(dtype).itemsize, 1)
        return cls(1 if dialect == "mosaic" else math.gcd(p, most, LAUNCH.columns_a_lane))

    def columns(self, first: jax.Array, count: int, p: int, lanes: int = 1) -> list[tuple[Any, Any]]:
        """The runs of a lane, of `count` of the p right-hand sides that `lanes` share: (index of the first, whether it
        exists).
        """
        exact = p % count == 0
        return [(first + q, exact or first + q < p) for q in range(0, count, lanes * self.length)]

    def places(self, first: jax.Array) -> jax.Array:
        """The indices of the runs that begin at `first` [lanes]."""
        return first if self.length == 1 else first[:, None] + jnp.arange(self.length, dtype=first.dtype)

    def load(
        self, d: Any, ref: Any, base: jax.Array, columns: list[tuple[Any, Any]], live: jax.Array
    ) -> list[jax.Array]:
        """From the rows that begin at `base` [lanes] what `columns` gave."""
        return [d.load(ref, self.places(base + q), self.beside(live & inside), 0) for q, inside in columns]

    def beside(self, a: jax.Array) -> jax.Array:
        """What every lane has once, a [lanes], as it broadcasts to runs."""
        return a if self.length == 1 else a[:, None]

    def along(self, a: jax.Array) -> jax.Array:
        """The same, once for each right-hand side."""
        return a if self.length == 1 else jnp.broadcast_to(a[:, None], (*a.shape, self.length))


class Shared:
    """A dialect in which n neighbouring lanes of `d` are one row; `column()` tells them apart."""

    def __init__(self, d: Any, n: int):
        self._d, self._n, self.rows = d, n, d.rows // n
        self.full, self.load, self.store, self.sum_threads = d.full, d.load, d.store, d.sum_threads

    def lanes(self) -> jax.Array:
        return lax.div(self._d.lanes(), self._d.full(self._n, jnp.int32))

    def column(self) -> jax.Array:
        return lax.rem(self._d.lanes(), self._d.full(self._n, jnp.int32))
