"""The quick tier of tests, which `make test` runs, and the deep one, which `make test-all` adds to it.

A test is deep by the mark `deep` or `clock`, or because the quick tier asks its question with other parameters: where a
test has several, the quick tier takes each row of each `parametrize` at least once. A mark changes what it takes:

    some(a=4)    four rows of the `parametrize` with the parameter a, other ones in each test
"""

import collections
import zlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest


def mark_deep(items: Iterable[pytest.Item]) -> None:
    """Adds the mark `deep` to all tests that the quick tier leaves out. On a GPU, which is fast, it takes all."""
    functions = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("clock"):
            item.add_marker("deep")
        elif hasattr(item, "callspec") and not any(map(item.get_closest_marker, ("deep", "gpu", "multigpu"))):
            functions[item.nodeid.partition("[")[0]].append(item)
    for name, of_one in functions.items():
        rows, left_out = [_rows(item) for item in of_one], set()
        some = of_one[0].get_closest_marker("some")
        for parameter, count in (some.kwargs if some else {}).items():
            every = list(dict.fromkeys(row for of in rows for row in of if parameter in dict(row)))
            first = zlib.crc32(name.encode()) % max(len(every), 1)
            left_out |= {row for i, row in enumerate(every) if (i - first) % len(every) >= count}
        kept = covering([set(of) - left_out for of in rows])
        for i, item in enumerate(of_one):
            if i not in kept:
                item.add_marker("deep")


def covering(combinations: Sequence[set[Hashable]]) -> set[int]:
    """Numbers of combinations that together hold every value; those with most missing values are taken first."""
    missing, kept = set().union(*combinations), set()
    while missing:
        best = max(range(len(combinations)), key=lambda i: len(combinations[i] & missing))
        missing -= combinations[best]
        kept.add(best)
    return kept


def covered(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Rows for one `parametrize`: those beyond a covering of the values of each column are deep."""
    rows = list(rows)
    kept = covering([{(column, id(value)) for column, value in enumerate(row)} for row in rows])
    return [pytest.param(*row, marks=() if i in kept else pytest.mark.deep) for i, row in enumerate(rows)]


def _rows(item: Any) -> list[Any]:
    """One row of each `parametrize` and of each fixture with parameters."""
    params = {name: id(value) for name, value in item.callspec.params.items()}
    axes = [mark.args[0] for mark in item.iter_markers("parametrize")]
    axes = [tuple(axis.replace(" ", "").split(",")) if isinstance(axis, str) else tuple(axis) for axis in axes]
    axes += [(name,) for name in params if not any(name in axis for axis in axes)]
    return [tuple((name, params[name]) for name in axis) for axis in axes]
