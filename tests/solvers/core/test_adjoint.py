"""Derivatives of solves: what their own residual decides, and what passes through nested and transposed solves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import Adjoint, Status, bicgstab, cg, eigsh, fcg, gmres, minres
from tests.marks import few
from tests.solvers.methods import rotated

N = 12
RNG = np.random.default_rng(5)
B = RNG.standard_normal((N, 4))
W, RHS = RNG.standard_normal(N), RNG.standard_normal(N)
NARROW_RHS = RNG.standard_normal(4)
METHODS = [cg, fcg, minres, gmres, bicgstab]
every_method = pytest.mark.parametrize("solver", METHODS, ids=lambda s: s.__name__)


S = rotated(np.geomspace(1, 100, N), N)
HARD = rotated(np.geomspace(1, 1e5, 60), 60)
GENERAL = S + 0.5 * np.triu(RNG.standard_normal((N, N)))


def agree(x, y, rtol=1e-7):
    np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.max(np.abs(y)))


@pytest.mark.parametrize("mode", few(["reverse", "forward", "mapped"], 1))
def test_does_a_derivative_stopped_short_end_as_nan(mode):
    w = np.random.default_rng(7).standard_normal(60)  # a random functional needs every eigenvector

    def gradient(adjoint):
        x = lambda b: cg(HARD, b, HARD @ w, rtol=1e-6, maxiter=2000, adjoint=adjoint).x  # noqa: E731
        if mode == "forward":
            return jax.jvp(x, (w,), (w,))[1]
        of_one = jax.grad(lambda b: w @ x(b))
        return of_one(w) if mode == "reverse" else jax.vmap(of_one)(jnp.stack([w, 2 * w]))[1]

    exact = np.linalg.solve(HARD, w)
    agree(gradient(Adjoint(rtol=1e-10)), exact, 1e-4)
    assert np.all(np.isnan(gradient(Adjoint(maxiter=10))))
    truncated = gradient(Adjoint(maxiter=10, truncated=True))
    assert np.all(np.isfinite(truncated)) and np.linalg.norm(truncated - exact) > 0.1 * np.linalg.norm(exact)


def test_does_a_tolerance_below_rounding_leave_a_derivative():
    gradient = jax.grad(lambda b: W @ cg(S, b, rtol=0.0, atol=1e-9).x)(RHS)
    agree(gradient, np.linalg.solve(S, W), 1e-12)


def test_does_the_report_tell_how_each_system_ended():
    told = []
    adjoint = Adjoint(rtol=1e-9, report=lambda *how: told.append(how))
    gradient = jax.grad(lambda b: W @ cg(S, b, adjoint=adjoint).x)(RHS)
    jax.effects_barrier()
    ((status, iterations, residual),) = told
    assert status is Status.CONVERGED and 3 < iterations <= 2 * N
    assert (
        residual == pytest.approx(np.linalg.norm(W - S @ gradient) / np.linalg.norm(W), rel=1e-3) and residual <= 1e-9
    )
    assert np.all(np.isnan(jax.grad(lambda b: W @ cg(S, b, maxiter=2, adjoint=adjoint).x)(RHS)))
    jax.effects_barrier()
    assert told[1][0] is Status.MAXITER  # that of the solve


def test_is_the_gradient_of_cg_nan_where_the_matrix_is_not_symmetric_though_cg_converges():
    A = S + 1e-3 * np.triu(RNG.standard_normal((N, N)))
    told = []
    adjoint = Adjoint(report=lambda *how: told.append(how))
    assert cg(A, RHS, rtol=1e-8).success
    gradient = jax.grad(lambda b: W @ cg(A, b, rtol=1e-8, adjoint=adjoint).x)(RHS)
    jax.effects_barrier()
    assert np.all(np.isnan(gradient)) and told[0][0] is Status.NOT_SYMMETRIC
    loose = jax.grad(lambda b: W @ cg(A, b, rtol=1e-8, adjoint=Adjoint(rtol=1e-2)).x)(RHS)
    agree(loose, np.linalg.solve(A.T, W), 1e-1)


@pytest.mark.deep
def test_is_the_derivative_of_a_residual_norm_nan_and_never_zero():
    norm = lambda scale: cg(S, RHS, M=lambda r: scale * r, maxiter=3).residual_norm  # noqa: E731
    assert np.isnan(jax.grad(norm)(1.0)) and np.isnan(jax.jvp(norm, (1.0,), (1.0,))[1])
    assert np.all(np.isnan(jax.grad(lambda b: cg(S, b).residual_norm)(RHS)))
    assert np.all(np.isnan(jax.grad(lambda b: jnp.nansum(cg(S, b, history=5).norms))(RHS)))
    assert np.all(np.isnan(jax.grad(lambda x0: cg(S, RHS, x0).residual_norm)(RHS)))
    assert np.all(np.isnan(jax.grad(lambda A: eigsh(A, 1).residual_norms[0])(jnp.asarray(S))))


@pytest.mark.parametrize("how", few(["aux", "carried", "collected"], 1))
def test_does_a_norm_that_the_loss_does_not_read_leave_the_gradient_alone(how):
    def loss(b):
        if how == "aux":
            sol = jax.jit(lambda b: cg(S, b, rtol=1e-12))(b)
            return W @ sol.x, sol

        def step(carry, _):
            sol = cg(S, b, rtol=1e-12)
            return ((sol.x, sol.residual_norm), None) if how == "carried" else ((sol.x, 0.0), sol.residual_norm)

        (x, _), norms = jax.lax.scan(step, (jnp.zeros(N), 0.0), length=2)
        return W @ x, norms

    agree(jax.grad(loss, has_aux=True)(jnp.asarray(RHS))[0], np.linalg.solve(S, W))


def schur(solver):
    """(Bᵀ·S⁻¹·B)⁻¹·c, squared: an inner solve inside the outer one's matrix."""
    inner = lambda B, v: solver(S, B @ v, rtol=1e-12).x  # noqa: E731
    return lambda B: jnp.sum(solver(lambda v: B.T @ inner(B, v), NARROW_RHS, rtol=1e-10).x ** 2)


