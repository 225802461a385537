"""IDR(s): fewer products than bicgstab, also where that is lost, for every s and from any numbers of unknowns."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, bicgstab, idrs
from tests.solvers.methods import matrix, right_hand_side


@pytest.mark.parametrize("s", [1, 2, 8])
def test_any_number_of_directions_solves_the_system(s):
    S, b = matrix("general"), right_hand_side()
    sol = idrs(jnp.asarray(S.toarray()), b, s=s, rtol=1e-10)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), b), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_systems_smaller_than_s_are_solved(n):
    A = np.eye(n) + np.arange(n * n).reshape(n, n) / n**2
    sol = idrs(jnp.asarray(A), np.ones(n), rtol=1e-12)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.x, np.linalg.solve(A, np.ones(n)), rtol=1e-10, atol=1e-12)


def test_waves_take_half_of_bicgstabs_products():
    """A damped Helmholtz equation: its eigenvalues lie on both sides of zero, close to the real axis."""
    S = sp.csr_array(jsf.gallery.poisson(20, dim=2).astype(complex) - (0.9 + 0.01j) * sp.eye_array(400))
    A, b = jsf.from_scipy(S, "csr"), np.ones(400) + np.arange(400) % 7
    ours, other = idrs(A, b, rtol=1e-8), bicgstab(A, b, rtol=1e-8)
    assert ours.success and other.success and ours.iterations <= 1.2 * other.iterations  # of two products each
    assert np.linalg.norm(b - S @ np.asarray(ours.x)) <= 1.001e-8 * np.linalg.norm(b)


def test_a_real_matrix_on_which_bicgstab_is_lost_is_solved(matrices):
    A = jsf.read_mtx(matrices / "qc324.mtx.gz", format="csr")
    d, b = A.diagonal(), np.random.default_rng(1).standard_normal(324)
    ours, other = (f(A, b, M=lambda r: r / d, rtol=1e-8, maxiter=1000) for f in (idrs, bicgstab))
    assert ours.status is Status.CONVERGED and other.status is Status.MAXITER


def test_convection_takes_fewer_products_than_bicgstab():
    S = jsf.gallery.convection_diffusion(24)
    A, b = jsf.from_scipy(S, "csr"), np.ones(S.shape[0])
    ours, other = idrs(A, b, rtol=1e-8), bicgstab(A, b, rtol=1e-8)
    assert ours.success and other.success and ours.iterations < 2 * other.iterations


@pytest.mark.parametrize(("s", "error"), [(0, ValueError), (2.5, TypeError)])
def test_numbers_of_directions_that_make_no_sense_are_refused(s, error):
    with pytest.raises(error, match="s must be"):
        idrs(jnp.eye(3), np.ones(3), s=s)
