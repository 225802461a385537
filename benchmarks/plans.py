"""The plan of an exchange on thousands of devices: time and memory of one process, with one device of its own.

    python -m benchmarks.plans --json benchmarks/results/plans.json     on any computer, two minutes

A 7-point stencil on boxes of 10⁶ points, a device each, numbered box by box; in the last case the boxes have random
numbers, as those of a graph partition do. The process finds the halo of its rows, plans the exchange from the numbers
of neighbours of all devices, receives the requests of its own, and cuts its rows in two. Not timed: making rows, and
the network. Seconds are those of the CPU; memory is that of the whole process, which holds its rows and JAX before.
"""

import concurrent.futures
import math
import multiprocessing
import sys
import time
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.distributed import build, halo

GRIDS = {64: (4, 4, 4), 256: (8, 8, 4), 1024: (16, 8, 8), 4096: (16, 16, 16)}
CASES = {"boxes": (100, 100, 100), "flat boxes": (10, 100, 1000), "boxes in random order": (100, 100, 100)}


class Boxes:
    """A grid of boxes of the same shape, one a part.

    Attributes:
      number: [grid] the part of each box.
    """

    def __init__(self, grid: tuple[int, ...], shape: tuple[int, ...], shuffled: bool):
        self.grid, self.shape, self.size = grid, shape, math.prod(shape)
        parts = math.prod(grid)
        self.number = np.random.default_rng(0).permutation(parts) if shuffled else np.arange(parts)
        self.number = self.number.reshape(grid)

    def sides(self) -> Any:
        """For each axis and direction: the boxes with a neighbour there, and that neighbour, as parts."""
        for axis in range(3):
            low, high = (np.moveaxis(self.number, axis, 0)[s].ravel() for s in (slice(None, -1), slice(1, None)))
            yield axis, 1, low, high
            yield axis, -1, high, low

    def face(self, axis: int, direction: int) -> np.ndarray:
        """The points of a box on that side, rising."""
        return np.moveaxis(np.arange(self.size).reshape(self.shape), axis, 0)[-1 if direction > 0 else 0].ravel()

    def told(self) -> dict[int, tuple[str, dict[int, int]]]:
        """What `halo.neighbours` takes; eight devices a host."""
        of: dict[int, dict[int, int]] = {k: {} for k in range(self.number.size)}
        for axis, direction, boxes, others in self.sides():
            size = len(self.face(axis, direction))
            for box, other in zip(boxes.tolist(), others.tolist(), strict=True):
                of[box][other] = size
        return {k: (f"host {k // 8:6}", dict(sorted(sources.items()))) for k, sources in of.items()}

    def requests(self, part: int) -> dict[int, np.ndarray]:
        """The points of this part that each other part needs."""
        sides = ((others[boxes == part], self.face(axis, way)) for axis, way, boxes, others in self.sides())
        return {int(other): face.astype(np.int32) for found, face in sides for other in found}

    def rows(self, part: int) -> scipy.sparse.csr_array:
        """The rows of one part, canonical."""
        own = np.arange(self.size, dtype=np.int64)
        row, col, data = [own], [own + part * self.size], [np.full(self.size, 6.0)]
        points = own.reshape(self.shape)
        for axis in range(3):
            low, high = (np.moveaxis(points, axis, 0)[s].ravel() for s in (slice(None, -1), slice(1, None)))
            for a, b in ((low, high), (high, low)):
                row, col, data = [*row, a], [*col, b + part * self.size], [*data, np.full(len(a), -1.0)]
        for axis, direction, boxes, others in self.sides():
            for other in others[boxes == part].tolist():
                a, b = self.face(axis, direction), self.face(axis, -direction)
                row, col, data = [*row, a], [*col, b + other * self.size], [*data, np.full(len(a), -1.0)]
        shape = self.size, self.size * self.number.size
        S = scipy.sparse.coo_array((np.concatenate(data), (np.concatenate(row), np.concatenate(col))), shape).tocsr()
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
    boxes = Boxes(grid, shape, "random" in case)
    parts, part = boxes.number.size, int(boxes.number[tuple(g // 2 for g in grid)])
    S, told, requests = boxes.rows(part), boxes.told(), boxes.requests(part)
    starts = np.arange(parts + 1) * boxes.size
    forget_most()
    held, began = most_held(), time.process_time()
    needs = {part: halo.needed(S.indices, int(starts[part]), int(starts[part + 1]))}
    between = halo.neighbours(told)
    plan = halo.planned(needs, starts, between, lambda make: make() and {part: requests}, kind="permute")
    planned = time.process_time()
    build._split(S, part, plan, boxes.size, boxes.size, starts, "overlap")
    cut = time.process_time()
    return {
        "case": case, "parts": parts, "halo": len(needs[part]), "neighbours": len(requests),
        "rounds": len(plan.how.sizes), "planned": planned - began, "cut": cut - planned,
        "held": held, "most": most_held(),
    }  # fmt: skip


TABLE = (
    ("boxes", "case"), ("parts", "parts:,"), ("halo", "halo:,"), ("neighbours", "neighbours:d"), ("rounds", "rounds:d"),
    ("s to plan", "planned:.2f"), ("s to cut the rows", "cut:.2f"), ("GB held before", "held:.2f"),
    ("GB at most", "most:.2f"),
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
