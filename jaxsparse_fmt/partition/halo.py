"""The halo plan: which device needs which unknowns from whom, and by which collective they travel.

A device owns a contiguous piece of x and needs some unknowns of others, its halo. They arrive in one buffer in rising
order of the unknowns, with gaps where a neighbour sends less than another: every device runs one program, so all
buffers have one size.

    permute      a ppermute for each distance between neighbours, as large as the longest list at that distance
    all_to_all   one collective, a list for every pair, all as long as the longest
    gather       one collective: every device shows all others what any of them needs (or all of its piece)

    device 1:  | from 0        | from 2        |  permute, distances −1 and +1
               | 0 | 1 (unused)| 2 | 3         |  gather, the boundary of each

Which is cheaper is a matter of bytes against the latency of a collective: see `costs`. Everything here runs on the
host in NumPy, but for `exchange`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt import traffic
from jaxsparse_fmt._types import readable_bytes

Array = jax.Array

KINDS = ("permute", "all_to_all", "gather")
MACHINE = traffic.Machine()


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How a halo travels: static and hashable.

    Attributes:
      kind: one of `KINDS`, or "none".
      sizes: of the buffer's pieces: one for each distance ("permute"), or the one size that all have.
      distances: of a permute: piece i comes from the device this much further on.
      pairs: of a permute: for each distance the (source, target) pairs.
      parts: devices.
      whole: a gather sends all of x, without a list.
    """

    kind: str
    sizes: tuple[int, ...] = ()
    distances: tuple[int, ...] = ()
    pairs: tuple[tuple[tuple[int, int], ...], ...] = ()
    parts: int = 1
    whole: bool = False

    @property
    def width(self) -> int:
        """Places of the buffer."""
        return sum(self.sizes) * (1 if self.kind == "permute" else self.parts)

    def before(self, part):
        """Places of the buffer whose unknowns come before those of device `part`, a number or traced."""
        if self.kind == "permute":
            return sum(size for size, distance in zip(self.sizes, self.distances, strict=True) if distance < 0)
        return part * sum(self.sizes)


@dataclasses.dataclass(frozen=True)
class Halo:
    """A plan.

    Attributes:
      exchange: how it travels.
      send: [parts, k] int32, places in its piece of x that each device sends, in the order of the buffers; None where
        nothing or everything is sent.
      needs: for each device the unknowns that it needs, rising.
      slots: for each of them its place in the buffer.
      received: [parts, parts], how many unknowns each device (row) needs from each (column).
      reason: why this kind, in words.
    """

    exchange: Exchange
    send: np.ndarray | None
    needs: list[np.ndarray]
    slots: list[np.ndarray]
    received: np.ndarray
    reason: str


def needed(indices: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The columns in `indices` outside [start, stop), rising and each once: what a device needs from others."""
    return np.unique(indices[(indices < start) | (indices >= stop)])


def plan(needs: list[np.ndarray], starts: np.ndarray, itemsize: int = 8, kind: str = "auto") -> Halo:
    """Who sends what to whom.

    Args:
      needs: for each device, rising, the unknowns of others that it needs.
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
    price = costs(moved, max(map(len, boundary)), piece, itemsize)
    chosen = min(price, key=lambda k: price[k]) if kind == "auto" else kind
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
    parts, sizes = len(received), np.array([*by_distance(received).values()])
    seconds = lambda rounds, places: rounds * MACHINE.collective + places * itemsize / MACHINE.link  # noqa: E731
    return {
        "permute": seconds(len(sizes), sizes.sum()),
        "all_to_all": seconds(1, parts * received.max()),
        "gather": seconds(1, parts * min(boundary, piece)),
    }


def _reason(chosen: str, kind: str, price: dict[str, float], exchange: Exchange, itemsize: int) -> str:
    moved = readable_bytes(exchange.width * itemsize)
    all_of_x = ": all of x, since nearly all of it is needed" if exchange.whole else ""
    told = ", ".join(f"{k} {1e6 * seconds:.0f} µs" for k, seconds in price.items())
    why = "as asked for" if kind != "auto" else f"the cheapest of {told} by the model"
    return f"{chosen}{all_of_x}, {moved} to each device; {why}"


def by_distance(received: np.ndarray) -> dict[int, int]:
    """The longest list between devices at each distance source − target that occurs, by rising distance."""
    target, source = np.nonzero(received)
    distances, at = np.unique(source - target, return_inverse=True)
    longest = np.zeros(len(distances), np.int64)
    np.maximum.at(longest, at, received[target, source])
    return dict(zip(distances.tolist(), longest.tolist(), strict=True))


def boundaries(needs: list[np.ndarray], starts: np.ndarray) -> list[np.ndarray]:
    """What any other device needs of each piece, as places in it."""
    shown = np.unique(np.concatenate(needs))
    cuts = np.searchsorted(shown, starts)
    return [shown[a:b] - start for a, b, start in zip(cuts, cuts[1:], starts, strict=False)]


def _ranks(owner: np.ndarray) -> np.ndarray:
    """Of each needed unknown its number among those from the same device; they are sorted by device."""
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
    # All boundaries one after another rise, and so does where each begins.
    shown = np.concatenate([b + start for b, start in zip(boundary, starts, strict=False)])
    first = np.cumsum([0, *map(len, boundary)])
    slots = [o * size + np.searchsorted(shown, c) - first[o] for c, o in zip(needs, owners, strict=True)]
    return Exchange("gather", (size,), parts=parts), send, slots


def exchange_on_host(x: np.ndarray, send: np.ndarray | None, how: Exchange, part: int) -> np.ndarray:
    """What `exchange` gives device `part`, from all pieces x [parts, m]."""
    if how.kind == "none":
        return x[part, :0]
    sent = x if send is None else np.take_along_axis(x, send, axis=1)
    if how.kind == "gather":
        return sent.reshape(-1)
    if how.kind == "all_to_all":
        return sent.reshape(how.parts, how.parts, -1)[:, part].reshape(-1)
    source = np.repeat(part + np.array(how.distances), how.sizes)
    return sent[np.clip(source, 0, how.parts - 1), np.arange(how.width)]  # outside lies what nobody reads


def exchange(x: Array, send: Array | None, how: Exchange, axis: str) -> Array:
    """The halo buffer of this device; inside shard_map. Linear in x, and JAX knows its transpose.

    Args:
      x: [m] or [m, p], its piece.
      send: [k] int32, its row of `Halo.send`.
      axis: the mesh axis.

    Returns:
      [width] or [width, p].
    """
    out = x if send is None else x.at[send].get(mode="promise_in_bounds")
    if how.kind == "gather":
        return lax.all_gather(out, axis, tiled=True)
    if how.kind == "all_to_all":
        return lax.all_to_all(out, axis, 0, 0, tiled=True)
    ends = np.cumsum(how.sizes)
    pieces = [out[end - size : end] for size, end in zip(how.sizes, ends, strict=True)]
    return jnp.concatenate([lax.ppermute(a, axis, pairs) for a, pairs in zip(pieces, how.pairs, strict=True)])
