"""Incomplete factors: against elimination row by row, where they break down, and what they are worth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import gmres
from solvers.precond import incomplete
from solvers.precond.incomplete import incomplete_cholesky, incomplete_lu
from solvers.precond.jacobi import jacobi
from tests.marks import few
from tests.solvers.precond.operators import apply, assert_near, dense, iterations, spd, unsymmetric
from tests.solvers.real import FILES


def ilu0(S: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """L and U by elimination row by row on the pattern of S (Saad, Iterative Methods, Algorithm 10.4), dense."""
    a, stored = S.toarray(), np.zeros(S.shape, bool)
    stored[np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.indices] = True
    for i in range(1, len(a)):
        for k in np.flatnonzero(stored[i, :i]):
            a[i, k] /= a[k, k]
            rest = np.flatnonzero(stored[i, k + 1 :]) + k + 1
            a[i, rest] -= a[i, k] * np.where(stored[k, rest], a[k, rest], 0)
    return np.tril(a, -1) + np.eye(len(a)), np.triu(a)


def factors_of(M) -> tuple[np.ndarray, np.ndarray]:
    """L = I + N and U = D·(I + V)."""
    identity, of = np.eye(M.shape[0]), M.factors
    N, V = (sp.csr_array((T.values, T.col_idx, T.row_ptr), M.shape).toarray() for T in (of.lower, of.upper))
    return identity + N, (identity + V) / np.asarray(of.inverse_pivots)[:, None]


def hubs() -> sp.csr_array:
    """Unsymmetric, some rows and columns of some 50 entries, dominated by its diagonal."""
    S = jsf.gallery.power_law(120, mean=8.0, exponent=2.1)
    off = sp.csr_array(S - sp.diags_array(S.diagonal()))
    return sp.csr_array(off + sp.diags_array(1 + 1.2 * np.asarray(off.sum(axis=1)).ravel()))


KERSHAW = np.array([[3.0, -2, 0, 2], [-2, 3, -2, 0], [0, -2, 3, -2], [2, 0, -2, 3]])  # J. Comput. Phys. 26, 1978, p. 55


@pytest.mark.parametrize("S", [unsymmetric(), unsymmetric(np.complex128), hubs()], ids=["real", "complex", "hubs"])
def test_the_factors_are_ilu0(S):
    M = incomplete_lu(jsf.from_scipy(S, "csr"))
    assert M.shift == 0 and M.dtype == S.dtype
    for got, want in zip(factors_of(M), ilu0(S), strict=True):
        assert_near(got, want)


@pytest.mark.parametrize("dtype", few([np.float32, np.float64, np.complex128], 1))
def test_the_factors_of_a_hermitian_matrix_are_ic0(dtype):
    """IC(0) of a Hermitian matrix is its ILU(0), U = D·Lᴴ."""
    S = spd(dtype)
    M = incomplete_cholesky(jsf.from_scipy(S, "csr"))
    assert M.shift == 0 and M.dtype == dtype
    for got, want in zip(factors_of(M), ilu0(S.astype(np.result_type(dtype, np.float64))), strict=True):
        assert_near(got.astype(dtype), want)


@pytest.mark.parametrize("sweeps", [None, 11])
def test_a_tridiagonal_matrix_is_solved_exactly(sweeps):
    """Its factors have no fill, and as many sweeps as rows solve the triangular systems."""
    S = jsf.gallery.poisson(12, dim=1)
    M = incomplete_cholesky(jsf.from_scipy(S, "csr"), solve_sweeps=sweeps)
    assert_near(dense(M) @ S.toarray(), np.eye(12), 1000)


def test_cholesky_reads_the_lower_triangle_only():
    lower = sp.tril(spd()).tocsr()
    one, other = (incomplete_cholesky(jsf.from_scipy(S, "csr")) for S in (spd(), sp.csr_array(lower)))
    jax.tree.map(np.testing.assert_array_equal, one.factors, other.factors)


def test_the_units_of_the_unknowns_do_not_matter():
    """Powers of two, so that every product by one is exact: 24 orders of magnitude in float32."""
    S = spd(np.float32)
    units = (2.0 ** np.random.default_rng(0).integers(-20, 20, 81)).astype(np.float32)
    scaled = sp.csr_array(sp.diags_array(units) @ S @ sp.diags_array(units)).astype(np.float32)
    M, N = (incomplete_cholesky(jsf.from_scipy(X, "csr")) for X in (S, scaled))
    assert_near(units * dense(N) * units[:, None], dense(M))


def test_factors_of_a_transposed_view_are_those_of_the_transpose():
    S = unsymmetric()
    one, other = incomplete_lu(jsf.from_scipy(S, "csr").T), incomplete_lu(jsf.from_scipy(sp.csr_array(S.T), "csr"))
    assert_near(dense(one), dense(other))


def test_a_jitted_function_may_close_over_the_matrix():
    A, r = jsf.from_scipy(spd(), "csr"), jnp.ones(81)
    got = jax.jit(lambda r: incomplete_cholesky(A) @ r)(r)
    assert_near(got, np.asarray(apply(incomplete_cholesky(A), r)))


def test_where_cholesky_breaks_down_a_shift_makes_it_positive():
    _, U = ilu0(sp.csr_array(KERSHAW))
    assert np.linalg.eigvalsh(KERSHAW)[0] > 0 > np.diag(U).min()
    M = incomplete_cholesky(jsf.from_dense(KERSHAW, "csr"))
    alpha = float(M.shift)
    assert alpha in 0.01 * 2.0 ** np.arange(10)
    for factor, exists in ((1.0, True), (0.5, False)):  # the first of the sequence that has factors
        _, U = ilu0(sp.csr_array(KERSHAW + factor * alpha * np.diag(np.diag(KERSHAW))))
        assert (np.diag(U).min() > 0) == exists
    D = dense(M)
    assert_near(D, D.T)
    assert np.linalg.eigvalsh(D)[0] > 0


def test_an_indefinite_matrix_has_lu_factors():
    S = np.array([[-9.0, 1, 2, 3], [1, 9, 1, 2], [2, 1, -9, 1], [3, 2, 1, 9]])
    M = incomplete_lu(jsf.from_dense(S, "csr"))
    assert M.shift == 0
    assert_near(dense(M), np.linalg.inv(S))


@pytest.mark.parametrize("make", [incomplete_cholesky, incomplete_lu])
def test_no_shift_helps_a_diagonal_that_is_all_but_absent(make):
    pattern = KERSHAW if make is incomplete_cholesky else np.ones((4, 4))
    with pytest.raises(ValueError, match=r"no factors of .* for α up to 2621\.44: A's diagonal is small"):
        make(jsf.from_dense(np.where(np.eye(4), 1e-9, pattern), "csr"))


@pytest.mark.parametrize(
    ("S", "make", "method", "share"),
    [
        (jsf.gallery.poisson(12), incomplete_cholesky, "cg", 0.45),
        (jsf.gallery.elasticity(5), incomplete_cholesky, "cg", 0.45),
        (jsf.gallery.convection_diffusion(8, velocity=0.1), incomplete_lu, "gmres", 0.5),
        # Where convection dominates, exact factors without a shift make random vectors larger by orders of magnitude.
        (jsf.gallery.convection_diffusion(12, velocity=3.0), incomplete_lu, "gmres", 0.5),
    ],
    ids=["poisson", "elasticity", "diffusion", "convection"],
)
def test_solvers_take_fewer_iterations_than_with_jacobi(S, make, method, share):
    A = jsf.from_scipy(S, "csr")
    assert iterations(S, make(A), method) < share * iterations(S, jacobi(A), method)


def test_on_a_cpu_factors_are_exact_whatever_the_default_device_is(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert incomplete_cholesky(jsf.from_scipy(jsf.gallery.poisson(6), "csr")).recipe[1] is None


def test_where_solves_by_levels_are_slow_sweeps_are_taken(monkeypatch):
    """As many as halve the errors, or for a nonsymmetric matrix leave little of them."""
    monkeypatch.setattr(incomplete, "EXACTLY", incomplete.TRACED)
    monkeypatch.setattr(incomplete, "is_on_cpu", lambda a: False)
    A = jsf.from_scipy(jsf.gallery.poisson(6), "csr")
    M = incomplete_cholesky(A)
    assert 1 <= M.recipe[1] <= 3 and M.refreshed(A).recipe == M.recipe
    assert incomplete_lu(A).recipe[1] > M.recipe[1]
    slow = jsf.from_scipy(jsf.gallery.convection_diffusion(8, velocity=0.3), "csr")  # 10 leave a quarter
    assert incomplete_lu(slow).recipe[1] == 10
    far = jsf.from_scipy(jsf.gallery.convection_diffusion(8, velocity=3.0), "csr")
    assert incomplete_lu(far).recipe[1] is None and incomplete_lu(far).shift == 0  # they grow first
    r = np.ones(216)
    assert_near(
        jax.jit(lambda data: incomplete_cholesky(A.with_data(data)) @ r)(A.data),
        apply(incomplete_cholesky(A, solve_sweeps=3), r),
    )


@pytest.mark.deep
@pytest.mark.skipif(not any(path.name.startswith("orsirr_1") for path in FILES), reason="JAXSPARSE_MATRICES lacks it")
def test_gmres_takes_the_steps_of_exact_factors_on_a_real_matrix():
    """With 3 sweeps in place of each solve it stagnated."""
    S = sp.csr_array(jsf.io.read_scipy(next(path for path in FILES if path.name.startswith("orsirr_1"))))
    A, b = jsf.from_scipy(S), S @ np.ones(S.shape[0])
    sol = gmres(A, b, M=incomplete_lu(A), rtol=1e-8, restart=100)
    assert sol.success and sol.iterations <= 60


def test_it_shifts_where_the_triangular_solves_would_diverge_first():
    """N of 8³ grid points vanishes in its 22nd power, but grows to there where convection dominates."""
    A = jsf.from_scipy(jsf.gallery.convection_diffusion(8, velocity=3.0), "csr")
    shifts = [float(incomplete_lu(A, solve_sweeps=s).shift) for s in (0, 3, 21)]
    assert shifts[0] == shifts[2] == 0 < shifts[1]


def test_a_shift_that_leaves_little_of_the_matrix_is_named():
    S = np.random.default_rng(0).standard_normal((60, 60)) + 3 * np.eye(60)
    with pytest.warns(RuntimeWarning, match=r"factored A \+ [\d.]+·diag\(A\), so far from A") as caught:
        assert incomplete_lu(jsf.from_dense(S, "csr"), solve_sweeps=3).shift > 1
    assert caught[0].filename == __file__
