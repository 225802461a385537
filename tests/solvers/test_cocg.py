"""COCG: damped waves in fewer products than bicgstab, its breakdown, and matrices that do not suit it."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse as js
from solvers import Status, bicgstab, cocg, precond

WAVES = sp.csr_array(js.gallery.poisson(8) - (0.8 + 0.05j) * sp.eye_array(512))
A, SOURCE = js.from_scipy(WAVES), np.eye(1, 512, 256)[0] + 0j


def test_waves_take_a_product_a_step_and_fewer_steps_than_bicgstab():
    sol, other = cocg(A, SOURCE, rtol=1e-10), bicgstab(A, SOURCE, rtol=1e-10)
    np.testing.assert_allclose(sol.x, spla.spsolve(WAVES.tocsc(), SOURCE), rtol=1e-7, atol=1e-9)
    assert sol.status == other.status == Status.CONVERGED and sol.iterations <= other.iterations


def test_a_preconditioner_and_columns_give_the_same_waves():
    b = np.stack([SOURCE, 1j + SOURCE], axis=1)
    M = precond.jacobi(js.from_scipy(WAVES + sp.diags_array(np.linspace(0, 30, 512))))
    sol = cocg(A, b, M=M, rtol=1e-10)
    np.testing.assert_allclose(sol.x, spla.spsolve(WAVES.tocsc(), b), rtol=1e-6, atol=1e-9)


def test_gradients_by_the_medium_are_those_of_a_dense_solve():
    dense = jnp.asarray(WAVES.toarray())

    def intensity(solve):
        return lambda c: jnp.sum(jnp.abs(solve(c)[:100]) ** 2)

    ours = intensity(lambda c: cocg(lambda v: A @ v - c * v, SOURCE, rtol=1e-12).x)
    exact = intensity(lambda c: jnp.linalg.solve(dense - jnp.diag(c), SOURCE))
    c = jnp.full(512, 0.01)
    np.testing.assert_allclose(jax.grad(ours)(c), jax.grad(exact)(c), rtol=1e-6, atol=1e-9)


def test_a_residual_that_is_orthogonal_to_itself_is_told():
    assert cocg(jnp.eye(2, dtype=complex), np.array([1, 1j])).status == Status.BREAKDOWN


def test_does_a_hermitian_matrix_never_succeed_wrongly():
    H = np.array([[2, 1j, 0], [-1j, 3, 1], [0, 1, 2.0]])
    sol = cocg(jnp.asarray(H), np.ones(3, complex))
    assert not sol.success or np.linalg.norm(H @ sol.x - 1) <= 1e-5
