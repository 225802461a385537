"""eigsh: the pairs and all their copies, the status, the loop, and the derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import EigenSolution, SolverError, Status, eigsh, lobpcg
from tests.marks import few

N, K = 90, 4
HUBBARD = jsf.gallery.holstein_hubbard(4, 2, 3)
LAPLACIAN = jsf.gallery.poisson(12, dim=2)  # doubles, and one eigenvalue, 4, of multiplicity 12


def hermitian(dtype=np.float64, n: int = N, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0)
    return ((a + a.conj().T) / 2).astype(dtype)


def wanted(a: np.ndarray, k: int, which: str = "LM") -> np.ndarray:
    """By dense arithmetic, copies counted."""
    values = np.linalg.eigvalsh(np.asarray(a).astype(np.result_type(a.dtype, np.float64)))
    key = {"LM": -abs(values), "LA": -values, "SA": values}[which]
    return np.sort(values[np.argsort(key, kind="stable")[:k]])


def assert_pairs(sol: EigenSolution, a: np.ndarray, want: np.ndarray) -> None:
    """Within 200·eps·‖A‖: the eigenvalues, ‖A·v − λ·v‖, and in 200·eps the orthonormality of the vectors."""
    w, v = (np.asarray(part) for part in sol)
    a = np.asarray(a)
    wide = np.result_type(a.dtype, np.float64)
    size = np.linalg.norm(a.astype(wide), 2)
    limit = 200 * np.finfo(v.dtype).eps
    assert sol.status is Status.CONVERGED and sol.success
    np.testing.assert_allclose(w, want, rtol=0, atol=limit * size)
    v, w = v.astype(np.result_type(v.dtype, wide)), w.astype(np.float64)
    residuals = np.linalg.norm(a.astype(wide) @ v - v * w, axis=0)
    assert residuals.max() <= limit * size
    np.testing.assert_allclose(
        sol.residual_norms, residuals, rtol=0.5, atol=4 * np.finfo(w.dtype).eps + limit * size / 5
    )
    np.testing.assert_allclose(v.conj().T @ v, np.eye(len(w)), rtol=0, atol=limit)


THREE = np.diag(np.repeat([1.0, 2.0, -3.0], N // 3))


@pytest.mark.parametrize(
    ("dtype", "which"),
    few([(np.float64, "LM"), (np.float64, "LA"), (np.float64, "SA"), (np.float32, "LM"), (np.complex64, "SA")], 2),
)
def test_finds_what_which_asks_for_in_every_dtype(dtype, which):
    a = hermitian(dtype)
    sol = eigsh(jnp.asarray(a), K, which=which)
    assert_pairs(sol, a, wanted(a, K, which))
    assert sol.eigenvectors.shape == (N, K) and np.all(np.diff(sol.eigenvalues) >= 0)
    assert sol.eigenvectors.dtype == dtype and sol.eigenvalues.dtype == np.finfo(dtype).dtype


@pytest.mark.parametrize(
    ("a", "k", "which"),
    few(
        [
            (HUBBARD.toarray(), 1, "SA"),
            (LAPLACIAN.toarray(), 5, "SA"),
            (np.zeros((N, N)), K, "LM"),
            (THREE, K, "SA"),
            (np.diag([1.0, 2.0]), 1, "SA"),
            (np.eye(N), K, "SA"),
            (np.diag(np.arange(1.0, 13.0)), 11, "LM"),
        ],
        4,
    ),
)
def test_finds_every_copy_also_in_invariant_subspaces(a, k, which):
    assert_pairs(eigsh(jnp.asarray(a), k, which=which), a, wanted(a, k, which))


@pytest.mark.deep
def test_copies_of_near_copies_are_found_too():
    """Levels of one to five copies at distances of 1e-10 to 0.1, of which a search that ends too early misses some."""
    rng = np.random.default_rng(0)
    Q = jnp.asarray(np.linalg.qr(rng.standard_normal((400, 400)))[0])
    largest = jax.jit(lambda d, v0: eigsh(lambda v: Q @ (d * (Q.T @ v)), K, which="LA", v0=v0, ncv=20))
    ended = 0
    for _ in range(60):
        levels = np.repeat(1 + np.cumsum(10 ** rng.uniform(-10, -1, 6)), rng.integers(1, 6, 6))
        values = np.append(0.9 * rng.random(400 - levels.size), levels)
        sol = largest(values, rng.standard_normal(400))
        if sol.success:
            np.testing.assert_allclose(sol.eigenvalues, np.sort(values)[-K:], rtol=0, atol=1e-12)
        ended += int(sol.success)
    assert ended >= 55


def test_the_default_basis_has_room_for_copies_beside_the_wanted_pairs():
    """The 6 largest of a cube are of three levels, two of them triple; 20 vectors take nearly twice the products."""
    A = jsf.from_scipy(jsf.gallery.poisson(16))
    default, small = (eigsh(A, 6, which="LA", ncv=ncv) for ncv in (None, 20))
    assert default.success and default.products < 0.8 * small.products


def test_neither_a_start_inside_an_eigenspace_nor_the_size_of_the_matrix_changes_what_is_found():
    """Squares would under- or overflow; a power of two scales without rounding."""
    a = np.diag(np.arange(float(N)))
    for v0 in (np.eye(N)[7], np.zeros(N)):
        assert_pairs(eigsh(a, K, which="SA", v0=v0), a, np.arange(float(K)))
    plain, *scaled = (eigsh(hermitian() * 2.0**e, K, which="SA") for e in (0, -900, 900))
    for sol, e in zip(scaled, (-900, 900), strict=True):
        assert sol.success and sol.iterations == plain.iterations
        np.testing.assert_array_equal(sol.eigenvalues / 2.0**e, plain.eigenvalues)
        np.testing.assert_array_equal(sol.eigenvectors, plain.eigenvectors)


def test_the_smallest_basis_converges_too():
    smallest = jax.jit(lambda a: eigsh(a, 2, ncv=3))
    for seed in range(8):
        a = hermitian(n=60, seed=seed)
        assert_pairs(smallest(a), a, wanted(a, 2))


def test_a_loose_tolerance_is_met_by_fewer_products():
    a = jnp.asarray(hermitian())
    exact, loose = eigsh(a, K, which="LM"), eigsh(a, K, which="LM", tol=1e-3)
    assert loose.success and loose.products < exact.products
    assert np.all(loose.residual_norms <= 1e-3 * abs(loose.eigenvalues))
    assert np.max(loose.residual_norms) > np.max(exact.residual_norms)


def assert_failed(sol: EigenSolution, status: Status) -> None:
    assert sol.status is status and not sol.success
    assert np.all(np.isfinite(sol.eigenvalues)) and np.all(np.isfinite(sol.eigenvectors))
    with pytest.raises(SolverError, match=sol.status.name) as caught:
        sol.raise_for_status()
    assert caught.value.status is sol.status and str(sol.iterations) in str(caught.value)


def test_a_nan_is_reported_and_too_few_restarts_end_with_maxiter():
    a, v0 = hermitian(), np.ones(N)
    a[3, 5] = a[5, 3] = v0[7] = np.nan
    assert_failed(eigsh(a, K, which="SA"), Status.NON_FINITE)
    assert_failed(eigsh(hermitian(), K, v0=v0), Status.NON_FINITE)
    sol = eigsh(hermitian(), K, which="SA", maxiter=2)
    assert_failed(sol, Status.MAXITER)
    assert sol.iterations == 2


@pytest.mark.parametrize("solver", [eigsh, lobpcg])
def test_a_matrix_that_is_not_symmetric_is_named_at_once(solver):
    sol = solver(jnp.asarray(hermitian() + 5 * np.triu(np.ones((N, N)))), K)
    assert_failed(sol, Status.NOT_SYMMETRIC)
    assert sol.products < N
    with pytest.raises(SolverError, match="A is not symmetric"):
        sol.raise_for_status()
    rotated = jnp.asarray(hermitian(np.complex128) + 1j * np.diag(np.arange(N)))
    assert_failed(solver(rotated, K), Status.NOT_SYMMETRIC)


def test_pairs_of_products_that_are_rounded_more_than_the_dtype_are_rounded():
    """By 2⁻⁴², about a thousand units of the dtype."""
    a = jnp.asarray(hermitian())
    sol = eigsh(lambda v: jax.lax.reduce_precision(a @ v, 11, 41), K, which="SA", v0=np.ones(N))
    assert sol.status is Status.ROUNDED and sol.success and sol.raise_for_status() is sol
    np.testing.assert_allclose(sol.eigenvalues, wanted(hermitian(), K, "SA"), rtol=0, atol=1e-11)


def test_eigenvalues_that_lie_too_close_together_end_the_search_early_with_the_cure():
    """Their distance is 1e-6 of the width of the spectrum."""
    n = 3000
    A = jsf.from_scipy(sp.diags_array([2.0, -1.0, -1.0], offsets=(0, 1, -1), shape=(n, n)), "dia")
    sol = eigsh(A, K, which="SA", maxiter=1000)
    assert_failed(sol, Status.STAGNATION)
    assert sol.iterations < 1000
    with pytest.raises(SolverError, match="use sigma=0 of eigsh or eigs, or if it is symmetric lobpcg with M="):
        sol.raise_for_status()


def test_the_result_unpacks_says_what_it_is_and_counts_every_product():
    a, counted = jnp.asarray(hermitian()), []

    def product(v):
        jax.debug.callback(lambda _: counted.append(1), v)
        return a @ v

    sol = eigsh(product, K, which="SA", v0=np.ones(N))
    jax.effects_barrier()
    w, v = sol
    assert w is sol[0] is sol.eigenvalues and v is sol[1] is sol.eigenvectors and sol.raise_for_status() is sol
    assert sol.products == len(counted) and "CONVERGED" in repr(sol) and f"products={sol.products}" in repr(sol)
    several = jax.tree.map(lambda *a: jnp.stack(a), sol, sol)
    assert several.status.shape == (2,) and "2 CONVERGED" in repr(several)


def test_the_start_is_the_same_at_every_call_and_for_every_format():
    pjds, csr = (jsf.from_scipy(HUBBARD, format) for format in ("pjds", "csr"))
    one, again, other = (eigsh(A, 1, which="SA") for A in (pjds, pjds, csr))
    np.testing.assert_array_equal(one.eigenvectors, again.eigenvectors)
    assert one.iterations == other.iterations


def test_other_numbers_do_not_recompile_and_may_be_traced(compiled):
    a = jnp.asarray(hermitian())
    eigsh(a, K)
    before, twice = compiled(), 2 * a
    eigsh(twice, K, tol=1e-9, maxiter=77)
    assert compiled() - before <= 1  # of the product 2·a
    inside = jax.jit(lambda a, tol, maxiter: eigsh(a, K, tol=tol, maxiter=maxiter))
    assert_pairs(inside(a, 0.0, 100), hermitian(), wanted(hermitian(), K))


def test_vmap_over_values_solves_every_matrix():
    S = sp.csr_array(np.where(abs(hermitian()) > 1, hermitian(), 0))
    A = jsf.from_scipy(S, "csr")
    scales = np.array([1.0, 0.5, -2.0])
    sol = jax.vmap(lambda s: eigsh(A.with_data(s * A.data), 2, which="LA"))(scales)
    assert sol.status.shape == (3,) and np.all(sol.success)
    for scale, w in zip(scales, sol.eigenvalues, strict=True):
        np.testing.assert_allclose(w, wanted(scale * S.toarray(), 2, "LA"), rtol=1e-11, atol=1e-11)


def symmetric(p):
    return (p + jnp.conj(p.T)) / 2


def sign_free(w, v):
    """A function of k pairs that no sign or phase of a vector changes."""
    weights = jnp.arange(1.0, v.shape[0] + 1)
    return jnp.sum(jnp.sin(w)) + jnp.sum((weights[:, None] * jnp.abs(v) ** 2) ** 2) / v.shape[0] ** 2


SMALL = 16


def by_eigsh(p):
    return sign_free(*eigsh(symmetric(p), 3, which="SA", ncv=12))


def by_eigh(p):
    w, v = jnp.linalg.eigh(symmetric(p))
    return sign_free(w[:3], v[:, :3])


gradient, dense_gradient = (jax.jit(jax.grad(f)) for f in (by_eigsh, by_eigh))


@pytest.mark.parametrize("dtype", few([np.float64, np.complex128], 1))
def test_the_gradient_of_values_and_vectors_is_that_of_dense_pairs(dtype):
    p = jnp.asarray(hermitian(dtype, SMALL, seed=3))
    got, want = gradient(p), dense_gradient(p)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9 * float(jnp.max(jnp.abs(want))))


@pytest.mark.deep
def test_second_derivatives_of_eigenvalues_are_those_of_perturbation_theory():
    """d²λᵢ = 2 Σⱼ |vⱼᵀ·dA·vᵢ|² / (λᵢ − λⱼ)."""
    p, along = (jnp.asarray(hermitian(n=SMALL, seed=seed)) for seed in (3, 4))
    f = lambda t: eigsh(p + t * along, 3, which="SA", ncv=12).eigenvalues  # noqa: E731
    w, v = np.linalg.eigh(p)
    gaps = w[:3, None] - w
    want = 2 * np.sum((v.T @ along @ v)[:3] ** 2 / np.where(gaps == 0, np.inf, gaps), axis=1)
    for got in jax.jit(lambda t: (jax.jacfwd(jax.jacfwd(f))(t), jax.jacrev(jax.jacrev(f))(t)))(0.0):
        np.testing.assert_allclose(got, want, rtol=1e-8)


def test_what_a_function_closes_over_differentiates():
    a, d = jnp.asarray(hermitian()), jnp.arange(N) / 10.0
    f = lambda s: eigsh(lambda v: a @ v + s * d * v, 1, which="SA", v0=jnp.ones(N)).eigenvalues[0]  # noqa: E731
    v = np.linalg.eigh(a + 0.7 * np.diag(d))[1][:, 0]
    assert jax.grad(f)(0.7) == pytest.approx(float(v @ (d * v)), rel=1e-9)


@pytest.mark.deep
def test_copies_have_a_derivative_in_sum_but_their_vectors_none():
    A = jsf.from_scipy(LAPLACIAN, "csr")
    v = np.linalg.eigh(LAPLACIAN.toarray())[1][:, :3]
    row, col = LAPLACIAN.nonzero()
    pairs, tangent = lambda data: tuple(eigsh(A.with_data(data), 3, which="SA")), 1.0 + 1 / (1.0 + row + col)
    by_data = jax.jit(jax.grad(lambda data: jnp.sum(pairs(data)[0])))(A.data)
    np.testing.assert_allclose(by_data, np.sum(v[row] * v[col], axis=1), rtol=1e-7, atol=1e-9)
    dw, dv = jax.jit(lambda data: jax.jvp(pairs, (data,), (tangent,))[1])(A.data)
    assert np.all(np.isfinite(dw)) and np.all(np.isfinite(dv[:, 0])) and np.all(np.isnan(dv[:, 1:]))


def test_a_derivative_of_what_is_not_finite_is_nan_and_not_zero():
    p = jnp.asarray(hermitian(n=SMALL)).at[0, 0].set(jnp.nan)
    assert np.all(np.isnan(gradient(p)))


def test_integers_are_solved_as_floats():
    np.testing.assert_allclose(eigsh(np.diag([3, 1, 2]), 2, which="LA").eigenvalues, [2, 3])


@pytest.mark.parametrize("sigma", [0, 3.3, np.float32(-1)], ids=str)
def test_the_pairs_nearest_to_sigma_come_with_all_their_copies(sigma):
    S = jsf.gallery.poisson(6)
    a, values = S.toarray(), np.linalg.eigvalsh(S.toarray())
    sol = eigsh(jsf.from_scipy(S, "csr"), K, sigma=sigma)
    assert_pairs(sol, a, np.sort(values[np.argsort(np.abs(values - sigma), kind="stable")[:K]]))


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_derivative_of_a_vector_does_not_depend_on_the_scale_of_A(scale):
    a = jnp.asarray(hermitian())
    component = lambda a: jnp.abs(eigsh(a, 1, which="LA").eigenvectors[0, 0]) ** 2  # noqa: E731
    da = jnp.diag(jnp.arange(len(a), dtype=a.dtype))
    along = lambda scale: jax.jvp(component, (scale * a,), (scale * da,))[1]  # noqa: E731
    np.testing.assert_allclose(along(scale), along(1.0), rtol=1e-6)
