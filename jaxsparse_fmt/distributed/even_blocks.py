"""Moves vectors between the user's even blocks and the pieces of a basis in the user's order.

    even blocks, m = 3 | 0 1 2   | 3 4 5   | 6 · ·   |   n = 7 unknowns, the user's vector padded to parts·m
    pieces             | 0 1 · · | 2 3 4 5 | 6 · · · |   of 2, 4 and 1 unknowns

An even block and a piece share at most one run of consecutive unknowns, and there are fewer than 2·parts runs. A run
travels from the device of its even block to the device of its piece, or back, in one round with all runs that go as
far on the ring of devices. A device holds its even block, its piece, and the runs of one round.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt.distributed.distribution import Distribution

Array = jax.Array


def moved(a: Array, over: Distribution, back: bool) -> Array:
    """A device's piece [size, ...] of the even blocks a [m, ...], zero in empty places; for use inside shard_map.

    Args:
      back: whether it is the device's even block [m, ...] of the pieces a [size, ...].
    """
    n = over.even.size if back else over.size
    block, piece, in_block, in_piece, length = _runs(over)
    sender, receiver, begin, to = (piece, block, in_piece, in_block) if back else (block, piece, in_block, in_piece)
    k, parts, longest = lax.axis_index(over.axis), len(over.counts), int(length.max(initial=0))
    behind = ((0, longest), *((0, 0),) * (a.ndim - 1))  # so no slice reaches beyond the end: XLA would shift it
    a, out = jnp.pad(a, behind), jnp.zeros((n + longest, *a.shape[1:]), a.dtype)
    distance = (receiver - sender) % parts
    for d in np.unique(distance):
        of, table = distance == d, np.zeros((3, parts), np.int32)  # where a device's run begins, its length, its place
        table[:2, sender[of]], table[2, receiver[of]] = (begin[of], length[of]), to[of]
        start, count, place = jnp.asarray(table)[:, k]
        size = int(length[of].max())
        live = (lax.iota(np.int32, size) < count).reshape(-1, *(1,) * (a.ndim - 1))
        run = jnp.where(live, lax.dynamic_slice_in_dim(a, start, size), 0)
        if d > 0:
            run = lax.ppermute(run, over.axis, list(zip(sender[of].tolist(), receiver[of].tolist(), strict=True)))
        run += lax.dynamic_slice_in_dim(out, place, size)
        out = lax.dynamic_update_slice_in_dim(out, run, place, 0)
    return out[:n]


@functools.lru_cache(maxsize=64)
def _runs(over: Distribution) -> tuple[np.ndarray, ...]:
    """The block and the piece of each run, where it begins in each, and its length."""
    cuts = np.union1d(over.starts, over.even.starts)
    first = cuts[:-1]
    block, piece = (np.searchsorted(of.starts, first, side="right") - 1 for of in (over.even, over))
    return block, piece, first - over.even.starts[block], first - over.starts[piece], np.diff(cuts)
