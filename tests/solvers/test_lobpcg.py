"""lobpcg: ends of spectra, the preconditioner's use, statuses, and eigsh's derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import Status, lobpcg, precond
from tests.lowering import quick_jit
from tests.marks import few
from tests.solvers.test_eigsh import LAPLACIAN, N, assert_pairs, hermitian, wanted

K = 4


@pytest.mark.parametrize(
    ("dtype", "which", "n", "k"),
    few([(np.float64, "LA", N, K), (np.complex64, "SA", N, K), (np.float64, "SA", 2, 1), (np.float64, "SA", 7, 6)], 2),
)
def test_finds_the_end_that_which_asks_for_also_of_matrices_smaller_than_three_blocks(dtype, which, n, k):
    a = hermitian(dtype, n)
    sol = lobpcg(jnp.asarray(a), k, which=which)
    assert_pairs(sol, a, wanted(a, k, which))
    assert sol.eigenvectors.dtype == dtype


def test_a_preconditioner_saves_most_products_and_copies_are_found():
    A = jsf.from_scipy(jsf.gallery.poisson(30, dim=2), "pjds")
    M = precond.multigrid(jsf.from_scipy(jsf.gallery.poisson(30, dim=2), "csr"))
    plain, helped = lobpcg(A, K, tol=1e-8), lobpcg(A, K, M=M, tol=1e-8)
    assert plain.success and helped.success and helped.products < 0.4 * plain.products
    exact = 4 - 2 * np.cos(np.pi * np.arange(1, 31) / 31)
    exact = np.sort((exact[:, None] + exact - 4).ravel())[:K]
    assert exact[1] == pytest.approx(exact[2])
    np.testing.assert_allclose(helped.eigenvalues, exact, rtol=1e-9)


def test_entries_of_any_size_take_the_same_steps_and_a_start_at_the_vectors_none():
    a = hermitian()
    steps = lobpcg(jnp.asarray(a), K).iterations
    for scale in (1e-200, 1e200):
        sol = lobpcg(jnp.asarray(scale * a), K)
        assert sol.success and abs(sol.iterations - steps) <= 2
        np.testing.assert_allclose(sol.eigenvalues / scale, wanted(a, K, "SA"), rtol=1e-10)
    vectors = np.linalg.eigh(LAPLACIAN.toarray())[1][:, :5]
    A = jsf.from_scipy(LAPLACIAN, "csr")
    assert lobpcg(lambda v: A @ v, K, X0=vectors).iterations == 0


def test_a_start_of_zeros_finds_the_pairs_and_not_zeros():
    a = hermitian()
    assert_pairs(lobpcg(a, K, X0=np.zeros((N, K))), a, wanted(a, K, "SA"))


@pytest.mark.parametrize(
    ("change", "options", "status"),
    few(
        [
            (1.0, {"maxiter": 3}, Status.MAXITER),
            (1.0, {"M": lambda r: -r}, Status.NOT_POSITIVE_DEFINITE),
            (1.0, {"M": lambda r: np.nan * r}, Status.NON_FINITE),
            (np.nan, {}, Status.NON_FINITE),
            (0.0, {}, Status.CONVERGED),
        ],
        2,
    ),
)
def test_endings_have_their_status_and_residuals_are_true(change, options, status):
    a = change * hermitian()
    sol = lobpcg(jnp.asarray(a), 3, **options)
    w, v = (np.asarray(part) for part in sol)
    assert sol.status is status and np.all(np.isfinite(w)) and np.all(np.isfinite(v))
    if status is not Status.NON_FINITE:
        np.testing.assert_allclose(sol.residual_norms, np.linalg.norm(a @ v - v * w, axis=0), rtol=1e-6, atol=1e-12)


def test_derivatives_under_vmap_are_those_of_perturbation_theory():
    """dλᵢ = vᵢᵀ·dA·vᵢ and dvᵢ = Σⱼ vⱼ·(vⱼᵀ·dA·vᵢ) / (λᵢ − λⱼ), here along a of matrices that a multiple of it moves."""
    a, along = (hermitian(n=30, seed=s) for s in (0, 1))
    weights, scales = np.arange(1.0, 31.0), np.array([1.0, 2.0])

    def first(A):
        w, v = lobpcg(A, 3)
        return w, weights @ v**2

    got = quick_jit(jax.vmap(lambda s: jax.jvp(first, (s * jnp.asarray(a),), (jnp.asarray(along),))[1]))(scales)
    for i, s in enumerate(scales):
        w, v = np.linalg.eigh(s * a)
        change, gaps = v.T @ along @ v[:, :3], w[:3] - w[:, None]
        dv = v @ np.where(gaps == 0, 0, change / np.where(gaps == 0, 1, gaps))
        np.testing.assert_allclose(got[0][i], np.diag(change), rtol=1e-8)
        np.testing.assert_allclose(got[1][i], weights @ (2 * v[:, :3] * dv), rtol=1e-6)
