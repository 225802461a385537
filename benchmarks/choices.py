"""How often "auto" takes the fastest of the formats that were timed, and whether other constants would choose better.

    python -m benchmarks.choices benchmarks/results/2026-11-26_choices.json

A row of the file is a matrix and a dtype: `storages` has the counts of every layout that was timed, as the cost model
gets them (`formats/footprint.py`), and µs by card. The constants of the model are fitted to every other matrix and
judged on the rest, then the other way round: a constant that only one half wants is no property of a card. All layouts
are ranked as Triton's. The table is written beside the file.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.formats.footprint import Storage

CONSTANTS = ("MISS", "HOP", "L2", "LATENCY", "REWRITTEN", "LAUNCH_SECONDS")
FACTORS = (1, 0.7, 0.85, 1.2, 1.4)
NEAR = 0.97  # of the speed of the fastest that was timed, from which a choice is as good
FIELDS = {field.name for field in dataclasses.fields(Storage)}


def regret(row: Row, card: str) -> float | None:
    """The speed of the layout that costs least over that of the fastest; None where fewer than two were timed."""
    timed = [s for s in row["storages"] if card in s["us"]]
    if len(timed) < 2:
        return None
    csr: Any = SimpleNamespace(shape=row["shape"], nnz=row["nnz"])
    copy = ranking.copy_speed(card)

    def cost(counts: Row) -> float:
        storage = Storage(**{k: v for k, v in counts.items() if k in FIELDS})
        return ranking._choice(storage, csr, np.dtype(row["dtype"]).itemsize, "triton", copy).cost

    return min(s["us"][card] for s in timed) / min(timed, key=cost)["us"][card]


def judged(rows: Iterable[Row], card: str) -> Row:
    found = [q for row in rows if (q := regret(row, card)) is not None]
    near = sum(q >= NEAR for q in found)
    return {"cases": len(found), "within 3%": near, "mean": geometric_mean(found), "worst": min(found)}


def fitted(rows: list[Row], cards: list[str]) -> dict[str, float]:
    """The constants that choose best, each by a factor in turn, twice; the least change of those that choose alike."""
    kept = {name: getattr(ranking, name) for name in CONSTANTS}

    def loss() -> float:
        return sum(-math.log(q) for row in rows for card in cards if (q := regret(row, card)) is not None)

    for name in CONSTANTS * 2:
        values = [kept[name] * f for f in FACTORS]
        best = min(values, key=lambda value: (setattr(ranking, name, value), loss())[1])
        setattr(ranking, name, best)
    return {name: getattr(ranking, name) for name in CONSTANTS}


def table(rows: list[Row], cards: list[str]) -> Iterator[Row]:
    names = list(dict.fromkeys(row["matrix"] for row in rows))
    halves = [[row for row in rows if names.index(row["matrix"]) % 2 == k] for k in (0, 1)]
    own = {name: getattr(ranking, name) for name in CONSTANTS}
    for k, half in enumerate(halves):
        for what, constants in (("as they are", own), ("fitted to the other half", None), ("fitted to it", None)):
            if constants is None:
                constants = fitted(half if what == "fitted to it" else halves[1 - k], cards)
            for name, value in constants.items():
                setattr(ranking, name, value)
            found = {card: judged(half, card) for card in cards}
            for name, value in own.items():
                setattr(ranking, name, value)
            yield from ({"half": "AB"[k], "constants": what, "card": card} | found[card] | constants for card in cards)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    args = parser.parse_args(argv)
    found = json.loads(args.times.read_text())
    header, rows = found["header"], found["rows"]
    lines = [report.line(header), *report.section("choices", list(table(rows, header["cards"].split(", "))))]
    args.times.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
