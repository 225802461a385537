"""expm_multiply: against SciPy's dense exponential, its estimate against the error, statuses, and every derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxsparse_fmt as jsf
from solvers import Status, expm_multiply
from tests.lowering import quick_jit

N = 60
RNG = np.random.default_rng(3)
GENERAL = RNG.standard_normal((N, N)) / np.sqrt(N)
LAPLACIAN = -jsf.gallery.poisson(N, dim=1).toarray()
V = RNG.standard_normal(N)


def exact(A, v, t=1.0):
    return scipy.linalg.expm(t * np.asarray(A)) @ v


@pytest.mark.some(A=3)
@pytest.mark.parametrize(
    ("A", "t"),
    [
        (GENERAL, 1.0),
        (GENERAL, -8.0),
        (LAPLACIAN, 200.0),
        (LAPLACIAN, -20j),
        (GENERAL - GENERAL.T, 20.0),
        (20 * np.triu(GENERAL, 1), 1.0),
        (0 * GENERAL, 1.0),
        (GENERAL, 0.0),
        *((GENERAL[:n, :n], 3.0) for n in (1, 2, 5)),
    ],
)
def test_the_answer_is_the_dense_one_and_the_estimate_bounds_the_error(A, t):
    v = V[: len(A)]
    sol, want = expm_multiply(jnp.asarray(A), v, t, rtol=1e-8), exact(A, v, t)
    size = np.linalg.norm(want)
    error = np.linalg.norm(sol.x - want)
    assert sol.status is Status.CONVERGED, sol
    assert error <= 1e-8 * size and error <= 10 * float(sol.error_norm) + 1e-13 * size
    assert sol.n_products <= 31 * sol.iterations


@pytest.mark.some(kind=1)
@pytest.mark.parametrize("kind", ["csr", "pjds", "function", "narrow"])
def test_formats_functions_and_columns_agree(kind):
    S = jsf.gallery.convection_diffusion(6) * -0.1
    X = np.random.default_rng(3).standard_normal((S.shape[0], 2))  # in any order of the tests: numbers may cancel
    X[:, 1] *= 1e-150 if kind != "narrow" else 1
    A = jsf.from_scipy(S, "pjds" if kind == "pjds" else "csr", dtype="float32" if kind == "narrow" else None)
    stored = A
    A = (lambda v: stored @ v) if kind == "function" else A
    X = X.astype(np.float32) if kind == "narrow" else X
    sol = expm_multiply(A, X, 2.0, rtol=1e-4 if kind == "narrow" else 1e-9)
    assert np.all(sol.success) and sol.x.shape == X.shape and sol.x.dtype == X.dtype and sol.status.shape == (2,)
    want = exact(S.toarray(), X.astype(float), 2.0)
    np.testing.assert_allclose(sol.x / want, 1, rtol=1e-3 if kind == "narrow" else 1e-7)


@pytest.mark.some(A=2)
@pytest.mark.parametrize(
    ("A", "v", "options", "status"),
    [
        (GENERAL, 0 * V, {}, Status.CONVERGED),
        (np.nan * GENERAL, 0 * V, {}, Status.NON_FINITE),
        (GENERAL, np.where(np.arange(N) == 3, np.nan, V), {}, Status.NON_FINITE),
        (GENERAL, V, {"t": 2000.0}, Status.NON_FINITE),
        (GENERAL, V, {"t": 200.0, "maxiter": 2}, Status.MAXITER),
        (GENERAL, V, {"maxiter": 0}, Status.MAXITER),
        (GENERAL, V, {"rtol": 1e-20}, Status.STAGNATION),
    ],
)
def test_endings_have_their_status(A, v, options, status):
    sol = expm_multiply(jnp.asarray(A), v, **options)
    assert sol.status is status and np.all(np.isfinite(sol.x))


n = 10
POINT = jnp.asarray(GENERAL[:n, :n] * 2), jnp.asarray(V[:n]), jnp.asarray(1.7)
ALONG = tuple(jnp.asarray(RNG.standard_normal(p.shape)) for p in POINT)
WEIGHTS = jnp.asarray(RNG.standard_normal(n))


@pytest.mark.some(derivative=1)
@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: jax.jvp(jax.grad(f, (0, 1, 2)), POINT, ALONG),
        lambda f: jax.jvp(lambda *p: jax.jvp(f, p, ALONG)[1], POINT, ALONG),
        lambda f: jax.grad(lambda v: jnp.sum(jax.grad(f, 1)(POINT[0], v, POINT[2]) * ALONG[1]))(POINT[1]),
    ],
    ids=["forward over reverse", "forward twice", "reverse twice, in v"],
)
def test_derivatives_are_those_of_the_dense_exponential(derivative):
    """A space of 6 vectors: several steps forward, and the same backward."""
    ours = lambda A, v, t: jnp.sum(WEIGHTS * expm_multiply(A, v, t, rtol=1e-10, m=6).x ** 3)  # noqa: E731
    dense = lambda A, v, t: jnp.sum(WEIGHTS * (jax.scipy.linalg.expm(t * A) @ v) ** 3)  # noqa: E731
    got, want = (quick_jit(lambda f=f: derivative(f))() for f in (ours, dense))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * float(jnp.max(jnp.abs(b))))


@pytest.mark.deep
def test_complex_gradients_in_a_formats_values_and_over_columns_are_those_of_the_dense_exponential():
    S = jsf.gallery.poisson(n, dim=1)
    A, X = jsf.from_scipy(S, "csr"), jnp.asarray(RNG.standard_normal((n, 2)))
    ours = lambda data: expm_multiply(A.with_data(data), X, -1.5j, rtol=1e-9).x  # noqa: E731
    dense = lambda data: jax.scipy.linalg.expm(-1.5j * A.with_data(data).todense()) @ X  # noqa: E731
    loss = lambda f: lambda data: jnp.sum(WEIGHTS[:, None] * jnp.abs(f(data)) ** 2)  # noqa: E731
    got, want = (quick_jit(jax.grad(loss(f)))(A.data) for f in (ours, dense))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_a_derivative_that_takes_more_steps_than_are_remembered_is_nan():
    f = lambda s: jnp.sum(expm_multiply(s * jnp.asarray(LAPLACIAN[:n, :n]), V[:n], 100.0, m=2).x)  # noqa: E731
    assert expm_multiply(jnp.asarray(LAPLACIAN[:n, :n]), V[:n], 100.0, m=2).iterations > 100
    assert np.isnan(jax.grad(f)(1.0))


@pytest.mark.parametrize(
    ("A", "v", "options", "error", "match"),
    [
        (GENERAL, V[:5], {}, ValueError, "A has shape"),
        (GENERAL, V, {"t": np.ones(3)}, TypeError, "t must be one number"),
        (GENERAL, V, {"m": 0}, ValueError, "m must be"),
        (GENERAL, V, {"rtol": -1.0}, ValueError, "rtol must be"),
        (GENERAL, np.zeros(0), {}, ValueError, "v is empty"),
        (lambda v: v, {"a": V}, {}, TypeError, r"v must be one array.*ravel_pytree"),
    ],
)
def test_what_makes_no_sense_is_refused(A, v, options, error, match):
    with pytest.raises(error, match=match):
        expm_multiply(A, v, **options)


@pytest.mark.some(size=1)
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_vectors_and_cotangents_may_be_of_any_size(size):
    """The squares of such numbers are beyond float32."""
    A, v = jnp.asarray(GENERAL[:8, :8], jnp.float32), jnp.asarray(V[:8], jnp.float32)
    w = jnp.asarray(V[8:16], jnp.float32)

    def f(A, v):
        return expm_multiply(A, v, 1.0, rtol=1e-4).x

    @quick_jit
    def both(A, v, w):
        sol = expm_multiply(A, v, 1.0, rtol=1e-4)
        forward = jax.jvp(lambda A: f(A, v), (A,), (A.T,))[1]
        return sol.x, sol.code, sol.error_norm, *jax.vjp(f, A, v)[1](w), forward

    def check(got, want, size=1.0):
        got, want = np.asarray(got, float) / size, np.asarray(want, float)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())

    plain, large, steep = both(A, v, w), both(A, v * size, w), both(A, v, w * size)
    assert large[1] == 0 and 0 < large[2] < 1e-3 * size * np.linalg.norm(v)
    for k, of_size in ((0, size), (3, size), (4, 1.0), (5, size)):
        check(large[k], plain[k], of_size)
    for k in (3, 4):
        check(steep[k], plain[k], size)
