"""GMRES: what its breakdown hangs on, and inner solves as preconditioners."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import Status, cg, gmres

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


def test_an_inner_solve_as_preconditioner_has_derivatives():
    """It has no transposed; the derivative, which M does not change, is solved for without."""

    def total(b):
        inner = lambda r: cg(jnp.asarray(D), r, rtol=0.1, maxiter=5).x  # noqa: E731
        return gmres(jnp.asarray(D), b, M=inner, flexible=True, rtol=1e-10).x.sum()

    gradient = jax.grad(total)(jnp.asarray(B))
    np.testing.assert_allclose(gradient, np.linalg.solve(D.T, np.ones(N)), rtol=1e-6)
