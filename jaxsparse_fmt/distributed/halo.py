"""The halo: the unknowns that each device needs of others, the plan of their exchange, and the exchange itself.

A device owns a contiguous piece of x and needs some unknowns of other devices, its halo. The exchange puts them into
one buffer, sender after sender, with gaps where one neighbour sends less than another: all devices run the same
program, so all buffers have the same size. It is one of two kinds:

    permute      ppermutes in rounds, in each of which a device sends one list and receives one
    all_to_all   one collective with a list for every pair, all as long as the longest

    device 1:  | from 2        | from 0        |  permute, one round for each
               | 0 | 1 (unused)| 2 | 3         |  all_to_all

`lax.ragged_all_to_all` is not among them, since XLA has it on GPUs alone.

The plan is made on the host in NumPy. A process holds the halos of its own devices and the requests of their
neighbours. All processes know which devices are neighbours and how many unknowns each needs of the other, since that
decides the program that all share.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt.distributed.delivery import by_owner, delivered
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.processes import everyones

Array = jax.Array

# Bytes more to each device for which one collective less is taken: slabs and boxes with large faces take permutes;
# small pieces, and devices with many neighbours, one all_to_all.
ROUND = 2**21
# Times the places that permutes fill, to which the buffer of an all_to_all may grow: with few neighbours among many
# devices it would be as long as a vector.
LARGEST = 4


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, width] integers, the places of its piece of x that each device sends, list after list; inside
        shard_map the device's own row. None: nothing is exchanged.
      sizes: the length of the lists of each round; "all_to_all" is one round.
      pairs: the (source, target) pairs of each round; None: "all_to_all".
      width: places of the buffer.
      axis: the mesh axis, or a tuple of them.
    """

    send: Array | None = None
    sizes: tuple[int, ...] = _static(())
    pairs: tuple[tuple[tuple[int, int], ...], ...] | None = _static(())
    width: int = _static(0)
    axis: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def kind(self) -> str:
        return "all_to_all" if self.pairs is None else "permute"


def exchange(x: Array, how: Exchange) -> Array:
    """The halo buffer [width] or [width, p] of this device from its piece x [m] or [m, p], for use inside shard_map.

    It is linear in x, and JAX knows its transpose.
    """
    return x[:0] if how.send is None else passed(x.at[how.send].get(mode="promise_in_bounds"), how)


def passed(sent: Array, how: Exchange, back: bool = False) -> Array:
    """What this device receives, [width, …], if each sends `sent` [width, …]; or `back`, from whom it sends to."""
    if how.pairs is None:
        return lax.all_to_all(sent, how.axis, 0, 0, tiled=True)
    lists = jnp.split(sent, np.cumsum(how.sizes)[:-1].tolist())
    rounds = ([(t, s) for s, t in pairs] if back else pairs for pairs in how.pairs)
    return jnp.concatenate([lax.ppermute(a, how.axis, pairs) for a, pairs in zip(lists, rounds, strict=True)])


@dataclasses.dataclass(frozen=True)
class Halo:
    """The plan of an exchange, with the lists of this process's devices.

    Attributes:
      over: the pieces of x.
      how: by device, the exchange with its own list, in NumPy.
      needs: the unknowns that each device needs, rising.
      slots: the places of `needs` in the buffer.
      halo, senders: [parts], how many unknowns of others each device needs, and of how many others.
      reason: for this kind of exchange, in words.
    """

    over: Distribution
    how: dict[int, Exchange]
    needs: dict[int, np.ndarray]
    slots: dict[int, np.ndarray]
    halo: np.ndarray
    senders: np.ndarray
    reason: str

    @property
    def width(self) -> int:
        """Places of the buffer."""
        return next(iter(self.how.values())).width

    def places(self, k: int, unknowns: np.ndarray) -> np.ndarray:
        """The place of each unknown in [piece | buffer] of device k."""
        start, stop = self.over.starts[k : k + 2].tolist()
        received = (unknowns < start) | (unknowns >= stop)
        place = unknowns - start
        place[received] = self.over.size + self.slots[k][np.searchsorted(self.needs[k], unknowns[received])]
        return place


