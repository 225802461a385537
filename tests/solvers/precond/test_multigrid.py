"""Multigrid: the cycle against its formula in dense arithmetic, iteration counts beside PyAMG's, and the door."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.gallery import rigid_body_modes
from solvers import Status, cg, precond
from solvers.precond.multigrid import Multigrid, multigrid, multigrid_from
from tests.marks import few
from tests.solvers.precond.operators import random_vector, scipy_iterations, trilinear
from tests.solvers.real import each_file, is_hermitian_with_positive_diagonal

pyamg = pytest.importorskip("pyamg")

CUBE = jsf.gallery.poisson(6)
FLOW = jsf.gallery.convection_diffusion(6, diffusion=0.1)


def neumann(n: int) -> sp.csr_array:
    """Poisson's matrix on n³ points without any boundary value: constants are its null space."""
    S = jsf.gallery.poisson(n)
    return sp.csr_array(S - sp.diags_array(S @ np.ones(n**3)))


def grid(*extents: int) -> np.ndarray:
    """Coordinates of the free nodes of `gallery.elasticity`."""
    return np.array(list(itertools.product(*(range(e) for e in extents))), float)


def dense(M: Multigrid) -> np.ndarray:
    return np.asarray(M @ np.eye(M.shape[0]))


@pytest.mark.parametrize("degree", [1, 4])
def test_two_levels_are_the_two_grid_formula(degree):
    """M = (I − S·C·S)·A⁻¹ with S the smoother's error and C = I − P·(RAP)⁻¹·R·A the coarse correction's.

    S is Chebyshev's polynomial at the eigenvalues of D⁻¹A, by its closed formula.
    """
    M = multigrid(CUBE, degree=degree, max_coarse=120)
    (level,) = M.levels
    A, P, identity = CUBE.toarray(), np.asarray(level.P.todense()), np.eye(216)
    first = float(level.recurrence[0, 1])  # 1 / the middle of the interval [0.15·λ, λ]
    middle, half = 1 / first, 0.85 / 1.15 / first
    assert np.linalg.eigvalsh(A / 6).max() <= middle + half <= 1.11 * np.linalg.eigvalsh(A / 6).max()
    w, V = np.linalg.eigh(A / 6)
    chebyshev = np.polynomial.chebyshev.Chebyshev.basis(degree)
    S = (V * (chebyshev((middle - w) / half) / chebyshev(middle / half))) @ V.T
    C = identity - P @ np.linalg.solve(P.T @ A @ P, P.T @ A)
    np.testing.assert_allclose(dense(M), (identity - S @ C @ S) @ np.linalg.inv(A), atol=1e-12)


def test_a_small_matrix_is_inverted():
    b = random_vector(216)
    M = multigrid(CUBE)
    assert M.levels == ()
    np.testing.assert_allclose(CUBE @ np.asarray(M @ b), b, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "accuracy"),
    [({}, 1e-14), ({"cycle": "W"}, 1e-14), ({"dtype": "float32"}, 1e-6)],
)
def test_a_cycle_is_symmetric_positive_definite_and_a_contraction(options, accuracy):
    M = multigrid(CUBE, max_coarse=20, **options)
    full = dense(M)
    np.testing.assert_allclose(full, full.T, atol=accuracy * np.abs(full).max())
    assert M.T is M
    eigenvalues = np.linalg.eigvals(full @ CUBE.toarray()).real
    assert eigenvalues.min() > 0.4 and eigenvalues.max() < 1 + accuracy


def test_a_nonsymmetric_matrix_has_a_transpose_that_is_one():
    M = multigrid(FLOW, max_coarse=50)
    assert not M.symmetric
    full = dense(M)
    np.testing.assert_allclose(dense(M.T), full.T, atol=1e-13)
    np.testing.assert_allclose(dense(M.T.T), full, atol=1e-13)
    assert np.abs(np.linalg.eigvals(np.eye(216) - full @ FLOW.toarray())).max() < 0.5
    assert "dia" in repr(M.T)


@pytest.mark.parametrize(("change", "symmetric"), [(1e-9, False), (1e-15, True)])
def test_one_entry_that_differs_from_its_image_by_more_than_rounding_is_seen(change, symmetric):
    S = CUBE.copy()
    S.data[1] *= 1 + change
    assert multigrid(S, max_coarse=50).symmetric == symmetric


