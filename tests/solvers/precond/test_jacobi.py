"""Jacobi: the inverse diagonal, and what a zero on it does."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import precond
from tests.marks import few


@pytest.mark.parametrize("format", few(jsf.FORMATS, 3))
def test_divides_by_the_diagonal_in_every_format(format):
    A = jsf.from_scipy(jsf.gallery.convection_diffusion(4), format)
    r = np.random.default_rng(0).standard_normal(64)
    np.testing.assert_allclose(precond.jacobi(A) @ r, r / A.to_scipy().diagonal(), rtol=1e-14)


def test_a_zero_on_the_diagonal_leaves_its_row_alone():
    M = precond.jacobi(jsf.from_scipy(sp.csr_array([[2.0, 1.0], [1.0, 0.0]])))
    np.testing.assert_array_equal(M @ np.array([4.0, 3.0]), [2.0, 3.0])
