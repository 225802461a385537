"""Puts messages between devices into rounds, in each of which a device sends and receives at most one list.

Messages travel directly, or over a grid of the devices, axis by axis: along the first axis to the coordinate of the
receiver, then along the second, and the devices on the way forward them.

    (0, 0)   (0, 1)       a message across a corner goes down together with those to the neighbour below, then
      ↓                   across: 6 rounds serve the 26 neighbours of a box in three dimensions
    (1, 0) → (1, 1)

Any messages can travel over any grid, since the numbers of the devices alone decide the way.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stage:
    """The rounds in which messages move along one axis of a grid; they need not wait for one another.

    Attributes:
      moved: [k], the numbers of the messages that move.
      source: [k], from which devices.
      start: [k], the offset of a message in the lists of all rounds, one behind the other; the same at both devices.
      rounds: the longest list of each round, and its (source, target) pairs.
      rises: whether all devices receive from rising senders.
    """

    moved: np.ndarray
    source: np.ndarray
    start: np.ndarray
    rounds: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    rises: bool


def stages(source: np.ndarray, target: np.ndarray, count: np.ndarray, grid: tuple[int, ...]) -> list[Stage]:
    """The stages of messages over a grid.

    Args:
      source, target, count: [messages] integers, the two devices and the size of each; no pair twice.
      grid: devices along each axis, the numbers counting along the last axis first; (devices,) for direct messages.
    """
    moves = [(np.flatnonzero(u != v), u, v) for u, v in itertools.pairwise(_held(source, target, grid))]
    return [_stage(moved, u[moved], v[moved], count[moved]) for moved, u, v in moves if len(moved)]


def grid_of_fewest_rounds(source: np.ndarray, target: np.ndarray, count: np.ndarray, devices: int) -> tuple[int, ...]:
    """The grid of at most three axes over which messages take the fewest rounds, and of those the least sent."""

    best, least = (devices,), (_most(_pairs(source, target)[0]), int(count.sum()))
    for grid in (tuple(g) for axes in (2, 3) for g in factors(devices, axes) if min(g) > 1):
        rounds = sent = 0
        for u, v in itertools.pairwise(_held(source, target, grid)):
            moved = u != v
            rounds, sent = rounds + _most(_pairs(u[moved], v[moved])[0]), sent + int(count[moved].sum())
            if (rounds, sent) >= least:
                break
        else:
            best, least = grid, (rounds, sent)
    return best


def factors(count: int, axes: int) -> Iterator[list[int]]:
    """All lists of `axes` factors of a number."""
    if axes == 1:
        yield [count]
    else:
        divisors = (d for d in range(count, 0, -1) if count % d == 0)
        yield from ([d, *rest] for d in divisors for rest in factors(count // d, axes - 1))


def offsets(group: np.ndarray, count: np.ndarray) -> np.ndarray:
    """[k], the sum of the counts that precede each in its group."""
    order = np.argsort(group, kind="stable")
    before = np.cumsum(count[order]) - count[order]
    is_first = np.diff(group[order], prepend=-1) != 0
    out = np.empty_like(before)
    out[order] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return out


def _held(source: np.ndarray, target: np.ndarray, grid: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The devices [messages] that hold each message before the first axis and after each."""
    at, to = np.array(np.unravel_index(source, grid)), np.unravel_index(target, grid)
    yield source
    for axis, coordinate in enumerate(to):
        at[axis] = coordinate
        yield np.asarray(np.ravel_multi_index(tuple(at), grid))


def _pairs(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs [2, pairs], and the number of each given pair among them."""
    devices = int(target.max(initial=0)) + 1
    ends, number = np.unique(source * devices + target, return_inverse=True)
    return np.array(np.divmod(ends, devices)), number


def _most(pairs: np.ndarray) -> int:
    """The most messages that one device sends or receives, from senders and receivers [2, messages]."""
    return max((int(np.bincount(ends).max()) for ends in pairs if len(ends)), default=0)


def _stage(moved: np.ndarray, source: np.ndarray, target: np.ndarray, count: np.ndarray) -> Stage:
    """A round for each distance source − target if that is as few as can be, as for strips and along axes of a grid."""
    ends, pair = _pairs(source, target)
    total = np.bincount(pair, count).astype(np.int64)
    distances, number = np.unique(ends[0] - ends[1], return_inverse=True)
    rises = len(distances) == _most(ends)
    number = number if rises else in_rounds(ends[0], ends[1], total)
    sizes = np.zeros(number.max() + 1, np.int64)
    np.maximum.at(sizes, number, total)
    start = (np.cumsum(sizes) - sizes)[number][pair] + offsets(pair, count)
    pairs = (tuple(map(tuple, ends[:, number == c].T.tolist())) for c in range(len(sizes)))
    return Stage(moved, source, start, tuple(zip(sizes.tolist(), pairs, strict=True)), rises)


def in_rounds(source: np.ndarray, target: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The round of each message; there are as many rounds as the most messages that one device sends or receives.

    Senders and receivers are the two sides of a bipartite graph, messages are its edges and rounds the edges' colours;
    by Kőnig's theorem (1916) so many suffice. The algorithm is that of its proof: where no round is free at both ends,
    the messages on the path that alternates between a round free at one end and a round free at the other swap rounds.
    Large messages come first, so that those of one round differ little in size. Takes about messages·neighbours steps.

    Args:
      source, target, size: [messages] integers; no pair twice.
    """
    ends = [*zip(source.tolist(), target.tolist(), strict=True)]
    sent: dict[int, dict[int, int]] = {s: {} for s, _ in ends}  # by device, then round: the message
    received: dict[int, dict[int, int]] = {t: {} for _, t in ends}
    most = _most(np.array([source, target]))
    number = np.zeros(len(ends), np.int64)
    for e in np.lexsort((target, source, -size)).tolist():
        out, into = sent[ends[e][0]], received[ends[e][1]]
        free = next((c for c in range(most) if c not in out and c not in into), None)
        if free is None:
            free = next(c for c in range(most) if c not in out)
            other = next(c for c in range(most) if c not in into)
            _swap(into[free], free, other, ends, sent, received, number)
        out[free] = into[free] = e
        number[e] = free
    return number


def _swap(e: int | None, a: int, b: int, ends, sent, received, number: np.ndarray) -> None:
    """Swaps rounds a and b on the path that begins with message e, which is in round a, at its receiver."""
    path = []
    while e is not None:
        path.append(e)
        at = sent[ends[e][0]] if len(path) % 2 else received[ends[e][1]]
        e = at.get(b if len(path) % 2 else a)
    for e in path:
        for at in (sent[ends[e][0]], received[ends[e][1]]):
            if at.get(number[e]) == e:
                del at[number[e]]
    for e in path:
        number[e] = a + b - number[e]
        sent[ends[e][0]][number[e]] = received[ends[e][1]][number[e]] = e
