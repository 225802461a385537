"""Multigrid on problems where methods fail: units of their own, boundary rows, one aggregate; PyAMG's as the floor."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers.precond.multigrid import multigrid
from tests.solvers.precond.test_multigrid import CUBE, grid, random_vector, scipy_iterations

pyamg = pytest.importorskip("pyamg")


def test_adaptive_candidates_serve_where_constants_fail():
    """Elasticity whose unknowns have units of their own: A maps neither constants nor rigid motions almost to zero."""
    units = sp.diags_array(10.0 ** np.random.default_rng(5).uniform(-1, 1, 864))
    body = jsf.gallery.elasticity((8, 6, 6))
    S, b = sp.csr_array(units @ body @ units), random_vector(864)
    modes = jsf.gallery.rigid_body_modes(grid(8, 6, 6)) / units.diagonal()[:, None]
    known, found, constant = (
        scipy_iterations(S, b, multigrid(S, max_coarse=60, block_size=3, **options), 1e-8)
        for options in ({"B": modes}, {"candidates": "adaptive"}, {})
    )
    assert found <= known + 4 and found <= 0.6 * constant


def test_adaptive_candidates_are_the_same_in_every_run():
    M, N = (multigrid(CUBE, candidates="adaptive", max_coarse=60) for _ in range(2))
    np.testing.assert_array_equal(M.levels[0].P.data, N.levels[0].P.data)
    assert multigrid(CUBE, candidates="adaptive").levels == ()


def problem(name: str) -> tuple[sp.csr_array, np.ndarray | None]:
    """A matrix of PyAMG's gallery and its near-null space."""
    if name == "elasticity":
        S, B = pyamg.gallery.linear_elasticity((20, 20))
        return sp.csr_array(S), B
    if name == "poisson":
        return sp.csr_array(pyamg.gallery.poisson((40, 40), format="csr")), None
    stencil = pyamg.gallery.diffusion_stencil_2d(epsilon=0.1, theta=np.pi / 6, type="FE")
    return sp.csr_array(pyamg.gallery.stencil_grid(stencil, (40, 40), format="csr")), None


@pytest.mark.some(name=1)
@pytest.mark.parametrize("name", ["poisson", "elasticity", "diffusion"])
def test_the_steps_are_those_of_pyamg_or_one_more(name):
    S, B = problem(name)
    b, residuals = random_vector(S.shape[0]), []
    np.random.seed(0)  # noqa: NPY002
    blocks = S if B is None else S.tobsr(blocksize=(2, 2))
    theirs = pyamg.smoothed_aggregation_solver(blocks, B=B, max_coarse=100)
    theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals)
    options = {} if B is None else {"B": B, "block_size": 2}
    count = scipy_iterations(S, b, multigrid(S, max_coarse=100, **options), 1e-8)
    assert count <= len(residuals)  # one more than theirs


def test_boundary_rows_left_in_the_matrix_change_no_count():
    S = jsf.gallery.poisson(12)
    fixed = np.random.default_rng(0).choice(12**3, 100, replace=False)
    free = np.ones(12**3)
    free[fixed] = 0
    kept = sp.diags_array(free)
    S = sp.csr_array(kept @ S @ kept + sp.diags_array(1 - free))  # explicit zeros stay beside the rows of the identity
    b = random_vector(12**3)
    inner = sp.csr_array(S[free > 0][:, free > 0])
    count = scipy_iterations(inner, b[free > 0], multigrid(inner, max_coarse=100), 1e-8)
    assert scipy_iterations(S, b, multigrid(S, max_coarse=100), 1e-8) <= count + 2


def test_points_that_are_all_neighbours_make_one_aggregate():
    S = sp.csr_array(9 * np.eye(8) - np.ones((8, 8)))
    M = multigrid(S, max_coarse=5, block_size=1)
    assert [n for n, _ in M.sizes] == [8, 1]
    P = np.asarray(M.levels[0].P.todense())
    np.testing.assert_allclose(P, np.full((8, 1), P[0, 0]), rtol=1e-12)
    assert P[0, 0] > 0
    assert scipy_iterations(S, random_vector(8), M, 1e-10) <= 3


def test_a_graph_of_short_diameter_keeps_its_levels_sparse():
    """Its aggregates are all neighbours of one another, so that a coarse matrix of all couplings is nearly dense."""
    random, points = np.random.default_rng(0), np.arange(3000)
    to = np.concatenate([random.permutation(points) for _ in range(3)])
    W = sp.coo_array((np.ones(to.size), (np.tile(points, 3), to)), shape=(3000, 3000)).tocsr()
    S = sp.csr_array(sp.csgraph.laplacian(W + W.T) + 1e-3 * sp.eye_array(3000))
    b = random_vector(3000)
    M, all_couplings = multigrid(S, max_coarse=50), multigrid(S, max_coarse=50, theta=0.0)
    assert M.operator_complexity < 1.6 and all_couplings.operator_complexity > 2.5
    assert scipy_iterations(S, b, M, 1e-8) <= 15


def test_a_matrix_whose_aggregates_have_fewer_points_than_columns_is_inverted():
    S = sp.csr_array(jsf.gallery.poisson(3))
    M = multigrid(S, np.random.default_rng(0).normal(size=(27, 20)), max_coarse=5)
    assert [n for n, _ in M.sizes] == [27]
    r = random_vector(27)
    np.testing.assert_allclose(M @ r, np.linalg.solve(S.toarray(), r), rtol=1e-9)


def test_the_coarsest_inverse_has_at_most_a_tenth_of_the_entries():
    S = jsf.gallery.poisson(16)
    assert multigrid(S).sizes[-1][1] <= S.nnz / 10 < multigrid(S, max_coarse=1000).sizes[-1][1]
