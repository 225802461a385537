"""JDS: jagged diagonals of sorted rows."""

import numpy as np

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, LONGER, RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("jds"), "jds"))


def test_every_jagged_diagonal_takes_a_multiple_of_16_places_and_never_16_too_many():
    sizes = np.diff(stored("jds").col_start)
    padding = sizes - LONGER
    assert np.all(sizes % 16 == 0) and np.all((padding >= 0) & (padding < 16))


def test_diagonal_j_holds_entry_j_of_the_rows_that_have_one():
    A = stored("jds")
    perm, start, values = (np.asarray(a) for a in (A.perm, A.col_start, A.values))
    assert perm.tolist() == sorted(range(99), key=lambda r: -LENGTHS[r])
    for j in range(40):
        rows = perm[LENGTHS[perm] > j]
        np.testing.assert_array_equal(values[start[j] :][: len(rows)], RAGGED.data[RAGGED.indptr[rows] + j])
        assert not np.any(values[start[j] + len(rows) : start[j + 1]])
