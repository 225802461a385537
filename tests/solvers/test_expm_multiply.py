"""exp(t·A)·v, against Taylor sums of 60 digits, and its derivatives against those of a dense exponential."""

import functools
from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.scipy.linalg import expm

import jaxsparse as js
from solvers import Status, expm_multiply

N = 8
RNG = np.random.default_rng(5)
# Godunov's matrix, whose eigenvalues are within 4 of 0.
GODUNOV = np.array(
    [
        [289, 2064, 336, 128, 80, 32, 16],
        [1152, 30, 1312, 512, 288, 128, 32],
        [-29, -2000, 756, 384, 1008, 224, 48],
        [512, 128, 640, 0, 640, 512, 128],
        [1053, 2256, -504, -384, -756, 800, 208],
        [-287, -16, 1712, -128, 1968, -30, 2032],
        [-2176, -287, -1565, -512, -541, -1152, -289],
    ],
    float,
)
ONE, UP, DOWN = np.eye(N), np.eye(N, k=1), np.eye(N, k=-1)
GALLERY = {
    "Jordan's block": 10 * UP - ONE / 2,
    "Grcar": sum(np.eye(N, k=k) for k in range(4)) - DOWN,
    "upwind advection": 40 * (DOWN - ONE),
    "convection and diffusion": 20 * (1.8 * DOWN - 2 * ONE + 0.2 * UP),
    "Godunov / 100": np.pad(GODUNOV / 100, (0, 1)),
    "Godunov / 20": np.pad(GODUNOV / 20, (0, 1)),
    "badly scaled": np.diag(10.0 ** np.arange(-3, 5)) @ UP @ np.diag(10.0 ** -np.arange(-3, 5)) - ONE,
    "triangular": np.triu(RNG.standard_normal((N, N)), 1) * 4 - ONE,
    "random": 3 * RNG.standard_normal((N, N)),
    "symmetric": -np.diag(8.0 * np.arange(N)),
    "antisymmetric": 12 * (UP - DOWN),
}


def exact(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """exp(A)·v by steps of Taylor sums in decimal numbers of 60 digits."""
    getcontext().prec = 60
    decimals = np.vectorize(Decimal, otypes=[object])
    steps = max(1, int(np.abs(A).sum(axis=0).max() / 8))
    B, x = decimals(np.asarray(A, float)) / Decimal(steps), decimals(np.asarray(v, float))
    for _ in range(steps):
        term = total = x
        for k in range(1, 70):
            term = B.dot(term) / Decimal(k)
            total = total + term
        x = total
    return x.astype(float)


of_one = jax.jit(expm_multiply)  # one program for the gallery


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", GALLERY)
def test_error_norm_covers_the_error_of_matrices_far_from_normal(name, dtype):
    A, v = GALLERY[name].astype(dtype), RNG.standard_normal(N).astype(dtype)
    sol, x = of_one(A, v), exact(A, v)
    error, size = np.linalg.norm(sol.x - x), np.linalg.norm(x)
    assert error <= 4 * sol.error_norm
    assert sol.status == Status.PRECISION or error <= 0.1 * size
    assert sol.error_norm <= 3e4 * max(error, np.finfo(dtype).eps * size)
    assert sol.success or (name, dtype) == ("Godunov / 20", np.float32)


def test_status_tells_that_rounding_leaves_no_digit():
    A = GALLERY["Godunov / 20"].astype(np.float32)
    sol = of_one(A, np.ones(N, np.float32))
    assert sol.status == Status.PRECISION
    with pytest.raises(js.SolverError, match="no correct digit"):
        sol.raise_for_status()
    assert of_one(A.astype(float), np.ones(N)).status == Status.CONVERGED


# A sparse A with its values as data, and the same as a dense function.
D = RNG.standard_normal((N, N)) * (RNG.random((N, N)) < 0.5) - 2 * np.eye(N)
A = js.from_scipy(sp.csr_matrix(D))
ROWS, COLS = np.nonzero(D)
V, W = RNG.standard_normal((2, N))


def dense(data):
    return jnp.zeros((N, N), data.dtype).at[ROWS, COLS].set(data)


def of_data(data, v, t):
    return expm_multiply(A.with_data(data), v, t).x


def of_dense(data, v, t):
    return expm(t * dense(data)) @ v


@pytest.mark.deep  # XLA takes 20 s for the second derivative
@pytest.mark.parametrize("t", [0.7, 15.0])
def test_derivatives_are_those_of_a_dense_exponential(t):
    at = A.data, jnp.asarray(V), jnp.asarray(t)
    along = jax.tree.map(lambda a: jnp.asarray(RNG.standard_normal(a.shape)), at)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(f, at, along):
        gradient = jax.grad(lambda *at: W @ f(*at), (0, 1, 2))
        return jax.jvp(f, at, along)[1], gradient(*at), jax.jvp(gradient, at, along)[1]

    found, expected = (derivatives(f, at, along) for f in (of_data, of_dense))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11 * np.abs(b).max())


def test_a_vector_that_A_annihilates_still_has_derivatives():
    L = UP + DOWN - np.diag((UP + DOWN).sum(axis=1))
    one, along = jnp.ones(N), RNG.standard_normal((N, N))
    f, g = (lambda L: expm_multiply(L, one, 3.0).x), (lambda L: expm(3 * L) @ one)
    np.testing.assert_allclose(f(L), one, rtol=1e-14)
    np.testing.assert_allclose(*(jax.jvp(h, (L,), (along,))[1] for h in (f, g)), rtol=1e-12)
    np.testing.assert_allclose(*(jax.grad(lambda L: W @ h(L))(L) for h in (f, g)), rtol=1e-12)  # noqa: B023