def plan(needs: dict[int, np.ndarray], over: Distribution, itemsize: int = 8) -> Halo:
    """The plan by which every device receives the unknowns that it needs, of `itemsize` bytes; all processes must call
    this, each with what `needed` gives for its devices.
    """
    starts, parts = over.starts, len(over.counts)
    wanted = {k: by_owner(unknowns, starts) for k, unknowns in needs.items()}
    # [2, senders] for each device: small, since every process has them all.
    of_all = everyones(
        lambda: {k: np.array([[*lists], [*map(len, lists.values())]]) for k, lists in wanted.items()}, over.mesh
    )
    source, count = np.concatenate([*of_all.values()], axis=1, dtype=np.int64, casting="unsafe")
    target = np.repeat([*of_all], [a.shape[1] for a in of_all.values()])
    received = np.bincount(target, count, parts).astype(np.int64), np.bincount(target, minlength=parts)
    if not len(source):
        none = dict.fromkeys(needs, Exchange())
        return Halo(over, none, needs, needs, *received, "no device needs unknowns of another")
    # The largest first: the messages of a round are about equally long. Of equal ones those of one distance on the ring
    # of parts come together, which for strips and boxes leaves no gaps.
    number = by_rounds(source, target, np.lexsort(((source - target) % parts, -count)), parts)
    rounds, longest = int(number.max()) + 1, int(count.max())
    sizes = np.zeros(rounds, np.int64)
    np.maximum.at(sizes, number, count)
    more = (parts - 1) * longest - int(sizes.sum())  # its own list crosses no link
    if more * itemsize < ROUND * (rounds - 1) and parts * longest <= LARGEST * int(sizes.sum()):
        how = Exchange(sizes=(longest,), pairs=None, width=parts * longest, axis=over.axis)
        sent, place, reason = longest * target, longest * source, f"all_to_all instead of {rounds} permutes"
    else:
        ends = tuple(tuple(map(tuple, np.stack([source, target], axis=1)[number == c].tolist())) for c in range(rounds))
        how = Exchange(sizes=tuple(sizes.tolist()), pairs=ends, width=int(sizes.sum()), axis=over.axis)
        sent = place = (np.cumsum(sizes) - sizes)[number]
        reason = f"permute in {rounds} round{'s' if rounds > 1 else ''}"
    send = {k: np.zeros(how.width, index_dtype(over.size)) for k in needs}
    for k, asked in delivered(lambda: wanted, over).items():
        from_k = source == k
        begin = dict(zip(target[from_k].tolist(), sent[from_k].tolist(), strict=True))
        for t, unknowns in asked.items():
            send[k][begin[t] :][: len(unknowns)] = unknowns - starts[k]
    slots = {k: _places(place[target == k], count[target == k]) for k in needs}
    reason = f"{reason}, {readable_bytes(how.width * itemsize)} to each device"
    hows = {k: dataclasses.replace(how, send=places) for k, places in send.items()}
    return Halo(over, hows, needs, slots, *received, reason)


def by_rounds(source: np.ndarray, target: np.ndarray, order: np.ndarray, parts: int) -> np.ndarray:
    """[messages] the round of each, in which a device sends one at most and receives one: in this order each takes the
    first round that is free. It is a greedy colouring of the edges between parts.
    """
    sends, receives, rounds = [0] * parts, [0] * parts, np.zeros(len(order), np.int64)  # a bit for each round
    for i in order.tolist():
        free = ~(sends[source[i]] | receives[target[i]])
        bit = free & -free
        sends[source[i]] |= bit
        receives[target[i]] |= bit
        rounds[i] = bit.bit_length() - 1
    return rounds


def _places(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The places of messages that begin at `start`, one message after the other."""
    return np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())
