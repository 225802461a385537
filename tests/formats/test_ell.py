"""ELL: every row as wide as the longest."""

import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("ell"), "ell"))


def test_column_j_holds_entry_j_of_every_row():
    A = stored("ell")
    cols = np.asarray(A.col_idx).reshape(40, 99).T
    there = np.arange(40) < LENGTHS[:, None]
    np.testing.assert_array_equal(cols[there], RAGGED.indices)
    assert np.all(cols[~there] == 120)


def test_a_matrix_without_entries_stores_no_places():
    A = jsf.from_scipy(sp.csr_array((5, 3)), "ell")
    assert A.n_stored == 0 and A.nbytes == 4 * 5
