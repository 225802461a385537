"""New values in a hierarchy of multigrid: against a set-up anew, inside jit, and derivatives against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Adjoint, cg
from solvers.precond.multigrid import multigrid
from tests.solvers.precond.test_multigrid import CUBE, grid, neumann, random_vector, scipy_iterations

refresh = jax.jit(lambda M, A, data: M.refreshed(A.with_data(data)))


def scaled(S: sp.csr_array) -> sp.csr_array:
    """S with other values and the same strong couplings: each unknown in a unit of its own."""
    d = 1 + 0.3 * np.cos(np.arange(S.shape[0]))
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    return sp.csr_array((d[rows] * S.data * d[S.indices], S.indices, S.indptr), shape=S.shape)


def assert_alike(M, N, rtol: float = 1e-9):
    for a, b in zip(jax.tree.leaves(M), jax.tree.leaves(N), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(float(np.max(np.abs(b), initial=0)), 1e-300))


@pytest.mark.parametrize("options", [{}, {"smoother": "l1_jacobi", "format": "csr"}])
def test_new_values_give_the_hierarchy_of_a_set_up_anew(options):
    A, other = jsf.from_scipy(CUBE, "dia"), scaled(CUBE)
    M = multigrid(A, max_coarse=30, refreshable=True, **options)
    assert len(M.levels) >= 1
    assert_alike(refresh(M, A, A.data), M)
    assert_alike(M.refreshed(A.T), M)
    anew = multigrid(jsf.from_scipy(other, "dia"), max_coarse=30, refreshable=True, **options)
    assert_alike(refresh(M, A, other.data), anew)


def test_rigid_body_modes_stay():
    S = jsf.gallery.elasticity((8, 3, 3))
    A = jsf.from_scipy(S, "csr")
    M = multigrid(A, jsf.gallery.rigid_body_modes(grid(8, 3, 3)), max_coarse=60, refreshable=True)
    assert_alike(refresh(M, A, A.data), M)
    assert_derivative(M, A, scaled(S))


def assert_derivative(M, A, B):
    """The derivative of w·M⁻¹·r at the values of B, toward those of A, against differences."""
    r, w = random_vector(A.shape[0]), random_vector(A.shape[0], seed=1)
    direction = B.data - A.data
    loss = jax.jit(lambda data: jnp.dot(w, M.refreshed(A.with_data(data)) @ r))
    _, forward = jax.jit(lambda data: jax.jvp(loss, (data,), (direction,)))(B.data)
    h = 1e-5
    want = (loss(B.data + h * direction) - loss(B.data - h * direction)) / (2 * h)
    np.testing.assert_allclose(forward, want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(B.data) @ direction, forward, rtol=1e-9)


@pytest.mark.parametrize("B", [None, np.ones(432)])
def test_blocks_with_holes_are_refreshed_on_the_entries_that_they_have(B):
    S = sp.csr_array(sp.kron(CUBE, np.array([[2.0, 0], [0, 1]])) + sp.kron(sp.eye_array(216), np.ones((2, 2))))
    S.eliminate_zeros()
    A = jsf.from_scipy(S, "csr")
    M = multigrid(A, B, block_size=2, max_coarse=60, refreshable=True)
    assert M.levels[0].A.nnz == S.nnz < 4 * CUBE.nnz
    assert_alike(refresh(M, A, A.data), M)


def test_a_singular_matrix_is_refreshed_with_a_generalized_inverse():
    S = neumann(6)
    A = jsf.from_scipy(S, "csr")
    M = multigrid(A, max_coarse=30, refreshable=True)
    r = random_vector(216)
    np.testing.assert_allclose(refresh(M, A, 2 * A.data) @ r, np.asarray(M @ r) / 2, rtol=1e-6, atol=1e-8)


def test_a_level_that_is_zero_is_set_up_and_refreshed():
    """Each part keeps its constant, which A maps to zero, so the last level but one has no diagonal to divide by."""
    S = sp.csr_array(sp.block_diag([neumann(4)] * 3))
    A, r = jsf.from_scipy(S, "csr"), random_vector(192)
    M = multigrid(A, max_coarse=2, refreshable=True)
    assert M.sizes[-2:] == [(3, 3), (1, 1)]
    np.testing.assert_allclose(refresh(M, A, 2 * A.data) @ r, np.asarray(M @ r) / 2, rtol=1e-6, atol=1e-8)
    assert scipy_iterations(S, S @ r, M, 1e-8) < 15
    assert np.all(np.isfinite(multigrid(CUBE, np.zeros(216), max_coarse=30) @ random_vector(216)))


def test_the_derivative_by_the_values_is_that_of_differences():
    A = jsf.from_scipy(CUBE, "csr")
    assert_derivative(multigrid(A, max_coarse=60, refreshable=True), A, scaled(CUBE))


def test_a_solve_with_a_refreshed_hierarchy_has_the_derivative_of_differences_for_one_more_solve():
    A, b, w = jsf.from_scipy(CUBE, "csr"), random_vector(216), random_vector(216, seed=1)
    M = multigrid(A, max_coarse=60, refreshable=True)
    other = scaled(CUBE)
    told = []
    report = Adjoint(rtol=1e-10, report=lambda status, steps, residual: told.append(int(steps)))

    def solve(data):
        near = A.with_data(data)
        return cg(near, b, M=M.refreshed(near), rtol=1e-10, adjoint=report)

    steps, gradient = jax.jit(lambda data: (solve(data).n_iterations, jax.grad(lambda d: w @ solve(d).x)(data)))(
        other.data
    )
    jax.effects_barrier()
    assert len(told) == 1 and told[0] <= 1.2 * int(steps)  # and so the two together cost at most 2.2 solves
    direction = (other - CUBE).data
    h, x = 1e-6, lambda t: np.linalg.solve((other + t * (other - CUBE)).toarray(), b)
    np.testing.assert_allclose(gradient @ direction, w @ (x(h) - x(-h)) / (2 * h), rtol=1e-6)


def test_a_nan_among_new_values_shows():
    A = jsf.from_scipy(CUBE, "csr")
    M = multigrid(A, max_coarse=30, refreshable=True)
    assert np.all(np.isnan(refresh(M, A, A.data.at[100].set(np.nan)) @ np.ones(216)))


def test_other_numbers_of_entries_are_refused():
    M = multigrid(CUBE, max_coarse=30, refreshable=True)
    with pytest.raises(ValueError, match="of M's shape"):
        M.refreshed(jsf.from_scipy(jsf.gallery.poisson(3)))
    with pytest.raises((ValueError, TypeError)):
        M.refreshed(jsf.from_scipy(sp.csr_array(sp.diags_array(np.ones(216)))))
