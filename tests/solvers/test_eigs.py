"""eigs: pairs of any square matrix or pencil against LAPACK's, their copies, statuses, and the derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import jaxsparse_fmt as jsf
from solvers import EigenSolution, SolverError, Status, eigs, eigsh
from solvers.pencil import Pencil
from solvers.two_sided import TwoSided
from tests.lowering import quick_jit
from tests.marks import few

N, K = 24, 4
FULL = jsf.from_dense(np.ones((N, N)), "csr")
SMALL, KEPT = 12, 2
SPARSE = jsf.from_dense(np.ones((SMALL, SMALL)), "csr")
KEYS = {
    "LM": lambda w: -abs(w),
    "SM": abs,
    "LR": lambda w: -w.real,
    "SR": lambda w: w.real,
    "LI": lambda w: -abs(w.imag),
    "SI": lambda w: abs(w.imag),
}


def random(seed: int = 0, n: int = N, dtype=np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0)
    return a.astype(dtype)


@functools.cache
def program(which: str = "LM", mass: bool = False, shift: bool = False):
    """Every matrix of this size has one program."""

    def find(a, m, s):
        options = {"M": FULL.with_data(m)} if mass else {}
        return eigs(FULL.with_data(a), K, which=which, **options | ({"sigma": s} if shift else {}))

    return jax.jit(find)


def assert_pairs(sol: EigenSolution, a: np.ndarray, key, m: np.ndarray | None = None, scale: float = 1e3) -> None:
    """The keys of the K best by LAPACK within scale·eps·‖A‖ times their condition, and true residuals."""
    m = np.eye(len(a)) if m is None else m
    w, left, right = scipy.linalg.eig(a.astype(complex), m, left=True)
    v, X = (np.asarray(part, np.complex128) for part in sol)
    eps, k = np.finfo(np.asarray(sol.residual_norms).dtype).eps, v.size
    w_key = np.where(np.isfinite(w), key(np.where(np.isfinite(w), w, 1)), np.inf)
    near = np.argsort(w_key, kind="stable")[: k + 2]
    products = np.abs(np.sum(left.conj() * (m @ right), axis=0))
    condition = np.max((np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0) / np.maximum(products, eps))[near])
    size = np.linalg.norm(a, 2) + np.max(abs(v)) * np.linalg.norm(m, 2)
    assert sol.success
    limit = min(scale * eps * condition, 100 * eps**0.5) * size + scale * eps * size
    np.testing.assert_allclose(np.sort(key(v)), np.sort(w_key)[:k], rtol=0, atol=limit)
    norms = np.linalg.norm(a @ X - m @ X * v, axis=0)
    assert np.max(norms) <= scale * eps * size * np.linalg.cond(m)
    np.testing.assert_allclose(sol.residual_norms, norms, rtol=0.5, atol=20 * eps * size)
    np.testing.assert_allclose(np.linalg.norm(X, axis=0), 1, rtol=10 * eps)


@pytest.mark.parametrize("which", few(["LM", "LR", "SR", "LI", "SM", "SI"], 2))
def test_finds_what_which_asks_for(which):
    sol = program(which)(random().ravel(), None, None)
    assert_pairs(sol, random(), KEYS[which])
    assert np.all(np.diff(KEYS[which](np.asarray(sol.eigenvalues))) >= -1e-12)
    assert sol.eigenvectors.dtype == np.complex128 and sol.residual_norms.dtype == np.float64


@pytest.mark.parametrize("dtype", few([np.complex64, np.float32, np.complex128], 1))
def test_other_dtypes_give_complex_pairs_of_their_precision(dtype):
    a = random(n=60, dtype=dtype)
    sol = eigs(jnp.asarray(a), 3)
    assert_pairs(sol, a, KEYS["LM"])
    assert sol.eigenvectors.dtype == sol.eigenvalues.dtype == np.result_type(dtype, np.complex64)


def hard() -> dict[str, np.ndarray]:
    """Matrices whose eigenvalues have copies, lie on a circle, or are defective."""
    x, ones = random(3), np.ones(N)
    block = random(5, 3)
    chain = np.abs(random(4)) * (random(6) > 0.8) + np.eye(N)
    defective = np.diag(np.repeat(np.arange(N / 2), 2)) + np.diag(np.tile([1.0, 0], N // 2)[:-1], 1)
    copies = np.diag(np.repeat(np.arange(N / 3) - 3, 3))
    return {
        "random": random(1),
        "zero": np.zeros((N, N)),
        "identity": np.eye(N),
        "permutation": np.roll(np.eye(N), 1, 0),
        "orthogonal": np.linalg.qr(x)[0],
        "chain": (chain / chain.sum(1, keepdims=True)).T,
        "graded": np.diag(10.0 ** -np.arange(N)) @ x,
        "copies": x @ copies @ np.linalg.inv(x),
        "copies of pairs": scipy.linalg.block_diag(*[block] * (N // 3)),
        "defective": x @ defective @ np.linalg.inv(x),
        "low rank": x[:, :2] @ x[:2],
        "symmetric": x + x.T,
        "Toeplitz": np.triu(np.tril(np.ones((N, N)), 3)) - np.diag(ones[1:], -1),
    }


@pytest.mark.parametrize("name", hard())
def test_finds_every_copy_and_what_is_defective(name):
    a = hard()[name]
    assert_pairs(program()(a.ravel(), None, None), a, KEYS["LM"])


def test_a_pair_of_a_real_matrix_is_an_exact_one_and_may_be_cut():
    a = scipy.linalg.block_diag(random(2, 8), [[3.0, 40.0], [-40.0, 3.0]], [[2.0, 30.0], [-30.0, 2.0]], np.eye(12))
    sol = program()(a.ravel(), None, None)
    w, X = (np.asarray(part) for part in sol)
    np.testing.assert_array_equal(w[1::2], w[::2].conj())
    np.testing.assert_allclose(X[:, 1::2], X[:, ::2].conj(), rtol=0, atol=1e-15)
    three = eigs(a, 3)
    np.testing.assert_allclose(three.eigenvalues, [3 + 40j, 3 - 40j, 2 + 30j], rtol=1e-12)
    assert three.success


@pytest.mark.parametrize("seed", few(range(200), 3))
@pytest.mark.parametrize(("mass", "shift"), few([(True, True), (True, False), (False, True)], 1))
def test_pairs_of_random_pencils_are_those_of_lapack(mass, shift, seed):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.integers(-3, 3)
    a, m, s = random(seed) * size, random(seed + 1000) + 3 * np.eye(N), size * rng.standard_normal()
    if shift and seed % 2:
        m[:, :4] = 0  # four infinite eigenvalues
    sol = program("LM", mass, shift)(a.ravel(), m.ravel(), s)
    assert_pairs(sol, a, (lambda w: abs(w - s)) if shift else KEYS["LM"], m if mass else None, 1e5)


@pytest.mark.deep
def test_a_sigma_far_from_the_spectrum_costs_digits_and_says_so():
    a, m = random(11) / 1e3, random(1011) + 3 * np.eye(N)
    A, M = FULL.with_data(a.ravel()), FULL.with_data(m.ravel())
    sol = eigs(A, K, M=M, sigma=1e3)
    assert sol.code == Status.STAGNATION
    w = scipy.linalg.eigvals(a, m)
    np.testing.assert_allclose(np.sort(abs(np.asarray(sol.eigenvalues) - 1e3)), np.sort(abs(w - 1e3))[:K], rtol=1e-9)


@pytest.mark.deep
def test_the_pairs_nearest_to_a_complex_number_are_found():
    S = jsf.gallery.convection_diffusion(6)
    a, sigma = S.toarray(), 6 + 0.5j
    sol = eigs(jsf.from_scipy(S, "csr"), K, sigma=sigma, left=True)
    assert_pairs(sol, a, lambda w: abs(w - sigma))
    Y, X = np.asarray(sol.left_eigenvectors), np.asarray(sol.eigenvectors)
    np.testing.assert_allclose(Y.conj().T @ X, np.eye(K), atol=1e-9)


def test_left_vectors_are_biorthogonal_to_right_ones():
    a, m = random(7), random(8) + 4 * np.eye(N)
    sol = eigs(jsf.from_dense(a), K, M=jsf.from_dense(m), left=True)
    Y, X, w = (np.asarray(part) for part in (sol.left_eigenvectors, sol.eigenvectors, sol.eigenvalues))
    assert sol.success
    np.testing.assert_allclose(Y.conj().T @ m @ X, np.eye(K), atol=1e-11)
    np.testing.assert_allclose(Y.conj().T @ a, w[:, None] * (Y.conj().T @ m), atol=1e-10 * np.abs(Y).max())


@pytest.mark.parametrize("seed", few(range(20), 2))
def test_both_sides_of_a_real_value_and_a_cut_pair_are_found(seed):
    a = np.diag(np.r_[4.0, 3, 3, np.arange(SMALL - 3) / 9])
    a[1, 2], a[2, 1] = 1, -1
    Q = np.linalg.qr(random(seed + 2, SMALL))[0]
    a = Q @ a @ Q.T
    sol = eigs(SPARSE.with_data(a.ravel()), KEPT, left=True)
    assert sol.success
    np.testing.assert_allclose(sol.eigenvalues, [4, 3 + 1j], rtol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(sol.left_eigenvectors, axis=0), 1, rtol=1e-12)  # A is normal
    gradient = jax.grad(lambda a: eigs(SPARSE.with_data(a), KEPT).eigenvalues[0].real)(a.ravel())
    np.testing.assert_allclose(gradient, np.outer(Q[:, 0], Q[:, 0]).ravel(), atol=1e-12)


def test_a_left_vector_that_the_second_search_misses_is_lost():
    a, eye = np.diag([3.0, 2, 1]), jnp.eye(3, dtype=complex)

    def loop(_, pencil, start, limits, targets=None):
        kept = [0, 1] if targets is None else [0, 2]
        zero = jnp.int32(0)
        return EigenSolution(
            jnp.diag(a)[jnp.array(kept)] + 0j, eye[:, jnp.array(kept)], zero, zero, zero, jnp.zeros(2)
        ), 3.0

    _, ends = TwoSided(loop, (None,), True).compute((Pencil(lambda v: a @ v), (jnp.ones(3), None)))
    assert ends.lost.tolist() == [False, True]


def test_real_eigenvalues_have_no_negative_zero_beside_them():
    a = np.diag(np.r_[-2.0, 3.0, np.arange(SMALL - 2) / 9])
    for options in ({}, {"sigma": -1.9}):
        w = np.asarray(eigs(SPARSE.with_data(a.ravel()), KEPT, **options).eigenvalues)
        assert np.all(w.imag == 0) and not np.any(np.signbit(w.imag))


def test_failures_have_a_status_and_finite_pairs():
    a = random()
    few_restarts = eigs(jsf.gallery.poisson(30, dim=2).toarray(), K, which="SR", maxiter=2)
    assert few_restarts.status is Status.MAXITER and few_restarts.iterations == 2
    a[3, 5] = np.nan
    sol = program()(a.ravel(), None, None)
    assert sol.status is Status.NON_FINITE and np.all(np.isfinite(sol.eigenvalues))
    with pytest.raises(SolverError, match="a NaN or infinity"):
        sol.raise_for_status()


def test_a_singular_shift_is_moved_and_the_pairs_are_right():
    chain = np.abs(random(4)) * (random(6) > 0.8) + np.eye(N)
    generator = (chain / chain.sum(1, keepdims=True)).T - np.eye(N)
    stationary = eigs(jsf.from_dense(generator, "csr"), 1, sigma=0)
    x = np.asarray(stationary.eigenvectors[:, 0])
    assert stationary.success and np.all(x.imag == 0) and np.all(x.real > 0)
    np.testing.assert_allclose(generator @ x.real, 0, atol=1e-13)


def test_arguments_that_make_no_sense_are_refused():
    for options, words in (
        ({"which": "LA"}, "which must be"),
        ({"k": N}, r"jnp\.linalg\.eig "),
        ({"ncv": 2}, "ncv must be above k"),
        ({"left": 1}, "left must be True or False"),
        ({"sigma": "0"}, "sigma must be a number"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            eigs(FULL, **options)
    with pytest.raises(ValueError, match="pass v0 to start from"):
        eigs(lambda v: v)


# ------------------------------------------------------------------------------------------------------- derivatives

WEIGHTS = np.cos(np.arange(SMALL))


def number(w, X, Y):
    """What no phase changes."""
    sides = [jnp.sum(WEIGHTS[:, None] * jnp.abs(side) ** 2) for side in (X, Y)]
    return jnp.sum(w.real + 2 * w.imag * jnp.arange(1, KEPT + 1)) + sides[0] + 0.1 * sides[1]


def ours(a, m, **options):
    sol = eigs(SPARSE.with_data(a), KEPT, M=SPARSE.with_data(m), left=True, **options)
    return number(sol.eigenvalues, sol.eigenvectors, sol.left_eigenvectors)


def dense(a, m, key=KEYS["LM"]):
    """By LAPACK, in NumPy."""
    a, m = (np.asarray(part).reshape(SMALL, SMALL) for part in (a, m))
    w, Y, X = scipy.linalg.eig(a, m, left=True)
    order = np.lexsort((-w.imag, np.round(key(w), 8)))[:KEPT]
    w, Y, X = w[order], Y[:, order], X[:, order] / np.linalg.norm(X[:, order], axis=0)
    return float(number(w, X, Y / np.sum(Y.conj() * (m @ X), axis=0).conj()))


@pytest.mark.parametrize("options", few([{}, {"sigma": 0.3}], 1), ids=str)
def test_the_gradient_of_values_and_vectors_of_both_sides_is_the_slope_of_dense_ones(options):
    a, m = random(11, SMALL).ravel(), (random(12, SMALL) + 6 * np.eye(SMALL)).ravel()
    key = (lambda w: abs(w - 0.3)) if options else KEYS["LM"]
    assert float(ours(a, m, **options)) == pytest.approx(dense(a, m, key), rel=1e-9)
    gradients = jax.grad(functools.partial(ours, **options), (0, 1))(a, m)
    rng = np.random.default_rng(0)
    for i, got in enumerate(gradients):
        along, h = rng.standard_normal(a.size), 1e-5
        moved = [[a + (i == 0) * t * along, m + (i == 1) * t * along] for t in (h, -h)]
        slope = (dense(*moved[0], key) - dense(*moved[1], key)) / (2 * h)
        assert float(got @ along) == pytest.approx(slope, rel=1e-6)


def by_dense(a):
    w = jnp.linalg.eigvals(a.reshape(SMALL, SMALL))
    return w[jnp.argsort(-jnp.abs(w) - 1e-9 * w.imag)[:KEPT]]


def test_eigenvalues_have_the_second_derivatives_of_dense_ones():
    """Those of `jnp.linalg.eig` by a difference of its first ones."""
    a, along = random(11, SMALL).ravel(), random(13, SMALL).ravel()
    weigh = lambda w: jnp.sum(w.real + 2 * w.imag * jnp.arange(1, KEPT + 1))  # noqa: E731
    mine = lambda t: weigh(eigs(SPARSE.with_data(a + t * along), KEPT).eigenvalues)  # noqa: E731
    slope = jax.grad(lambda t: weigh(by_dense(a + t * along)))
    first, second = quick_jit(lambda t: (jax.grad(mine)(t), jax.jvp(jax.grad(mine), (t,), (1.0,))[1]))(0.0)
    assert float(first) == pytest.approx(float(slope(0.0)), rel=1e-9)
    assert float(second) == pytest.approx(float((slope(1e-5) - slope(-1e-5)) / 2e-5), rel=1e-6)


def test_a_defective_eigenvalue_has_no_derivative_and_others_keep_theirs():
    a = np.diag(np.r_[9.0, 9.0, np.arange(SMALL - 2) / 2])
    a[0, 1] = 1
    gradient = jax.grad(lambda a, i: eigs(a, 3).eigenvalues[i].real)
    assert np.all(np.isnan(gradient(a, 0)))
    np.testing.assert_allclose(np.asarray(gradient(a, 2))[-1, -1], 1, rtol=1e-9)


def test_vmap_solves_every_matrix_and_a_function_may_close_over_what_differentiates():
    stack = np.stack([random(seed, SMALL) for seed in range(3)])
    sol = jax.vmap(lambda a: eigs(a, KEPT))(stack)
    for a, w in zip(stack, np.asarray(sol.eigenvalues), strict=True):
        np.testing.assert_allclose(w, by_dense(a), rtol=1e-10)
    a = stack[0]
    f = lambda s: eigs(lambda v: a @ v + s * v, 1, v0=np.ones(SMALL)).eigenvalues[0].real  # noqa: E731
    assert float(jax.grad(f)(0.5)) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("solver", [eigs, eigsh])
def test_a_tolerance_holds_with_a_sigma_far_from_the_eigenvalues(solver):
    A = jsf.from_scipy(scipy.sparse.diags_array(np.arange(1.0, 41)).tocsr())
    sol = solver(A, 3, sigma=-1e6, tol=1e-6)
    assert sol.status is Status.CONVERGED
    np.testing.assert_allclose(sol.eigenvalues, [1, 2, 3], rtol=1e-6)


def test_a_mass_whose_square_float32_does_not_hold_has_the_pairs_nearest_to_sigma():
    S = scipy.sparse.diags_array([np.arange(1.0, 37), np.ones(35)], offsets=[0, 1]).astype(np.float32).tocsr()
    sol = eigs(jsf.from_scipy(S), 2, M=1e-22 * jsf.eye(36, dtype=np.float32), sigma=0.0)
    assert sol.success
    np.testing.assert_allclose(1e-22 * sol.eigenvalues, [1, 2], rtol=1e-4)
