"""The halo plan, made on the host in NumPy: which device needs which unknowns from whom, and by which collective.

A device owns a contiguous piece of x and needs some unknowns of others, its halo. The exchange (`halo_exchange.py`)
puts them into one buffer in rising order, with gaps where one neighbour sends less than another: every device runs one
program, so all buffers have one size. `costs` weighs bytes against the latency of collectives.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt.distributed.halo_exchange import KINDS, Exchange
from jaxsparse_fmt.models import traffic

MACHINE = traffic.Machine()


@dataclasses.dataclass(frozen=True)
class Halo:
    """A plan.

    Attributes:
      send: [parts, k] int32, the places in its piece of x that each device sends, in the order of the buffers; None
        where the devices send nothing or everything.
      needs: for each device the unknowns that it needs, rising.
      slots: for each of these its place in the buffer.
      received: [parts, parts], how many unknowns each device (row) needs from each (column).
      reason: for this kind of exchange, in words.
    """

    exchange: Exchange
    send: np.ndarray | None
    needs: list[np.ndarray]
    slots: list[np.ndarray]
    received: np.ndarray
    reason: str


def needed(indices: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The halo of a device that owns [start, stop): the columns in `indices` outside, rising and each once."""
    return np.unique(indices[(indices < start) | (indices >= stop)])


def plan(needs: list[np.ndarray], starts: np.ndarray, itemsize: int = 8, kind: str = "auto") -> Halo:
    """The plan by which every device receives the unknowns that it needs.

    Args:
      needs: for each device its halo, as from `needed`.
      starts: [parts + 1], the pieces of x.
      itemsize: bytes of an unknown.
      kind: one of `KINDS`; "auto" takes the cheapest by `costs`.

    Raises:
      ValueError: another kind.
    """
    if kind not in ("auto", *KINDS):
        raise ValueError(f"exchange must be 'auto' or one of {', '.join(KINDS)}; got {kind!r}")
    parts = len(starts) - 1
    owners = [np.searchsorted(starts, columns, side="right") - 1 for columns in needs]
    moved = received(needs, starts)
    if not moved.any():
        return Halo(Exchange("none", parts=parts), None, needs, needs, moved, "no device needs unknowns of another")
    boundary = boundaries(needs, starts)
    piece = int(np.diff(starts).max())
    most = max(map(len, boundary))
    price, width = costs(moved, most, piece, itemsize), buffers(moved, most, piece)
    largest = max(piece, min(width.values()))  # of a buffer: one larger than the piece would grow with the parts
    fair = [k for k in KINDS if width[k] <= largest]
    chosen = min(fair, key=lambda k: price[k]) if kind == "auto" else kind
    if chosen == "permute":
        exchange, send, slots = _permute(needs, owners, moved, starts)
    elif chosen == "all_to_all":
        exchange, send, slots = _all_to_all(needs, owners, moved, starts)
    else:
        exchange, send, slots = _gather(needs, owners, boundary, starts)
    return Halo(exchange, send, needs, slots, moved, _reason(chosen, kind, price, exchange, itemsize))


def received(needs: list[np.ndarray], starts: np.ndarray) -> np.ndarray:
    """[parts, parts], how many unknowns each device (row) needs from each (column)."""
    cuts = [np.searchsorted(columns, starts) for columns in needs]
    return np.stack([np.diff(cut) for cut in cuts])


def costs(received: np.ndarray, boundary: int, piece: int, itemsize: int) -> dict[str, float]:
    """Seconds of each kind: collectives times latency, and the bytes that a device receives over the bandwidth.

    Args:
      received: [parts, parts], unknowns that each device (row) needs from each (column).
      boundary: the most unknowns that one device sends to any others.
      piece: the most unknowns of one device.
      itemsize: bytes of an unknown.
    """
    rounds = {"permute": len(by_distance(received)), "all_to_all": 1, "gather": 1}
    places = buffers(received, boundary, piece)
    return {k: rounds[k] * MACHINE.collective + places[k] * itemsize / MACHINE.link for k in KINDS}


