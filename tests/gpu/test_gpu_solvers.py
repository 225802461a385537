"""cg on a GPU: the answer, the count, the status and the derivative, through the kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, cg, precond

pytestmark = pytest.mark.gpu

S = jsf.gallery.poisson(24)
B = np.random.default_rng(0).standard_normal(S.shape[0])


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
def test_agrees_with_scipy_in_answer_and_count(backend):
    count = 0

    def tick(_):
        nonlocal count
        count += 1

    want, _ = spla.cg(S, B, rtol=1e-10, callback=tick)
    sol = cg(jsf.from_scipy(S, "hll", backend=backend), B, rtol=1e-10)
    assert sol.success and abs(sol.iterations - count) <= 1
    np.testing.assert_allclose(sol.x, want, rtol=1e-7, atol=1e-9)


def test_checking_less_often_changes_neither_count_nor_answer():
    A = jsf.from_scipy(S)
    one, ten = (cg(A, B, rtol=1e-9, history=True, check_every=k) for k in (1, 10))
    assert one.iterations == ten.iterations
    np.testing.assert_allclose(one.x, ten.x, rtol=1e-12)
    np.testing.assert_allclose(one.history, ten.history, rtol=1e-9)


def test_repeats_to_the_last_bit():
    A = jsf.from_scipy(S)
    np.testing.assert_array_equal(cg(A, B).x, cg(A, B).x)


def test_a_failure_has_a_status_and_a_finite_x():
    A = jsf.from_scipy(S)
    for sol, status in (
        (cg(-A, B), Status.NOT_POSITIVE_DEFINITE),
        (cg(A, B * np.nan), Status.NON_FINITE),
        (cg(A, B, maxiter=3), Status.MAXITER),
    ):
        assert sol.status is status and np.all(np.isfinite(sol.x))


def test_the_gradient_is_that_of_the_exact_solution():
    """d/db of wᵀA⁻¹b is A⁻¹w, d/dA is −(A⁻¹w)(A⁻¹b)ᵀ on the pattern."""
    A = jsf.from_scipy(S)
    w = np.random.default_rng(1).standard_normal(S.shape[0])
    loss = jax.jit(lambda data, A, b: jnp.vdot(w, cg(A.with_data(data), b, M=precond.jacobi(A), rtol=1e-12).x))
    by_data, by_b = jax.grad(loss, (0, 2))(A.data, A, B)
    x, y = spla.spsolve(S.tocsc(), B), spla.spsolve(S.tocsc(), w)
    row, col = S.nonzero()
    np.testing.assert_allclose(by_b, y, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(by_data, -y[row] * x[col], rtol=1e-6, atol=1e-8)
