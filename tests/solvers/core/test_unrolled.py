"""A fixed number of steps, differentiated as they are; a textbook's CG in jnp and finite differences answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import Status, bicgstab, cg, fcg, gmres, minres
from tests.marks import few

N = 10
RNG = np.random.default_rng(2)
Q, _ = np.linalg.qr(RNG.standard_normal((N, N)))
S = Q @ np.diag(np.geomspace(1, 50, N)) @ Q.T
B, X0, D = RNG.standard_normal(N), RNG.standard_normal(N), 0.5 + RNG.random(N)
METHODS = [cg, fcg, minres, gmres, bicgstab]


def residual_by_hand(A, b, x, d, steps):
    """‖b − A·x‖ after steps of CG preconditioned by diag(d), as in Saad, Algorithm 9.1."""
    r = b - A @ x
    z = d * r
    p = z
    for _ in range(steps):
        alpha = (r @ z) / (p @ A @ p)
        x, new = x + alpha * p, r - alpha * (A @ p)
        beta = (new @ (d * new)) / (r @ z)
        r, z = new, d * new
        p = z + beta * p
    return jnp.linalg.norm(b - A @ x)


def test_is_the_derivative_of_the_residual_after_k_steps_that_of_the_steps():
    def residual(A, b, x0, d):
        return cg(A, b, x0, M=lambda r: d * r, rtol=0.0, maxiter=4, adjoint="unrolled").residual_norm

    arguments = tuple(map(jnp.asarray, (S, B, X0, D)))
    value, gradients = jax.value_and_grad(residual, range(4))(*arguments)
    exact, exact_gradients = jax.value_and_grad(lambda *a: residual_by_hand(*a, 4), range(4))(*arguments)
    assert float(value) == pytest.approx(float(exact), rel=1e-10)
    for gradient, expected in zip(gradients, exact_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)
    assert np.max(np.abs(exact_gradients[3])) > 1e-3  # that of M is no zero


@pytest.mark.parametrize("solver", few(METHODS, 1), ids=lambda s: s.__name__)
def test_do_unrolled_steps_end_as_the_loops_do_and_have_the_slope_of_differences(solver):
    options = {"restart": 3} if solver is gmres else {}

    @jax.jit
    def of(scale):
        M = lambda r: r * (1 + scale * D)  # noqa: E731
        return solver(S, B, M=M, rtol=1e-12, maxiter=5, history=True, adjoint="unrolled", **options)

    sol, loop = of(0.1), solver(S, B, M=lambda r: r * (1 + 0.1 * D), rtol=1e-12, maxiter=5, history=True, **options)
    assert sol.status is loop.status is Status.MAXITER and sol.iterations == loop.iterations == 5
    np.testing.assert_allclose(sol.x, loop.x, rtol=1e-9)
    np.testing.assert_allclose(sol.history, loop.history, rtol=1e-9)
    slope = (of(0.1 + 1e-6).residual_norm - of(0.1 - 1e-6).residual_norm) / 2e-6
    assert float(jax.grad(lambda s: of(s).residual_norm)(0.1)) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("columns", [(), (2,)], ids=["one", "columns"])
def test_do_steps_after_the_tolerance_change_nothing_and_spoil_no_gradient(columns):
    b = np.random.default_rng(4).standard_normal((N, *columns))
    x = lambda b: cg(S, b, rtol=1e-10, maxiter=40, adjoint="unrolled").x  # noqa: E731
    sol = cg(S, b, rtol=1e-10, maxiter=40, adjoint="unrolled")
    assert np.all(sol.code == Status.CONVERGED) and np.all(sol.n_iterations <= N + 2)
    gradient = jax.grad(lambda b: jnp.sum(x(b)))(b)
    np.testing.assert_allclose(gradient, np.linalg.solve(S, np.ones_like(b)), rtol=1e-6)
    assert np.all(np.isfinite(jax.vmap(jax.grad(lambda b: jnp.sum(x(b) ** 2)))(jnp.stack([b, 0 * b]))))


def test_do_kernels_for_passes_over_vectors_have_the_derivative_of_their_plain_form():
    norm = lambda d: cg(S, B, M=lambda r: d * r, rtol=0.0, maxiter=3, adjoint="unrolled").residual_norm  # noqa: E731
    plain = jax.grad(norm)(D)
    with jsf.use_backend("interpret"):
        np.testing.assert_allclose(jax.grad(norm)(D), plain, rtol=1e-9)
