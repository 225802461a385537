"""Generalised eigenproblems and singular values: against dense ones, their derivatives, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, eigsh, svds
from tests.lowering import quick_jit
from tests.marks import few

N, K = 40, 3


def pencil(dtype=np.float64) -> tuple[sp.csr_array, sp.csr_array]:
    """A stiffness and a mass matrix of bars of different lengths, coupled by a complex number where complex."""
    h = np.random.default_rng(0).uniform(0.5, 2, N + 1)
    phase = np.exp(0.3j) if np.dtype(dtype).kind == "c" else 1.0
    S = sp.diags_array([-phase / h[1:-1], 1 / h[:-1] + 1 / h[1:], -np.conj(phase) / h[1:-1]], offsets=[-1, 0, 1])
    M = sp.diags_array([phase * h[1:-1] / 6, (h[:-1] + h[1:]) / 3, np.conj(phase) * h[1:-1] / 6], offsets=[-1, 0, 1])
    return sp.csr_array(S.astype(dtype)), sp.csr_array(M.astype(dtype))


@pytest.mark.parametrize("dtype", few([np.float64, np.float32, np.complex128], 1))
@pytest.mark.parametrize("options", [{"which": "SA"}, {"which": "LM"}, {"sigma": 0.8}], ids=["SA", "LM", "sigma"])
def test_generalised_pairs_are_those_of_scipy(options, dtype):
    S, M = pencil(dtype)
    sol = eigsh(jsf.from_scipy(S), K, M=jsf.from_scipy(M), **options)
    w, X = (np.asarray(a) for a in sol)
    values = scipy.linalg.eigh(S.toarray(), M.toarray(), eigvals_only=True)
    key = {"SA": values, "LM": -abs(values)}.get(options.get("which"), abs(values - 0.8))
    assert sol.status is Status.CONVERGED and w.dtype == np.finfo(dtype).dtype and X.dtype == dtype
    limit = 1e4 * np.finfo(dtype).eps
    np.testing.assert_allclose(w, np.sort(values[np.argsort(key)[:K]]), rtol=0, atol=limit)
    np.testing.assert_allclose(X.conj().T @ (M @ X), np.eye(K), rtol=0, atol=limit)
    assert np.linalg.norm(S @ X - M @ X * w) <= limit and np.all(np.asarray(sol.residual_norms) <= limit)


@pytest.mark.parametrize("options", few([{"which": "SA"}, {"sigma": 0.0}], 1), ids=["SA", "sigma"])
def test_derivatives_in_both_matrices_are_those_of_dense_arithmetic(options):
    S, M = pencil()
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(M, "csr")
    at, weights = S.tocoo().coords, np.cos(np.arange(N))
    mirror = np.argsort(np.lexsort(at))  # the place of each entry's mirror image: derivatives keep A and M symmetric

    def number(w, X, share):
        return jnp.sum(w * jnp.arange(1.0, K + 1)) + share * jnp.sum((weights @ X) ** 2)

    def ours(a, m, share=1.0):
        pairs = eigsh(A.with_data((a + a[mirror]) / 2), K, M=B.with_data((m + m[mirror]) / 2), **options)
        return number(*pairs, share)

    def dense(a, m, share=1.0):
        L = jnp.linalg.cholesky(jnp.zeros((N, N)).at[at].set((m + m[mirror]) / 2))
        inverse = jnp.linalg.inv(L)
        w, Y = jnp.linalg.eigh(inverse @ jnp.zeros((N, N)).at[at].set((a + a[mirror]) / 2) @ inverse.T)
        return number(w[:K], (inverse.T @ Y)[:, :K], share)

    got, want = jax.grad(ours, (0, 1))(A.data, B.data), quick_jit(jax.grad(dense, (0, 1)))(A.data, B.data)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-6 * np.abs(w).max())

    def second(f):
        return jax.jvp(jax.grad(lambda m: f(A.data, m, 0.0)), (B.data,), (0.1 * np.sin(B.data),))[1]

    got, want = second(ours), quick_jit(lambda: second(dense))()  # of the eigenvalues
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_what_is_no_mass_matrix_is_refused():
    S, M = pencil()
    A, B = jsf.from_scipy(S), jsf.from_scipy(M)
    holed = B.with_data(B.data.at[0].set(jnp.nan))
    for no_mass in (-1.0 * B, 0.0 * B, holed):
        with pytest.raises(ValueError, match="and positive definite with finite entries"):
            eigsh(A, K, M=no_mass)
    with pytest.raises(ValueError, match="M is not symmetric"):
        eigsh(A, K, M=jsf.from_scipy(sp.csr_array(M + sp.triu(M))))
    with pytest.raises(ValueError, match="it must have the same"):
        eigsh(A, K, M=jsf.from_scipy(sp.eye_array(N + 1, format="csr")))
    with pytest.raises(TypeError, match=r"convert it with jsf\.from_scipy"):
        eigsh(S.toarray(), K, M=B)
    with pytest.raises(TypeError, match="traced inside jit"):
        jax.jit(lambda B: eigsh(A, K, M=B))(B)
    sol = eigsh(jsf.from_scipy(sp.csr_array(S + sp.triu(S))), K, M=B)
    assert sol.status is Status.NOT_SYMMETRIC
    with pytest.raises(RuntimeError, match=r"nonsymmetric A take scipy\.sparse\.linalg\.eigs"):
        sol.raise_for_status()


@pytest.mark.parametrize("shape", [(60, 25), (25, 60)], ids=["tall", "wide"])
@pytest.mark.parametrize("dtype", few([np.float64, np.complex128], 1))
def test_singular_triples_are_those_of_a_dense_matrix(shape, dtype):
    rng = np.random.default_rng(1)
    a = np.where(rng.random(shape) < 0.3, rng.standard_normal(shape), 0) * (1 + 0.5j if dtype is np.complex128 else 1)
    A = jsf.from_dense(a.astype(dtype))
    sol = svds(A, K)
    u, s, vh = (np.asarray(part) for part in sol)
    assert sol.success and "s: float64[3]" in repr(sol) and np.all(np.asarray(sol.residual_norms) < 1e-10)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:K], rtol=1e-12)
    np.testing.assert_allclose(a @ vh.conj().T, u * s, rtol=0, atol=1e-10)
    np.testing.assert_allclose(u.conj().T @ u, np.eye(K), rtol=0, atol=1e-10)
    gradient = jax.grad(lambda data: jnp.sum(svds(A.with_data(data), 1).s))(A.data)
    row, col = A.to_scipy().tocoo().coords
    np.testing.assert_allclose(gradient, (u[:, 0].conj()[row] * vh[0].conj()[col]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_singular_vectors_of_a_low_rank_are_orthonormal_and_their_residuals_rounding(rank):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((7, rank)) @ rng.standard_normal((rank, 9))
    sol = svds(jnp.asarray(a), K)
    u, s, vh = (np.asarray(part) for part in sol)
    assert sol.success and np.all(np.asarray(sol.residual_norms) < 1e-13 * max(1, s[0]))
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:K], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose((u.T @ u, vh @ vh.T), (np.eye(K), np.eye(K)), rtol=0, atol=1e-13)


def test_sigma_that_is_an_eigenvalue_or_no_number_is_refused_with_the_cure():
    A = jsf.from_scipy(sp.diags_array(np.arange(1.0, 9.0), format="csr"))
    for options in ({}, {"M": jsf.eye(8)}):
        with pytest.raises(RuntimeError, match="eigenvalue sigma = 2, or one too near to it; take a number beside"):
            eigsh(A, K, sigma=2.0, **options)
        with pytest.raises(ValueError, match="sigma must be finite; got nan"):
            eigsh(A, K, sigma=np.nan, **options)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_singular_values_are_right_where_their_squares_leave_the_range(scale):
    a = np.random.default_rng(0).standard_normal((12, 8))
    sol = svds(jnp.asarray(scale * a), K)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.s / scale, np.linalg.svd(a, compute_uv=False)[:K], rtol=1e-12)
    assert np.all(sol.residual_norms > 0) and np.all(sol.residual_norms < 1e-12 * scale)


def test_what_svds_cannot_take_is_refused():
    with pytest.raises(TypeError, match="svds needs a matrix with a shape"):
        svds(lambda v: v)
    with pytest.raises(TypeError, match=r"A is SciPy's; convert"):
        svds(sp.csr_array(np.eye(5)), 2)
    with pytest.raises(ValueError, match=r"k must be below 1, the shorter side of A; got 1.* jnp\.linalg\.svd"):
        svds(np.ones((3, 1)), 1)


@pytest.mark.parametrize("sigma", [0.0, 1e-12, -1e-5])
def test_no_pairs_near_a_singular_shift_are_wrong_and_converged(sigma):
    """Neumann's Laplacian on 20 × 18 points, whose least eigenvalue is 0."""
    ends = lambda n: sp.diags_array([1.0, *[2.0] * (n - 2), 1.0]) - sp.eye_array(n, k=1) - sp.eye_array(n, k=-1)  # noqa: E731
    S = sp.csr_array(sp.kronsum(ends(20), ends(18)))
    sol = eigsh(jsf.from_scipy(S, "csr"), 4, sigma=sigma)
    error = np.max(abs(sol.eigenvalues - np.linalg.eigvalsh(S.toarray())[:4]))
    assert error <= 1e-12 or not sol.success