def test_the_levels_of_pyamg_are_taken_as_they_are():
    theirs = pyamg.ruge_stuben_solver(CUBE, max_coarse=20)
    M = multigrid_from(theirs)
    coarsest = theirs.levels[-1].A
    inverse = (coarsest.shape[0] ** 2 - coarsest.nnz) / CUBE.nnz  # it is dense here
    assert [n for n, _ in M.sizes] == [level.A.shape[0] for level in theirs.levels]
    assert M.operator_complexity == pytest.approx(theirs.operator_complexity() + inverse)
    assert "216 (dia) → 108 (csr) → 19 (inverse)" in repr(M)


def test_levels_that_are_given_stay_as_they_are():
    """Rows that are not sorted, and zeros that are stored: multigrid sorts and drops them in copies."""
    n, A = 64, jsf.gallery.poisson(8, dim=2)
    col = np.stack([(np.arange(n) // 2 + 1) % (n // 2), np.arange(n) // 2], axis=1).ravel()
    P = sp.csr_array((np.tile([0.0, 1.0], n), col, np.arange(0, 2 * n + 1, 2)), shape=(n, n // 2))
    given = [types.SimpleNamespace(A=A, R=sp.csr_array(P.T), P=P), types.SimpleNamespace(A=sp.csr_array(P.T @ A @ P))]
    arrays = [[M.data, M.indices, M.indptr] for M in (A, P, given[0].R, given[1].A)]
    before = [[a.copy() for a in of] for of in arrays]
    multigrid_from(given)
    for now, then in zip(itertools.chain(*arrays), itertools.chain(*before), strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_finest_level_shares_the_matrix_of_the_user():
    A = jsf.from_scipy(CUBE, "dia")
    assert multigrid(A, max_coarse=50).levels[0].A is A
    narrow = multigrid(A, max_coarse=50, dtype="float32").levels[0].A
    assert narrow.name == "dia" and narrow.dtype == np.float32
    assert multigrid(A.asformat("pjds"), max_coarse=50).levels[0].A.basis.perm is None


def test_the_iterations_do_not_grow_with_the_grid():
    grids = {n: jsf.gallery.poisson(n) for n in (16, 24, 32)}
    counts = [scipy_iterations(grids[n], random_vector(n**3), multigrid(grids[n]), 1e-8) for n in (16, 24)]
    sol = cg(jsf.from_scipy(grids[32]), random_vector(32**3), M=multigrid(grids[32]), rtol=1e-8)
    assert sol.success and sol.iterations <= 1.2 * min(counts) and max(counts) <= 9


def test_elasticity_with_rigid_body_modes_takes_dozens_where_jacobi_takes_hundreds():
    extents = (24, 4, 4)
    A = jsf.from_scipy(jsf.gallery.elasticity(extents))
    b = random_vector(A.shape[0])
    M = multigrid(A, B=rigid_body_modes(grid(*extents)), max_coarse=200)
    assert len(M.levels) >= 1 and M.sizes[1][0] % 6 == 0  # blocks of 3 were found: six coarse unknowns an aggregate
    sol, jacobi = cg(A, b, M=M, rtol=1e-8), cg(A, b, M=precond.jacobi(A), rtol=1e-8)
    assert sol.success and sol.iterations <= 24
    assert jacobi.iterations >= 150


@pytest.mark.parametrize("given", ["our bsr", "scipy's bsr"])
def test_blocks_may_be_given_where_they_have_holes(given):
    S = jsf.gallery.elasticity((6, 3, 3))
    S.eliminate_zeros()
    blocks = {
        "our bsr": jsf.from_scipy(S, "bsr", block_shape=(3, 3)),
        "scipy's bsr": S.tobsr(blocksize=(3, 3)),
    }
    M = multigrid(blocks[given], B=rigid_body_modes(grid(6, 3, 3)), max_coarse=60)
    assert M.sizes[-1][0] % 6 == 0 and len(M.levels) == 1


def with_points_alone() -> sp.csr_array:
    return sp.csr_array(sp.block_diag([CUBE, sp.diags_array(np.arange(1.0, 50)), CUBE], format="csr"))


@pytest.mark.parametrize(
    ("S", "options", "rtol", "most", "levels"),
    [
        # Its coarsest level holds little but rounding of ones.
        (neumann(8), {"max_coarse": 3}, 1e-10, 14, None),
        (with_points_alone(), {"max_coarse": 30}, 1e-9, 16, None),  # rows without neighbours, and two pieces
        (sp.csr_array(sp.diags_array(np.arange(1.0, 601))), {}, 1e-9, 16, None),
        # Weak couplings are followed where the smoother alone would not do.
        (trilinear(16), {}, 1e-8, 7, True),
        (sp.csr_array(trilinear(16) + 10 * sp.eye_array(16**3)), {}, 1e-8, 7, False),
    ],
    ids=["neumann", "pieces", "diagonal", "weak", "weak, shifted"],
)
def test_a_special_problem_is_solved_in_few_steps(S, options, rtol, most, levels):
    b, M = random_vector(S.shape[0]), multigrid(S, **options)
    assert levels is None or (M.sizes[1][0] > 1) == levels
    if np.allclose(S @ np.ones(len(b)), 0):
        b -= b.mean()
        assert np.abs(M @ np.ones(len(b))).max() < 1e3
    assert scipy_iterations(S, b, M, rtol) <= most


def test_the_set_up_repeats_and_leaves_the_matrix_as_it_was():
    S = sp.csr_array(CUBE)
    attributes = set(vars(S))
    first, second = multigrid(S, max_coarse=50), multigrid(S, max_coarse=50)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert set(vars(S)) == attributes and (S - CUBE).nnz == 0


def problem(name: str) -> tuple[sp.csr_array, np.ndarray | None]:
    """A matrix of PyAMG's gallery and its near-null space."""
    if name == "elasticity":
        S, B = pyamg.gallery.linear_elasticity((20, 20))
        return sp.csr_array(S), B
    if name == "poisson":
        return sp.csr_array(pyamg.gallery.poisson((40, 40), format="csr")), None
    stencil = pyamg.gallery.diffusion_stencil_2d(epsilon=0.1, theta=np.pi / 6, type="FE")
    return sp.csr_array(pyamg.gallery.stencil_grid(stencil, (40, 40), format="csr")), None


@pytest.mark.parametrize("name", few(["poisson", "elasticity", "diffusion"], 1))
def test_the_steps_are_those_of_pyamg_or_one_more(name):
    S, B = problem(name)
    b, residuals = random_vector(S.shape[0]), []
    np.random.seed(0)  # noqa: NPY002
    blocks = S if B is None else S.tobsr(blocksize=(2, 2))
    theirs = pyamg.smoothed_aggregation_solver(blocks, B=B, max_coarse=100)
    theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals)
    count = scipy_iterations(S, b, multigrid(blocks, B, max_coarse=100), 1e-8)
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


def test_a_stronger_cycle_leaves_a_smaller_error():
    weak, strong = (multigrid(CUBE, max_coarse=8, cycle=c) for c in "VW")
    assert len(strong.levels) >= 2
    x = random_vector(216)
    left = [np.linalg.norm(CUBE @ (x - np.asarray(M @ (CUBE @ x)))) for M in (weak, strong)]
    assert left[1] < left[0]


def test_a_diverging_cycle_warns():
    indefinite = sp.csr_array(CUBE - 2.5 * sp.eye_array(216))
    with pytest.warns(RuntimeWarning, match="diverges") as caught:
        multigrid(indefinite, max_coarse=20)
    assert caught[0].filename == __file__


def test_jit_may_close_over_a_matrix_whose_cycle_is_examined_outside_of_it():
    A, r = jsf.from_scipy(sp.csr_array(CUBE - 2.5 * sp.eye_array(216))), random_vector(216)
    with pytest.warns(RuntimeWarning, match="diverges"):
        M = multigrid(A, max_coarse=20)
    for made in (lambda: multigrid(A, max_coarse=20), lambda: M.refreshed(A)):
        np.testing.assert_allclose(jax.jit(lambda r, made=made: made() @ r)(r), M @ r, rtol=1e-8)


LARGE = jsf.gallery.poisson(17)


def with_entry(value: float) -> sp.csr_array:
    S = CUBE.copy()
    S.data[10] = value
    return S


@pytest.mark.parametrize(
    ("A", "options", "error", "message"),
    [
        (sp.csr_array((0, 0)), {}, ValueError, r"at least one row.*\(0, 0\)"),
        (CUBE.toarray(), {}, TypeError, "jaxsparse_fmt or scipy.sparse; got ndarray"),
        (with_entry(np.nan), {}, ValueError, "NaN or an infinity"),
        (sp.csr_array(CUBE - sp.diags_array(6.0 * (np.arange(216) == 7))), {}, ValueError, "diagonal, first in row 7"),
        (CUBE, {"cycle": "X"}, ValueError, "unknown cycle 'X'; choose V or W"),
        (CUBE, {"theta": 1.0}, ValueError, "theta must be at least 0 and below 1; got 1"),
        (CUBE, {"degree": 0}, ValueError, "degree must be at least 1; got 0"),
        (CUBE, {"B": np.ones(7)}, ValueError, r"B must hold.*\(216, k\); got \(7, 1\)"),
        (CUBE, {"B": np.full(216, np.inf)}, ValueError, "B has a NaN or an infinity"),
        (CUBE, {"B": np.ones(216) * 1j}, TypeError, "B is complex"),
        (CUBE, {"presmoother": "jacobi"}, TypeError, "no keyword 'presmoother'; it has B, cycle"),
        (1e30 * CUBE, {"dtype": "float16", "max_coarse": 50}, ValueError, "dtype float16 holds none above"),
    ],
)
def test_bad_input_is_refused_with_the_cure(A, options, error, message):
    with pytest.raises(error, match=message):
        multigrid(A, **options)


NO_LEVELS = "levels must have A, R and P"


@pytest.mark.parametrize(
    ("levels", "error", "message"),
    [
        *(([setup], TypeError, NO_LEVELS) for setup in (jsf.from_scipy(CUBE), CUBE, [CUBE, CUBE], 3)),
        ([pyamg.ruge_stuben_solver(FLOW[:64, :64]), CUBE], ValueError, "a level of 216 rows has P of shape"),
        ([[types.SimpleNamespace(A=LARGE)]], ValueError, r"stopped at 4913 rows.*lower theta"),
    ],
    ids=range(6),
)
def test_levels_that_do_not_fit_are_refused(levels, error, message):
    with pytest.raises(error, match=message):
        multigrid_from(*levels)


def test_a_traced_matrix_is_refused():
    with pytest.raises(TypeError, match="build M outside jit"):
        jax.jit(lambda A: multigrid(A) @ jnp.ones(216))(jsf.from_scipy(CUBE))


def test_other_values_on_the_same_levels():
    S = sp.csr_array(jsf.gallery.poisson(8))
    A = jsf.from_scipy(S, "csr")
    M = multigrid(A, max_coarse=10)
    jax.tree.map(np.testing.assert_array_equal, M.refreshed(A), M)
    d = sp.diags_array(1 + 0.5 * np.random.default_rng(1).random(512))
    B = A.with_data(sp.csr_array(d @ S @ d).data)
    R = M.refreshed(B)
    P, C = (np.asarray(m.todense()) for m in (R.levels[0].P, R.levels[1].A))
    np.testing.assert_allclose(C, P.T @ (B.to_scipy() @ P), atol=1e-12 * abs(C).max())
    with pytest.raises(TypeError, match="build M outside jit"):
        jax.jit(lambda M, A: M.refreshed(A))(M, A)


@each_file
def test_real_systems_are_solved_where_pyamg_solves_them(path):
    S = sp.csr_array(jsf.io.read_scipy(path))
    if not is_hermitian_with_positive_diagonal(S):
        pytest.skip("not Hermitian with a positive diagonal")
    S = S.astype(complex if S.dtype.kind == "c" else float)
    b = S @ np.ones(S.shape[0])
    sol = cg(jsf.from_scipy(S), b, M=multigrid(S, max_coarse=100), rtol=1e-8, maxiter=600)
    x = np.asarray(sol.x)
    relative = np.linalg.norm(b - S @ x) / np.linalg.norm(b)
    assert np.all(np.isfinite(x)) and sol.success == (relative <= 1e-8)
    np.random.seed(0)  # noqa: NPY002
    theirs = pyamg.smoothed_aggregation_solver(S).solve(b, tol=1e-8, maxiter=100, accel="cg")
    if np.linalg.norm(b - S @ theirs) <= 1e-8 * np.linalg.norm(b):
        assert sol.status is Status.CONVERGED, sol
        assert np.linalg.norm(S @ (x - theirs)) <= 2e-8 * np.linalg.norm(b)
