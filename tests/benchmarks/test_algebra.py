"""The benchmark of sums, products and assembly runs, and its table has a line for each operation."""

from __future__ import annotations

from benchmarks import algebra


def test_has_the_table_a_line_for_each_operation():
    rows = algebra.measure(scale=0.01, repeats=1)
    assert len(rows) == 5
    assert all(s > 0 for _, *times in rows for s in times)
    assert algebra.table(rows).count("\n| ") == 1 + len(rows)
