"""The plan of an exchange on thousands of devices: time and memory of one process, with one device of its own.

    python -m benchmarks.plans --json benchmarks/results/plans.json     on any computer, seven minutes

A stencil of 7 or 27 points on boxes of 10⁶ points, a device each, numbered box by box, or at random, as those of a
graph partition are. The process finds the halo of its rows, plans the exchange from the numbers
of neighbours of all devices, receives the requests of its own, and cuts its rows in two. Not timed: making rows, and
the network. Seconds are those of the CPU; memory is that of the whole process, which holds its rows and JAX before.
"""

import concurrent.futures
import itertools
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.distributed import build, halo

GRIDS = {64: (4, 4, 4), 256: (8, 8, 4), 1024: (16, 8, 8), 4096: (16, 16, 16)}
CASES = {
    "7 points": (100, 100, 100),
    "7 points, flat boxes": (10, 100, 1000),
    "7 points, boxes in random order": (100, 100, 100),
    "27 points": (100, 100, 100),
    "27 points, boxes in random order": (100, 100, 100),
}


class Boxes:
    """A grid of boxes of the same shape, one a part.

    Attributes:
      number: [grid] the part of each box.
      ways: the steps from a point to its neighbours, and from a box to its.
    """

    def __init__(self, grid: tuple[int, ...], shape: tuple[int, ...], shuffled: bool, corners: bool):
        self.shape, self.size, parts = shape, math.prod(shape), math.prod(grid)
        number = np.random.default_rng(0).permutation(parts) if shuffled else np.arange(parts)
        self.number = number.reshape(grid)
        steps = itertools.product((-1, 0, 1), repeat=3)
        self.ways = [w for w in steps if any(w) and (corners or sum(map(abs, w)) == 1)]

    def neighbour(self, part: int, way: Sequence[int]) -> int | None:
        """The part that lies this way from a part."""
        at = [int(i) + w for i, w in zip(*(np.argwhere(self.number == part)), way, strict=True)]
        inside = all(0 <= i < n for i, n in zip(at, self.number.shape, strict=True))
        return int(self.number[tuple(at)]) if inside else None

    def face(self, way: tuple[int, ...]) -> np.ndarray:
        """The points of a box on that side, rising: of a face, an edge or a corner."""
        ends = {-1: slice(None, 1), 0: slice(None), 1: slice(-1, None)}
        return np.arange(self.size).reshape(self.shape)[tuple(ends[w] for w in way)].ravel()

    def told(self) -> dict[int, tuple[str, dict[int, int]]]:
        """What `halo.neighbours` takes; eight devices a host."""
        of: dict[int, dict[int, int]] = {k: {} for k in range(self.number.size)}
        for way in self.ways:
            size, begin, end = len(self.face(way)), [max(0, -w) for w in way], [max(0, w) for w in way]
            inner = [n - abs(w) for n, w in zip(self.number.shape, way, strict=True)]
            boxes, others = (
                self.number[tuple(slice(b, b + n) for b, n in zip(first, inner, strict=True))] for first in (begin, end)
            )
            for box, other in zip(boxes.ravel().tolist(), others.ravel().tolist(), strict=True):
                of[box][other] = size
        return {k: (f"host {k // 8:6}", dict(sorted(sources.items()))) for k, sources in of.items()}

    def requests(self, part: int) -> dict[int, np.ndarray]:
        """The points of this part that each other part needs."""
        found = ((self.neighbour(part, way), self.face(way).astype(np.int32)) for way in self.ways)
        return {other: face for other, face in found if other is not None}

    def rows(self, part: int) -> scipy.sparse.csr_array:
        """The rows of one part, canonical."""
        own, shape = np.arange(self.size), (self.size, self.size * self.number.size)
        S = scipy.sparse.csr_array((np.full(self.size, float(len(self.ways))), (own, own + part * self.size)), shape)
        for step in self.ways:
            at = np.stack(np.unravel_index(own, self.shape)) + np.array(step)[:, None]
            ways, local = np.divmod(at, np.array(self.shape)[:, None])
            local = np.ravel_multi_index(tuple(local), self.shape)
            for way in np.unique(ways, axis=1).T.tolist():
                other = self.neighbour(part, way) if any(way) else part
                if other is not None:
                    (here,) = np.nonzero(np.all(np.equal(ways.T, way), axis=1))
                    entries = -np.ones(len(here)), (here, local.take(here) + other * self.size)
                    S = S + scipy.sparse.csr_array(entries, shape)
        S.sort_indices()
        return S


def most_held() -> float:
    """GB that this process has held at most since `forget_most`."""
    with open("/proc/self/status") as lines:
        kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024 / 1e9


def forget_most() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def measured(case: str, grid: tuple[int, ...], shape: tuple[int, ...]) -> Row:
    """The plan of the box in the middle."""
    boxes = Boxes(grid, shape, "random" in case, "27" in case)
    parts, part = boxes.number.size, int(boxes.number[tuple(g // 2 for g in grid)])
    S, told, requests = boxes.rows(part), boxes.told(), boxes.requests(part)
    starts = np.arange(parts + 1) * boxes.size
    forget_most()
    held, began = most_held(), time.process_time()
    needs = {part: halo.needed(S.indices, int(starts[part]), int(starts[part + 1]))}
    between = halo.neighbours(told)
    plan = halo.planned(needs, starts, between, lambda make: make() and {part: requests})
    planned = time.process_time()
    build._split(S, part, plan, boxes.size, boxes.size, starts, "overlap")
    cut = time.process_time()
    return {
        "case": case, "parts": parts, "halo": len(needs[part]), "neighbours": len(requests),
        "kind": plan.how.kind, "rounds": len(plan.how.sizes), "planned": planned - began, "cut": cut - planned,
        "held": held, "most": most_held(),
    }  # fmt: skip


TABLE = (
    ("boxes", "case"), ("parts", "parts:,"), ("halo", "halo:,"), ("neighbours", "neighbours:d"), ("exchange", "kind"),
    ("rounds", "rounds:d"), ("s to plan", "planned:.2f"), ("s to cut the rows", "cut:.2f"),
    ("GB held before", "held:.2f"), ("GB at most", "most:.2f"),
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, dtypes=False)
    args = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")  # memory is measured for a process's life, so each has its own
    rows: list[Row] = []
    for case, shape in CASES.items():
        shape = tuple(max(n // 20, 2) for n in shape) if args.small else shape
        for grid in [*GRIDS.values()][: 2 if args.small else None]:
            with concurrent.futures.ProcessPoolExecutor(1, context) as one:
                rows.append(one.submit(measured, case, grid, shape).result())
    header = report.provenance()
    table = "\n".join(["# The plan of one process", "", report.line(header), "", *report.markdown(rows, TABLE)])
    print(table)
    report.write(args.json, header, rows, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
