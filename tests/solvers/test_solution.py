"""Solution and Status: what they say outside jit, inside, and for several solves at once."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxsparse_fmt as jsf
from solvers import Solution, SolverError, Status, cg, precond


def solution(code: int, **fields) -> Solution:
    given = {"x": jnp.ones(3), "n_iterations": jnp.int32(4), "residual_norm": jnp.float64(0.5), "norms": None} | fields
    return Solution(code=jnp.int32(code), **given)


@pytest.mark.parametrize("status", Status)
def test_every_status_but_two_is_an_error_that_names_the_residual_and_the_cure(status):
    sol = solution(status)
    assert sol.status is status and status.message
    assert sol.success == (status in (Status.CONVERGED, Status.ROUNDED)) == (int(list(sol)[1]) == 0)
    assert status.name in repr(sol) and "\n" not in repr(sol)
    if sol.success:
        assert sol.raise_for_status() is sol
        return
    with pytest.raises(SolverError) as caught:
        sol.raise_for_status()
    assert caught.value.status is status
    for part in (status.name, "4 iterations", "0.5", status.message):
        assert part in str(caught.value)


def test_inside_jit_the_status_is_a_number():
    assert jax.jit(lambda s: jnp.where(s.success, 1, -1))(solution(0)) == 1
    assert jax.jit(lambda s: s.status == Status.MAXITER)(solution(Status.MAXITER))
    x, info = jax.jit(tuple)(solution(Status.MAXITER))  # as SciPy's
    assert x.shape == (3,) and int(info) > 0
    sol = solution(0)
    assert sol[0] is sol.x and sol[-1] == 0
    with pytest.raises(TypeError, match=r"traced here: .* or use sol\.success inside"):
        jax.jit(lambda s: s.raise_for_status().x)(solution(0))


@pytest.mark.parametrize("success", [Status.CONVERGED, Status.ROUNDED])
def test_of_several_solves_the_failed_one_is_reported(success):
    several = jax.tree.map(lambda *a: jnp.stack(a), solution(success), solution(Status.MAXITER))
    assert several.status.shape == (2,) and list(several.success) == [True, False]
    assert f"1 {success.name}" in repr(several) and "1 MAXITER" in repr(several)
    with pytest.raises(SolverError, match="MAXITER"):
        several.raise_for_status()


def test_a_status_prints_as_its_name():
    assert str(Status.MAXITER) == f"{Status.MAXITER}" == "MAXITER" and int(Status.MAXITER) == 1


def test_leaves_of_a_pytree_keep_their_dtypes_and_the_residual_is_that_of_the_result():
    b = {"u": jnp.ones(2, jnp.float32), "v": jnp.linspace(1, 2, 3)}
    sol = cg(lambda v: {"u": 3 * v["u"], "v": 2 * v["v"]}, b, rtol=1e-6)
    assert {name: leaf.dtype for name, leaf in sol.x.items()} == {"u": jnp.float32, "v": jnp.float64}
    true = jnp.concatenate([b["u"] - 3 * sol.x["u"].astype(float), b["v"] - 2 * sol.x["v"]])
    assert sol.success and jnp.linalg.norm(true) <= 1e-6 * 3 + 1e-7
    assert cg(lambda v: {"u": 2 * v["u"]}, {"u": jnp.ones(2)}).x["u"].dtype == jnp.float64


@pytest.mark.parametrize("make", [precond.jacobi, precond.ilu, precond.incomplete_cholesky, precond.chebyshev])
def test_a_preconditioner_prints_one_short_line(make):
    M = make(jsf.from_scipy(jsf.gallery.poisson(5, dim=2), "csr"))
    assert re.fullmatch(r"<[a-z_]+ 25×25, float64, [\d.]+ k?B>", repr(M))
    assert "\n" not in repr(jax.tree.map(lambda a: None, M))
