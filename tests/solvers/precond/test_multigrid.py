"""Multigrid: the cycle against its formula in dense arithmetic, symmetry, traffic, iteration counts, and the door."""

import dataclasses
import itertools
import os
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from jaxsparse_fmt.gallery import rigid_body_modes
from solvers import Status, cg, precond
from solvers.precond import _hierarchy
from solvers.precond.multigrid import Multigrid, _cycled, multigrid

pyamg = pytest.importorskip("pyamg")

FOLDER = os.environ.get("JAXSPARSE_MATRICES")
FILES = sorted(pathlib.Path(FOLDER).glob("*.mtx*")) if FOLDER else []
CUBE = jsf.gallery.poisson(6)
FLOW = jsf.gallery.convection_diffusion(6, diffusion=0.1)


def magnetic(n: int) -> sp.csr_array:
    """Poisson's matrix with phases on the couplings along one axis: complex Hermitian, positive definite."""
    S = jsf.gallery.poisson(n).tocoo()
    along = np.abs(S.row - S.col) == 1
    phase = np.where(along, np.exp(0.3j * np.sign(S.col - S.row) * (S.row // n % n) / n), 1)
    return sp.csr_array(sp.coo_array((S.data * phase, (S.row, S.col)), shape=S.shape))


def neumann(n: int) -> sp.csr_array:
    """Poisson's matrix on n³ points without any boundary value: constants are its null space."""
    S = jsf.gallery.poisson(n)
    return sp.csr_array(S - sp.diags_array(S @ np.ones(n**3)))


def grid(*extents: int) -> np.ndarray:
    """Coordinates of the free nodes of `gallery.elasticity`."""
    return np.array(list(itertools.product(*(range(e) for e in extents))), float)


def random_vector(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, *shape))


def scipy_iterations(S: sp.csr_array, b: np.ndarray, M: Multigrid, rtol: float) -> int:
    """Of SciPy's cg, which compiles nothing but the cycle."""
    count = 0

    def tick(_):
        nonlocal count
        count += 1

    x, info = spla.cg(S, b, rtol=rtol, M=spla.LinearOperator(S.shape, lambda r: np.asarray(M @ r)), callback=tick)
    assert info == 0 and np.linalg.norm(b - S @ x) <= 1.01 * rtol * np.linalg.norm(b)
    return count


def dense(M: Multigrid) -> np.ndarray:
    return np.asarray(M @ np.eye(M.shape[0]))


# ----------------------------------------------------------------------------------------------------------- cycle


def smoothing_error(A: np.ndarray, smoother: str, degree: int, fraction: float, upper: float) -> np.ndarray:
    """The error that one smoothing leaves, by the closed formula of its polynomial at the eigenvalues of D⁻¹A."""
    root = np.sqrt(np.diag(A))
    w, V = np.linalg.eigh(A / root[:, None] / root)
    middle, half = (1 + fraction) / 2 * upper, (1 - fraction) / 2 * upper
    if smoother == "jacobi":
        left = (1 - w / middle) ** degree
    else:
        chebyshev = np.polynomial.chebyshev.Chebyshev.basis(degree)
        left = chebyshev((middle - w) / half) / chebyshev(middle / half)
    return (V * left) @ V.T * root / root[:, None]


@pytest.mark.parametrize(("smoother", "degree"), [("jacobi", 1), ("jacobi", 2), ("chebyshev", 1), ("chebyshev", 4)])
def test_is_the_two_grid_formula(smoother, degree):
    """M = (I − S·C·S)·A⁻¹ with S the smoother's error and C = I − P·(RAP)⁻¹·R·A the coarse correction's."""
    M = multigrid(CUBE, smoother=smoother, degree=degree, fraction=0.2, max_coarse=120)
    (level,) = M.levels
    A, P, identity = CUBE.toarray(), np.asarray(level.P.todense()), np.eye(216)
    upper, _ = _hierarchy.spectrum(CUBE, 1 / CUBE.diagonal(), True)
    S = smoothing_error(A, smoother, degree, 0.2, upper)
    C = identity - P @ np.linalg.solve(P.T @ A @ P, P.T @ A)
    np.testing.assert_allclose(dense(M), (identity - S @ C @ S) @ np.linalg.inv(A), atol=1e-12)


@pytest.mark.some(problem=1)
@pytest.mark.parametrize("problem", [CUBE, jsf.gallery.elasticity(4), jsf.gallery.adaptive_poisson(2, 1, 2), FLOW])
def test_the_largest_eigenvalue_is_bounded_closely(problem):
    d = problem.diagonal()
    bound, _ = _hierarchy.spectrum(problem, 1 / d, problem is not FLOW)
    exact = np.linalg.eigvals(problem.toarray() / d[:, None]).real.max()
    assert exact <= bound * (1 + 1e-12) and bound <= 1.11 * exact


def test_three_levels_are_two_with_a_cycle_in_the_place_of_the_inverse():
    M = multigrid(CUBE, max_coarse=20, degree=1)
    assert len(M.levels) == 2
    below = dataclasses.replace(M, levels=M.levels[1:])
    two = dataclasses.replace(M, levels=M.levels[:1], coarse_inverse=jnp.asarray(dense(below)))
    np.testing.assert_allclose(dense(M), dense(two), atol=1e-14)


@pytest.mark.parametrize("format", ["sell", "pjds"])
def test_every_format_gives_the_same_cycle(format):
    want = multigrid(CUBE, max_coarse=120) @ np.ones(216)
    M = multigrid(CUBE, max_coarse=120, format=format)
    assert {m.name for m in (M.levels[0].A, M.levels[0].R, M.levels[0].P)} == {format}
    np.testing.assert_allclose(M @ np.ones(216), want, rtol=1e-12)


def test_a_small_matrix_is_inverted():
    b = random_vector(216)
    M = multigrid(CUBE)
    assert M.levels == () and M.products_per_cycle == 1
    np.testing.assert_allclose(CUBE @ np.asarray(M @ b), b, atol=1e-12)


# -------------------------------------------------------------------------------------------------------- symmetry


@pytest.mark.parametrize(
    ("options", "accuracy"),
    [({}, 1e-14), ({"cycle": "W", "smoother": "l1_jacobi"}, 1e-14), ({"dtype": "float32"}, 1e-6)],
)
def test_is_symmetric_positive_definite_and_a_contraction(options, accuracy):
    M = multigrid(CUBE, max_coarse=20, **options)
    full = dense(M)
    np.testing.assert_allclose(full, full.T, atol=accuracy * np.abs(full).max())
    assert M.T is M
    eigenvalues = np.linalg.eigvals(full @ CUBE.toarray()).real
    assert eigenvalues.min() > 0.4 and eigenvalues.max() < 1 + accuracy


def test_a_complex_hermitian_matrix_has_a_hermitian_cycle():
    S = magnetic(6)
    M = multigrid(S, max_coarse=50, degree=1)
    full = dense(M)
    np.testing.assert_allclose(full, full.conj().T, atol=1e-14)
    assert np.linalg.eigvalsh(full)[0] > 0
    np.testing.assert_allclose(M.T @ np.arange(216.0), full.T @ np.arange(216.0), rtol=1e-12)
    assert np.abs(np.linalg.eigvals(np.eye(216) - full @ S.toarray())).max() < 0.5


def test_a_nonsymmetric_matrix_has_a_transpose_that_is_one():
    M = multigrid(FLOW, max_coarse=50)
    assert not M.symmetric
    full = dense(M)
    np.testing.assert_allclose(dense(M.T), full.T, atol=1e-13)
    np.testing.assert_allclose(dense(M.T.T), full, atol=1e-13)
    assert np.abs(np.linalg.eigvals(np.eye(216) - full @ FLOW.toarray())).max() < 0.5
    assert "dia" in repr(M.T) and M.T.products_per_cycle == pytest.approx(M.products_per_cycle)


# ------------------------------------------------------------------------------------------------- transformations


def test_columns_vmap_and_the_linear_transpose_agree_with_single_vectors():
    M = multigrid(FLOW, max_coarse=50, degree=1)
    R = random_vector(216, 3)
    want = np.stack([M @ r for r in R.T], axis=1)
    np.testing.assert_allclose(M @ R, want, atol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda r: M @ r))(R.T), want.T, atol=1e-14)
    (transposed,) = jax.jit(jax.linear_transpose(lambda r: M @ r, R[:, 0]))(R[:, 1])
    np.testing.assert_allclose(transposed, M.T @ R[:, 1], atol=1e-14)