def test_gradient_by_a_matrix_whose_diagonal_dominates():
    """exp(s)·∂exp(B)·v for A = B + s: the oracle knows no shift."""
    B, ones = jnp.asarray(0.1 * RNG.standard_normal((N, N))), jnp.ones(N)
    expected = jax.grad(lambda B: W @ expm(B) @ ones)(B)
    gradient = jax.jit(jax.grad(lambda A: W @ expm_multiply(A, ones).x))
    for shift in (-600.0, -20.0, 30.0):
        found = gradient(B + shift * jnp.eye(N)) / np.exp(shift)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


def test_times_may_be_in_any_order_and_direction():
    times, vectors = jnp.array([0.5, 2.0, -0.3, 1.0, 0.0]), np.stack([V, 1e-6 * W], axis=1)
    sol = expm_multiply(A, vectors, times)
    expected = np.stack([expm(t * D) @ vectors for t in times])
    np.testing.assert_allclose(sol.x, expected, rtol=1e-12, atol=1e-18)
    assert sol.code.shape == sol.error_norm.shape == (5, 2)
    assert np.all(np.abs(sol.x - expected).sum(axis=1) <= 10 * sol.error_norm + 1e-300)

    def loss(exponential, v, t):
        return jnp.sum(exponential(v, t) ** 2)

    several = lambda v, t: expm_multiply(A, v, t).x  # noqa: E731
    one_by_one = jax.vmap(lambda v, t: expm(t * D) @ v, (None, 0))
    found, gradients = (jax.grad(loss, (1, 2))(f, vectors, times) for f in (several, one_by_one))
    np.testing.assert_allclose(found[0], gradients[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], gradients[1], rtol=1e-10)


def test_the_linear_transpose_at_several_times_is_that_of_a_dense_exponential():
    times, Y = jnp.array([0.5, 2.0, -0.3]), RNG.standard_normal((3, N))
    (found,) = jax.jit(jax.linear_transpose(lambda v: expm_multiply(A, v, times).x, V))(Y)
    np.testing.assert_allclose(found, sum(expm(t * D).T @ y for t, y in zip(times, Y, strict=True)), rtol=1e-10)


def test_the_gradient_by_a_half_precision_A_adds_up_hundreds_of_steps_in_single_precision():
    """Of 1ᵀ·exp(t·L)·1 with L·1 = Lᵀ·1 = 0 the derivative by each entry of L is t."""
    L = (UP + DOWN - np.diag((UP + DOWN).sum(axis=1))).astype(np.float16)
    gradient = jax.jit(jax.grad(lambda L: expm_multiply(L, np.ones(N, np.float32), 400.0).x.sum()))(L)
    assert gradient.dtype == np.float16
    np.testing.assert_allclose(gradient, np.full((N, N), 400.0), rtol=2e-3)


def test_schroedinger_keeps_the_length_of_a_state():
    H = D + D.T
    x = expm_multiply(lambda v: H @ v, V, -1j * jnp.linspace(0, 20, 3)).x
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), np.linalg.norm(V), rtol=1e-12)
    np.testing.assert_allclose(x[1], expm(-10j * H) @ V, rtol=1e-10, atol=1e-12)


def test_vmap_takes_other_steps_for_each():
    times = jnp.array([0.1, 3.0])
    x = jax.vmap(lambda v, t: expm_multiply(A, v, t).x)(jnp.stack([V, W]), times)
    np.testing.assert_allclose(x, [expm(t * D) @ v for t, v in zip(times, (V, W), strict=True)], rtol=1e-11)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_no_square_leaves_the_range_of_float32(factor):
    decay = jnp.float32(-60)  # as of a stiff system, whose shift is exact
    sol = expm_multiply(
        lambda v: decay * v, np.full(3, factor, np.float32) * np.arange(1, 4, dtype=np.float32), float(factor > 1)
    )
    assert sol.status == Status.CONVERGED
    scale = np.exp(-60.0) if factor > 1 else 1
    np.testing.assert_allclose(sol.x / np.float32(factor), scale * np.arange(1, 4, dtype=np.float32), rtol=2e-5)


@pytest.mark.parametrize(("rate", "size"), [(-100.0, 1e12), (100.0, 1e-10)])
def test_a_factor_beyond_the_dtype_does_not_lose_x(rate, size):
    sol = of_one(np.float32(rate) * np.eye(N, dtype=np.float32), np.full(N, size, np.float32))
    assert sol.status == Status.CONVERGED
    np.testing.assert_allclose(sol.x, np.exp(rate) * size, rtol=1e-4)
    assert np.linalg.norm(sol.x - np.exp(rate) * np.float64(np.float32(size))) <= 4 * sol.error_norm


def test_a_failure_is_told_and_has_no_derivatives():
    far = expm_multiply(A, V, 1e9, maxiter=20)
    assert far.status == Status.MAXITER and np.all(np.isfinite(far.x))
    assert np.all(np.isnan(jax.grad(lambda v: expm_multiply(A, v, 1e9, maxiter=20).x.sum())(V)))
    assert expm_multiply(A, np.full(N, np.nan)).status == Status.NON_FINITE
    assert expm_multiply(np.diag(np.arange(8.0)), V, 1e3).status == Status.NON_FINITE  # beyond the dtype
    zero = expm_multiply(A, np.zeros(N), 2.0)
    assert zero.status == Status.CONVERGED and not zero.x.any()


def test_refuses_what_is_no_time():
    with pytest.raises(ValueError, match=r"t must be a number, or some \[n_t\]; got float64\[1, 2\]"):
        expm_multiply(A, V, np.ones((1, 2)))
    with pytest.raises(ValueError, match="b has length 3"):
        expm_multiply(A, np.ones(3))