def buffers(received: np.ndarray, boundary: int, piece: int) -> dict[str, int]:
    """Places of each kind's buffer on a device; arguments as of `costs`."""
    parts = len(received)
    return {
        "permute": sum(by_distance(received).values()),
        "all_to_all": parts * int(received.max()),
        "gather": parts * min(boundary, piece),
    }


def _reason(chosen: str, kind: str, price: dict[str, float], exchange: Exchange, itemsize: int) -> str:
    moved = readable_bytes(exchange.width * itemsize)
    all_of_x = ": all of x, since nearly all of it is needed" if exchange.whole else ""
    prices = ", ".join(f"{k} {1e6 * seconds:.0f} µs" for k, seconds in price.items())
    why = "as asked for" if kind != "auto" else f"the cheapest of {prices} by the model"
    return f"{chosen}{all_of_x}, {moved} to each device; {why}"


def by_distance(received: np.ndarray) -> dict[int, int]:
    """The longest list between two devices at each distance source − target, by rising distance."""
    target, source = np.nonzero(received)
    distances, at = np.unique(source - target, return_inverse=True)
    longest = np.zeros(len(distances), np.int64)
    np.maximum.at(longest, at, received[target, source])
    return dict(zip(distances.tolist(), longest.tolist(), strict=True))


def boundaries(needs: list[np.ndarray], starts: np.ndarray) -> list[np.ndarray]:
    """The places in each piece that any other device needs."""
    sent = np.unique(np.concatenate(needs))
    cuts = np.searchsorted(sent, starts)
    return [sent[a:b] - start for a, b, start in zip(cuts, cuts[1:], starts, strict=False)]


def _ranks(owner: np.ndarray) -> np.ndarray:
    """The number of each unknown among those from the same device; owners rise."""
    return np.arange(len(owner)) - np.searchsorted(owner, owner)


def _permute(needs, owners, received, starts):
    parts, sizes = len(needs), by_distance(received)
    base = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1].tolist(), strict=True))
    pairs: dict[int, list[tuple[int, int]]] = {distance: [] for distance in sizes}
    for t, s in np.argwhere(received).tolist():
        pairs[s - t].append((s, t))
    send = np.zeros((parts, sum(sizes.values())), np.int32)
    slots = []
    for t in range(parts):
        start_of = np.array([base.get(s - t, 0) for s in range(parts)])
        slots.append(start_of[owners[t]] + _ranks(owners[t]))
        send[owners[t], slots[t]] = needs[t] - starts[owners[t]]
    of_distance = tuple(map(tuple, pairs.values()))
    return Exchange("permute", tuple(sizes.values()), tuple(sizes), of_distance, parts), send, slots


def _all_to_all(needs, owners, received, starts):
    parts, size = len(needs), int(received.max())
    send = np.zeros((parts, parts * size), np.int32)
    slots = []
    for t in range(parts):
        rank = _ranks(owners[t])
        slots.append(owners[t] * size + rank)
        send[owners[t], t * size + rank] = needs[t] - starts[owners[t]]
    return Exchange("all_to_all", (size,), parts=parts), send, slots


def _gather(needs, owners, boundary, starts):
    parts, piece = len(needs), int(np.diff(starts).max())
    size = max(map(len, boundary))
    whole = size >= piece
    if whole:
        slots = [owner * piece + columns - starts[owner] for columns, owner in zip(needs, owners, strict=True)]
        return Exchange("gather", (piece,), parts=parts, whole=True), None, slots
    send = np.zeros((parts, size), np.int32)
    for t in range(parts):
        send[t, : len(boundary[t])] = boundary[t]
    sent = np.concatenate([b + start for b, start in zip(boundary, starts, strict=False)])  # rises
    first = np.cumsum([0, *map(len, boundary)])
    slots = [o * size + np.searchsorted(sent, c) - first[o] for c, o in zip(needs, owners, strict=True)]
    return Exchange("gather", (size,), parts=parts), send, slots
