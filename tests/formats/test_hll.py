"""HLL: slices as wide as their longest row, and rows sorted in windows."""

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("hll"), "hll", slice_size=2))


@pytest.mark.parametrize(("slice_size", "sigma"), [(1, 1), (7, 1), (8, 16), (7, 30), (4, 99), (128, 1), (128, 128)])
def test_every_slice_is_as_wide_as_its_longest_row(slice_size, sigma):
    A = stored("hll", slice_size=slice_size, sigma=sigma)
    lengths = LENGTHS if A.perm is None else LENGTHS[np.asarray(A.perm)]
    np.testing.assert_array_equal(A.row_lengths, lengths)
    longest = [max(lengths[i : i + slice_size]) for i in range(0, 99, slice_size)]
    np.testing.assert_array_equal(np.diff(A.slice_ptr), np.multiply(longest, slice_size))


@pytest.mark.parametrize("sigma", [8, 30, 98, 99, 100, 10**12])
def test_rows_are_sorted_stably_inside_their_windows(sigma):
    perm = np.asarray(stored("hll", slice_size=2, sigma=sigma).perm)
    for start in range(0, 99, sigma):
        rows = range(start, min(start + sigma, 99))
        assert perm[start : start + sigma].tolist() == sorted(rows, key=lambda r: -LENGTHS[r])


def test_sorting_saves_places_and_one_slice_is_ellpack():
    places = [stored("hll", slice_size=8, sigma=sigma).n_stored for sigma in (1, 32, 128)]
    assert places == sorted(places, reverse=True) and places[0] > 1.3 * places[2]
    assert stored("hll", slice_size=99).n_stored == stored("ell").n_stored
