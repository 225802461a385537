"""Are matchings those of a graph, and do factors stay inside the blocks of a permuted triangular matrix?"""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse import csgraph

import jaxsparse_fmt as jsf
from solvers import SolverError, direct, factorized, host, solve
from solvers.block_form import matching
from solvers.host import BLOCKS, Host
from solvers.superlu import factored
from tests.lowering import quick_jit

N = 120


def permuted(sizes, seed=0):
    """A block triangular matrix with dense blocks of these sizes, whose rows and columns are permuted."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    T = np.triu(rng.uniform(-0.3, 0.3, (n, n)) * (rng.random((n, n)) < 4 / n), 1)
    for size, start in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True):
        T[start : start + size, start : start + size] = rng.standard_normal((size, size))
    return sp.csc_array(T[rng.permutation(n)][:, rng.permutation(n)])


@pytest.mark.parametrize("seed", range(20))
def test_every_column_has_a_row_of_its_own_unless_the_pattern_is_singular(seed):
    rng = np.random.default_rng(seed)
    S = sp.csc_array(sp.random_array((30, 30), density=rng.uniform(0.05, 0.15), rng=rng, format="csc"))
    S.data[rng.random(S.nnz) < 0.1] = 0  # stored, and no entries of a matching
    full = sp.csr_matrix(S)
    full.eliminate_zeros()
    size = np.count_nonzero(csgraph.maximum_bipartite_matching(full) >= 0)
    rows = matching(S)
    assert (rows is None) == (size < 30)
    if rows is not None:
        assert np.all(S.toarray()[rows, np.arange(30)] != 0) and np.array_equal(np.sort(rows), np.arange(30))


@pytest.mark.parametrize("sizes", [[1] * N, [1, 2, 3, 4] * 12, [30, 1, 1, 40, 8, 40]], ids=["ones", "small", "large"])
def test_factors_stay_inside_the_blocks(sizes, monkeypatch):
    monkeypatch.setattr(host, "FREE", 10)
    S, x = permuted(sizes), np.random.default_rng(1).standard_normal(sum(sizes))
    found = factored(Host(S))
    assert found.ordering == BLOCKS
    assert found.made.L.nnz <= sum(size * (size + 1) // 2 for size in sizes)
    for way, T in (("N", S), ("T", S.T)):
        np.testing.assert_allclose(found.solve(T @ x, way), x, rtol=1e-7)
    A = jsf.from_scipy(S, "csr")
    F = factorized(A)
    np.testing.assert_allclose(F @ (S @ x), x, rtol=1e-7)
    for ours, numpys in zip(F.logdet(), np.linalg.slogdet(S.toarray()), strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-9)
    new = A.with_data(2 * A.data)
    for sol in (solve(A, S @ x, rtol=1e-12), solve(new, 2 * S @ x, rtol=1e-12), quick_jit(direct)(new, 2 * S @ x)):
        assert sol.success
        np.testing.assert_allclose(sol.x, x, rtol=1e-6)


def test_a_zero_block_on_the_diagonal_is_told_as_singular(monkeypatch):
    monkeypatch.setattr(host, "FREE", 10)
    S = permuted([1] * N)
    rows = matching(S)
    S.data[(S.indices == rows[3]) & (np.repeat(np.arange(N), np.diff(S.indptr)) == 3)] = 0
    with pytest.raises(SolverError, match="singular"):
        factored(Host(S))


def test_the_entries_of_the_factors_of_a_permuted_triangle_are_those_of_the_matrix():
    S = sp.csr_array(permuted([1] * N))
    S = sp.csc_array(sp.block_diag([S] * 40))
    assert Host(S).blocks is not None and Host(S).factor_entries <= 3 * S.nnz
    assert Host(sp.csc_array(S + S.T + sp.eye_array(S.shape[0]))).blocks is None
