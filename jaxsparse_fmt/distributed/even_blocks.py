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


def piece_of_blocks(a: Array, over: Distribution) -> Array:
    """A device's piece [size, ...] of the even blocks a [m, ...], zero in empty places; for use inside shard_map."""
    block, piece, in_block, in_piece, length = _runs(over)
    return _sent(a, over, over.size, block, piece, in_block, in_piece, length)


def block_of_pieces(a: Array, over: Distribution) -> Array:
    """A device's even block [m, ...] of the pieces a [size, ...]; for use inside shard_map."""
    block, piece, in_block, in_piece, length = _runs(over)
    return _sent(a, over, over.even.size, piece, block, in_piece, in_block, length)


def _sent(
    a: Array,
    over: Distribution,
    n: int,  # of the result
    sender: np.ndarray,  # of each run
    receiver: np.ndarray,
    begin: np.ndarray,  # at the sender
    to: np.ndarray,  # at the receiver
    length: np.ndarray,
) -> Array:
    """[n, ...] what this device receives of the runs."""
    k, parts, longest = lax.axis_index(over.axis), len(over.counts), int(length.max(initial=0))
    after = ((0, longest), *((0, 0),) * (a.ndim - 1))  # so no slice reaches beyond the end: XLA would shift it
    a, out = jnp.pad(a, after), jnp.zeros((n + longest, *a.shape[1:]), a.dtype)
    distance = (receiver - sender) % parts
    for d in np.unique(distance):
        now = distance == d
        table = np.zeros((3, parts), np.int32)  # by device: where its run begins, the run's length, where one arrives
        table[0, sender[now]] = begin[now]
        table[1, sender[now]] = length[now]
        table[2, receiver[now]] = to[now]
        start, count, place = jnp.asarray(table)[:, k]
        size = int(length[now].max())
        live = (lax.iota(np.int32, size) < count).reshape(-1, *(1,) * (a.ndim - 1))
        run = jnp.where(live, lax.dynamic_slice_in_dim(a, start, size), 0)
        if d > 0:
            run = lax.ppermute(run, over.axis, list(zip(sender[now].tolist(), receiver[now].tolist(), strict=True)))
        run += lax.dynamic_slice_in_dim(out, place, size)
        out = lax.dynamic_update_slice_in_dim(out, run, place, 0)
    return out[:n]


@functools.lru_cache(maxsize=64)
def _runs(over: Distribution) -> tuple[np.ndarray, ...]:
    """The block and the piece of each run, where it begins in each, and its length."""
    cuts = np.union1d(over.starts, over.even.starts)
    first = cuts[:-1]
    block, piece = (np.searchsorted(starts, first, side="right") - 1 for starts in (over.even.starts, over.starts))
    return block, piece, first - over.even.starts[block], first - over.starts[piece], np.diff(cuts)
