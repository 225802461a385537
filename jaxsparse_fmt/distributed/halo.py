"""The halo plan, made on the host in NumPy: the unknowns that each device needs of others, and the collective.

A device owns a contiguous piece of x and needs some unknowns of other devices, its halo. The exchange
(`halo_exchange.py`) puts them into one buffer in rising order, with gaps where one neighbour sends less than another:
all devices run the same program, so all buffers have the same size.

A process holds the halos of its own devices and the requests of their neighbours. All processes know which devices are
neighbours and how many unknowns each needs of the other, since these numbers decide the program that all share.
"""

import dataclasses
import functools
import socket
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt.distributed.delivery import Messages, delivered
from jaxsparse_fmt.distributed.halo_exchange import KINDS, Exchange
from jaxsparse_fmt.distributed.processes import everyones
from jaxsparse_fmt.distributed.rounds import Stage, grid_of_fewest_rounds, offsets, stages
from jaxsparse_fmt.models import traffic
from jaxsparse_fmt.models.traffic import Load

MACHINE = traffic.Machine()


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The pairs of devices of which one needs unknowns of the other, and how many.

    Attributes:
      source, target, count: [pairs], the device that sends, the device that receives, and the number of unknowns;
        the senders to each device rise.
      host: [parts], the number of each device's host.
    """

    source: np.ndarray
    target: np.ndarray
    count: np.ndarray
    host: np.ndarray

    @property
    def parts(self) -> int:
        return len(self.host)

    @property
    def halo(self) -> np.ndarray:
        """[parts], how many unknowns of others each device needs."""
        return np.bincount(self.target, self.count, self.parts).astype(np.int64)

    @functools.cached_property
    def direct(self) -> list[Stage]:
        """The rounds of direct messages."""
        return stages(self.source, self.target, self.count, (self.parts,))

    @functools.cached_property
    def forwarded(self) -> list[Stage]:
        """The rounds over a grid of devices; `direct` if no grid has fewer."""
        messages = self.source, self.target, self.count
        grid = grid_of_fewest_rounds(*messages, self.parts)
        return stages(*messages, grid) if len(grid) > 1 else self.direct

    @property
    def senders(self) -> np.ndarray:
        """[parts], from how many others each device receives."""
        return np.bincount(self.target, minlength=self.parts)


@dataclasses.dataclass(frozen=True)
class Halo:
    """The plan of an exchange, with the lists of this process's devices.

    Attributes:
      how: the exchange, without its lists.
      lists: those arrays of `Exchange` that it has, by name, then by device.
      needs: the unknowns that each device needs, rising.
      slots: the places of `needs` in the buffer.
      neighbours: of all devices.
      reason: for this kind of exchange, in words.
    """

    how: Exchange
    lists: dict[str, dict[int, np.ndarray]]
    needs: dict[int, np.ndarray]
    slots: dict[int, np.ndarray]
    neighbours: Neighbours
    reason: str

    def places(self, k: int, unknowns: np.ndarray, start: int, stop: int, size: int) -> np.ndarray:
        """The place of each unknown in [piece | buffer] of device k, whose piece of `size` has start to stop − 1."""
        own, at = (unknowns >= start) & (unknowns < stop), unknowns - start
        at[~own] = size + self.slots[k][np.searchsorted(self.needs[k], unknowns[~own])]
        return at

    @property
    def nbytes(self) -> int:
        """Bytes of a device's lists."""
        return sum(next(iter(of.values())).nbytes for of in self.lists.values())

    def placed(self, place: Callable[[Callable[[int], np.ndarray]], Any]) -> Exchange:
        """The exchange with its lists on the devices.

        Args:
          place: makes an array over all devices from a function that returns the list of one device.
        """
        lists: Any = {name: place(of.__getitem__) for name, of in self.lists.items()}
        return dataclasses.replace(self.how, **lists)


