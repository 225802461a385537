"""Generalised eigenproblems and singular values: against dense ones, their derivatives, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, eigs, eigsh, superlu, svds
from tests.lowering import quick_jit
from tests.marks import deep, few

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


@pytest.mark.parametrize(
    "options", few([{"which": "SA"}, {"sigma": 0.0}, {"sigma": 0.0, "M": None}], 1), ids=["SA", "sigma", "no mass"]
)
def test_derivatives_in_both_matrices_are_those_of_dense_arithmetic(options):
    S, M = pencil()
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(M, "csr")
    at, weights = S.tocoo().coords, np.cos(np.arange(N))
    mirror = np.argsort(np.lexsort(at))  # the place of each entry's mirror image: derivatives keep A and M symmetric

    def number(w, X, share):
        return jnp.sum(w * jnp.arange(1.0, K + 1)) + share * jnp.sum((weights @ X) ** 2)

    def ours(a, m, share=1.0):
        mass = {"M": B.with_data((m + m[mirror]) / 2)}
        return number(*eigsh(A.with_data((a + a[mirror]) / 2), K, **mass | options), share)

    def dense(a, m, share=1.0):
        mass = jnp.zeros((N, N)).at[at].set((m + m[mirror]) / 2)
        L = jnp.eye(N) if "M" in options else jnp.linalg.cholesky(mass)
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


def test_a_matrix_that_is_not_symmetric_is_named():
    S, M = pencil()
    sol = eigsh(jsf.from_scipy(sp.csr_array(S + sp.triu(S))), K, M=jsf.from_scipy(M))
    assert sol.status is Status.NOT_SYMMETRIC
    with pytest.raises(RuntimeError, match=r"nonsymmetric A use eigs"):
        sol.raise_for_status()


@pytest.mark.parametrize("shape", few([((60, 25),), ((25, 60),)], 1), ids=["tall", "wide"])
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


def test_a_sigma_that_is_an_eigenvalue_is_moved():
    A = jsf.from_scipy(sp.diags_array(np.arange(1.0, 9.0), format="csr"))
    for options in ({}, {"M": jsf.eye(8)}):
        sol = eigsh(A, K, sigma=2.0, **options)
        assert sol.status is Status.CONVERGED
        np.testing.assert_allclose(sol.eigenvalues, [1, 2, 3], rtol=1e-14)


def test_a_sigma_moves_in_the_wider_of_two_precisions_and_at_a_zero_matrix():
    A = jsf.from_scipy(sp.diags_array(np.arange(1.0, 30)).astype(np.float32))
    sol = eigsh(A, 2, M=jsf.eye(29), sigma=4.0)
    assert sol.success and sol.eigenvalues.dtype == np.float64
    np.testing.assert_allclose(sol.eigenvalues[np.argmin(abs(sol.eigenvalues - 4))], 4, rtol=1e-14)
    zero = jsf.from_dense(np.ones((24, 24)), "csr") * 0.0
    for sol in (eigsh(zero, 2, sigma=0), jax.jit(lambda s: eigsh(zero, 2, sigma=s))(0.0)):
        assert sol.success
        np.testing.assert_allclose(sol.eigenvalues, 0, atol=1e-14)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_singular_values_are_right_where_their_squares_leave_the_range(scale):
    a = np.random.default_rng(0).standard_normal((12, 8))
    sol = svds(jnp.asarray(scale * a), K)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.s / scale, np.linalg.svd(a, compute_uv=False)[:K], rtol=1e-12)
    assert np.all(sol.residual_norms > 0) and np.all(sol.residual_norms < 1e-12 * scale)


# Every pencil of this size, its shift and dtype have one program, which the host's factors enter.
FULL = {dtype: jsf.from_dense(np.ones((24, 24), dtype), "csr") for dtype in (np.float64, np.float32)}
NEAR = {
    dtype: jax.jit(lambda a, m, s, A=A: eigsh(A.with_data(a), K, M=A.with_data(m), sigma=s))
    for dtype, A in FULL.items()
}


def nearest(A, M, sigma, dtype=np.float64):
    """The pairs nearest to sigma, against LAPACK: whether they are right, and the solution."""
    A, M = (np.asarray(a.toarray() if sp.issparse(a) else a).astype(dtype) for a in (A, M))
    sol = NEAR[dtype](A.ravel(), M.ravel(), dtype(sigma))
    values = scipy.linalg.eigh(A.astype(float), M.astype(float), eigvals_only=True)
    want = np.sort(values[np.argsort(abs(values - sigma), kind="stable")[:K]])
    limit = 100 * np.finfo(dtype).eps * (np.linalg.norm(A, 2) / np.linalg.eigvalsh(M.astype(float))[0] + abs(sigma))
    w = np.asarray(sol.eigenvalues, float)
    distances = np.sort(abs(w - sigma)) - np.sort(abs(want - sigma))
    right = np.max(abs(distances)) <= limit and np.max(np.min(abs(w[:, None] - values), axis=1)) <= limit
    X = np.asarray(sol.eigenvectors, float)
    return right and np.max(abs(X.T @ M @ X - np.eye(K))) <= 1e4 * np.finfo(dtype).eps, sol


def random_pencil(seed):
    """A pencil of known eigenvalues: some are 0, copies, or of many sizes."""
    rng = np.random.default_rng(seed)
    values = [rng.uniform(-1, 1, 24), 10.0 ** rng.uniform(-6, 0, 24)][seed % 2]
    values[: seed % 5] = [0, values[-1]][seed % 3 == 0]
    Q, Z = (np.linalg.qr(rng.standard_normal((24, 24)))[0] for _ in range(2))
    L = Z * np.exp(rng.uniform(-2, 0, 24))
    A, M = L @ (Q * values) @ Q.T @ L.T, L @ L.T
    return (A + A.T) / 2, (M + M.T) / 2, values


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [12, deep(200)])
def test_pairs_near_a_shift_at_or_near_an_eigenvalue_are_those_of_lapack(count, dtype):
    ends = 0
    for seed in range(count):
        A, M, values = random_pencil(seed)
        sigma = values[seed % 7] * (1 + [0, 1e-15, -1e-12, 1e-9, -1e-6, 1e-3][seed % 6])
        right, sol = nearest(A, M, sigma, dtype)
        assert right or not sol.success, seed
        ends += bool(sol.success)
    assert ends >= 0.99 * count


def free_ends(n: int) -> sp.sparray:
    """Neumann's Laplacian on a line."""
    return sp.diags_array([1.0, *[2.0] * (n - 2), 1.0]) - sp.eye_array(n, k=1) - sp.eye_array(n, k=-1)


