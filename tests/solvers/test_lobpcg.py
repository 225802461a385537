"""lobpcg: ends of spectra, the preconditioner's use, statuses, and eigsh's derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

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


def mass(dtype=np.float64, n=N, seed=5):
    half = hermitian(dtype, n, seed)
    return half @ half.conj().T + n * np.eye(n, dtype=dtype)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@pytest.mark.parametrize(("dtype", "which"), few([(np.float64, "SA"), (np.complex128, "LA"), (np.float32, "LA")], 1))
def test_pairs_of_a_pencil_beyond_known_vectors_are_those_of_lapack(dtype, which, scale):
    a, b = hermitian(dtype), (scale * mass(dtype)).astype(dtype)
    values, vectors = scipy.linalg.eigh(a, b)
    values, vectors = (values, vectors) if which == "SA" else (values[::-1], vectors[:, ::-1])
    known = (vectors[:, :2] @ [[1, 2], [1, -3]]).astype(dtype)  # of any length and not orthogonal
    for Y, mass_of, want in ((None, jnp.asarray(b), values[:K]), (known, lambda v: b @ v, values[2 : K + 2])):
        sol = lobpcg(jnp.asarray(a), K, B=mass_of, Y=Y, which=which)
        w, X = (np.asarray(part) for part in sol)
        eps = np.finfo(dtype).eps
        assert sol.success and X.dtype == dtype
        np.testing.assert_allclose(w, np.sort(want), rtol=0, atol=1e3 * eps * np.abs(values).max())
        np.testing.assert_allclose(X.conj().T @ b @ X, np.eye(K), rtol=0, atol=1e3 * eps)
        np.testing.assert_allclose(
            sol.residual_norms, np.linalg.norm(a @ X - b @ X * w, axis=0), atol=1e-3 / scale**0.5
        )
        if Y is not None:
            assert np.max(abs(Y.conj().T @ b @ X)) <= 1e3 * eps * np.linalg.norm(Y.conj().T @ b) * np.linalg.norm(X)


def test_multigrid_serves_a_consistent_mass_and_a_graded_one_takes_its_inverse():
    line = sp.diags_array([1.0, 4.0, 1.0], offsets=[-1, 0, 1], shape=(20, 20)) / 6
    S, consistent = jsf.gallery.poisson(20, dim=2), sp.csr_array(sp.kron(line, line))
    sol = lobpcg(jsf.from_scipy(S, "pjds"), K, B=jsf.from_scipy(consistent), M=precond.multigrid(jsf.from_scipy(S)))
    assert sol.success and sol.iterations < 40
    want = scipy.linalg.eigh(S.toarray(), consistent.toarray(), eigvals_only=True)[:K]
    np.testing.assert_allclose(sol.eigenvalues, want, rtol=1e-10)
    graded, a = 10.0 ** np.linspace(-8, 8, N), mass()
    sol = lobpcg(a, 2, B=lambda v: graded * v, M=lambda r: r / graded, which="LA")
    np.testing.assert_allclose(
        sol.eigenvalues, scipy.linalg.eigh(a, np.diag(graded), eigvals_only=True)[-2:], rtol=1e-6
    )


DRAWN = np.random.default_rng(3).standard_normal((N, 2))


@pytest.mark.parametrize(
    ("b", "Y", "status"),
    few(
        [
            (-np.eye(N), None, Status.NOT_POSITIVE_DEFINITE),
            (np.zeros((N, N)), None, Status.NOT_POSITIVE_DEFINITE),
            (np.diag(np.linspace(-0.5, 1, N)), None, Status.NOT_POSITIVE_DEFINITE),
            (np.eye(N) + 0.1 * np.tri(N), None, Status.NOT_SYMMETRIC),
            (np.full((N, N), np.nan), None, Status.NON_FINITE),
            (None, DRAWN @ [[1.0, 0, 1], [0, 1, 1]], Status.NON_FINITE),
            (None, DRAWN * [1e160, 1e-160], Status.CONVERGED),
        ],
        3,
    ),
)
def test_a_mass_that_is_none_and_dependent_constraints_have_their_status(b, Y, status):
    sol = lobpcg(hermitian(), 3, B=b, Y=Y)
    assert sol.status is status and np.all(np.isfinite(sol.eigenvectors))


def test_derivatives_by_matrix_mass_and_constraints_are_those_of_dense_arithmetic():
    n, at = 12, np.sin(np.arange(12.0))
    (a, da), (b, db) = ((hermitian(n=n, seed=s), hermitian(n=n, seed=s + 1)) for s in (0, 2))
    b = 1e-3 * (b @ b.T + n * np.eye(n))
    rng = np.random.default_rng(7)
    Y, dY = rng.standard_normal((2, n, 2))

    def number(w, X):
        return jnp.sum(w * jnp.arange(1.0, 3.0)) + jnp.sum((at @ X) ** 2)

    def ours(t):
        return number(*lobpcg(a + t * jnp.asarray(da), 2, B=b + t * 1e-3 * jnp.asarray(db), Y=Y + t * jnp.asarray(dY)))

    def dense(t):  # on an orthonormal basis of the vectors with Yᵀ·B·x = 0
        A, B, C = a + t * da, b + t * 1e-3 * db, Y + t * dY
        Q = scipy.linalg.null_space(C.T @ B)
        w, Z = scipy.linalg.eigh(Q.T @ A @ Q, Q.T @ B @ Q)
        return number(w[:2], Q @ Z[:, :2])

    step = 1e-5
    want = (dense(step) - dense(-step)) / (2 * step)
    for slope in (jax.grad(ours), lambda t: jax.jvp(ours, (t,), (1.0,))[1]):
        np.testing.assert_allclose(slope(0.0), want, rtol=1e-5)
