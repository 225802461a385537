"""The dialect `d` of Pallas' Triton lowering (`dialect.py` says what a dialect is), and the same interpreted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Triton:
    """`rows` lanes; with `stream`, what is read once is evicted first."""

    def __init__(self, rows: int, stream: bool):
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        self._pl, self._triton, self.rows, self._stream = pl, triton, rows, stream

    def program_id(self) -> jax.Array:
        return self._pl.program_id(0)

    def lanes(self) -> jax.Array:
        return jnp.arange(self.rows, dtype=jnp.int32)

    def full(self, value: Any, dtype: Any) -> jax.Array:
        return jnp.full((self.rows,), value, dtype)

    def load(self, ref: Any, idx: jax.Array, live: Any = None, other: Any = 0, once: bool = False) -> jax.Array:
        policy = "evict_first" if once and self._stream else None
        if live is None:
            return self._triton.load(ref.at[idx], eviction_policy=policy)
        live = jnp.broadcast_to(live, idx.shape)
        other = jnp.asarray(other, ref.dtype)
        return self._triton.load(ref.at[idx], mask=live, other=other, eviction_policy=policy)

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        self._triton.store(ref.at[idx], value.astype(ref.dtype), mask=jnp.broadcast_to(live, idx.shape))

    def sum_threads(self, value: jax.Array, n: int, stride: int) -> jax.Array:
        groups = value.reshape(self.rows // (n * stride), n, stride)
        sums = jnp.sum(groups, axis=1)[:, None, :]
        return jnp.broadcast_to(sums, groups.shape).reshape(self.rows)


class Interpreted(Triton):
    """Triton's dialect under Pallas' interpreter, whose masked store writes dead lanes back where they point."""

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        past_the_end = jnp.full_like(idx, ref.shape[0])
        super().store(ref, jnp.where(live, idx, past_the_end), value, live)