def schur_dense(B):
    return jnp.sum(jnp.linalg.solve(B.T @ jnp.linalg.solve(S, B), NARROW_RHS) ** 2)


@pytest.mark.deep
@pytest.mark.parametrize("solver", [cg, gmres], ids=["cg", "gmres"])
def test_does_reverse_mode_pass_through_a_solve_inside_a_solve(solver):
    agree(jax.grad(schur(solver))(B), jax.grad(schur_dense)(B))


@pytest.mark.deep
def test_do_second_derivatives_pass_through_a_solve_inside_a_solve():
    along = lambda f: jax.jvp(jax.grad(f), (B,), (np.ones_like(B),))[1]  # noqa: E731
    agree(along(schur(cg)), along(schur_dense), 1e-6)


@pytest.mark.deep
@every_method
def test_is_a_solve_linear_in_b_to_jax(solver):
    A = GENERAL if solver in (gmres, bicgstab) else S
    x = lambda b: solver(A, b, rtol=1e-12).x  # noqa: E731
    (back,) = jax.linear_transpose(x, RHS)(W)
    agree(back, np.linalg.solve(A.T, W))
    columns = np.stack([W, 2 * W])
    agree(jax.vmap(lambda w: jax.linear_transpose(x, RHS)(w)[0])(columns), np.linalg.solve(A.T, columns.T).T)
    (mapped,) = jax.linear_transpose(jax.vmap(x), columns)(columns)
    agree(mapped, np.linalg.solve(A.T, columns.T).T)


def test_is_the_transposed_solve_differentiated_with_the_transposed_matrix():
    back = lambda A: W @ jax.linear_transpose(lambda b: gmres(A, b, rtol=1e-12).x, RHS)(W)[0]  # noqa: E731
    agree(jax.grad(back)(jnp.asarray(GENERAL)), jax.grad(lambda A: W @ jnp.linalg.solve(A.T, W))(jnp.asarray(GENERAL)))


def test_is_a_solve_not_linear_in_its_matrix():
    with pytest.raises(TypeError, match="needs a function of b alone"):
        jax.linear_transpose(lambda A: cg(A, RHS).x, jnp.asarray(S))(W)


@pytest.mark.parametrize("solver", [cg, gmres], ids=["cg", "gmres"])
def test_does_custom_root_take_a_solver_for_its_tangents(solver):
    def root(c):
        f = lambda x: S @ x + x**3 / 10 - c  # noqa: E731

        def newton(f, x):
            return jax.lax.fori_loop(0, 20, lambda _, x: x - jnp.linalg.solve(jax.jacfwd(f)(x), f(x)), x)

        solve = lambda g, y: solver(g, y, rtol=1e-12).x  # noqa: E731
        return jax.lax.custom_root(f, jnp.zeros(N), newton, solve)

    x = root(jnp.asarray(RHS))
    agree(jax.grad(lambda c: W @ root(c))(jnp.asarray(RHS)), np.linalg.solve(S + np.diag(3 * x**2 / 10), W))


@pytest.mark.deep
def test_does_an_inner_solve_as_preconditioner_have_a_transpose():
    M = lambda r: gmres(GENERAL, r, rtol=1e-3).x  # noqa: E731
    told = []
    adjoint = Adjoint(report=lambda *how: told.append(how))
    gradient = jax.grad(lambda b: W @ gmres(GENERAL, b, M=M, flexible=True, rtol=1e-10, adjoint=adjoint).x)(RHS)
    jax.effects_barrier()
    agree(gradient, np.linalg.solve(GENERAL.T, W))
    assert told[0][1] <= 5  # with Mᵀ; without, N


def test_can_forward_mode_do_without_the_transpose_of_a_preconditioner():
    def M(r):  # JAX cannot transpose a while loop
        return jax.lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] + 0.1 * (r - GENERAL @ s[1])), (0, 0 * r)
        )[1]

    x = functools.partial(gmres, GENERAL, M=M, flexible=True, rtol=1e-12)
    agree(jax.jvp(lambda b: x(b).x, (RHS,), (W,))[1], np.linalg.solve(GENERAL, W))


@pytest.mark.deep
def test_is_a_solve_inside_a_preconditioner_told_from_the_same_solve_outside():
    """JAX keeps the transpose of a compiled function, and only one of the two may be rough."""
    C = jnp.asarray(3 * np.eye(12) - np.eye(12, k=-1) - 0.5 * np.eye(12, k=1))
    b = jnp.arange(1.0, 13.0)
    inner = lambda r: gmres(C, r, maxiter=2, adjoint=Adjoint(maxiter=2)).x  # noqa: E731
    outer = lambda b: jnp.sum(gmres(C, b, M=inner, flexible=True, rtol=1e-10).x ** 2)  # noqa: E731
    alone = lambda b: jnp.sum(inner(b) ** 2)  # noqa: E731
    x = np.linalg.solve(C, b)
    for _ in range(2):
        np.testing.assert_allclose(jax.grad(outer)(b), np.linalg.solve(C.T, 2 * x), rtol=1e-4)
        assert np.isnan(jax.grad(alone)(b)).all()
