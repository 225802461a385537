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
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt.distributed.delivery import Messages, delivered
from jaxsparse_fmt.distributed.halo_exchange import Exchange
from jaxsparse_fmt.distributed.processes import everyones
from jaxsparse_fmt.distributed.rounds import in_rounds
from jaxsparse_fmt.models import traffic
from jaxsparse_fmt.models.traffic import Load

MACHINE = traffic.Machine()


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The pairs of devices of which one needs unknowns of the other, and how many.

    Attributes:
      source, target, count: [pairs], the device that sends, the device that receives, and the number of unknowns.
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
    def rounds(self) -> tuple[np.ndarray, np.ndarray, bool]:
        """The round [pairs] of each pair, the longest list of each round, and whether senders rise with the rounds.

        One round for each distance source − target suffices for strips, and for boxes of a grid with inner boxes. In
        every case there are as many rounds as the most neighbours of one device.
        """
        distances, number = np.unique(self.source - self.target, return_inverse=True)
        most = max(np.bincount(ends).max() for ends in (self.source, self.target))
        rises = len(distances) == most
        number = number if rises else in_rounds(self.source, self.target, self.count)
        longest = np.zeros(most, np.int64)
        np.maximum.at(longest, number, self.count)
        return number, longest, rises

    @property
    def senders(self) -> np.ndarray:
        """[parts], from how many others each device receives."""
        return np.bincount(self.target, minlength=self.parts)


@dataclasses.dataclass(frozen=True)
class Halo:
    """The plan of an exchange, with the lists of this process's devices.

    Attributes:
      how: the exchange, without its lists.
      lists: those of `send` and `order` of `Exchange` that it has, by name, then by device.
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
      kind: one of `halo_exchange.KINDS`; "auto" takes the cheapest by `traffic.cg_step`.

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
        return Halo(Exchange(before=(0,) * parts), {}, needs, needs, between, "no device needs unknowns of another")
    cheapest, price = traffic.cheapest(exchanges(between, size), machine_of(between))
    chosen = cheapest if kind == "auto" else kind
    if chosen == "permute":
        how, length = _permute(between), int(between.rounds[1].sum())
    else:
        each = int(between.count.max())
        length = parts * each
        how = Exchange(None, None, chosen, (each,), (), length, tuple(range(0, length, each)))
    wanted = {k: by_owner(of, starts) for k, of in needs.items()}
    send = {k: np.zeros(length, np.int32) for k in needs}
    lists = {"send": send}
    for k, asked in deliver(lambda: _requests(wanted, starts)).items():
        for t, places in asked.items():
            send[k][how.lists(k)[0][t].start :][: len(places)] = places
    at = {k: [how.lists(k)[1][s].start + np.arange(len(of)) for s, of in owned.items()] for k, owned in wanted.items()}
    slots = {k: np.concatenate([np.zeros(0, np.int64), *lists]) for k, lists in at.items()}
    if chosen == "permute" and not between.rounds[2]:
        lists["order"] = {k: np.pad(a, (0, how.width - len(a))).astype(np.int32) for k, a in slots.items()}
        slots = {k: np.arange(len(a)) for k, a in slots.items()}
    return Halo(how, lists, needs, slots, between, _reason(how, kind, price, itemsize))


def exchanges(between: Neighbours, size: int) -> dict[str, Load]:
    """The load of each kind of exchange on every device, from its own host and others; without entries.

    Args:
      size: the most unknowns of one device.
    """
    parts, host = between.parts, between.host
    number, longest, _ = between.rounds
    same = host[between.target] == host[between.source]
    near, far = (np.bincount(between.target[w], longest[number[w]], parts) for w in (same, ~same))
    beside, each = np.bincount(host)[host] - 1, int(between.count.max())
    permute = Load(parts, size, 0, near, far, collectives=len(longest))
    to_all = Load(parts, size, 0, each * beside, each * (parts - 1 - beside), collectives=1, among_all=True)
    return {"permute": permute, "all_to_all": to_all}


def machine_of(between: Neighbours) -> traffic.Machine:
    """The machine of the model, with as many devices on a host as these hosts have."""
    return dataclasses.replace(MACHINE, per_host=int(np.bincount(between.host).max()))


def _permute(between: Neighbours) -> Exchange:
    source, target, count = between.source, between.target, between.count
    number, longest, rises = between.rounds
    members = [number == c for c in range(len(longest))]
    pairs = tuple(tuple(zip(source[m].tolist(), target[m].tolist(), strict=True)) for m in members)
    if rises:
        width = int(longest.sum())
        before = [sum(int(n) for n, ((s, t), *_) in zip(longest, pairs, strict=True) if s < t)] * between.parts
    else:
        width = int(between.halo.max())
        before = np.bincount(target, count * (source < target), between.parts).astype(int).tolist()
    return Exchange(None, None, "permute", tuple(longest.tolist()), pairs, width, tuple(before))


def _requests(wanted: dict[int, dict[int, np.ndarray]], starts: np.ndarray) -> Messages:
    """The requests of each device to each owner: places in the owner's piece."""
    return {k: {s: (of - starts[s]).astype(np.int32) for s, of in owned.items()} for k, owned in wanted.items()}


def _reason(how: Exchange, kind: str, price: dict[str, float], itemsize: int) -> str:
    in_rounds = f" in {len(how.sizes)} rounds" if how.kind == "permute" else ""
    prices = ", ".join(f"{k} {1e6 * seconds:.0f} µs" for k, seconds in price.items())
    why = "as asked for" if kind != "auto" else f"by the model {prices}"
    return f"{how.kind}{in_rounds}, {readable_bytes(how.width * itemsize)} to each device; {why}"
