"""Products with several columns, on a small matrix."""

import pytest

from benchmarks import columns, standard, suite
from jaxsparse_fmt import gallery


def test_throughput_is_how_many_single_products_one_does():
    case = suite.Case("tridiagonal", "stencil", lambda scale: None)
    one, three = columns.rows_of(case, gallery.poisson(40, dim=1), ["float64"], (1, 3), 1e9, standard.QUICK)
    assert one["throughput"] == pytest.approx(1) and max(one["error"], three["error"]) < 1e-14
    assert three["throughput"] == pytest.approx(3 * one["µs"] / three["µs"])


def test_without_a_single_product_the_first_is_compared_with_column_by_column():
    case = suite.Case("tridiagonal", "stencil", lambda scale: None)
    two, six = columns.rows_of(case, gallery.poisson(40, dim=1), ["float64"], (2, 6), 1e9, standard.QUICK)
    assert two["throughput"] == pytest.approx(1) and six["throughput"] == pytest.approx(3 * two["µs"] / six["µs"])