def beam(n: int, clamped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Stiffness and mass of n Euler-Bernoulli elements, clamped at one end or free with two rigid modes."""
    h, K, M = 1 / n, np.zeros((2 * n + 2, 2 * n + 2)), np.zeros((2 * n + 2, 2 * n + 2))
    k = [[12, 6 * h, -12, 6 * h], [0, 4 * h**2, -6 * h, 2 * h**2], [0, 0, 12, -6 * h], [0, 0, 0, 4 * h**2]]
    m = [[156, 22 * h, 54, -13 * h], [0, 4 * h**2, 13 * h, -3 * h**2], [0, 0, 156, -22 * h], [0, 0, 0, 4 * h**2]]
    for e in range(n):
        part = slice(2 * e, 2 * e + 4)
        for full, own in ((K, np.array(k) / h**3), (M, np.array(m) * h / 420)):
            full[part, part] += own + np.triu(own, 1).T
    kept = slice(2 if clamped else 0, None)
    return K[kept, kept], M[kept, kept]


SHIFTED = {
    "Neumann": (sp.kronsum(free_ends(6), free_ends(4)), sp.eye_array(24), (0.0, 1e-12, -1e-5)),
    "beam": (*beam(12, True), (0.0,)),
    "free beam": (*beam(11, False), (0.0, -1e-3, 500.0)),
    "near an eigenvalue": (np.diag(np.arange(1.0, 25)), np.eye(24), (5 + 1e-3, 5 * (1 + 1e-10), 5.0)),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_a_singular_or_nearly_singular_shift_converges_to_the_pairs_of_lapack(name):
    A, M, shifts = SHIFTED[name]
    for sigma in shifts:
        right, sol = nearest(A, M, sigma)
        assert right and sol.status is Status.CONVERGED, (sigma, sol)


def test_eigenvalues_of_rounding_size_are_found_in_float32():
    values = np.r_[1e-6, -1e-6, np.linspace(0.1, 1, 22)]
    sol = NEAR[np.float32](np.diag(values).ravel().astype("f"), np.eye(24, dtype="f").ravel(), np.float32(0))
    np.testing.assert_allclose(sol.eigenvalues, [-1e-6, 1e-6, 0.1], rtol=1e-5)


def test_a_grid_without_boundary_values_has_the_eigenvalues_of_scipy_at_sigma_0():
    S = sp.csr_array(sp.kronsum(free_ends(20), free_ends(18)))
    sol = eigsh(jsf.from_scipy(S, "csr"), 4, sigma=0)
    assert sol.status is Status.CONVERGED and np.max(sol.residual_norms) < 1e-13
    np.testing.assert_allclose(sol.eigenvalues, np.linalg.eigvalsh(S.toarray())[:4], rtol=0, atol=1e-14)


def test_a_semidefinite_mass_has_its_finite_eigenvalues_and_an_indefinite_one_is_refused():
    A = random_pencil(1)[0]
    A, held = A @ A + np.eye(24), np.arange(24) % 3 > 0
    M = np.diag(held.astype(float))
    schur = A[held][:, held] - A[held][:, ~held] @ np.linalg.solve(A[~held][:, ~held], A[~held][:, held])
    sol = NEAR[np.float64](A.ravel(), M.ravel(), 0.0)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.eigenvalues, np.linalg.eigvalsh(schur)[:K], rtol=1e-10)
    sol = NEAR[np.float64](A.ravel(), np.diag(np.linspace(-1, 1, 24)).ravel(), 0.0)
    assert sol.status is Status.NOT_POSITIVE_DEFINITE
    hole = jsf.from_dense(np.diag(np.r_[0, np.ones(23)]), "csr")
    with pytest.raises(RuntimeError, match="A and M have a null vector in common"):
        eigsh(hole, K, M=hole, sigma=0.5)


def test_what_is_not_symmetric_or_not_finite_is_named_with_a_shift():
    A, M, values = random_pencil(2)
    for sigma in (0.0, values[3], values[3] * (1 + 1e-10)):
        sol = NEAR[np.float64]((A + 1e-3 * np.triu(A)).ravel(), M.ravel(), sigma)
        assert sol.status is Status.NOT_SYMMETRIC
        sol = NEAR[np.float64](np.where(np.eye(24) == 1, np.nan, A).ravel(), M.ravel(), sigma)
        assert sol.status is Status.NON_FINITE and np.all(sol.eigenvalues == 0)
    sol = eigsh(jsf.from_dense(np.diag([1.0, np.inf, 2.0]), "csr"), 1, sigma=0)
    assert sol.status is Status.NON_FINITE and not sol.success


def test_the_same_matrix_and_sigma_are_factored_once(monkeypatch):
    calls, factored = [], superlu.factored
    monkeypatch.setattr(superlu, "factored", lambda *given, **how: calls.append(1) or factored(*given, **how))
    A = jsf.from_scipy(3.7 * pencil()[0])
    for _ in range(2):
        assert eigsh(A, K, sigma=0.3).success
    assert len(calls) == 1


def test_a_matrix_that_is_an_argument_of_jit_and_a_traced_mass_are_factored_at_run_time():
    S, M = pencil()
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(M, "csr")
    by_jit = jax.jit(lambda A, t: eigsh(A, K, M=t * B, sigma=0).eigenvalues)(A, 2.0)
    np.testing.assert_allclose(
        by_jit, scipy.linalg.eigh(S.toarray(), 2 * M.toarray(), eigvals_only=True)[:K], rtol=1e-11
    )
    alone = jax.jit(lambda A: eigsh(A, K, sigma=0).eigenvalues)(A)
    np.testing.assert_allclose(alone, np.linalg.eigvalsh(S.toarray())[:K], rtol=1e-11)
    no_shift = jax.jit(lambda t: eigsh(A, K, M=t * B, which="SA").eigenvalues)(2.0)
    np.testing.assert_allclose(no_shift, by_jit, rtol=1e-9)


def test_an_eigh_that_rounds_relative_to_its_whole_matrix_hides_no_pair(monkeypatch):
    """As those of accelerators do; LAPACK's is more accurate on graded matrices. The grid without boundary values."""
    eigh, noise = jax.lax.linalg.eigh, np.tri(18) * np.random.default_rng(0).standard_normal((18, 18))

    def rounded(T, **options):
        T = jnp.tril(T) + jnp.tril(T, -1).T
        return eigh(T + jnp.finfo(T.dtype).eps * jnp.linalg.norm(T) * (noise + noise.T), **options)

    monkeypatch.setattr(jax.lax.linalg, "eigh", rounded)
    S = sp.csr_array(sp.kronsum(free_ends(20), free_ends(18)))
    sol = eigsh(jsf.from_scipy(S, "csr"), 4, sigma=0.0, ncv=18)
    np.testing.assert_allclose(sol.eigenvalues, np.linalg.eigvalsh(S.toarray())[:4], atol=1e-13)
    assert sol.success


def test_dense_matrices_and_functions_stand_where_sparse_ones_do():
    S, M = pencil()
    a, m, ones = jnp.asarray(S.toarray()), jnp.asarray(M.toarray()), np.ones(N)
    want = scipy.linalg.eigh(a, m, eigvals_only=True)[-K:]
    inverse = jnp.linalg.inv(m)
    functions = lambda a: eigsh(lambda v: a @ v, K, M=lambda v: m @ v, Minv=lambda v: inverse @ v, v0=ones)  # noqa: E731
    for sol in (eigsh(a, K, M=m), functions(a), eigsh(a, K, M=m, sigma=float(want[-1]) + 0.1)):
        assert sol.success
        np.testing.assert_allclose(sol.eigenvalues, want, rtol=1e-9)
    slope = jax.grad(lambda a: functions(a).eigenvalues[-1])(a)
    x = np.asarray(functions(a).eigenvectors[:, -1])
    np.testing.assert_allclose((slope + slope.T) / 2, np.outer(x, x), atol=1e-9)
    with pytest.raises(TypeError, match="a function as M needs Minv"):
        eigsh(a, K, M=lambda v: v)
    with pytest.raises(ValueError, match="takes no sigma"):
        eigsh(a, K, M=m, Minv=inverse, sigma=0)


@pytest.mark.parametrize("method", [eigsh, eigs])
def test_a_number_that_is_not_finite_in_a_known_matrix_is_told_inside_jit(method):
    A = jsf.from_scipy(pencil()[0], "csr")
    A = A.with_data(A.data.at[3].set(np.nan))
    assert quick_jit(lambda shift: method(A, 1, sigma=0.5).code + shift)(0) == Status.NON_FINITE


@pytest.mark.parametrize("method", [eigsh, eigs])
def test_a_first_call_compiles_its_start_and_its_loop_alone(method, compiled):
    """On a GPU a program takes a tenth of a second. Nothing else in this process has vectors of this size."""
    S = sp.csr_array(sp.diags_array([np.arange(1.0, 47.0)], offsets=[0]))
    A, M, before = jsf.from_scipy(S), jsf.from_scipy(S + S), compiled()
    sol = method(A, 1, M=M, sigma=0.3).raise_for_status()
    assert compiled() - before <= 2 and sol.success and "CONVERGED" in repr(sol)
