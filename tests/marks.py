"""Rows of a `parametrize` that the quick tests leave to the deep ones, marked where they stand."""

from collections.abc import Iterable
from typing import Any

import pytest


def deep(*row: Any) -> Any:
    """A row of which only the deep tests ask."""
    return pytest.param(*row, marks=pytest.mark.deep)


def few(rows: Iterable[Any], count: int) -> list[Any]:
    """All rows, of which the quick tests take `count`, spread evenly; a tuple is a row of several parameters."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    quick = {(2 * i + 1) * len(rows) // (2 * count) for i in range(count)}
    return [pytest.param(*row) if i in quick else deep(*row) for i, row in enumerate(rows)]
