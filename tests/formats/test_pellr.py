"""PELLR: ELLPACK-R of the sorted rows."""

import jax
import numpy as np

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    matrix = drawn_matrix("pellr")
    assert_as_drawn(jsf.from_scipy(matrix, "pellr", lengths_per="row"))
    assert jsf.from_scipy(matrix, "pellr", lengths_per="warp").row_lengths.tolist() == [3]


def test_it_is_ellpack_r_of_the_sorted_matrix():
    A = stored("pellr", lengths_per="row")
    perm = np.argsort(-LENGTHS, stable=True)
    np.testing.assert_array_equal(A.perm, perm)
    B = stored("ellr", matrix=RAGGED[perm])
    for name in ("values", "col_idx", "row_lengths"):
        np.testing.assert_array_equal(getattr(A, name), getattr(B, name))


def test_a_length_a_warp_is_that_of_its_longest_row_and_no_other_array_changes():
    by_row, by_warp = (stored("pellr", lengths_per=per) for per in ("row", "warp"))
    lengths = np.asarray(by_row.row_lengths)
    assert by_warp.row_lengths.tolist() == [max(lengths[i : i + 32]) for i in range(0, 99, 32)]
    for name in ("values", "col_idx", "perm"):
        jax.tree.map(np.testing.assert_array_equal, getattr(by_row, name), getattr(by_warp, name))
