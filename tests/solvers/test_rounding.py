"""A solve that comes as near to the solution as its dtype allows is a success, and says so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import SolverError, Status, bicgstab, cg, direct, fcg, gmres, idrs, lsmr, minres, precond, refine, solve
from tests.solvers.methods import rotated

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
LIMIT = 10  # units of rounding


def backward_error(S, x, b):
    """‖b − A·x‖ / (‖A‖·‖x‖ + ‖b‖) in the 2-norm, in 64 bits."""
    x, b = np.asarray(x, float), np.asarray(b, float)
    norm = spla.svds(S, 1, return_singular_vectors=False, v0=np.ones(S.shape[0]))[0]
    return np.linalg.norm(b - S @ x) / (norm * np.linalg.norm(x) + np.linalg.norm(b))


@pytest.mark.parametrize("method", [cg, minres, bicgstab, idrs, gmres], ids=lambda m: m.__name__)
def test_a_tolerance_that_rounding_forbids_ends_with_a_success_of_a_small_backward_error(method):
    S = jsf.gallery.poisson(8)
    A, b = jsf.from_scipy(S, "csr", dtype="float32"), np.ones(S.shape[0], np.float32)
    sol = method(A, b, rtol=EPS["float32"])
    assert sol.status is Status.ROUNDED and sol.success and sol.raise_for_status() is sol
    assert backward_error(S, sol.x, b) <= LIMIT * EPS["float32"]
    x, info = sol
    assert info == 0 and x is sol.x
    np.testing.assert_allclose(sol.residual_norm, np.linalg.norm(b - S @ np.asarray(sol.x, float)), rtol=0.5)
    exact = backward_error(S, sol.x, b)
    for own in (A, lambda v: A @ v):
        assert 0.5 * exact <= float(sol.backward_error(own, b)) <= 5 * exact
    assert "accurate" in sol.status.message and method(A, b, rtol=1e-9).status is Status.STAGNATION  # below eps: more
    more = method(A, b, rtol=0)  # a recursion that falls on is not followed for long
    assert more.status is Status.STAGNATION and more.iterations <= 8 * sol.iterations


@pytest.mark.parametrize("method", [cg, fcg, minres, bicgstab, idrs, gmres, refine, lsmr, solve, direct])
def test_with_all_defaults_a_well_posed_system_in_32_bits_is_solved(method):
    S = jsf.gallery.poisson(14)
    b = np.ones(S.shape[0])
    with jax.enable_x64(False):
        sol = method(jsf.from_scipy(S), b)
        assert sol.success, sol
    assert backward_error(S, sol.x, b) <= LIMIT * EPS["float32"]


def test_every_system_of_several_has_its_own_status():
    S = jsf.gallery.poisson(8)
    B = np.stack([np.ones(S.shape[0]), S @ np.random.default_rng(0).standard_normal(S.shape[0])], 1).astype("float32")
    sol = cg(jsf.from_scipy(S, "csr", dtype="float32"), B, rtol=3e-7)
    assert sol.code.tolist() == [Status.ROUNDED, Status.CONVERGED] and sol.success.tolist() == [True, True]
    assert sol.backward_error(jsf.from_scipy(S, "csr", dtype="float32"), B).shape == (2,)
    assert sol.raise_for_status() is sol and tuple(sol)[1].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", EPS)
def test_a_solve_with_a_preconditioner_or_refined_to_the_limit_of_the_wide_type_is_a_success(dtype):
    S = jsf.gallery.convection_diffusion(8) if dtype == "float32" else jsf.gallery.poisson(8)
    A, b = jsf.from_scipy(S, "csr", dtype=dtype), np.ones(S.shape[0], dtype)
    solve = functools.partial(gmres, M=precond.incomplete_lu(A)) if dtype == "float32" else refine
    sol = solve(A, b, rtol=EPS[dtype])
    assert sol.status is Status.ROUNDED and backward_error(S, sol.x, b) <= LIMIT * EPS[dtype]


def test_inside_jit_and_in_derivatives_it_is_a_success_too():
    S = jsf.gallery.poisson(8)
    A, b = jsf.from_scipy(S, "csr", dtype="float32"), jnp.ones(S.shape[0], jnp.float32)

    def loss(b):
        sol = cg(A, b)
        return sol.x.sum(), sol.success

    (_, success), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(b)
    assert success and np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient, np.linalg.solve(S.toarray(), np.ones(S.shape[0])), rtol=1e-4)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("failing", ["singular", "ill-conditioned", "few steps"])
def test_a_residual_that_is_not_small_beside_b_is_never_called_rounding(failing, dtype):
    n = 60
    of = {"singular": np.r_[np.ones(n - 1), 0], "ill-conditioned": np.geomspace(1, EPS[dtype] / 10, n)}
    S = rotated(of.get(failing, np.geomspace(1, 1e-3, n)), 1)
    sol = cg(jnp.asarray(S, dtype), np.ones(n, dtype), maxiter=5 if failing == "few steps" else 500)
    assert not sol.success and sol.status is not Status.ROUNDED
    with pytest.raises(SolverError):
        sol.raise_for_status()
    assert direct(jsf.from_dense(S, dtype=dtype), np.ones(n, dtype)).status is not Status.ROUNDED


@pytest.mark.parametrize("b", [np.ones(4), np.ones((3, 2))], ids=["longer", "columns"])
def test_is_a_b_of_another_shape_refused_by_backward_error(b):
    sol = cg(jnp.eye(3), np.ones(3))
    with pytest.raises(ValueError, match=r"b has shape .*; A·x has"):
        sol.backward_error(jnp.eye(3), b)
