"""The comparison of dialects, with the interpreter in the place of one of them."""

import pytest

from benchmarks import dialects, standard, suite
from jaxsparse_fmt import gallery


def test_a_row_tells_what_each_dialect_takes_and_their_ratio():
    case = suite.Case("tridiagonal", "stencil", lambda scale: None)
    rows = dialects.rows_of(case, gallery.poisson(40, dim=1), ["float32"], ("xla", "interpret"), standard.QUICK)
    (row,) = rows
    assert row["ratio"] == pytest.approx(row["xla µs"] / row["interpret µs"]) and row["ratio"] > 0
    text = dialects.table(rows, {"date": "today"})
    assert f"| stencil | {row['ratio']:.2f} |" in text and f"| geometric mean | {row['ratio']:.2f} |" in text
