"""CSR: one row a slice, and the threads that share it."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.csr import THREADS, threads_for
from tests.formats.pictures import assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("csr"), "csr"))


@pytest.mark.parametrize(
    ("nnz", "n_rows", "threads"),
    [(0, 0, 1), (0, 5, 1), (5, 5, 1), (9, 5, 1), (10, 5, 2), (35, 5, 4), (31 * 8, 8, 16), (256, 8, 32), (10**9, 8, 32)],
)
def test_threads_are_the_largest_power_of_two_that_a_mean_row_keeps_busy(nnz, n_rows, threads):
    assert threads_for(nnz, n_rows) == threads


def test_a_matrix_chooses_its_threads_by_its_mean_row():
    assert stored("csr").threads_per_row == 4  # 6.3 entries a row
    assert jsf.from_scipy(sp.csr_array(np.ones((3, 40))), "csr").threads_per_row == 32


def test_the_number_of_threads_changes_no_array():
    leaves = [jax.tree.leaves(stored("csr", threads_per_row=t)) for t in THREADS]
    for other in leaves[1:]:
        jax.tree.map(np.testing.assert_array_equal, leaves[0], other)
