"""How often "auto" takes the fastest of the formats that were timed, and whether other constants would choose better.

    python -m benchmarks.choices benchmarks/results/2026-11-27_suite_h100.json … --json out.json

Reads tables of `benchmarks.spmv`, which have the counts of every layout that was timed, as the cost model gets them
(`formats/footprint.py`). The constants of the model are fitted to every other matrix and judged on the rest, then the
other way round: a constant that only one half wants is no property of a card. All layouts are ranked as Triton's.
"""

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


def regret(row: Row) -> float | None:
    """The speed of the layout that costs least over that of the fastest; None where fewer than two were timed."""
    timed = [of for of in row["ours"] if "storage" in of and not math.isnan(of["us"])]
    rate = lambda storage: storage.get("rate") or storage["format"]  # noqa: E731
    timed = [of for of in timed if rate(of["storage"]) in ranking.EFFICIENCY["triton"]]  # which "auto" still may take
    timed = [of for of in timed if not of["storage"]["layout"].get("by_column")]
    if len(timed) < 2:
        return None
    csr: Any = SimpleNamespace(shape=(row["rows"], row["cols"]), nnz=row["nnz"])
    copy = ranking.copy_speed(row["device"])

    def cost(of: Row) -> float:
        return ranking._choice(Storage(**of["storage"]), csr, np.dtype(row["dtype"]).itemsize, "triton", copy).cost

    return min(of["us"] for of in timed) / min(timed, key=cost)["us"]


def judged(rows: Iterable[Row]) -> Row:
    found = [q for row in rows if (q := regret(row)) is not None]
    near = sum(q >= NEAR for q in found)
    return {"cases": len(found), "within 3%": near, "mean": geometric_mean(found), "worst": min(found)}


def fitted(rows: list[Row]) -> dict[str, float]:
    """The constants that choose best, each by a factor in turn, twice; the least change of those that choose alike."""
    kept = {name: getattr(ranking, name) for name in CONSTANTS}

    def loss() -> float:
        return sum(-math.log(q) for row in rows if (q := regret(row)) is not None)

    for name in CONSTANTS * 2:
        values = [kept[name] * f for f in FACTORS]
        best = min(values, key=lambda value: (setattr(ranking, name, value), loss())[1])
        setattr(ranking, name, best)
    return {name: getattr(ranking, name) for name in CONSTANTS}


def table(rows: list[Row]) -> Iterator[Row]:
    names = list(dict.fromkeys(row["matrix"] for row in rows))
    halves = [[row for row in rows if names.index(row["matrix"]) % 2 == k] for k in (0, 1)]
    own, cards = {name: getattr(ranking, name) for name in CONSTANTS}, dict.fromkeys(row["device"] for row in rows)
    for k, half in enumerate(halves):
        for what, constants in (("as they are", own), ("fitted to the other half", None), ("fitted to it", None)):
            if constants is None:
                constants = fitted(half if what == "fitted to it" else halves[1 - k])
            for name, value in constants.items():
                setattr(ranking, name, value)
            found = {card: judged(row for row in half if row["device"] == card) for card in cards}
            for name, value in own.items():
                setattr(ranking, name, value)
            yield from ({"half": "AB"[k], "constants": what, "card": card} | found[card] | constants for card in cards)


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__)
    parser.add_argument("tables", type=Path, nargs="+", help="results of benchmarks.spmv")
    args = parser.parse_args(argv)
    rows = []
    for path in args.tables:
        found = json.loads(path.read_text())
        rows += [row | {"device": found["header"]["device"]} for row in found["rows"]]
    made = list(table(rows))
    header = {"tables": ", ".join(path.stem for path in args.tables)} | report.commit()
    text = "\n".join([report.line(header), *report.section("choices", made)])
    report.write(args.json, header, made, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
