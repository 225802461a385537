"""GMRES: what its breakdown hangs on, and inner solves as preconditioners."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg as spla
from scipy.linalg import block_diag

from solvers import Status, gmres
from tests.marks import few

N = 20
D = np.diag(np.arange(N) + 3.0) - np.eye(N, k=1) - 0.5 * np.eye(N, k=-1)
B = np.random.default_rng(0).standard_normal(N)


@pytest.mark.parametrize(("scale", "dtype"), [(1e-9, "float32"), (1e9, "float32"), (1e-17, "float64")])
def test_the_scale_of_a_matrix_is_no_breakdown(scale, dtype):
    exact = gmres(jnp.asarray(D, dtype), jnp.asarray(B, dtype), rtol=1e-4)
    sol = gmres(jnp.asarray(scale * D, dtype), jnp.asarray(B, dtype), rtol=1e-4)
    assert sol.status is exact.status is Status.CONVERGED and sol.iterations == exact.iterations
    np.testing.assert_allclose(scale * np.asarray(sol.x, float), exact.x, rtol=1e-3, atol=1e-5)


def test_a_direction_that_the_matrix_forgets_is_a_breakdown():
    A = np.diag([1.0, 2.0, 0.0])
    assert gmres(jnp.asarray(A), np.array([0.0, 0.0, 1.0])).status is Status.BREAKDOWN


def network() -> np.ndarray:
    """The Laplacian of a grounded power network: a tree with loops, its conductances over four decades."""
    n, rng = 300, np.random.default_rng(2)
    i = np.concatenate([np.arange(1, n), rng.integers(0, n, n // 3)])
    j = np.concatenate([[rng.integers(max(0, k - 20), k) for k in range(1, n)], rng.integers(0, n, n // 3)])
    L = np.zeros((n, n))
    np.add.at(L, (i, j), -(10 ** rng.uniform(0, 4, i.size)) * (i != j))
    L = L + L.T
    ground = np.where(np.arange(n) % 100 == 50, 100, 0)
    return np.diag(ground - L.sum(axis=1)) + L


@pytest.mark.parametrize("rtol", few([1e-5, 1e-8], 1))
def test_is_a_power_network_solved_with_jacobi_as_scipy_does(rtol):
    S = network()
    b, d = np.ones(len(S)), np.diag(S)
    products = 0

    def product(v):
        nonlocal products
        products += 1
        return S @ v

    shape = S.shape
    M = spla.LinearOperator(shape, lambda r: r / d)
    _, info = spla.gmres(spla.LinearOperator(shape, product), b, M=M, rtol=rtol, restart=30, maxiter=200)
    assert info == 0
    sol = gmres(jnp.asarray(S), b, M=jnp.diag(1 / d), rtol=rtol, maxiter=6000)
    assert sol.status is Status.CONVERGED and sol.iterations <= 1.2 * products
    assert np.linalg.norm(b - S @ np.asarray(sol.x)) <= 1.01 * rtol * np.linalg.norm(b)


def test_does_it_stagnate_where_a_cycle_gains_nothing_also_beside_a_column_that_goes_on():
    turn = np.roll(np.eye(N), 1, axis=0)  # of a unit vector: GMRES gains nothing before step N
    A = block_diag(turn, np.diag(np.linspace(1, 30, N)))
    b = np.stack([np.eye(2 * N)[0], np.repeat([0.0, 1.0], N)], axis=1)
    sol = gmres(jnp.asarray(A), b, restart=5, rtol=1e-6)
    assert sol.code.tolist() == [Status.STAGNATION, Status.CONVERGED]
    assert sol.iterations[0] == 5 < 20 < sol.iterations[1]


def test_does_an_M_that_is_not_linear_end_the_first_cycle_whose_true_residual_grows():
    sol = gmres(jnp.asarray(D), B, M=jnp.abs, restart=5)
    assert sol.status is Status.STAGNATION and sol.iterations == 5


@pytest.mark.parametrize("b", [np.ones(50), np.ones((50, 3))], ids=["vector", "columns"])
def test_no_step_copies_the_basis_or_the_rotations(b):
    """Beside the zeros that the loop starts from."""
    solve = jax.jit(lambda A, b: gmres(A, b, restart=40).x)
    text = solve.lower(np.eye(50), b).compile().as_text()
    blocks = rf"f64\[{'3,' if b.ndim == 2 else ''}41,(?:41|50)\]\S* copy\("
    assert len(re.findall(blocks, text)) <= 1
