"""BiCGStab: its residual goes up on the way, and it starts again with a new shadow."""

import jax.numpy as jnp
import numpy as np

from solvers import Status, bicgstab


def test_systems_whose_residual_rises_on_the_way_are_solved():
    """A restart above the residual that it began with is no stagnation."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A, b = rng.standard_normal((40, 40)) + 3 * np.eye(40), rng.standard_normal(40)
        sol = bicgstab(jnp.asarray(A), b, rtol=1e-8, maxiter=4000)
        assert sol.status is Status.CONVERGED, sol
        np.testing.assert_allclose(sol.x, np.linalg.solve(A, b), rtol=1e-4, atol=1e-4)
