"""Moves vectors between the user's even blocks and the pieces of a basis in the user's order.

    even blocks, m = 3 | 0 1 2   | 3 4 5   | 6 · ·   |   n = 7 unknowns, the user's vector padded to parts·m
    pieces             | 0 1 · · | 2 3 4 5 | 6 · · · |   of 2, 4 and 1 unknowns

An even block and a piece share at most one run of consecutive unknowns, and there are fewer than 2·parts runs. A run
travels from the device of its even block to the device of its piece, or back. There are as many rounds (`rounds.py`) as
the most runs that one block or piece has. A device holds its even block, its piece, and the runs of one round.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt.core.vector_passes import Distribution
from jaxsparse_fmt.distributed.rounds import in_rounds

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Round:
    """Runs that travel together.

    Attributes:
      pairs: (device of the block, device of the piece) of each run.
      size: the length of the longest run.
      block, piece: [parts], where the run of each device begins in its even block, and in its piece.
      sent, received: [parts], the lengths of the runs that each device has in its even block, and in its piece.
    """

    pairs: tuple[tuple[int, int], ...]
    size: int
    block: np.ndarray
    piece: np.ndarray
    sent: np.ndarray
    received: np.ndarray


def block_size(counts: tuple[int, ...]) -> int:
    """The size of an even block, for pieces of these lengths."""
    return -(-sum(counts) // len(counts))


def to_pieces(x: Array, over: Distribution) -> Array:
    """A device's piece [size, ...] of the even blocks x [m, ...], zero in empty places; for use inside shard_map."""
    rounds = _rounds(over.counts)
    return _moved(x, over.size, over.axis, [(r.pairs, r.size, r.block, r.sent, r.piece) for r in rounds])


def to_blocks(y: Array, over: Distribution) -> Array:
    """A device's even block [m, ...] of the pieces y [size, ...]; for use inside shard_map."""
    back = [(tuple((b, a) for a, b in r.pairs), r.size, r.piece, r.received, r.block) for r in _rounds(over.counts)]
    return _moved(y, block_size(over.counts), over.axis, back)


def _moved(a: Array, n: int, axis: Any, runs: list[tuple[Any, int, np.ndarray, np.ndarray, np.ndarray]]) -> Array:
    """[n, ...] the runs that this device receives, added to zeros.

    Args:
      runs: of each round the (sender, receiver) pairs, the size of the longest run, and [parts] where the run of each
        device begins in `a`, its length there, and where the run that it receives begins in the result.
    """
    k = lax.axis_index(axis)
    longest = max((size for _, size, *_ in runs), default=0)
    behind = ((0, longest), *((0, 0),) * (a.ndim - 1))  # so no slice reaches beyond the end: XLA would shift it
    a, out = jnp.pad(a, behind), jnp.zeros((n + longest, *a.shape[1:]), a.dtype)
    for pairs, size, start, count, to in runs:
        start, count, to = (jnp.asarray(table, np.int32)[k] for table in (start, count, to))
        live = (lax.iota(np.int32, size) < count).reshape(-1, *(1,) * (a.ndim - 1))
        run = jnp.where(live, lax.dynamic_slice_in_dim(a, start, size), 0)
        run = run if all(source == target for source, target in pairs) else lax.ppermute(run, axis, pairs)
        out = lax.dynamic_update_slice_in_dim(out, lax.dynamic_slice_in_dim(out, to, size) + run, to, 0)
    return out[:n]


@functools.lru_cache(maxsize=64)
def _rounds(counts: tuple[int, ...]) -> list[Round]:
    """The rounds for pieces of these lengths; the first has the runs that stay on their device."""
    parts, m = len(counts), block_size(counts)
    ends = np.cumsum(counts)
    cuts = np.unique(np.concatenate([[0], ends, np.minimum(np.arange(1, parts + 1) * m, ends[-1])]))
    first, length = cuts[:-1], np.diff(cuts)
    block, piece = first // max(m, 1), np.searchsorted(ends, first, side="right")
    number = np.zeros(len(first), np.int64)
    moves = block != piece
    number[moves] = 1 + in_rounds(block[moves], piece[moves], length[moves])

    def made(runs: np.ndarray) -> Round:
        of_block, of_piece = block[runs], piece[runs]
        tables = np.zeros((4, parts), np.int64)
        tables[0, of_block], tables[1, of_piece] = first[runs] - of_block * m, (first - (ends - counts)[piece])[runs]
        tables[2, of_block] = tables[3, of_piece] = length[runs]
        pairs = tuple(zip(of_block.tolist(), of_piece.tolist(), strict=True))
        return Round(pairs, int(length[runs].max()), *tables)

    return [made(number == c) for c in np.unique(number)]
