"""IDR(s): fewer products than bicgstab, also where that is lost, for every s and from any numbers of unknowns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, bicgstab, idrs
from tests.solvers import real
from tests.solvers.methods import N, matrix, right_hand_side


@pytest.mark.parametrize(("n", "s"), [(N, 1), (N, 2), (N, 8), (1, 4), (2, 4), (5, 8)])
def test_any_number_of_directions_solves_systems_of_any_size(n, s):
    A, b = matrix("general").toarray()[:n, :n], right_hand_side()[:n]
    sol = idrs(jnp.asarray(A), b, s=s, rtol=1e-11)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.x, np.linalg.solve(A, b), rtol=1e-8, atol=1e-9)


FILES = {path.name: path for path in real.FILES}
WAVES = jsf.gallery.poisson(20, dim=2).astype(complex) - (0.9 + 0.01j) * sp.eye_array(400)  # damped Helmholtz equation


@pytest.mark.parametrize(("S", "most"), [(WAVES, 1.2), (jsf.gallery.convection_diffusion(24), 1.99)])
def test_waves_and_convection_take_fewer_products_than_bicgstab(S, most):
    """The eigenvalues of the first lie on both sides of zero, close to the real axis."""
    A, b = jsf.from_scipy(sp.csr_array(S), "csr"), np.ones(S.shape[0]) + np.arange(S.shape[0]) % 7
    ours, other = idrs(A, b, rtol=1e-8), bicgstab(A, b, rtol=1e-8)
    assert ours.success and other.success and ours.iterations <= most * other.iterations  # of two products each
    assert np.linalg.norm(b - S @ np.asarray(ours.x)) <= 1.001e-8 * np.linalg.norm(b)


@pytest.mark.skipif("qc324.mtx.gz" not in FILES, reason="JAXSPARSE_MATRICES lacks it")
def test_a_real_matrix_on_which_bicgstab_is_lost_is_solved():
    A = jsf.read_mtx(FILES["qc324.mtx.gz"], format="csr")
    d, b = A.diagonal(), np.random.default_rng(1).standard_normal(324)
    ours, other = (f(A, b, M=lambda r: r / d, rtol=1e-8, maxiter=1000) for f in (idrs, bicgstab))
    assert ours.status is Status.CONVERGED and other.status is Status.MAXITER


def test_a_solve_that_fails_returns_no_worse_than_its_start():
    """Condition numbers of up to 10¹⁵, where the residual of the recursion falls and the true one grows."""
    solve, rng = jax.jit(lambda A, b, x0: idrs(A, b, x0, rtol=1e-6, maxiter=200)), np.random.default_rng(0)
    for _ in range(20):
        Q, P = (np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2))
        A, b, x0 = Q * 10 ** rng.uniform(-12, 3, 8) @ P, rng.standard_normal(8), 1e-3 * rng.standard_normal(8)
        sol, size = solve(A, b, x0), np.linalg.norm(b - A @ x0)
        rounding = 1e-14 * np.linalg.norm(A) * np.linalg.norm(sol.x)
        np.testing.assert_allclose(sol.residual_norm, np.linalg.norm(b - A @ sol.x), rtol=1e-6, atol=rounding)
        assert sol.residual_norm <= (1 + 1e-6) * size + rounding
