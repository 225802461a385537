"""BiCGStab: its residual goes up on the way, and it starts again with a new shadow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import Status, bicgstab, idrs
from tests.marks import few


def test_systems_whose_residual_rises_on_the_way_are_solved():
    """A restart above the residual that it began with is no stagnation."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A, b = rng.standard_normal((40, 40)) + 3 * np.eye(40), rng.standard_normal(40)
        sol = bicgstab(jnp.asarray(A), b, rtol=1e-8, maxiter=4000)
        assert sol.status is Status.CONVERGED, sol
        np.testing.assert_allclose(sol.x, np.linalg.solve(A, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", few([bicgstab, idrs], 1))
def test_does_an_x_that_follows_a_null_vector_end_as_diverged_in_a_batch_and_alone(solver):
    """x overflows, and A, whose last column is 0, does not see it."""
    A, B = np.diag(np.array([1, 2, 3, 0], np.float32)), np.random.default_rng(0).standard_normal((8, 4)).astype("f4")
    solve = jax.jit(jax.vmap(lambda A, b: solver(A, b).code))
    assert np.all(solve(np.stack([A] * 8), B) == Status.DIVERGED)
    assert solver(jnp.asarray(A), B[0]).status is Status.DIVERGED