def needed(indices: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The halo of a device that owns [start, stop): the columns in `indices` outside that range, rising and unique."""
    return np.unique(indices[(indices < start) | (indices >= stop)])


def by_owner(needs: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    """The parts of a rising list of unknowns that each device owns; devices without any are left out."""
    owner = np.searchsorted(starts, needs, side="right") - 1
    owners, first = np.unique(owner, return_index=True)
    return dict(zip(owners.tolist(), np.split(needs, first)[1:], strict=True))


def plan(
    make: Callable[[], dict[int, np.ndarray]], starts: np.ndarray, mesh: Mesh, itemsize: int = 8, kind: str = "auto"
) -> Halo:
    """The plan by which every device receives the unknowns that it needs; all processes must call this.

    Args:
      make: returns for each device of this process its halo, as from `needed`.
      starts: [parts + 1], the pieces of x.
      itemsize: bytes of an unknown.
      kind: one of `halo_exchange.KINDS`; "auto" takes the cheapest by `traffic.cg_step`, "direct" the cheapest in which
        devices forward nothing, so that lists are short.

    What make() raises in one process, all processes raise.
    """
    name, needs = socket.gethostname(), {}

    def tell() -> dict[int, tuple[str, dict[int, int]]]:
        needs.update(make())
        return {k: (name, {s: len(of) for s, of in by_owner(n, starts).items()}) for k, n in needs.items()}

    told = everyones(tell, mesh)
    return planned(needs, starts, neighbours(told), functools.partial(delivered, mesh=mesh), itemsize, kind)


def neighbours(told: dict[int, tuple[str, dict[int, int]]]) -> Neighbours:
    """The neighbours of all devices, from the host of each and the number of unknowns that it needs of each other."""
    pairs = [(source, target, count) for target, (_, of) in told.items() for source, count in of.items()]
    _, host = np.unique([name for name, _ in told.values()], return_inverse=True)
    source, target, count = np.array(pairs, np.int64).reshape(-1, 3).T
    return Neighbours(source, target, count, host)


def planned(
    needs: dict[int, np.ndarray],
    starts: np.ndarray,
    between: Neighbours,
    deliver: Callable[[Callable[[], Messages]], Messages],
    itemsize: int = 8,
    kind: str = "auto",
) -> Halo:
    """As `plan`, where all devices' neighbours are known.

    Args:
      deliver: `delivered` on the mesh; it delivers the requests of each device's neighbours.
    """
    parts, size = between.parts, int(np.diff(starts).max())
    if not len(between.count):
        return Halo(Exchange(), {}, needs, needs, between, "no device needs unknowns of another")
    if kind in KINDS:
        chosen, why = kind, "as asked for"
    else:
        chosen, price = traffic.cheapest(exchanges(between, size, kind != "direct"), machine_of(between))
        why = f"by the model {', '.join(f'{k} {1e6 * seconds:.0f} µs' for k, seconds in price.items())}"
    target, count, lists = between.target, between.count, {}
    if chosen == "all_to_all":
        each, in_order = int(count.max()), True
        rounds: Any = (((each, ()),),)
        sent, received, length = each * target, each * between.source, parts * each
    else:
        of = between.forwarded if chosen == "forward" else between.direct
        rounds, in_order = tuple(s.rounds for s in of), len(of) == 1 and of[0].rises
        sent, received, lists["forward"] = _ways(between, of, needs)
        length = int((sent + count).max())
    place, width = (received, length) if in_order else (offsets(target, count), int(between.halo.max()))
    how = Exchange(kind=chosen, stages=rounds, width=width)
    lists["send"] = {k: np.zeros(length, np.int32) for k in needs}
    for k, asked in deliver(lambda: _requests(needs, starts)).items():
        to = between.source == k
        begin = dict(zip(target[to].tolist(), sent[to].tolist(), strict=True))
        for t, places in asked.items():
            lists["send"][k][begin[t] :][: len(places)] = places
    if not in_order:
        lists["order"] = {k: _listed(received, place, count, target == k, width) for k in needs}
    slots = {k: _places(place, count, target == k) for k in needs}
    own_first = {k: np.searchsorted(of, starts[k]) for k, of in needs.items()}
    lists["before"] = {k: np.array([slots[k][:n].max(initial=-1) + 1], np.int32) for k, n in own_first.items()}
    lists = {name: of for name, of in lists.items() if of}
    return Halo(how, lists, needs, slots, between, _reason(how, why, itemsize))


def exchanges(between: Neighbours, size: int, forwards: bool = True) -> dict[str, Load]:
    """The load of each kind of exchange on every device, from its own host and others; without entries.

    Args:
      size: the most unknowns of one device.
      forwards: whether devices may forward messages, for which a grid is searched.
    """
    parts, host, each = between.parts, between.host, int(between.count.max())
    loads, ways = {}, {"permute": between.direct}
    if forwards and between.forwarded is not between.direct:
        ways["forward"] = between.forwarded
    for kind, of in ways.items():
        rounds = [of_one for s in of for of_one in s.rounds]
        sizes, ends = zip(*((size, pair) for size, pairs in rounds for pair in pairs), strict=True)
        sizes, (source, target) = np.array(sizes), np.array(ends).T
        same = host[source] == host[target]
        near, far = (np.bincount(target[w], sizes[w], parts) for w in (same, ~same))
        loads[kind] = Load(parts, size, 0, near, far, collectives=len(rounds))
    beside = np.bincount(host)[host] - 1
    to_all = Load(parts, size, 0, each * beside, each * (parts - 1 - beside), collectives=1, among_all=True)
    return loads | {"all_to_all": to_all}


def machine_of(between: Neighbours) -> traffic.Machine:
    """The machine of the model, with as many devices on a host as these hosts have."""
    return dataclasses.replace(MACHINE, per_host=int(np.bincount(between.host).max()))


def _ways(
    between: Neighbours, of: list[Stage], mine: Iterable[int]
) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    """Where each message begins in its sender's `send` and among what its receiver gets, and the lists of `forward`."""
    if len(of) == 1:  # all messages move, as they are numbered
        return of[0].start, of[0].start, {}
    count = between.count
    sent = offsets(between.source, count)
    at = sent.copy()  # where each begins in [x[send] | received so far] of the device that holds it
    first = end = int((sent + count).max())
    forward = {k: [] for k in mine}
    for stage in of:
        total, moved = sum(size for size, _ in stage.rounds), stage.moved
        for k, lists in forward.items():
            lists.append(_listed(at[moved], stage.start, count[moved], stage.source == k, total))
        at[moved] = end + stage.start
        end += total
    return sent, at - first, {k: np.concatenate(lists) for k, lists in forward.items()}


def _listed(read: np.ndarray, place: np.ndarray, count: np.ndarray, which: np.ndarray, length: int) -> np.ndarray:
    """A list that at `place` reads messages from `read` on, for those messages of which `which` is true."""
    out = np.zeros(length, np.int32)
    out[_places(place, count, which)] = _places(read, count, which)
    return out


def _places(start: np.ndarray, count: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The places of messages that begin at `start`, one message behind the other."""
    start, count = start[which], count[which]
    return np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())


def _requests(needs: dict[int, np.ndarray], starts: np.ndarray) -> Messages:
    """The requests of each device to each owner: places in the owner's piece."""
    owned = {k: by_owner(of, starts) for k, of in needs.items()}
    return {k: {s: (of - starts[s]).astype(np.int32) for s, of in of_k.items()} for k, of_k in owned.items()}


def _reason(how: Exchange, why: str, itemsize: int) -> str:
    in_rounds = f" in {len(how.sizes)} rounds" if how.kind != "all_to_all" else ""
    return f"{how.kind}{in_rounds}, {readable_bytes(how.width * itemsize)} to each device; {why}"
