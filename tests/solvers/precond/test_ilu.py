"""Incomplete factors with fill: SciPy's own as the oracle, steps of gmres, and what is refused."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import SolverError, Status, gmres
from solvers.precond.ilu import ilu
from tests.lowering import quick_jit
from tests.solvers.precond.operators import apply, assert_near, dense, unsymmetric
from tests.solvers.real import each_file
from tests.solvers.test_host import SYMMETRIC

LARGEST, STEPS = 300_000, 200  # entries, and steps of gmres


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric pattern", "unsymmetric pattern"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_it_is_what_scipy_computes(dtype, symmetric):
    S = unsymmetric(dtype)
    if not symmetric:
        S = sp.csr_array(S @ sp.random_array((64, 64), density=0.01, rng=np.random.default_rng(0)).astype(dtype) + S)
    wide = S.astype(np.promote_types(dtype, np.float64)).tocsc()
    made = spla.spilu(wide, drop_tol=1e-2, fill_factor=3, **(SYMMETRIC if symmetric else {}))
    M = ilu(jsf.from_scipy(S, "csr"), drop_tol=1e-2, fill=3)
    want = made.solve(np.eye(64, dtype=made.U.dtype))
    assert_near(dense(M), want.astype(dtype))
    assert_near(dense(M.T), want.T.astype(dtype))


def test_zeros_on_the_diagonal_are_pivoted():
    """A saddle point, which incomplete factors without pivoting refuse."""
    K, B = jsf.gallery.poisson(6, dim=2), np.random.default_rng(0).standard_normal((5, 36))
    S = sp.csr_array(sp.block_array([[K, B.T], [B, None]]))
    assert np.any(S.diagonal() == 0)
    A = jsf.from_scipy(S)
    sol = gmres(A, np.ones(41), M=ilu(A), rtol=1e-10)
    assert sol.success and sol.iterations <= 5
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), np.ones(41)), rtol=1e-7)


def test_new_values_of_a_pattern_share_programs(compiled):
    S = sp.csr_array(jsf.gallery.convection_diffusion(8, velocity=0.3))
    rng, b, counts = np.random.default_rng(0), np.ones(S.shape[0]), []
    for _ in range(6):
        A = jsf.from_scipy(S + sp.diags_array(10.0 ** rng.uniform(-2, 0, S.shape[0])), "csr")
        before = compiled()
        assert gmres(A, b, M=ilu(A, drop_tol=1e-2), rtol=1e-8).success
        counts.append(compiled() - before)
    assert counts[0] > 0 and np.count_nonzero(counts) <= 2


def test_a_singular_incomplete_factor_of_a_regular_matrix_names_the_tolerance():
    rng = np.random.default_rng(39)
    B, D = sp.random_array((20, 40), density=0.1, rng=rng), sp.diags_array(rng.uniform(0.01, 1, 40))
    S = sp.csc_array(sp.block_array([[D, B.T], [B, None]]))
    assert np.linalg.cond(S.toarray()) < 200
    with pytest.raises(SolverError, match=r"an incomplete factor is singular.*smaller drop_tol.*drop_tol=1,"):
        ilu(jsf.from_scipy(S), drop_tol=1.0)
    assert gmres(jsf.from_scipy(S), np.ones(60), M=ilu(jsf.from_scipy(S), drop_tol=1e-4), rtol=1e-10).success


def test_a_drop_tol_of_zero_drops_only_what_the_fill_does_not_allow():
    """With 0 SciPy's `spilu` writes beyond its arrays, where the fill is small, and ends the process."""
    rng = np.random.default_rng(1203)
    S = sp.csc_array(sp.random_array((58, 58), density=0.3, rng=rng) + sp.eye_array(58))
    for fill in (1.0, 1.2, 1.5, 2.0, 3.0):
        for _ in range(8):
            S.data = rng.standard_normal(S.nnz)
            try:
                M = ilu(jsf.from_scipy(S), drop_tol=0.0, fill=fill)
            except SolverError:
                continue
            assert np.all(np.isfinite(apply(M, np.ones(58))))
    whole = ilu(jsf.from_scipy(S), drop_tol=0.0, fill=40.0)
    np.testing.assert_allclose(apply(whole, S @ np.ones(58)), 1, rtol=1e-9)


def test_it_is_refreshed_and_inside_jit_made_by_the_host():
    A = jsf.from_scipy(unsymmetric(), "csr")
    M, twice, r = ilu(A, drop_tol=1e-2, fill=3), 2 * A, np.arange(64.0)
    assert_near(apply(M.refreshed(twice), r), np.asarray(apply(M, r)) / 2)
    in_jit = quick_jit(lambda M, A, r: (M.refreshed(A) @ r, M.refreshed(A).T @ r))
    for got, same in zip(in_jit(M, twice, r), (M, M.T), strict=True):
        assert_near(got, np.asarray(apply(same, r)) / 2)
    with pytest.raises(ValueError, match="shape"):
        M.refreshed(jsf.from_scipy(jsf.gallery.poisson(3)))


def test_a_matrix_without_factors_is_told_by_the_solve_inside_jit():
    S = unsymmetric().toarray()
    S[:, 3] = 0
    A = jsf.from_dense(S)
    with jax.debug_nans(False):
        sol = quick_jit(lambda A, b: gmres(A, b, M=ilu(A)))(A, np.ones(64))
    assert sol.status is Status.NON_FINITE


@each_file
def test_real_systems_take_as_many_steps_as_with_scipys_factors(path):
    S = sp.csr_array(jsf.io.read_scipy(path))
    if S.shape[0] != S.shape[1] or S.nnz > LARGEST:
        pytest.skip("not square, or large")
    b, steps = S @ np.ones(S.shape[0]), []
    try:
        made = spla.spilu(S.tocsc())
    except RuntimeError:
        with pytest.raises(SolverError):
            ilu(jsf.from_scipy(S))
        return
    inverse = spla.LinearOperator(S.shape, made.solve, dtype=S.dtype)
    options = {"restart": STEPS, "maxiter": 1, "callback_type": "pr_norm"}
    x, _ = spla.gmres(S, b, M=inverse, rtol=1e-8, callback=steps.append, **options)
    if np.linalg.norm(b - S @ x) <= 1e-8 * np.linalg.norm(b):
        A = jsf.from_scipy(S)
        sol = gmres(A, b, M=ilu(A), rtol=1e-8, restart=STEPS)
        assert sol.status is Status.CONVERGED, sol
        assert sol.iterations <= max(1.2 * len(steps), 2)
