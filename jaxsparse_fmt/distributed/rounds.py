"""Puts messages between devices into rounds, in each of which a device sends and receives at most one."""

import numpy as np


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
    most = max((np.bincount(a).max() for a in (source, target) if len(a)), default=0)
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
