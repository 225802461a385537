"""HDIA: the diagonals of every slice."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import (
    RAGGED,
    assert_as_drawn,
    drawn_matrix,
    holes,
    holes_drawn,
    stored,
)

layouts = pytest.mark.parametrize(("slice_size", "sigma"), [(8, 1), (7, 1), (8, 24), (16, 99), (1, 1), (200, 1)])


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("hdia"), "hdia", slice_size=2))


def test_the_pattern_names_the_empty_places_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("hdia"), "hdia", slice_size=2)
    np.testing.assert_array_equal(holes(A), holes_drawn(A))


@layouts
def test_a_slice_has_the_diagonals_of_its_rows_and_no_others(slice_size, sigma):
    A = stored("hdia", slice_size=slice_size, sigma=sigma)
    perm = np.arange(99) if A.perm is None else np.asarray(A.perm)
    chunks, offsets = np.asarray(A.slice_ptr) // slice_size, np.asarray(A.offsets)
    values, dense = np.asarray(A.values).reshape(-1, slice_size), RAGGED.toarray()
    padding = set(holes(A).tolist())
    for s, start in enumerate(range(0, 99, slice_size)):
        rows = perm[start : start + slice_size]
        row, col = RAGGED[rows].nonzero()
        own = offsets[chunks[s] : chunks[s + 1]]
        np.testing.assert_array_equal(own, np.unique(col - rows[row]))
        for k, offset in enumerate(own, start=chunks[s]):
            inside = (rows + offset >= 0) & (rows + offset < 120)
            wanted = np.where(inside, dense[rows, np.clip(rows + offset, 0, 119)], 0)
            np.testing.assert_array_equal(values[k, : len(rows)], wanted)
            empty = k * slice_size + np.flatnonzero(inside & (wanted == 0))
            assert padding.issuperset(empty.tolist())
            padding.difference_update(empty.tolist())
    assert not padding


def test_slices_store_only_the_diagonals_that_they_meet():
    band = jsf.gallery.poisson(64, dim=1)
    twice = sp.vstack([band, band], "csr")
    A = stored("hdia", matrix=twice, slice_size=64)
    assert A.n_stored == 6 * 64 and A.pattern is None
    np.testing.assert_array_equal(A.data, twice.data)
    assert stored("dia", matrix=twice).n_stored == 6 * 128