@pytest.mark.deep
def test_a_complex_vector_goes_through_a_real_cycle():
    M = multigrid(CUBE, max_coarse=50, dtype="float32", degree=1)
    r = random_vector(216) + 1j * random_vector(216, seed=1)
    z = M @ r
    assert z.dtype == np.complex128
    np.testing.assert_allclose(z, (M @ r.real) + 1j * (M @ r.imag), atol=1e-5)


def test_a_second_matrix_of_the_same_layout_compiles_nothing():
    first, second = (multigrid(scale * CUBE, max_coarse=50) for scale in (1, 3))
    want = np.asarray(first @ np.ones(216)) / 3
    compiled = _cycled._cache_size()
    np.testing.assert_allclose(second @ np.ones(216), want, rtol=1e-12)
    assert _cycled._cache_size() == compiled


# --------------------------------------------------------------------------------------------------------- traffic


@pytest.mark.some(smoother=1)
@pytest.mark.parametrize(("smoother", "degree"), [("jacobi", 1), ("jacobi", 2), ("chebyshev", 2), ("chebyshev", 3)])
def test_a_level_takes_two_products_a_degree_and_no_transposed_one(smoother, degree):
    M = multigrid(CUBE, smoother=smoother, degree=degree, max_coarse=20)
    text = str(jax.make_jaxpr(lambda M, r: M @ r)(M, np.ones(216)))
    assert text.count("sparse_product[") == len(M.levels) * (2 * degree + 2)
    assert "sparse_transposed[" not in text


