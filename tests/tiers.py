"""Two tiers of tests: the quick one, which `make test` runs, and the deep one, which `make test-all` adds to it.

A test is deep by the mark `deep` or `clock`, or because the quick tier asks its question with other parameters. Where a
test has several parameters, the quick tier takes each row of each `parametrize` at least once, and the deep tier takes
all combinations. Two marks change what the quick tier takes:

    together("a", "b")    all combinations of the parameters a and b
    some(a=4)             four rows of the `parametrize` with the parameter a; the next test of the file with as many
                          rows takes the next four
"""

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

Row = tuple[tuple[str, int], ...]  # parameters with the identities of their values

DEEP = ("deep", "clock")
NEVER_CUT = ("gpu", "multigpu")  # each combination is a kernel of its own, and machines with GPUs are fast


def mark_deep(items: Iterable[pytest.Item]) -> None:
    """Adds the mark `deep` to all tests that the quick tier leaves out."""
    functions: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if any(map(item.get_closest_marker, DEEP)):
            item.add_marker("deep")
        elif hasattr(item, "callspec") and not any(map(item.get_closest_marker, NEVER_CUT)):
            file, _, name = item.nodeid.partition("[")[0].partition("::")
            functions.setdefault((file, name), []).append(item)
    turns = collections.Counter[tuple[str, str, int]]()
    for (file, _), of_one in functions.items():
        left_out: set[Row] = set()
        some = of_one[0].get_closest_marker("some")
        for name, count in (some.kwargs if some else {}).items():
            rows = list(dict.fromkeys(row for item in of_one for row in _rows(item) if name in dict(row)))
            first = turns[file, name, len(rows)]
            turns[file, name, len(rows)] += count
            taken = {(first + i) % len(rows) for i in range(count)} if rows else set()
            left_out |= {row for i, row in enumerate(rows) if i not in taken}
        kept = covering([set(_rows(item)) - left_out for item in of_one])
        for i, item in enumerate(of_one):
            if i not in kept:
                item.add_marker("deep")


def covering(combinations: Sequence[Iterable[Hashable]]) -> set[int]:
    """Numbers of combinations that together hold every value that any of them holds.

    The greedy choice: most missing values first; of equals, the one whose values are taken least, then the first.
    """
    left = {i: set(values) for i, values in enumerate(combinations)}
    missing = set().union(*left.values())
    kept, taken = set(), collections.Counter()
    while missing:
        best = max(left, key=lambda i: (len(left[i] & missing), -sum(taken[value] for value in left[i])))
        values = left.pop(best)
        missing -= values
        taken.update(values)
        kept.add(best)
    return kept


def covered(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Rows for one `parametrize`: those beyond a covering of the values of each column are deep."""
    rows = list(rows)
    kept = covering([[(column, id(value)) for column, value in enumerate(row)] for row in rows])
    return [pytest.param(*row, marks=() if i in kept else pytest.mark.deep) for i, row in enumerate(rows)]


def _rows(item: Any) -> list[Row]:
    """One row of each `parametrize` and of each fixture with parameters, and those that must come together."""
    params = {name: id(value) for name, value in item.callspec.params.items()}
    axes = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    axes += [mark.args for mark in item.iter_markers("together")]
    axes += [(name,) for name in params if not any(name in axis for axis in axes)]
    return [tuple((name, params[name]) for name in axis) for axis in axes]


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
