"""`cg` inside jit, vmap and grad: counts, derivatives, and what compiles anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import cg
from tests.marks import few
from tests.solvers.test_cg import N, system


def test_an_array_as_M_is_the_diagonal_matrix_that_it_lists():
    _, A, b = system()
    d = 1 / (A.diagonal() + 0.5)
    want = cg(lambda v: A @ v + 0.5 * v, b, M=lambda r: d * r, rtol=1e-10)
    for M in (d, np.asarray(d), jnp.diag(d)):
        sol = cg(lambda v: A @ v + 0.5 * v, b, M=M, rtol=1e-10)
        assert sol.iterations == want.iterations
        np.testing.assert_allclose(sol.x, want.x, rtol=1e-12)
    assert np.all(cg(A, np.stack([b, 2 * b], axis=1), M=d).success)


def dense_solution(S, data, b):
    row, col = S.nonzero()
    return jnp.linalg.solve(jnp.zeros(S.shape, data.dtype).at[row, col].set(data), b)


@pytest.mark.parametrize("dtype", few([np.float64, np.complex128], 1))
def test_gradient_is_that_of_the_dense_solution(dtype):
    """With respect to data and b, at first order and for all four ways to the second."""
    S, A, b = system(dtype=dtype)
    w = jnp.asarray(np.random.default_rng(4).standard_normal(N))
    ours = lambda d, b: jnp.sum(w * jnp.abs(cg(A.with_data(d), b, rtol=1e-14, maxiter=2000).x) ** 2)  # noqa: E731
    dense = lambda d, b: jnp.sum(w * jnp.abs(dense_solution(S, d, b)) ** 2)  # noqa: E731
    point = (A.data, b)
    along = tuple(jnp.asarray(np.random.default_rng(6).standard_normal(p.shape), p.dtype) for p in point)

    def derivatives(f, point):
        grad = jax.grad(f, (0, 1))
        along_gradient = lambda *p: sum(jnp.vdot(a, g).real for a, g in zip(along, grad(*p), strict=True))  # noqa: E731
        forward = lambda *p: jax.jvp(f, p, along)[1]  # noqa: E731
        return {
            "gradient": grad(*point),
            "forward": forward(*point),
            "forward over reverse": jax.jvp(grad, point, along)[1],
            "reverse over reverse": jax.grad(along_gradient, (0, 1))(*point),
            "reverse over forward": jax.grad(forward, (0, 1))(*point),
            "forward over forward": jax.jvp(forward, point, along)[1],
        }

    got, want = (jax.jit(derivatives, static_argnums=0)(f, point) for f in (ours, dense))
    for name in want:
        for g, w_ in zip(jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True):
            scale = float(jnp.max(jnp.abs(w_)))
            np.testing.assert_allclose(g, w_, rtol=1e-6, atol=1e-8 * scale, err_msg=name)


@pytest.mark.deep
def test_x0_and_M_carry_no_derivative_and_a_far_x0_does_not_spoil_it():
    _, A, b = system()
    f = lambda b, x0, s: cg(A, b, x0, M=lambda r: s * r, rtol=1e-12).x.sum()  # noqa: E731
    gb, gx, gs = jax.grad(f, (0, 1, 2))(b, 1e6 * jnp.ones(N), 2.0)
    assert not np.any(gx) and gs == 0
    np.testing.assert_allclose(gb, cg(A, jnp.ones(N), rtol=1e-12).x, rtol=1e-6)
