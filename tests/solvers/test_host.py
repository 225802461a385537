"""What the host finds out about a matrix before it factors it: orders, and the cost of factors."""

import os
import pathlib

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from scipy.sparse.csgraph import structural_rank

import jaxsparse_fmt as jsf
from solvers import facts, host, solve, superlu
from solvers.host import COLAMD, MMD, Host

SYMMETRIC = {"permc_spec": MMD, "diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}


def saddle() -> sp.csr_array:
    """With zeros on its diagonal."""
    K, B = jsf.gallery.poisson(12, dim=2), sp.random_array((40, 144), density=0.05, rng=np.random.default_rng(0))
    return sp.csr_array(sp.block_array([[K, B.T], [B, None]]))


def arrow(n: int) -> sp.csr_array:
    S = sp.lil_array(sp.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    S[0, :], S[:, 0] = 1, 1
    S[0, 0] = n
    return sp.csr_array(S)


@pytest.mark.parametrize("seed", range(4))
def test_columns_of_the_factor_are_counted_as_a_dense_elimination_counts_them(seed):
    rng, n = np.random.default_rng(seed), 40
    pattern = sp.random_array((n, n), density=0.02 * (seed + 1), rng=rng) + sp.eye_array(n)
    pattern, order = sp.csr_array(pattern + pattern.T), rng.permutation(n)
    full = pattern.toarray()[np.ix_(order, order)] != 0
    for k in range(n):
        below = np.flatnonzero(full[k + 1 :, k]) + k + 1
        full[np.ix_(below, below)] = True
    counts = np.tril(full).sum(axis=0)
    assert host.column_counts(pattern, order)[0] == (counts.sum(), (counts**2).sum())


@pytest.mark.parametrize(
    ("S", "ordering", "options"),
    [
        (jsf.gallery.poisson(20), MMD, SYMMETRIC),
        (jsf.gallery.convection_diffusion(12, velocity=0.3), MMD, SYMMETRIC),
        (arrow(5_000), MMD, SYMMETRIC),
        (saddle(), COLAMD, {}),
        (sp.random_array((400, 400), density=0.01, rng=np.random.default_rng(1)) + sp.eye_array(400), COLAMD, {}),
    ],
    ids=["diffusion", "convection", "arrow", "saddle point", "unsymmetric"],
)
def test_the_entries_of_factors_are_known_before_they_are_made(S, ordering, options):
    known, F = Host(sp.csr_array(S)), spla.splu(sp.csc_array(S), **options)
    want = F.L.nnz + F.U.nnz
    assert known.ordering == ordering
    np.testing.assert_array_equal(np.sort(known.order(ordering)), np.arange(S.shape[0]))
    assert want * 0.9 <= known.factor_entries <= 2.5 * want if ordering == COLAMD else 1.1 * want


def test_a_structurally_singular_matrix_has_an_order():
    S = sp.csc_array(sp.diags_array(np.where(np.arange(50) == 7, 0.0, -1.0)))
    S.eliminate_zeros()
    np.testing.assert_array_equal(np.sort(Host(S).order(COLAMD)), np.arange(50))


def test_a_row_of_all_unknowns_comes_last():
    known = Host(arrow(3_000))
    assert known.order(MMD)[-1] == 0 and known.factor_entries < 7 * 3_000


def test_where_neither_mesh_nor_band_shows_the_cheaper_order_bounds_the_cost(monkeypatch):
    monkeypatch.setattr(host, "FREE", 100)
    monkeypatch.setattr(host, "SLOW", 1e5)
    known = Host(sp.csr_array(jsf.gallery.power_law(500, 4)) + 10 * sp.eye_array(500))
    known.ordering = MMD
    assert known.factor_entries == known.cost(COLAMD)[0] > known.cost(MMD)[0]


def expander(n: int) -> sp.csr_array:
    """A random graph of some six neighbours each, as a matrix: definite, and without small separators."""
    rng = np.random.default_rng(0)
    ends = np.repeat(np.arange(n), 3)
    W = sp.coo_array((np.ones(3 * n), (ends, rng.permutation(ends))), shape=(n, n))
    return sp.csr_array(sp.diags_array((W + W.T).sum(axis=1) + 1) - W - W.T)


def test_has_an_unknown_few_neighbours_when_the_rough_order_takes_it():
    pattern, most, n = Host(jsf.gallery.poisson(12, dim=2)).pattern, 5, 144
    member, after, order = np.empty(n * most, np.int32), np.empty(n * most, np.int32), np.full(n, -1)
    index = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
    host.over_rows(host.elimination.few_neighbours, n, 6 * n, *index, most, 100, member, after, order, rows=n)
    order, full = order[order >= 0], pattern.toarray() != 0
    assert n / 3 < len(np.unique(order)) == len(order) < n
    for v in order:
        neighbours = np.flatnonzero(full[v] & (np.arange(n) != v))
        assert len(neighbours) <= most
        full[np.ix_(neighbours, neighbours)] = True
        full[:, v] = False


@pytest.mark.parametrize(
    "S",
    [jsf.gallery.poisson(14), jsf.gallery.poisson(70, dim=2), arrow(5_000), expander(2_000)],
    ids=["space", "plane", "arrow", "expander"],
)
def test_a_rough_cost_is_near_that_in_the_order_of_superlu(S, monkeypatch):
    monkeypatch.setattr(host, "LITTLE", 0)
    known = Host(sp.csr_array(S))
    for rough, cost, most in zip(known.rough_cost, known.cost(MMD), (5, facts.ROUGH), strict=True):
        assert 0.5 * cost <= rough <= most * cost


def test_solve_orders_no_matrix_whose_factors_cost_more_than_steps(monkeypatch):
    monkeypatch.delattr(Host, "order")
    S = expander(20_000)
    b = S @ np.ones(20_000)
    assert solve(jsf.from_scipy(S, "csr"), b).tried[0].endswith("CONVERGED")
    monkeypatch.setattr(facts, "OUT_OF_REACH", 1e9)
    known = facts.Facts(jsf.from_scipy(S, "csr"), b, True)
    assert known.factors == known.host.rough_cost


def interior_point_system(seed, m=80, n=1200):
    """That of a step for a linear programme, near its end: weights of 1e-8 to 1e3."""
    rng = np.random.default_rng(seed)
    A = sp.random_array((m, n), density=0.03, rng=rng)
    weight = np.where(rng.random(n) < m / n, 10 ** rng.uniform(0, 3, n), 10 ** rng.uniform(-8, 0, n))
    blocks = [[-sp.diags_array(1 / weight), A.T], [A, 1e-10 * sp.eye_array(m)]]
    return sp.csc_array(sp.block_array(blocks))


def test_a_quasidefinite_system_is_factored_with_pivots_on_its_diagonal():
    K = interior_point_system(0)
    wanted = np.random.default_rng(1).standard_normal(K.shape[0])
    sol = solve(jsf.from_scipy(K, "csr"), K @ wanted, rtol=1e-10)
    assert sol.success and sol.method == "direct"
    np.testing.assert_allclose(sol.x, wanted, rtol=0, atol=1e-6)
    found = superlu.factored(Host(K))
    assert found.ordering == MMD and found.is_accurate
    assert 4 * found.made.nnz < spla.splu(K).nnz


def test_a_zero_on_the_diagonal_or_little_gain_asks_for_free_pivots():
    K = interior_point_system(0)
    saddle = sp.lil_array(K)
    saddle[K.shape[0] - 1, K.shape[0] - 1] = 0
    indefinite = jsf.gallery.poisson(20, dim=2) - 3.9999 * sp.eye_array(400)  # a weak diagonal on a mesh
    for S in saddle, indefinite:
        assert Host(sp.csc_array(S)).wants_pivots and Host(sp.csc_array(S)).ordering == COLAMD


def test_without_numba_the_envelope_is_the_cost(monkeypatch):
    def refuse(*_, **__):
        raise ModuleNotFoundError("numba")

    monkeypatch.setattr(host, "over_rows", refuse)
    known = Host(jsf.gallery.poisson(8))
    assert (known.factor_entries, known.factor_work) == known.envelope


def test_is_a_pattern_singular_if_no_order_of_its_rows_fills_the_diagonal():
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        n = int(rng.integers(1, 12))
        S = sp.random_array((n, n), density=rng.uniform(0.1, 0.6), rng=rng).tocsc()
        S.data[::5] = 0  # stored
        nonzeros = S.copy()
        nonzeros.eliminate_zeros()
        found.append(Host(S).structurally_singular)
        assert found[-1] == (structural_rank(nonzeros) < n)
    assert 10 < sum(found) < 50
    path = sp.diags_array([np.ones(9_999), np.ones(9_999)], offsets=[-1, 1]).tocsc()
    assert not Host(path).structurally_singular and Host(sp.block_diag([path, path[1:, 1:]])).structurally_singular


CASES = os.environ.get("JAXSPARSE_CASES")
CASE = next(pathlib.Path(CASES).rglob("mhd1280a.mtx.gz"), None) if CASES else None


@pytest.mark.skipif(CASE is None, reason="JAXSPARSE_CASES holds no mhd1280a")
def test_ends_the_search_for_a_full_diagonal():
    """SciPy's own matching does not, in hours."""
    S = jsf.io.read_scipy(CASE).real
    assert np.count_nonzero(S.diagonal()) < 500 and not Host(S).structurally_singular


def test_is_what_is_known_of_a_pattern_taken_for_another():
    S = sp.csc_array(jsf.gallery.poisson(6, dim=2))
    first, other = Host(S), S.copy()
    other.data[3] = 0
    other.eliminate_zeros()
    found = first.pattern, first.order(MMD)
    same, less = Host(S * 2, first.shared), Host(other, first.shared)
    assert same.pattern is found[0] and same.order(MMD) is found[1]
    assert less.pattern is not found[0] and less.pattern.nnz == found[0].nnz and len(less.order(MMD)) == 36
