"""Refinement: double accuracy from narrow iterations, and an honest end where the narrow type is too narrow."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, cg, precond, refine
from tests.lowering import equations
from tests.solvers.methods import rotated

POISSON = sp.csr_array(jsf.gallery.poisson(12))
RHS = np.random.default_rng(0).standard_normal(POISSON.shape[0])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def relative_residual(S, x, b):
    return np.linalg.norm(b - S @ np.asarray(x)) / np.linalg.norm(b)


@every_dtype
def test_narrow_iterations_reach_double_accuracy_in_about_as_many_steps(dtype):
    A = jsf.from_scipy(POISSON, "csr")
    wide, sol = cg(A, RHS, rtol=1e-12), refine(A, RHS, rtol=1e-12, dtype=dtype)
    assert sol.success and sol.x.dtype == np.float64
    assert relative_residual(POISSON, sol.x, RHS) <= 1.001e-12
    assert sol.iterations <= 1.35 * wide.iterations


@every_dtype
def test_the_inner_loop_carries_narrow_vectors_only(dtype):
    A = jsf.from_scipy(POISSON, "csr")
    program = jax.make_jaxpr(lambda A, b: refine(A, b, dtype=dtype).x)(A, RHS)
    loops = lambda jaxpr: [eqn for eqn, _ in equations(jaxpr) if eqn.primitive.name == "while"]  # noqa: E731
    inner = [eqn for outer in loops(program.jaxpr) for eqn in loops(outer.params["body_jaxpr"].jaxpr)]
    carried = [v.aval for eqn in inner for v in eqn.outvars if v.aval.shape == RHS.shape]
    assert len(carried) >= 3 and all(a.dtype == np.float32 for a in carried)


@pytest.mark.parametrize(
    ("method", "dtype", "kappa"), [("cg", "bfloat16", 1e5), ("cg", "float32", 1e12), ("minres", "bfloat16", 1e5)]
)
def test_a_condition_number_beyond_the_narrow_type_is_told_and_the_cure_works(method, dtype, kappa):
    S, b = rotated(np.geomspace(1, 1 / kappa, 50), 1), np.random.default_rng(2).standard_normal(50)
    sol = refine(S, b, rtol=1e-10, method=method, dtype=dtype, maxiter=5000)
    assert sol.status is Status.PRECISION, sol
    assert np.all(np.isfinite(sol.x)) and float(sol.residual_norm) == pytest.approx(
        np.linalg.norm(b - S @ sol.x), rel=1e-3
    )
    assert "wider" in sol.status.message
    if dtype != "float32":
        assert refine(S, b, rtol=1e-10, method=method, dtype="float32", maxiter=5000).success


@pytest.mark.parametrize(
    ("M", "status"),
    [(lambda r: 0 * r, Status.BREAKDOWN), (lambda r: r.at[::2].multiply(-1), Status.NOT_POSITIVE_DEFINITE)],
    ids=["zero", "indefinite"],
)
def test_a_bad_preconditioner_is_not_blamed_on_the_narrow_type(M, status):
    assert refine(jsf.from_scipy(POISSON, "csr"), RHS, M=M, dtype="float32").status is status


@pytest.mark.parametrize("method", ["cg", "bicgstab"])
def test_factors_that_blow_up_a_badly_scaled_system_are_not_blamed_on_the_narrow_type(method):
    d = sp.diags_array(10.0 ** np.random.default_rng(7).uniform(-7, 7, 125))
    A = jsf.from_scipy(sp.csr_array(d @ jsf.gallery.convection_diffusion(5) @ d))
    M = precond.incomplete_lu(A)
    assert np.linalg.norm(A @ (M @ RHS[:125])) > 1e9 * np.linalg.norm(RHS[:125])
    assert refine(A, RHS[:125], M=M, dtype="float32", method=method).status is Status.DIVERGED


def test_a_refinement_that_fails_is_no_further_from_b_than_its_start():
    solve = jax.jit(lambda A, b: refine(A, b, method="bicgstab", dtype="float32", maxiter=150))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        A, b = rng.normal(size=(50, 50)) + 3 * np.eye(50), rng.normal(size=50)
        assert np.linalg.norm(b - A @ solve(A, b).x) <= 1.001 * np.linalg.norm(b)


def test_a_nearly_exact_preconditioner_is_not_held_up_by_old_directions():
    S = jsf.gallery.elasticity(3)
    inverse = jnp.asarray(np.linalg.inv(S.toarray()))
    sol = refine(jsf.from_scipy(S), np.ones(81), M=inverse, rtol=1e-12, dtype="float32")
    assert sol.success and sol.iterations <= 4


def test_neither_a_small_system_nor_one_in_32_bits_is_narrowed_unless_asked(monkeypatch):
    A = jsf.from_scipy(POISSON, "csr")
    program = lambda *given: str(jax.make_jaxpr(lambda A, b: refine(A, b).x)(*given))  # noqa: E731
    assert refine(A, RHS, rtol=1e-12).iterations == cg(A, RHS, rtol=1e-12).iterations
    assert "f32[" not in program(A, RHS)
    monkeypatch.setattr(sys.modules["solvers.refine"], "WORTHWHILE", 0)
    narrow = A.astype("float32"), RHS.astype(np.float32)
    assert refine(*narrow, rtol=1e-5).success
    assert "f32[" in program(A, RHS) and "bf16[" not in program(*narrow)


def test_values_exact_in_float32_are_held_once():
    A = jsf.from_scipy(POISSON, "csr", dtype="float32")
    sol = refine(A, RHS, rtol=1e-12, dtype="float32")
    assert sol.success and relative_residual(POISSON, sol.x, RHS) <= 1.001e-12
    jaxpr = str(jax.make_jaxpr(lambda A, b: refine(A, b, dtype="float32").x)(A, RHS))
    assert f"f64[{A.nnz}]" not in jaxpr  # no wide copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transposed_matrix_is_narrowed_as_the_matrix_is(dtype):
    S = sp.csr_array(jsf.gallery.convection_diffusion(6))
    b = np.random.default_rng(3).standard_normal(S.shape[0])
    sol = refine(jsf.from_scipy(S, "csr").T, b, rtol=1e-12, dtype=dtype, method="bicgstab")
    assert sol.success and relative_residual(S.T, sol.x, b) <= 1.001e-12
