"""COO: coordinates in canonical order."""

import numpy as np

import jaxsparse_fmt as jsf
from tests.formats.pictures import RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("coo"), "coo"))


def test_values_lie_in_the_order_of_data():
    A = stored("coo")
    np.testing.assert_array_equal(A.values, A.data)
    row, col = RAGGED.nonzero()
    np.testing.assert_array_equal(A.row_idx, row)
    np.testing.assert_array_equal(A.col_idx, col)