def test_the_levels_of_pyamg_are_taken_as_they_are():
    theirs = pyamg.ruge_stuben_solver(CUBE, max_coarse=20)
    M = multigrid(CUBE, setup=theirs)
    coarsest = theirs.levels[-1].A
    inverse = (coarsest.shape[0] ** 2 - coarsest.nnz) / CUBE.nnz  # it is dense here
    assert [n for n, _ in M.sizes] == [level.A.shape[0] for level in theirs.levels]
    assert M.grid_complexity == pytest.approx(theirs.grid_complexity())
    assert M.operator_complexity == pytest.approx(theirs.operator_complexity() + inverse)
    lines = repr(M).splitlines()
    assert len(lines) == 2 + len(theirs.levels) and f"{CUBE.nnz}" in lines[2] and "inverse" in lines[-1]


def test_levels_that_are_given_stay_as_they_are():
    """Rows that are not sorted, and zeros that are stored: multigrid sorts and drops them in copies."""
    n, A = 64, jsf.gallery.poisson(8, dim=2)
    col = np.stack([(np.arange(n) // 2 + 1) % (n // 2), np.arange(n) // 2], axis=1).ravel()
    P = sp.csr_array((np.tile([0.0, 1.0], n), col, np.arange(0, 2 * n + 1, 2)), shape=(n, n // 2))
    given = [types.SimpleNamespace(A=A, R=sp.csr_array(P.T), P=P), types.SimpleNamespace(A=sp.csr_array(P.T @ A @ P))]
    arrays = [[M.data, M.indices, M.indptr] for M in (A, P, given[0].R, given[1].A)]
    before = [[a.copy() for a in of] for of in arrays]
    multigrid(A, setup=given)
    for now, then in zip(itertools.chain(*arrays), itertools.chain(*before), strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_finest_level_shares_the_matrix_of_the_user():
    A = jsf.from_scipy(CUBE, "dia")
    assert multigrid(A, max_coarse=50).levels[0].A is A
    narrow = multigrid(A, max_coarse=50, dtype="float32").levels[0].A
    assert narrow.name == "dia" and narrow.dtype == np.float32
    assert multigrid(A.asformat("pjds"), max_coarse=50).levels[0].A.basis.perm is None


def test_a_narrow_cycle_costs_no_iterations_of_a_wide_solver():
    S = jsf.gallery.poisson(10)
    A, b = jsf.from_scipy(S), random_vector(1000)
    wide, narrow = (multigrid(A, dtype=d, max_coarse=150, degree=1) for d in (None, "float32"))
    assert {m.dtype for m in (narrow.levels[0].A, narrow.levels[0].R, narrow.coarse_inverse)} == {np.dtype("float32")}
    assert (narrow @ b).dtype == np.float64
    sol = cg(A, b, M=narrow, rtol=1e-10)
    assert sol.success and sol.iterations <= scipy_iterations(S, b, wide, 1e-10) + 1


def test_sixteen_bits_are_stored_and_thirty_two_computed_with():
    M = multigrid(CUBE, max_coarse=50, dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(M)} == {"bfloat16", "float32", "int32"}
    r = random_vector(216)
    want = np.asarray(multigrid(CUBE, max_coarse=50) @ r)
    assert np.linalg.norm(M @ r - want) <= 2**-7 * np.linalg.norm(want)


# -------------------------------------------------------------------------------------------------------- iterations


def test_the_iterations_do_not_grow_with_the_grid():
    grids = {n: jsf.gallery.poisson(n) for n in (16, 24, 32)}
    counts = [scipy_iterations(grids[n], random_vector(n**3), multigrid(grids[n]), 1e-8) for n in (16, 24)]
    sol = cg(jsf.from_scipy(grids[32]), random_vector(32**3), M=multigrid(grids[32]), rtol=1e-8)
    assert sol.success and sol.iterations <= 1.2 * min(counts) and max(counts) <= 9


def test_weak_couplings_along_one_axis_are_not_followed():
    line, eye = jsf.gallery.poisson(14, dim=1), sp.eye_array(14)
    plane = sp.kron(sp.kron(line, eye) + sp.kron(eye, line), eye)
    S = sp.csr_array(plane + 0.01 * sp.kron(sp.kron(eye, eye), line))
    assert scipy_iterations(S, random_vector(14**3), multigrid(S), 1e-8) <= 10


def test_elasticity_with_rigid_body_modes_takes_dozens_where_jacobi_takes_hundreds():
    extents = (24, 4, 4)
    A = jsf.from_scipy(jsf.gallery.elasticity(extents))
    b = random_vector(A.shape[0])
    M = multigrid(A, B=rigid_body_modes(grid(*extents)), max_coarse=200)
    assert len(M.levels) >= 1 and M.sizes[1][0] % 6 == 0  # blocks of 3 were found: six coarse unknowns an aggregate
    sol, jacobi = cg(A, b, M=M, rtol=1e-8), cg(A, b, M=precond.jacobi(A), rtol=1e-8)
    assert sol.success and sol.iterations <= 24
    assert jacobi.iterations >= 150


@pytest.mark.parametrize("given", ["block_size", "our bsr", "scipy's bsr"])
def test_blocks_may_be_given_where_they_have_holes(given):
    S = jsf.gallery.elasticity((6, 3, 3))
    S.eliminate_zeros()
    blocks = {
        "block_size": S,
        "our bsr": jsf.from_scipy(S, "bsr", block_shape=(3, 3)),
        "scipy's bsr": S.tobsr(blocksize=(3, 3)),
    }
    options = {"block_size": 3} if given == "block_size" else {}
    M = multigrid(blocks[given], B=rigid_body_modes(grid(6, 3, 3)), max_coarse=60, **options)
    assert M.sizes[-1][0] % 6 == 0 and len(M.levels) == 1


# --------------------------------------------------------------------------------------------------------- singular


def test_a_pure_neumann_problem_is_solved():
    """On a coarsest level so small that it holds little but rounding of the constant."""
    S = neumann(8)
    b = random_vector(512)
    b -= b.mean()
    M = multigrid(S, max_coarse=3)
    assert scipy_iterations(S, b, M, 1e-10) <= 14
    assert np.abs(M @ np.ones(512)).max() < 1e3


def test_a_floating_body_whose_coarse_matrix_is_all_rounding_keeps_the_cycle_small():
    S = jsf.gallery.elasticity(5, clamped=False)
    M = multigrid(S, B=rigid_body_modes(grid(5, 5, 5)), max_coarse=12)
    assert M.coarse_inverse.shape[0] <= 12
    assert np.abs(M @ random_vector(375)).max() < 1e3


def test_pieces_that_a_coarse_level_annihilates_stay_out_of_it():
    """Weighted triangles shrink to the rounding of a zero on the first coarse level, where a cube goes on."""
    weights = np.random.default_rng(0).uniform(0.1, 1.1, (6, 3, 3))
    weights = np.triu(weights, 1) + np.triu(weights, 1).swapaxes(1, 2)
    triangles = [np.diag(w.sum(axis=0)) - w for w in weights]
    S = sp.csr_array(sp.block_diag([neumann(8), *triangles], format="csr"))
    M = multigrid(S, max_coarse=4, degree=1)
    assert len(M.levels) == 3 and max(np.max(level.inverse_diagonal) for level in M.levels) < 1e3
    assert scipy_iterations(S, S @ random_vector(S.shape[0]), M, 1e-9) <= 16


def test_a_candidate_too_many_does_no_harm():
    B = np.stack([np.ones(216), np.ones(216), 2 * np.ones(216)], axis=1)
    M = multigrid(CUBE, B=B, max_coarse=120)
    one = multigrid(CUBE, max_coarse=40)
    np.testing.assert_allclose(M @ np.ones(216), one @ np.ones(216), rtol=1e-8)


# ------------------------------------------------------------------------------------------------------------ doors


def test_the_set_up_repeats_and_touches_neither_the_matrix_nor_the_random_state():
    S = sp.csr_array(CUBE)
    attributes = set(vars(S))
    np.random.seed(3)  # noqa: NPY002
    first = multigrid(S, max_coarse=50)
    drawn = np.random.rand()  # noqa: NPY002
    second = multigrid(S, max_coarse=50)
    np.random.seed(3)  # noqa: NPY002
    assert drawn == np.random.rand()  # noqa: NPY002
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert set(vars(S)) == attributes and (S - CUBE).nnz == 0


# ------------------------------------------------------------------------------------------------ cycles and warnings


@pytest.mark.parametrize("cycle", ["W", "F", "K"])
def test_stronger_cycles_leave_a_smaller_error(cycle):
    weak, strong = (multigrid(CUBE, max_coarse=8, cycle=c) for c in ("V", cycle))
    assert len(strong.levels) >= 2
    x = random_vector(216)
    left = [np.linalg.norm(CUBE @ (x - np.asarray(M @ (CUBE @ x)))) for M in (weak, strong)]
    assert left[1] < left[0]
    if cycle == "F":
        np.testing.assert_allclose(dense(strong.T), dense(strong).T, atol=1e-13)


def test_a_diverging_cycle_warns():
    indefinite = sp.csr_array(CUBE - 2.5 * sp.eye_array(216))
    with pytest.warns(RuntimeWarning, match="diverges"):
        multigrid(indefinite, max_coarse=20)


def test_rows_without_neighbours_and_pieces_are_left_to_the_smoother():
    S = sp.csr_array(sp.block_diag([CUBE, sp.diags_array(np.arange(1.0, 50)), CUBE], format="csr"))
    M = multigrid(S, max_coarse=30)
    assert scipy_iterations(S, random_vector(S.shape[0]), M, 1e-9) <= 16
    alone = sp.csr_array(sp.diags_array(np.arange(1.0, 601)))
    assert scipy_iterations(alone, random_vector(600), multigrid(alone), 1e-9) <= 16


# ----------------------------------------------------------------------------------------------------- real matrices


def hermitian_with_positive_diagonal(S) -> bool:
    if S.shape[0] != S.shape[1] or S.nnz == 0 or np.any(S.diagonal().real <= 0):
        return False
    return abs(S - S.conj().T).max() <= 1e-12 * abs(S).max()


@pytest.mark.deep
@pytest.mark.skipif(not FILES, reason="JAXSPARSE_MATRICES names no folder of Matrix Market files")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.partition(".")[0])
def test_real_systems_are_solved_where_pyamg_solves_them(path):
    S = sp.csr_array(jsf.io.read_mtx(path))
    if not hermitian_with_positive_diagonal(S):
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
