"""MINRES on singular systems, with and without a solution; the pseudoinverse answers."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, minres
from tests.marks import few
from tests.solvers.methods import neumann, rotated

N = 48


def spectrum(kind: str) -> np.ndarray:
    """Eigenvalues, a quarter of them zero."""
    d = np.geomspace(1, 1e-2, N)
    d *= np.where(np.arange(N) % 3 == 0, -1, 1) if kind == "indefinite" else 1
    return np.where(np.arange(N) % 4 == 1, 0, d)


def vector(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N)


SINGULAR = {
    "semidefinite": rotated(spectrum("semidefinite")),
    "indefinite": rotated(spectrum("indefinite")),
    "diagonal": np.diag(spectrum("indefinite")),
    "neumann": neumann(N).toarray(),
    "rank one": np.outer(vector(7), vector(7)),
}


@pytest.mark.parametrize("name", few(SINGULAR, 1))
def test_does_it_end_at_a_least_squares_solution_where_there_is_none(name):
    A, b = SINGULAR[name], vector()
    pseudoinverse = np.linalg.pinv(A, rcond=1e-10, hermitian=True)
    sol = minres(jnp.asarray(A), b, rtol=1e-10)
    assert sol.status is Status.LEAST_SQUARES and not sol.success and "lsmr" in sol.status.message
    x = np.asarray(sol.x)
    least, residual = np.linalg.norm(b - A @ pseudoinverse @ b), np.linalg.norm(b - A @ x)
    assert residual <= (1 + 1e-6) * least and float(sol.residual_norm) == pytest.approx(residual, rel=1e-9)
    # It is the shortest one up to a null vector, and that is of its own size rather than of 1 / eps.
    np.testing.assert_allclose(A @ x, A @ pseudoinverse @ b, atol=1e-5 * np.linalg.norm(b))
    assert np.linalg.norm(x) <= 1e4 * max(np.linalg.norm(pseudoinverse @ b), np.linalg.norm(b))


@pytest.mark.parametrize("name", few(SINGULAR, 1))
def test_does_it_find_the_shortest_solution_where_there_are_many(name):
    A = SINGULAR[name]
    b = A @ vector()
    sol = minres(jnp.asarray(A), b, rtol=1e-10)
    assert sol.status is Status.CONVERGED
    want = np.linalg.pinv(A, rcond=1e-10, hermitian=True) @ b
    np.testing.assert_allclose(sol.x, want, atol=1e-6 * np.linalg.norm(want))


@pytest.mark.parametrize(("kind", "status"), [("diagonal", Status.BREAKDOWN), ("commutes", Status.LEAST_SQUARES)])
def test_is_a_preconditioned_residual_called_the_least_only_where_it_is(kind, status):
    """Any M makes rᴴ·M·r least, and ‖r‖ only where M maps null vectors of A to such."""
    A, b, m = SINGULAR["indefinite"], vector(), np.geomspace(0.2, 5, N)
    M = np.diag(m) if kind == "diagonal" else np.linalg.inv(2 * np.eye(N) + A)
    sol = minres(jnp.asarray(A), b, M=jnp.asarray(M), rtol=1e-10)
    least = np.linalg.norm(b - A @ np.linalg.pinv(A, rcond=1e-10, hermitian=True) @ b)
    assert sol.status is status and (float(sol.residual_norm) <= 1.001 * least) == (kind == "commutes")
    assert minres(jnp.asarray(A), A @ b, M=jnp.asarray(M), rtol=1e-10).success


def test_is_the_best_x_kept_where_rounding_makes_it_grow():
    """Of a smooth kernel, of rank 20 within rounding: the residual of the recursion falls, the true one grows."""
    t = np.linspace(0, 1, 100)
    A, b = np.exp(-10 * (t[:, None] - t) ** 2), np.sin(3 * t) + 0.01 * np.random.default_rng(0).standard_normal(100)
    sol = minres(jnp.asarray(A), b, rtol=1e-10)
    assert sol.status is not Status.CONVERGED and np.linalg.norm(b - A @ np.asarray(sol.x)) <= 0.02 * np.linalg.norm(b)


def test_is_a_shifted_matrix_solved_where_the_shift_is_no_eigenvalue():
    """And has it a least-squares solution where it is one."""
    d = np.where(spectrum("indefinite") == 0, 0.5, spectrum("indefinite"))
    A, b = jnp.asarray(rotated(d)), vector()
    between = minres(lambda v: A @ v - 0.45 * v, b, rtol=1e-9)
    assert between.status is Status.CONVERGED
    np.testing.assert_allclose(between.x, np.linalg.solve(np.asarray(A) - 0.45 * np.eye(N), b), rtol=1e-5, atol=1e-7)
    assert minres(lambda v: A @ v - 0.5 * v, b, rtol=1e-9).status is Status.LEAST_SQUARES


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_is_a_grid_without_boundary_values_solved_in_the_sense_of_least_squares(dtype):
    """x is zero where b is a null vector: A·b is zero in the first case, and rounding in the second."""
    ends = sp.diags_array([1.0, *[2.0] * 18, 1.0]) - sp.eye_array(20, k=1) - sp.eye_array(20, k=-1)
    S = sp.csr_array(sp.kronsum(ends, ends))
    d = np.random.default_rng(0).uniform(0.5, 2, 400)
    for scale in (np.ones(400), d):
        A = jsf.from_scipy(sp.csr_array(sp.diags_array(1 / scale) @ S @ sp.diags_array(1 / scale)).astype(dtype), "csr")
        sol = minres(A, jnp.asarray(scale, dtype))
        assert sol.status is Status.LEAST_SQUARES and sol.iterations == 0 and not np.any(sol.x)
        sol = minres(A, jnp.asarray(np.cos(np.arange(400)) + 0.5, dtype))
        assert sol.status is Status.LEAST_SQUARES and np.max(np.abs(sol.x)) < 1e3


def test_is_a_tiny_negative_M_named():
    A = jnp.eye(N)
    assert minres(A, vector(), M=jnp.full(N, -1e-20)).status is Status.NOT_POSITIVE_DEFINITE
    assert minres(A, vector(), M=jnp.full(N, 1e-20)).status is Status.CONVERGED


@pytest.mark.parametrize("condition", [1e4, 1e6, 1e8])
def test_is_a_hard_system_never_called_one_without_solution(condition):
    """Its smallest eigenvector is most of b: there A·r is small, too, far from the solution."""
    d = np.geomspace(1, 1 / condition, N) * np.where(np.arange(N) % 2, -1, 1)
    A = rotated(d)
    b = np.linalg.eigh(A)[1][:, np.argmin(np.abs(np.linalg.eigvalsh(A)))] + 1e-3 * vector()
    sol = minres(jnp.asarray(A), b, rtol=1e-6, maxiter=40 * N)
    assert sol.status in (Status.CONVERGED, Status.MAXITER, Status.STAGNATION)


def test_are_columns_with_and_without_solution_told_apart():
    A = SINGULAR["indefinite"]
    B = np.stack([A @ vector(), vector(2), np.zeros(N)], 1)
    sol = minres(jnp.asarray(A), B, rtol=1e-9)
    assert sol.iterations[2] == 0 and not np.any(sol.x[:, 2])
    assert [Status(int(c)) for c in sol.status] == [Status.CONVERGED, Status.LEAST_SQUARES, Status.CONVERGED]


def test_is_a_least_squares_solution_beyond_the_dtype_told():
    A, b = SINGULAR["indefinite"], vector()
    sol = minres(jnp.asarray(1e-15 * A, jnp.float32), jnp.asarray(1e30 * b, jnp.float32), rtol=1e-5)
    assert sol.status is Status.OUT_OF_RANGE and np.all(np.isfinite(sol.x))


def test_does_a_complex_symmetric_matrix_end_the_solve_at_the_first_look():
    S = sp.csr_array(sp.diags_array([-1, 1.7 + 0.2j, -1], offsets=[-1, 0, 1], shape=(512, 512)))
    sol = minres(jsf.from_scipy(S), np.random.default_rng(0).standard_normal(512) + 0j)
    assert sol.status is Status.NOT_SYMMETRIC and sol.iterations < 50
