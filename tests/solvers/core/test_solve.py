"""The door: pytrees and grids as unknowns, and what a Solution unpacks to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import bicgstab, cg, fcg, gmres, minres
from tests.marks import few

METHODS = [cg, fcg, minres, gmres, bicgstab]
RNG = np.random.default_rng(0)
U, V = RNG.standard_normal((2, 3)), RNG.standard_normal(4)


def coupled(t):
    """Symmetric positive definite over {"u": [2, 3], "v": [4]}."""
    total = jnp.sum(t["u"]) + jnp.sum(t["v"])
    return {"u": 3 * t["u"] + 0.1 * total, "v": 5 * t["v"] + 0.1 * total}


MATRIX = np.diag([3.0] * 6 + [5.0] * 4) + 0.1
FLAT = np.linalg.solve(MATRIX, np.concatenate([U.ravel(), V]))


@pytest.mark.parametrize("solver", few(METHODS, 2), ids=lambda s: s.__name__)
def test_does_every_solver_take_a_dictionary_of_arrays(solver):
    b = {"u": U, "v": V}
    sol = solver(coupled, b, {"u": 0 * U, "v": 0 * V}, M=lambda t: jax.tree.map(lambda a: a / 4, t), rtol=1e-9)
    assert sol.success and sol.x["u"].shape == (2, 3)
    np.testing.assert_allclose(np.concatenate([sol.x["u"].ravel(), sol.x["v"]]), FLAT, rtol=1e-7)


def test_are_pytrees_differentiated_and_shown_to_a_callback():
    seen = []
    cg(coupled, {"u": U, "v": V}, callback=lambda x: seen.append(x["u"].shape))
    jax.effects_barrier()
    assert set(seen) == {(2, 3)}
    gradient = jax.jit(jax.grad(lambda b: jnp.sum(cg(coupled, b, rtol=1e-12).x["v"])))({"u": U, "v": V})
    exact = np.linalg.solve(MATRIX, [0.0] * 6 + [1.0] * 4)
    np.testing.assert_allclose(np.concatenate([gradient["u"].ravel(), gradient["v"]]), exact, rtol=1e-9)


@pytest.mark.parametrize("b", few([[U], ((U, V),), U, np.ones((2, 2, 2)), 3.0, [1.0, 2.0]], 1), ids=str)
def test_has_x_the_structure_of_b(b):
    sol = cg(lambda t: jax.tree.map(lambda a: 2 * a, t), b)
    as_array = isinstance(b, list) and isinstance(b[0], float)
    expected = np.array(b) / 2 if as_array else jax.tree.map(lambda a: np.asarray(a) / 2, b)
    assert as_array or jax.tree.structure(sol.x) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y), sol.x, expected)


@pytest.mark.parametrize("solver", few(METHODS, 2), ids=lambda s: s.__name__)
def test_is_an_array_of_two_axes_one_unknown_to_a_function(solver):
    """X·Mᵀ = B with a square B: k systems of columns would have the matrix M itself."""
    left = np.diag([3.0, 4.0, 5.0]) + 0.2
    right = left if solver not in (gmres, bicgstab) else left + np.triu(np.ones((3, 3)), 1)
    B, A = np.arange(9.0).reshape(3, 3), lambda X: X @ jnp.asarray(right).T
    sol = solver(A, B, M=lambda R: R / 4, rtol=1e-10)
    assert sol.code.shape == () and sol.success
    np.testing.assert_allclose(sol.x, np.linalg.solve(right, B.T).T, rtol=1e-8)
    with pytest.raises(ValueError, match=r"M has shape \(3, 3\); a system with b of length 9"):
        solver(A, B, M=np.eye(3))


@pytest.mark.parametrize("M", few([None, np.full(8, 0.5, np.float32)], 1))
def test_a_solve_that_converges_computes_no_product_to_examine_a_failure(M):
    calls, d = [], np.arange(1, 9, dtype=np.float32)

    def times(v):
        calls.append(1)
        return np.asarray(v) * d

    A = lambda v: jax.pure_callback(times, jax.ShapeDtypeStruct(v.shape, v.dtype), v)  # noqa: E731
    solution = cg(A, jnp.ones(8), M=M)
    assert solution.success
    jax.block_until_ready(solution.x)
    assert len(calls) == 1 + solution.iterations + 1  # for the scale of A, in the steps, for the true residual
