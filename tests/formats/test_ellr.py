"""ELLPACK-R: aligned columns, and threads that share rows without a change of the data."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("ellr"), "ellr"))


@pytest.mark.parametrize(("n_rows", "pitch"), [(1, 32), (31, 32), (32, 32), (33, 64), (64, 64), (65, 96)])
def test_columns_start_at_multiples_of_128_bytes_of_indices(n_rows, pitch):
    A = jsf.from_scipy(sp.csr_array(np.ones((n_rows, 3))), "ellr")
    assert A.n_stored == 3 * pitch
    columns = np.asarray(A.col_idx).reshape(3, pitch)
    np.testing.assert_array_equal(columns[:, :n_rows], np.indices((3, n_rows))[0])
    assert np.all(columns[:, n_rows:] == 3)


def test_the_number_of_threads_changes_no_array():
    one, two, four = (stored("ellr", threads_per_row=t) for t in (1, 2, 4))
    for other in (two, four):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one), jax.tree.leaves(other))
