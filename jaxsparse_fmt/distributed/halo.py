"""The halo: the unknowns that each device needs of others, the plan of their exchange, and the exchange itself.

A device owns a contiguous piece of x and needs some unknowns of other devices, its halo. The exchange puts them into
one buffer, sender after sender, with gaps where one neighbour sends less than another: all devices run the same
program, so all buffers have the same size. It is one of two kinds:

    permute      ppermutes in rounds, one for each distance of senders and receivers on the ring of all devices
    all_to_all   one collective with a list for every pair, all as long as the longest

    device 1:  | from 2        | from 0        |  permute, one round for each
               | 0 | 1 (unused)| 2 | 3         |  all_to_all

`lax.ragged_all_to_all` is not among them: XLA has it on GPUs alone, and on two H200s a step of cg took 1.65 times as
long with a prototype of it as with permutes (2026-11-25_scaling_2xh200.md, measured the day before, JAX 0.11.2).

The plan is made on the host in NumPy. A process holds the halos of its own devices and the requests of their
neighbours. All processes know which devices are neighbours and how many unknowns each needs of the other, since these
numbers decide the program that all share.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxsparse_fmt._types import pytree, readable_bytes
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.delivery import Messages, delivered
from jaxsparse_fmt.distributed.processes import everyones

Array = jax.Array

# Bytes more to each device that one collective less is worth. A permute alone took 45 to 54 µs on 8 H200, however few
# bytes it moved (JAX 0.11.2), in which a network of 400 Gb/s moves 2.4 MB and NVLink 14 MB. Where both move the same,
# they take the same: 614 µs a step of cg on two H200 with a permute, 616 with an all_to_all
# (2026-11-25_scaling_2xh200.md). So slabs and boxes with large faces take permutes; small pieces, and devices with many
# neighbours, one all_to_all.
ROUND = 2**21


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The collective that exchanges a halo, and the lists of each device.

    Attributes:
      send: [parts, width] int32, the places of its piece of x that each device sends, list after list; inside shard_map
        the device's own row. None: nothing is exchanged.
      sizes: the length of the lists of each round; "all_to_all" is one round.
      pairs: the (source, target) pairs of each round; None: "all_to_all".
      width: places of the buffer.
    """

    send: Array | None = None
    sizes: tuple[int, ...] = _static(())
    pairs: tuple[tuple[tuple[int, int], ...], ...] | None = _static(())
    width: int = _static(0)

    @property
    def kind(self) -> str:
        return "all_to_all" if self.pairs is None else "permute"


def exchange(x: Array, how: Exchange, axis: Any) -> Array:
    """The halo buffer of this device, for use inside shard_map; linear in x, and JAX knows its transpose.

    Args:
      x: [m] or [m, p], the device's piece.
      axis: the mesh axis, or a tuple of them.

    Returns:
      [width] or [width, p].
    """
    if how.send is None:
        return x[:0]
    sent = x.at[how.send].get(mode="promise_in_bounds")
    if how.pairs is None:
        return lax.all_to_all(sent, axis, 0, 0, tiled=True)
    lists = jnp.split(sent, np.cumsum(how.sizes)[:-1].tolist())
    return jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(lists, how.pairs, strict=True)])


def returned(h: Array, how: Exchange, axis: Any, n: int) -> Array:
    """The transpose of `exchange`: a device's piece [n] or [n, p] of the sum of what the others return."""
    x = mesh_axes.varying(jnp.zeros((n, *h.shape[1:]), h.dtype), h)
    return jax.linear_transpose(lambda x: exchange(x, how, axis), x)(h)[0]


