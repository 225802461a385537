"""Factors by CHOLMOD and KLU against dense solves, their derivatives and errors, and which library is taken."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import SolverError, Status, backends, direct, factorized, gmres
from tests.lowering import quick_jit

INSTALLED = importlib.util.find_spec("sparsax") is not None
needs_sparsax = pytest.mark.skipif(not INSTALLED, reason="sparsax is not installed; the extra 'direct' has it")
CASES = {
    "cholmod": sp.csr_array(jsf.gallery.poisson(5)),
    "klu": sp.csr_array(jsf.gallery.convection_diffusion(5, velocity=0.3)),
}
each = pytest.mark.parametrize("backend", CASES)


@needs_sparsax
@each
def test_a_library_solves_and_solves_transposed(backend):
    S, B = CASES[backend], np.random.default_rng(0).standard_normal((125, 2))
    for dtype in ("float64", "float32"):
        A, near = jsf.from_scipy(S, dtype=dtype), {"rtol": 0, "atol": 1e4 * np.finfo(dtype).eps}
        F = factorized(A, backend=backend)
        np.testing.assert_allclose(F @ B.astype(dtype), np.linalg.solve(S.toarray(), B), **near)
        np.testing.assert_allclose(F.T @ B[:, 0].astype(dtype), np.linalg.solve(S.toarray().T, B[:, 0]), **near)
        sol = quick_jit(lambda A, b: direct(A, b, backend=backend))(2 * A, B[:, 0].astype(dtype))
        assert sol.success and sol.method == f"direct by {backend}"
        np.testing.assert_allclose(sol.x, np.linalg.solve(2 * S.toarray(), B[:, 0]), **near)
    assert gmres(jsf.from_scipy(S), B[:, 0], M=factorized(jsf.from_scipy(S), backend=backend)).iterations == 1
    np.testing.assert_allclose(F @ (1j * B[:, 0]), 1j * np.linalg.solve(S.toarray(), B[:, 0]), rtol=1e-4)


@needs_sparsax
@each
def test_derivatives_and_vmap_are_those_of_superlu(backend):
    S, b = CASES[backend], np.ones(125)
    A, v = jsf.from_scipy(S, "csr"), np.random.default_rng(1).standard_normal(S.nnz)

    def all_of(name):
        loss = lambda d, b: jnp.sum(jnp.sin(direct(A.with_data(d), b, backend=name).x))  # noqa: E731
        gradient = jax.grad(loss, (0, 1))
        batch = lambda d, b: jax.vmap(loss, (0, None))(jnp.stack([d, 2 * d]), b)  # noqa: E731
        return lambda d, b: (gradient(d, b), jax.jvp(lambda d: gradient(d, b), (d,), (v,)), batch(d, b))

    got, want = (jax.jit(all_of(name))(S.data, b) for name in (backend, "superlu"))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-9 * np.abs(w).max())


@needs_sparsax
def test_what_has_no_factors_is_named():
    S = CASES["cholmod"]
    indefinite = jsf.from_scipy(S - 3 * sp.eye_array(125))
    assert direct(indefinite, np.ones(125), backend="cholmod").status is Status.NOT_POSITIVE_DEFINITE
    with pytest.raises(SolverError, match="column") as caught:
        factorized(indefinite, backend="cholmod")
    assert caught.value.status is Status.NOT_POSITIVE_DEFINITE
    assert direct(jsf.from_scipy(CASES["klu"]), np.ones(125), backend="cholmod").status is Status.NOT_SYMMETRIC
    assert direct(0 * indefinite, np.ones(125), backend="klu").status is Status.SINGULAR
    with pytest.raises(TypeError, match="real"):
        direct(jsf.from_scipy(1j * S), np.ones(125), backend="klu")


@needs_sparsax
@each
def test_inside_jit_a_matrix_without_factors_is_a_status_and_its_neighbours_in_a_batch_are_solved(backend):
    A, b = jsf.from_scipy(CASES[backend], "csr"), np.ones(125)
    lost = {"cholmod": -A.data, "klu": 0 * A.data}[backend]
    status = {"cholmod": Status.NOT_POSITIVE_DEFINITE, "klu": Status.SINGULAR}[backend]
    solve = quick_jit(jax.vmap(lambda data: direct(A.with_data(data), b, backend=backend)))
    with jax.debug_nans(False):
        sol = solve(jnp.stack([A.data, lost, 2 * A.data, A.data.at[0].set(jnp.nan)]))
        product = quick_jit(lambda data: factorized(A.with_data(data), backend=backend) @ b)(lost)
    assert [Status(int(code)) for code in sol.code] == [Status.CONVERGED, status, Status.CONVERGED, Status.NON_FINITE]
    x = np.linalg.solve(CASES[backend].toarray(), b)
    np.testing.assert_allclose(sol.x, [x, 0 * x, x / 2, 0 * x], rtol=1e-9)
    assert np.all(np.isnan(product))


@needs_sparsax
@each
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_are_factors_in_64_bits_called_singular_in_32(backend):
    F = factorized(jsf.from_scipy(CASES[backend]), backend=backend)
    with jax.enable_x64(False), pytest.raises(ValueError, match="computes in float64"):
        F.solve(np.ones(125))


@needs_sparsax
def test_a_hint_of_symmetry_is_believed():
    S, b = CASES["cholmod"], np.ones(125)
    rough = sp.csr_array(S + sp.diags_array(np.full(124, 1e-9), offsets=1))
    with pytest.raises(SolverError, match="symmetric"):
        factorized(jsf.from_scipy(rough), backend="cholmod")
    x = factorized(jsf.from_scipy(rough), symmetric=True, backend="cholmod") @ b
    np.testing.assert_allclose(x, np.linalg.solve(S.toarray(), b), rtol=1e-6)
    with pytest.raises(SolverError, match="symmetric"):
        factorized(jsf.from_scipy(S), symmetric=False, backend="cholmod")


@needs_sparsax
def test_auto_takes_cholmod_for_large_positive_definite_matrices_alone(monkeypatch):
    monkeypatch.setattr(backends, "HEAVY", 1e3)
    S, b = CASES["cholmod"], np.ones(125)
    assert direct(jsf.from_scipy(S), b).method == "direct by cholmod"
    for other in (S - 3 * sp.eye_array(125), S.astype(np.float32), CASES["klu"]):
        A = jsf.from_scipy(other)
        for of in (direct, lambda A, b: quick_jit(lambda b: direct(A, b))(b)):  # a failure is seen inside jit, too
            sol = of(A, b)
            assert sol.success and sol.method == "direct by superlu"


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    A, b = jsf.from_scipy(CASES["cholmod"]), np.ones(125)
    for backend, extra in (("cholmod", "direct"), ("klu", "direct"), ("cudss", "cudss")):
        with pytest.raises(ModuleNotFoundError, match=rf"pip install 'jaxsparse\[{extra}\]'"):
            direct(A, b, backend=backend)
    assert direct(A, b).method == "direct by superlu"
    with pytest.raises(ValueError, match="backend"):
        factorized(A, backend="cholmodd")
