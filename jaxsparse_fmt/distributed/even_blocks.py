"""Moves vectors between the user's even blocks and the pieces of a basis in the user's order.

    even blocks, m = 3 | 0 1 2   | 3 4 5   | 6 · ·   |   n = 7 unknowns, the user's vector padded to parts·m
    pieces             | 0 1 · · | 2 3 4 5 | 6 · · · |   of 2, 4 and 1 unknowns

An even block and a piece share at most one run of consecutive unknowns, and there are fewer than 2·parts runs. A run
travels from the device of its even block to the device of its piece, or back, in one round with all runs that go as
far on the ring of devices. A device holds its even block, its piece, and the runs of one round.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt.core.vector_passes import Distribution

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Round:
    """Runs that travel together.

    Attributes:
      pairs: (sender, receiver) of each run.
      size: the length of the longest run.
      start, count: [parts], where the run that each device sends begins, and its length.
      to: [parts], where the run that each device receives begins.
    """

    pairs: tuple[tuple[int, int], ...]
    size: int
    start: np.ndarray
    count: np.ndarray
    to: np.ndarray


def block_size(counts: tuple[int, ...]) -> int:
    """The size of an even block, for pieces of these lengths."""
    return -(-sum(counts) // len(counts))


def to_pieces(x: Array, over: Distribution) -> Array:
    """A device's piece [size, ...] of the even blocks x [m, ...], zero in empty places; for use inside shard_map."""
    return _moved(x, over.size, over.axis, _rounds(over.counts, False))


def to_blocks(y: Array, over: Distribution) -> Array:
    """A device's even block [m, ...] of the pieces y [size, ...]; for use inside shard_map."""
    return _moved(y, block_size(over.counts), over.axis, _rounds(over.counts, True))


def _moved(a: Array, n: int, axis: Any, rounds: list[Round]) -> Array:
    """[n, ...] the runs that this device receives, added to zeros."""
    k = lax.axis_index(axis)
    longest = max((of.size for of in rounds), default=0)
    behind = ((0, longest), *((0, 0),) * (a.ndim - 1))  # so no slice reaches beyond the end: XLA would shift it
    a, out = jnp.pad(a, behind), jnp.zeros((n + longest, *a.shape[1:]), a.dtype)
    for of in rounds:
        start, count, to = (jnp.asarray(table, np.int32)[k] for table in (of.start, of.count, of.to))
        live = (lax.iota(np.int32, of.size) < count).reshape(-1, *(1,) * (a.ndim - 1))
        run = jnp.where(live, lax.dynamic_slice_in_dim(a, start, of.size), 0)
        run = run if all(sender == receiver for sender, receiver in of.pairs) else lax.ppermute(run, axis, of.pairs)
        out = lax.dynamic_update_slice_in_dim(out, lax.dynamic_slice_in_dim(out, to, of.size) + run, to, 0)
    return out[:n]


@functools.lru_cache(maxsize=64)
def _rounds(counts: tuple[int, ...], back: bool) -> list[Round]:
    """The rounds from even blocks to pieces of these lengths, or back."""
    parts, m = len(counts), block_size(counts)
    ends = np.cumsum(counts)
    cuts = np.unique(np.concatenate([[0], ends, np.minimum(np.arange(1, parts + 1) * m, ends[-1])]))
    first, length = cuts[:-1], np.diff(cuts)
    block, piece = first // max(m, 1), np.searchsorted(ends, first, side="right")
    distance = (piece - block) % parts
    sides = (block, first - block * m), (piece, first - (ends - counts)[piece])
    (sender, begin), (receiver, to) = sides[::-1] if back else sides

    def made(runs: np.ndarray) -> Round:
        tables = np.zeros((3, parts), np.int64)
        tables[:2, sender[runs]] = begin[runs], length[runs]
        tables[2, receiver[runs]] = to[runs]
        pairs = tuple(zip(sender[runs].tolist(), receiver[runs].tolist(), strict=True))
        return Round(pairs, int(length[runs].max()), *tables)

    return [made(distance == d) for d in np.unique(distance)]
