"""CSC: CSR of the transpose."""

import numpy as np

import jaxsparse_fmt as jsf
from tests.formats.pictures import RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("csc"), "csc"))


def test_the_arrays_are_those_of_the_transpose_in_csr():
    A, transposed = stored("csc"), stored("csr", matrix=RAGGED.T.tocsr())
    for ours, its in ((A.values, transposed.values), (A.row_idx, transposed.col_idx), (A.col_ptr, transposed.row_ptr)):
        np.testing.assert_array_equal(ours, its)


def test_the_transposed_product_is_the_product_of_csr_to_the_last_bit(rng):
    y = rng.standard_normal(99)
    with jsf.use_backend("xla"):
        np.testing.assert_array_equal(stored("csc").T @ y, stored("csr", matrix=RAGGED.T.tocsr()) @ y)
