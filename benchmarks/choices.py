"""How often the rules of "auto" choose the fastest of the formats that were timed, without a GPU.

    python -m benchmarks choices benchmarks/results/2026-11-27_suite_h100.json … --json out.json

Reads results of `benchmarks spmv`, which have the counts of every layout that was timed, as the rules get them
(`formats/footprint.py`). Layouts that "auto" no longer considers are left out.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.core.matrix import FORMATS
from jaxsparse_fmt.formats import csr5
from jaxsparse_fmt.formats.footprint import Storage, bytes_moved

NEAR = 0.97  # of the speed of the fastest that was timed, from which a choice is as good
FIELDS = {field.name for field in dataclasses.fields(Storage)}


def regret(row: Row) -> float | None:
    """The speed of the layout that costs least over that of the fastest; None if none was timed."""
    timed = [(storage(one), one) for one in row["ours"] if "storage" in one and not math.isnan(one["us"])]
    timed = [(s, one) for s, one in timed if s.layout.keys() <= {*FORMATS[s.format].layout_options}]
    if not timed:
        return None
    itemsize = np.dtype(row["dtype"]).itemsize

    def cost(s: Storage, misses: float) -> float:
        moved = bytes_moved(s.nbytes, (row["rows"], row["cols"]), itemsize, s.copied)
        return ranking.cost_on_gpu(s, moved, misses, row["nnz"], itemsize)

    costs = [cost(s, one["storage"]["misses"]) for s, one in timed]
    us = [one["us"] for _, one in timed]
    return min(us) / us[costs.index(min(costs))]


def storage(one: Row) -> Storage:
    """The counts of a layout, of earlier tables too."""
    s = Storage(**{name: value for name, value in one["storage"].items() if name in FIELDS})
    s = dataclasses.replace(s, trips=csr5.TRIPS) if s.format == "csr5" else s
    return dataclasses.replace(s, layout={name: value for name, value in s.layout.items() if value is not False})


def judged(rows: Iterable[Row]) -> Row:
    found = [q for row in rows if (q := regret(row)) is not None]
    near = sum(q >= NEAR for q in found)
    return {"cases": len(found), "within 3%": near, "mean": geometric_mean(found), "worst": min(found)}


def table(rows: list[Row]) -> Iterator[Row]:
    for card in dict.fromkeys(row["device"] for row in rows):
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            some = [row for row in rows if (row["device"], row["dtype"]) == (card, dtype)]
            yield {"card": card, "dtype": dtype} | judged(some)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", type=Path, nargs="+", help="results of benchmarks spmv")


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    header["tables"] = ", ".join(path.stem for path in args.tables)
    rows = []
    for path in args.tables:
        found = json.loads(path.read_text())
        rows += [row | {"device": found["header"]["device"]} for row in found["rows"]]
    return {"choices": lambda: table(rows)}