def exchange_on_host(x: dict[int, np.ndarray], how: Exchange, mesh: Mesh) -> dict[int, np.ndarray]:
    """The buffers that `exchange` gives the devices of this process, made in NumPy; all processes must call this.

    Args:
      x: the pieces of this process's devices.
      how: with lists that can be indexed by the number of a device.
    """
    if (send := how.send) is None:
        return {k: a[:0] for k, a in x.items()}
    sizes = how.sizes if how.pairs is not None else how.sizes * (how.width // how.sizes[0])
    lists = {k: np.split(a[np.asarray(send[k])], np.cumsum(sizes)[:-1]) for k, a in x.items()}

    def sent() -> Messages:
        if how.pairs is None:
            return {k: dict(enumerate(of)) for k, of in lists.items()}
        return {k: {t: lists[k][i] for i, of in enumerate(how.pairs) for s, t in of if s == k} for k in lists}

    senders = [{t: s for s, t in of} for of in how.pairs] if how.pairs is not None else None
    out = {}
    for k, of in delivered(sent, mesh).items():
        came = of.values()
        if senders is not None:
            came = [of[s[k]] if k in s else np.zeros(n, x[k].dtype) for s, n in zip(senders, sizes, strict=True)]
        out[k] = np.concatenate([*came])
    return out


@dataclasses.dataclass(frozen=True)
class Halo:
    """The plan of an exchange, with the lists of this process's devices.

    Attributes:
      how: the exchange, without its lists.
      send: of `Exchange`, by device; None: nothing is exchanged.
      needs: the unknowns that each device needs, rising.
      slots: the places of `needs` in the buffer.
      halo, senders: [parts], how many unknowns of others each device needs, and of how many others.
      reason: for this kind of exchange, in words.
    """

    how: Exchange
    send: dict[int, np.ndarray] | None
    needs: dict[int, np.ndarray]
    slots: dict[int, np.ndarray]
    halo: np.ndarray
    senders: np.ndarray
    reason: str

    def places(self, k: int, unknowns: np.ndarray, start: int, stop: int, size: int) -> np.ndarray:
        """The place of each unknown in [piece | buffer] of device k, whose piece of `size` has start to stop − 1."""
        own, at = (unknowns >= start) & (unknowns < stop), unknowns - start
        at[~own] = size + self.slots[k][np.searchsorted(self.needs[k], unknowns[~own])]
        return at

    @property
    def nbytes(self) -> int:
        """Bytes of a device's lists."""
        return 0 if self.send is None else 4 * self.how.width

    def placed(self, place: Callable[[Callable[[int], np.ndarray]], Any]) -> Exchange:
        """The exchange with its lists on the devices.

        Args:
          place: makes an array over all devices from a function that returns the list of one device.
        """
        return self.how if self.send is None else dataclasses.replace(self.how, send=place(self.send.__getitem__))


def needed(indices: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The halo of a device that owns [start, stop): the columns in `indices` outside that range, rising and unique."""
    return np.unique(indices[(indices < start) | (indices >= stop)])


def by_owner(needs: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    """The parts of a rising list of unknowns that each device owns; devices without any are left out."""
    owner = np.searchsorted(starts, needs, side="right") - 1
    owners, first = np.unique(owner, return_index=True)
    return dict(zip(owners.tolist(), np.split(needs, first)[1:], strict=True))


def plan(make: Callable[[], dict[int, np.ndarray]], starts: np.ndarray, mesh: Mesh, itemsize: int = 8) -> Halo:
    """The plan by which every device receives the unknowns that it needs; all processes must call this.

    Args:
      make: returns for each device of this process its halo, as from `needed`.
      starts: [parts + 1], the pieces of x.
      itemsize: bytes of an unknown.

    What make() raises in one process, all processes raise.
    """
    needs: dict[int, np.ndarray] = {}

    def counts() -> dict[int, dict[int, int]]:
        needs.update(make())
        return {k: {s: len(of) for s, of in by_owner(n, starts).items()} for k, n in needs.items()}

    def requests() -> Messages:
        """Places in the piece of each owner."""
        owned = {k: by_owner(of, starts) for k, of in needs.items()}
        return {k: {s: (of - starts[s]).astype(np.int32) for s, of in of_k.items()} for k, of_k in owned.items()}

    told, parts = everyones(counts, mesh), len(starts) - 1
    pairs = [(source, target, count) for target, of in told.items() for source, count in of.items()]
    source, target, count = np.array(pairs, np.int64).reshape(-1, 3).T
    received = np.bincount(target, count, parts).astype(np.int64), np.bincount(target, minlength=parts)
    if not pairs:
        return Halo(Exchange(), None, needs, needs, *received, "no device needs unknowns of another")
    distances, number = np.unique((source - target) % parts, return_inverse=True)
    sizes, rounds, longest = np.zeros(len(distances), np.int64), len(distances), int(count.max())
    np.maximum.at(sizes, number, count)
    if (parts * longest - int(sizes.sum())) * itemsize <= ROUND * (rounds - 1):
        how = Exchange(sizes=(longest,), pairs=None, width=parts * longest)
        sent, place, reason = longest * target, longest * source, f"all_to_all instead of {rounds} permutes"
    else:
        ends = tuple(tuple(map(tuple, np.stack([source, target], axis=1)[number == c].tolist())) for c in range(rounds))
        how = Exchange(sizes=tuple(sizes.tolist()), pairs=ends, width=int(sizes.sum()))
        sent = place = (np.cumsum(sizes) - sizes)[number]
        reason = f"permute in {rounds} rounds"
    send = {k: np.zeros(how.width, np.int32) for k in needs}
    for k, asked in delivered(requests, mesh).items():
        to = source == k
        begin = dict(zip(target[to].tolist(), sent[to].tolist(), strict=True))
        for t, places in asked.items():
            send[k][begin[t] :][: len(places)] = places
    slots = {k: _places(place[target == k], count[target == k]) for k in needs}
    reason = f"{reason}, {readable_bytes(how.width * itemsize)} to each device"
    return Halo(how, send, needs, slots, *received, reason)


def _places(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The places of messages that begin at `start`, one message behind the other."""
    return np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())
