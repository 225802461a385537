"""Which device gets which rows: contiguous pieces of equal work, or parts that a new numbering makes contiguous.

Cevahir et al. (2009), §4, cut the rows so that every device has equally many entries, and report the imbalance of
rows, entries and exchanged unknowns. A part vector of the user's, such as of METIS or the `boxes` of a
grid, or reverse Cuthill-McKee renumbers the unknowns first; the basis of the matrix hides the new numbers.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsparse_fmt._arguments import check_choice, whole_number
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats.order import order_of

CUTS = ("nnz", "rows")


def partition(csr: Csr, parts: int, by: Any = "nnz", reorder: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Cuts the rows of a canonical matrix into contiguous pieces, in the user's order or a new one; `by`, `reorder` and
    errors as in `shard`.

    Returns:
      [parts + 1] int64: piece k has the places starts[k] to starts[k + 1] − 1.
      [n] int64: place i holds the unknown perm[i]; None: the user's own order.
    """
    if not isinstance(by, str):
        name = "by= with the part of each unknown"
        if reorder is not None:
            raise ValueError(f"{name} renumbers the unknowns itself; leave reorder out")
        if csr.shape[0] != csr.shape[1]:
            raise ValueError(
                f"{name} renumbers rows and columns alike, which a {csr.shape[0]} × {csr.shape[1]} matrix does not "
                "allow; use by='nnz' or by='rows'"
            )
        return _by_parts(by, csr.shape[0], parts)
    check_choice("by", by, CUTS, ", or the part of each unknown")
    perm = None if reorder is None else order_of(csr, reorder)
    if by == "rows":
        return equal(csr.shape[0], parts), perm
    lengths = np.diff(csr.indptr).astype(np.int64)
    return equal_nnz(lengths if perm is None else lengths[perm], parts), perm


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


def _by_parts(by: Any, n: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces that a part vector describes; inside a piece the order is kept."""
    part = np.asarray(by)
    if part.dtype.kind not in "iu":
        raise TypeError(
            f"by must be one of the words {', '.join(CUTS)}, or integers, the part of each unknown; got "
            f"{type(by).__name__} of {part.dtype}"
        )
    if part.shape != (n,) or (n and not 0 <= part.min() <= part.max() < parts):
        low, high = (part.min(), part.max()) if part.size else (0, 0)
        raise ValueError(
            f"by must give each of {n} unknowns one of the parts 0 to {parts - 1}; got shape {part.shape}, and numbers "
            f"from {low} to {high}. Pass an order of the rows as reorder="
        )
    starts = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    return starts.astype(np.int64), np.argsort(part, kind="stable")


def boxes(shape: int | Sequence[int] | np.ndarray, parts: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """The part [points] of each point of a grid, or of points in space, cut into boxes, for `by=` of `shard`.

    Boxes have a smaller halo than the strips that `shard` cuts otherwise. The points of a grid count along the last
    axis first, as in `gallery.poisson(shape)`. Points in space, such as the nodes of a mesh, are halved where they
    extend farthest, again and again (recursive coordinate bisection; Berger and Bokhari, 1987): parts differ by some
    points at most.

    Args:
      shape: points along each axis of a grid; a number for one axis. Or the coordinates [points, axes] of points.
      parts: how many boxes, cut to separate the fewest neighbours; or how many along each axis of a grid.

    Raises:
      ValueError: an extent or a number of parts below 1, or not one for each axis; a coordinate that is not finite.
      TypeError: coordinates that are not real.

    Examples:
      >>> js.boxes((4, 4), 4).tolist()  # of each point of a grid
      [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]
      >>> js.boxes(np.array([[0.0, 0.0], [9.0, 1.0], [1.0, 1.0], [8.0, 0.0]]), 2).tolist()
      [0, 1, 0, 1]
    """
    if np.ndim(shape) == 2:
        points, number = _points(shape), whole_number("parts", parts, 1)
        part = np.zeros(len(points), np.int32)
        _bisect(points, np.arange(len(points)), 0, number, part)
        return part
    extents = [whole_number("an extent of the grid", n, 1) for n in np.atleast_1d(shape)]
    if not extents:
        raise ValueError("the grid has no axis; shape is the number of points along each, as in (100, 100)")
    if np.ndim(parts):
        along = [whole_number("the parts along an axis", p, 1) for p in np.atleast_1d(parts)]
        if len(along) != len(extents):
            raise ValueError(f"parts must be one number, or one for each of {len(extents)} axes; got {parts!r}")
    else:
        along = _fewest_cut(extents, whole_number("parts", parts, 1))
    out = np.zeros((), np.int64)
    for n, p in zip(extents, along, strict=True):
        box = np.searchsorted(equal(n, p), np.arange(n), side="right") - 1
        out = out[..., None] * p + box
    return out.ravel().astype(np.int32)


def _points(coordinates: Any) -> np.ndarray:
    points = np.asarray(coordinates)
    if points.dtype.kind not in "iuf":
        raise TypeError(f"coordinates of points must be real numbers; got {points.dtype}")
    if not np.isfinite(points).all():
        raise ValueError("a coordinate of a point is not finite")
    return points


def _bisect(points: np.ndarray, rows: np.ndarray, first: int, parts: int, part: np.ndarray) -> None:
    """Write into `part` the parts `first` to `first + parts - 1` of these rows of `points`."""
    if parts == 1 or not len(rows):
        part[rows] = first
        return
    lower = parts // 2
    middle = len(rows) * lower // parts
    inside = points[rows]
    along = inside[:, np.argmax(np.ptp(inside, axis=0))] if inside.shape[1] else np.zeros(len(rows))
    order = rows[np.argpartition(along, middle)]
    _bisect(points, order[:middle], first, lower, part)
    _bisect(points, order[middle:], first + lower, parts - lower, part)


def _fewest_cut(extents: list[int], parts: int) -> tuple[int, ...]:
    """Parts along each axis that cut the fewest pairs of neighbours, and leave no box empty if that is possible."""

    def cost(along: tuple[int, ...]) -> tuple[bool, float]:
        pairs = [*zip(extents, along, strict=True)]
        return any(p > n for n, p in pairs), sum((p - 1) / n for n, p in pairs)

    divisors = [d for d in range(parts, 0, -1) if parts % d == 0]
    factors = (along for along in itertools.product(divisors, repeat=len(extents)) if math.prod(along) == parts)
    return min(factors, key=cost)


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
            a: Any = vars(self)[name]
            mean = a.mean()
            ratio = f"{a.max() / mean:.3f}" if mean else "-"
            lines.append(f"{name:12}{a.min():>12,}{mean:>14,.1f}{a.max():>12,}{ratio:>13}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class BuildRecord:
    """Facts about the build of a sharded matrix, for `report`. All records compare equal, so none causes a compilation.

    A matrix that comes out of a user's jit has the record of the matrix with which the function was traced.
    """

    imbalance: Imbalance = dataclasses.field(compare=False)
    exchange: str = dataclasses.field(compare=False)
    format: str = dataclasses.field(compare=False)
