"""Which device gets which rows: contiguous pieces of equal work, or as the user cuts them.

Cevahir et al. (2009), §4, cut the rows so that every device has equally many entries, and report the imbalance of
rows, entries and exchanged unknowns.
"""

import dataclasses
from typing import Any

import numpy as np

CUTS = ("nnz", "rows")


def cuts(by: Any, lengths: np.ndarray, parts: int) -> np.ndarray:
    """[parts + 1] int64, where the rows of each part begin, and their number; some parts are empty where rows are few.

    Args:
      by: "nnz" for equally many entries, "rows" for equally many rows, or these numbers.
      lengths: entries of each row.

    Raises:
      TypeError: `by` is neither a word nor integers. ValueError: an unknown word, or numbers that do not rise to n.
    """
    n = len(lengths)
    if isinstance(by, str) and by not in CUTS:
        raise ValueError(f"by must be one of {', '.join(CUTS)}, or where the rows of each device begin; got {by!r}")
    if isinstance(by, str):
        return equal(n, parts) if by == "rows" else equal_nnz(lengths, parts)
    return given(by, "by", n, parts)


def given(starts: Any, name: str, n: int, parts: int) -> np.ndarray:
    """The user's cuts.

    Raises:
      ValueError, TypeError: they do not rise from 0 to n, or are no integers.
    """
    cut = np.asarray(starts)
    if not np.issubdtype(cut.dtype, np.integer):
        raise TypeError(f"{name} must be integers, the numbers of rows; got {starts!r}")
    if cut.shape != (parts + 1,) or cut[0] != 0 or cut[-1] != n or np.any(np.diff(cut.astype(np.int64)) < 0):
        raise ValueError(f"{name} must be {parts + 1} numbers that rise from 0 to n = {n}; got {starts!r}")
    return cut.astype(np.int64)


def equal(n: int, parts: int) -> np.ndarray:
    """[parts + 1] cuts of n places into pieces whose sizes differ by at most one."""
    return np.arange(parts + 1, dtype=np.int64) * n // parts


def equal_nnz(row_lengths: np.ndarray, parts: int) -> np.ndarray:
    """[parts + 1] cuts that give each piece as nearly as possible the same number of entries.

    Among equally good cuts, as in a run of empty rows, it takes the one nearest to equal rows.
    """
    n = len(row_lengths)
    before = np.concatenate([[0], np.cumsum(row_lengths, dtype=np.int64)])
    goal = before[-1] * np.arange(parts + 1, dtype=np.float64) / parts
    above = np.searchsorted(before, goal).clip(max=n)
    below = (above - 1).clip(min=0)
    nearest = before[np.where(goal - before[below] < before[above] - goal, below, above)]
    low, high = np.searchsorted(before, nearest), np.searchsorted(before, nearest, side="right") - 1
    starts = np.clip(equal(n, parts), low, high)
    starts[0], starts[-1] = 0, n
    return np.maximum.accumulate(starts)


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """The imbalance of a partition, by device, each [parts] (Cevahir et al., Table 2).

    Attributes:
      halo: unknowns of other devices that each needs.
      neighbours: devices from which each receives.
    """

    rows: np.ndarray
    nnz: np.ndarray
    halo: np.ndarray
    neighbours: np.ndarray

    def __str__(self) -> str:
        lines = [f"{'':12}{'least':>12}{'mean':>14}{'most':>12}{'most / mean':>13}"]
        for name in ("rows", "nnz", "halo", "neighbours"):
            a: Any = getattr(self, name)
            mean = a.mean()
            ratio = f"{a.max() / mean:.3f}" if mean else "-"
            lines.append(f"{name:12}{a.min():>12,}{mean:>14,.1f}{a.max():>12,}{ratio:>13}")
        return "\n".join(lines)
