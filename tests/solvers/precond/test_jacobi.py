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


def test_a_small_diagonal_in_16_bits_has_a_finite_inverse():
    d = np.array([1e-5, 1e-6, 2.0], np.float16)
    A = jsf.from_coo(range(3), range(3), d, (3, 3), "csr")
    assert A.dtype == np.float16
    np.testing.assert_allclose(precond.jacobi(A) @ np.ones(3, np.float32), 1 / d.astype(np.float32), rtol=1e-6)
