"""The dialect `d` of Pallas' Triton lowering, and the same interpreted; `launch.py` lists what a dialect offers.

Kernels are the same in every dialect: `layout/columns.py` decodes column indices of 16 and 32 bits for Triton too.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from jaxsparse_fmt.kernels.backends.tuning import LAUNCH

WARP = LAUNCH.warp


class Triton:
    """`rows` lanes, `per_thread` in each thread; with `stream`, the cache evicts first what a kernel loads `once`."""

    def __init__(self, rows: int, per_thread: int, stream: bool):
        self.rows, self._per_thread, self._stream = rows, per_thread, stream

    def program_id(self) -> jax.Array:
        return pl.program_id(0)

    def lanes(self) -> jax.Array:
        return jnp.arange(self.rows, dtype=jnp.int32)

    def full(self, value: Any, dtype: Any) -> jax.Array:
        return jnp.full((self.rows,), value, dtype)

    def load(self, ref: Any, idx: jax.Array, live: Any = None, other: Any = 0, once: bool = False) -> jax.Array:
        policy = "evict_first" if once and self._stream else None
        if live is None:
            return triton.load(ref.at[idx], eviction_policy=policy)
        live = jnp.broadcast_to(live, idx.shape)
        other = jnp.asarray(other, ref.dtype)
        return triton.load(ref.at[idx], mask=live, other=other, eviction_policy=policy)

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        triton.store(ref.at[idx], value.astype(ref.dtype), mask=jnp.broadcast_to(live, idx.shape))

    def part(self, i: jax.Array, n: int) -> jax.Array:
        return i * n

    def barrier(self) -> None:
        triton.debug_barrier()

    def sum_threads(self, value: jax.Array, n: int, stride: int) -> jax.Array:
        groups = value.reshape(value.shape[0] // (n * stride), n, stride, *value.shape[1:])
        sums = jnp.sum(groups, axis=1)[:, None]
        return jnp.broadcast_to(sums, groups.shape).reshape(value.shape)

    def totals(self, refs: list[Any]) -> list[jax.Array]:
        loaded = []  # all before the first is added up, so that their loads are in flight together
        for ref in refs:
            n = ref.shape[0]
            places = jnp.arange(1 << (n - 1).bit_length(), dtype=jnp.int32)
            loaded.append(self.load(ref, jnp.int32(0)) if n == 1 else self.load(ref, places, places < n))
        return [self.full(jnp.sum(a) if a.ndim else a, a.dtype) for a in loaded]

    def store_sums(self, ref: Any, i: jax.Array, value: jax.Array, m: int) -> None:
        """Stores one sum for each warp if m has room for that, else one for the block; and zeros.

        A sum over several warps takes shared memory, and for a kernel with any of it an H100 sets 233 of 256 kB aside,
        which its L1 cache then lacks (Nsight Compute, 2026-11-26).
        """
        zero, threads = jnp.zeros((), value.dtype), self.rows // self._per_thread
        per_warp = m * WARP // threads  # places for each warp
        if per_warp == 0:
            place = jnp.arange(m, dtype=jnp.int32)
            sums = jnp.where(place == 0, jnp.sum(value), zero)
            return self.store(ref, m * i + place, sums, m * i + place < ref.shape[0])
        thread = jnp.arange(threads, dtype=jnp.int32)
        of_thread = jnp.sum(value.reshape(threads, self._per_thread), axis=1)
        sums, first = self.sum_threads(of_thread, WARP, 1), m * i + lax.div(thread, jnp.int32(WARP)) * per_warp
        for k in range(per_warp):
            live = (lax.rem(thread, jnp.int32(WARP)) == 0) & (first + k < ref.shape[0])
            self.store(ref, first + k, sums if k == 0 else jnp.zeros_like(sums), live)


class Interpreted(Triton):
    """Triton's dialect for Pallas' interpreter, whose masked store writes old values at the indices of dead lanes."""

    def store(self, ref: Any, idx: jax.Array, value: jax.Array, live: jax.Array) -> None:
        past_the_end = jnp.full_like(idx, ref.shape[0])
        super().store(ref, jnp.where(live, idx, past_the_end), value, live)

    def barrier(self) -> None:
        """Nothing: the interpreter runs all lanes together."""
