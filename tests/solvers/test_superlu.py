"""Which of SuperLU's modes factors a matrix, and that a factorization without enough pivoting is made again."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import SolverError, direct, factorized, superlu
from solvers.host import COLAMD, MMD, Host
from tests.lowering import quick_jit
from tests.process import printed
from tests.solvers.real import each_file
from tests.solvers.test_host import SYMMETRIC, arrow, saddle


def weak(n: int = 200) -> sp.csc_array:
    """A symmetric pattern whose diagonal is just large enough to be pivots, and lets the factors grow."""
    rng = np.random.default_rng(0)
    S = sp.random_array((n, n), density=0.1, rng=rng)
    S = sp.csc_array(S + S.T)
    S.data = rng.uniform(-1, 1, S.nnz)
    S.setdiag(2e-3)
    return sp.csc_array(S)


MODES = {
    "convection": (sp.csc_array(jsf.gallery.convection_diffusion(6, velocity=0.4)), MMD),
    "complex": (sp.csc_array(jsf.gallery.convection_diffusion(5) * (1 + 2j)), MMD),
    "hub": (sp.csc_array(arrow(300)), MMD),
    "saddle point": (sp.csc_array(saddle()), COLAMD),
    "growth": (weak(), COLAMD),
}


def test_columns_are_taken_one_by_one_where_they_are_short(monkeypatch):
    taken, splu = [], spla.splu
    monkeypatch.setattr(spla, "splu", lambda S, **options: taken.append(options["panel_size"]) or splu(S, **options))
    full = np.random.default_rng(0).standard_normal((600, 600)) + 60 * np.eye(600)
    for S in (jsf.gallery.poisson(30, dim=2), full):
        superlu.factored(Host(sp.csc_array(S)))
    assert taken == [1, None]


@pytest.mark.parametrize("cost", [True, False], ids=["after a look at the cost", "at once"])
@pytest.mark.parametrize("name", MODES)
def test_every_mode_solves_and_solves_transposed_with_little_error(name, cost):
    S, ordering = MODES[name]
    host, x = Host(S), np.random.default_rng(1).standard_normal((S.shape[0], 2))
    if cost:
        assert host.factor_entries > S.shape[0]
    found = superlu.factored(host)
    assert found.ordering == ordering
    again = superlu.factored(Host(S * 2, host.shared))
    bound = 1e-13 * np.linalg.cond(S.toarray()) * np.abs(x).max()
    for way, T in (("N", S), ("T", S.T)):
        assert np.max(np.abs(found.solve(T @ x, way) - x)) <= bound
        assert np.max(np.abs(2 * again.solve(T @ x, way) - x)) <= bound
    F = factorized(jsf.from_scipy(S, "csr"))
    assert np.max(np.abs(np.asarray(F @ (S @ x)) - x)) <= bound
    assert np.max(np.abs(np.asarray(F.T @ (S.T @ x)) - x)) <= bound


def test_zeros_that_are_stored_keep_the_order_of_blocks():
    S = sp.csc_array(jsf.gallery.elasticity(4)).astype(np.float64)
    assert not np.all(S.data)
    assert superlu.factored(Host(S)).made.nnz == spla.splu(S, **SYMMETRIC).nnz


def test_factors_that_grow_are_made_again_with_partial_pivoting():
    S = weak()
    assert Host(S).ordering == MMD
    grown, x = spla.splu(S, **SYMMETRIC), np.ones(200)
    assert np.max(np.abs(S @ grown.solve(S @ x) - S @ x)) > 1e-13 * np.max(np.abs(S).sum(axis=1))
    assert direct(jsf.from_scipy(S), S @ x, rtol=1e-14).success
    solve, b = quick_jit(lambda A, b: direct(A, b, rtol=1e-14)), S @ x
    for scale in (1.0, 2.0):  # inside jit once the residual shows it
        assert solve(scale * jsf.from_scipy(S), b).success


def test_a_solve_inside_jit_calls_the_host_once():
    S = sp.csr_array(jsf.gallery.convection_diffusion(5))
    solve = jax.jit(lambda A, b: direct(A, b, rtol=1e-9))
    A, b = jsf.from_scipy(S, "csr"), np.ones(125)
    assert str(jax.make_jaxpr(solve)(A, b)).count("pure_callback[") == 1
    sol = solve(A, b)
    assert sol.success and sol.iterations == 1
    np.testing.assert_allclose(sol.residual_norm, np.linalg.norm(b - S @ sol.x), rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize("recipe", [superlu.LU, ("ilu", 1e-4, 1.0), ("cholesky",)], ids=lambda r: r[0])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_structurally_singular_matrix_never_comes_to_superlu_which_may_end_the_process(dtype, recipe, monkeypatch):
    monkeypatch.setattr(superlu, "_by_superlu", lambda *_: pytest.fail("it did"))
    rng = np.random.default_rng(0)
    tall = sp.csr_array(rng.standard_normal((6, 3)))
    zeros = sp.csc_array(np.eye(6) + np.eye(6, k=1))
    zeros.data[4:6] = 0  # stored, and leave column 2 and row 3 without others
    for S in (sp.block_array([[None, tall], [tall.T, None]]), zeros, sp.csc_array((5, 5))):
        S = sp.csc_array(S).astype(dtype)
        assert np.linalg.matrix_rank(S.toarray()) < S.shape[0]
        with pytest.raises(SolverError, match="structurally singular"):
            superlu.factored(Host(S), recipe, "A")


def test_only_a_singular_matrix_is_told_as_singular(monkeypatch):
    """SuperLU's errors have one type, and SciPy passes on their texts."""
    S = jsf.from_scipy(jsf.gallery.poisson(4))
    for text, kind in (("Factor is exactly singular", SolverError), ("SUPERLU_MALLOC fails for buf", ValueError)):

        def fail(*_, text=text, **__):
            raise RuntimeError(text)

        monkeypatch.setattr(spla, "splu", fail)
        with pytest.raises(kind, match=text if kind is SolverError else "memory"):
            factorized(S)


def test_a_thread_that_drops_factors_of_another_frees_them_and_python_ends_cleanly():
    """SciPy frees SuperLU's memory only in the thread that allocated it."""
    program = """
import threading
import scipy.sparse as sp
from solvers import superlu
from solvers.host import Host

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

S = sp.csc_array(sp.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(20_000, 20_000)))
def factor():
    found.append(superlu.factored(Host(S)))

sizes = []
for k in range(40):
    found = []
    thread = threading.Thread(target=factor)
    thread.start()
    thread.join()
    found.clear()
    sizes.append(resident())
print(sizes[-1] - sizes[9])
kept = superlu.factored(Host(S))
"""
    assert int(printed("-c", program)) < 40e6  # each has 3 MB


@each_file
def test_a_real_matrix_has_no_more_entries_in_its_factors_than_in_the_better_of_two_modes(path):
    S = sp.csc_array(jsf.io.read_scipy(path))
    if S.shape[0] != S.shape[1] or S.nnz > 300_000:
        pytest.skip("not square, or large")
    host, most = Host(S.astype(np.result_type(S.dtype, np.float64))), []
    S = host.S
    assert host.factor_entries > 0  # `solve` asks before it factors
    try:
        found = superlu.factored(host)
    except SolverError:
        pytest.skip("singular")
    if found.ordering == MMD:
        most.append(spla.splu(S, **SYMMETRIC).nnz)
    most.append(spla.splu(S).nnz)
    assert found.made.nnz <= 1.15 * min(most)
