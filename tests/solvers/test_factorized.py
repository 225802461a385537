"""Direct solves and factors: against dense ones and SciPy's, their derivatives, and what they refuse."""

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._aligned import aligned
from solvers import SolverError, Status, direct, factorized, gmres, host_calls, refine, superlu
from solvers.precond import ilu
from tests.lowering import quick_jit
from tests.marks import deep
from tests.oracle import assert_derivatives_agree

N = 30
RHS = np.random.default_rng(2).standard_normal(N)


@functools.cache
def matrix(dtype=np.float64) -> sp.csr_array:
    """A matrix with zeros on its diagonal."""
    rng = np.random.default_rng(0)
    a = np.where(rng.random((N, N)) < 0.15, rng.standard_normal((N, N)), 0)
    a[np.arange(N), rng.permutation(N)] = 3
    np.fill_diagonal(a[:5], 0)
    return sp.csr_array(a * (1 + 0.5j) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def dense_solve(data, b):
    """The same function of the entries of `matrix()`, dense."""
    S = matrix().tocoo()
    return jnp.linalg.solve(jnp.zeros((N, N), data.dtype).at[S.coords].set(data), b)


A = jsf.from_scipy(matrix(), "csr")
DATA = np.asarray(A.data)
ways = pytest.mark.parametrize(
    "way",
    [lambda data, b: direct(A.with_data(data), b).x, lambda data, b: factorized(A.with_data(data)) @ b],
    ids=["direct", "factorized"],
)
jitted = quick_jit(direct)


QUICK = (("csr", np.float32), ("pjds", np.complex128), ("dia", np.float64))
KINDS = itertools.product(("csr", "pjds", "dia"), (np.float32, np.float64, np.complex128))


@pytest.mark.parametrize(("format", "dtype"), [row if row in QUICK else deep(*row) for row in KINDS])
def test_a_solve_and_a_transposed_one_agree_with_dense_ones(format, dtype):
    S = matrix(dtype)
    own = jsf.from_scipy(S, format, **({} if format != "dia" else {"max_bytes": 1e9}))
    b = np.stack([RHS, RHS[::-1]], axis=1).astype(dtype)
    F, near = factorized(own), {"rtol": 0, "atol": 1e4 * np.finfo(dtype).eps}
    sol = F.solve(b)
    assert np.all(sol.success) and np.all(sol.n_iterations <= 3) and sol.x.dtype == dtype
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), b), **near)
    np.testing.assert_allclose(F @ b[:, 0], np.linalg.solve(S.toarray(), b[:, 0]), **near)
    np.testing.assert_allclose(F.T(b), np.linalg.solve(S.toarray().T, b), **near)
    np.testing.assert_allclose(F.T.solve(b[:, 0]).x, np.linalg.solve(S.toarray().T, b[:, 0]), **near)


@pytest.mark.parametrize(
    "b", [RHS, np.stack([RHS, 0 * RHS], 1), (1 + 2j) * RHS, 1e-200 * RHS, RHS.astype("float32")], ids=range(5)
)
def test_direct_gives_what_the_kept_factors_give(b):
    """Outside of traces SuperLU itself solves."""
    got, want = direct(A, b), factorized(A).solve(b)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
    np.testing.assert_array_equal(got.code, want.code)
    np.testing.assert_array_equal(got.n_iterations, want.n_iterations)
    np.testing.assert_allclose(got.x, want.x, rtol=1e-9, atol=1e-12 * np.abs(b).max())
    assert np.all(np.asarray(got.residual_norm)[..., None] <= 1e-10 * np.abs(b).max(0)[..., None])


@pytest.mark.parametrize("format", ["csr", "pjds"])
def test_a_matrix_that_is_an_argument_of_a_jitted_function_is_factored_at_run_time(format):
    own = jsf.from_scipy(matrix(), format)
    for scale in (1.0, -2.0):
        sol = jitted(scale * own, RHS)
        assert sol.status is Status.CONVERGED
        np.testing.assert_allclose(sol.x, np.linalg.solve(scale * matrix().toarray(), RHS), rtol=1e-9, atol=1e-12)


@ways
def test_first_and_second_derivatives_are_those_of_a_dense_solve(way):
    assert_derivatives_agree(way, dense_solve, DATA, RHS, rtol=1e-9)


@ways
def test_vmap_maps_over_right_hand_sides_and_over_values(way):
    B, D = np.stack([RHS, 2 * RHS[::-1]]), DATA * np.array([[1.0], [-0.5]])
    got = quick_jit(jax.vmap(way, (None, 0)))(DATA, B)
    np.testing.assert_allclose(got, np.linalg.solve(matrix().toarray(), B.T).T, rtol=1e-9, atol=1e-12)
    got = quick_jit(jax.vmap(way, (0, None)))(D, RHS)
    np.testing.assert_allclose(got, [dense_solve(d, RHS) for d in D], rtol=1e-9, atol=1e-12)


def test_kept_factors_differentiate_in_the_right_hand_side_and_pass_through_jit():
    F = factorized(A)
    inverse = np.linalg.inv(matrix().toarray())
    of = lambda F, b: jax.jacrev(lambda b: F.solve(b).x)(b)  # noqa: E731
    np.testing.assert_allclose(quick_jit(of)(F, RHS), inverse, rtol=0, atol=1e-9)
    np.testing.assert_allclose(quick_jit(lambda F: jax.jacfwd(lambda b: F @ b)(RHS))(F), inverse, rtol=0, atol=1e-9)


def test_the_factors_are_an_M_for_other_methods():
    assert gmres(A, RHS, M=factorized(A), rtol=1e-10).iterations == 1
    narrow = factorized(A.astype("float32"))
    sol = refine(A, RHS, method="gmres", dtype="float32", M=narrow, rtol=1e-12)
    assert sol.success and sol.iterations <= 10
    np.testing.assert_allclose(sol.x, np.linalg.solve(matrix().toarray(), RHS), rtol=1e-9)


def test_the_condition_is_estimated():
    for F, S in ((factorized(A), matrix().toarray()), (factorized(A).T, matrix().toarray().T)):
        exact = np.linalg.cond(S, 1)
        assert exact / 3 <= float(F.condition) <= exact * (1 + 1e-6)


def test_a_singular_matrix_is_told():
    gone = matrix().toarray()
    gone[:, 4] = 0
    S = jsf.from_dense(gone)
    sol = direct(S, RHS)
    assert sol.status is Status.SINGULAR and np.all(sol.x == 0)
    assert float(sol.residual_norm) == pytest.approx(np.linalg.norm(RHS))
    assert jitted(S, RHS).status is Status.SINGULAR
    assert direct(S, 0 * RHS).success and jitted(S, 0 * RHS).success  # x = 0
    with pytest.raises(SolverError, match="singular") as caught:
        factorized(S)
    assert caught.value.status is Status.SINGULAR


def test_a_nearly_singular_matrix_is_told_by_its_condition():
    near = matrix().toarray()
    near[4] = near[3] + near[5] * (1 + 1e-15)
    F = factorized(jsf.from_dense(near))
    sol = F.solve(RHS)
    assert sol.status is Status.SINGULAR and np.all(np.isfinite(sol.x)) and float(F.condition) > 1e14
    with pytest.raises(SolverError, match="SINGULAR"):
        sol.raise_for_status()


@pytest.mark.parametrize("where", ["A", "b"])
def test_a_nan_is_told_inside_jit_and_outside(where):
    data, b = DATA.copy(), RHS.copy()
    (data if where == "A" else b)[3] = np.nan
    with jax.debug_nans(False):
        for solve in (direct, jitted):
            for rhs in (b,) if where == "b" else (b, 0 * b):  # x = 0 solves no system with a NaN
                sol = solve(A.with_data(data), rhs)
                assert sol.status is Status.NON_FINITE and np.isnan(sol.residual_norm)


@ways
def test_eager_derivatives_compile_once(way, compiled):
    loss = lambda data: jnp.sum(jnp.sin(way(data, RHS)))  # noqa: E731
    for k in range(2):
        jax.grad(loss)(DATA * (1 + k))
    before = compiled()
    for k in range(3):
        jax.grad(loss)(DATA * (3 + k))
    assert compiled() == before


def test_a_batch_of_matrices_is_factored_once_each(monkeypatch):
    count, factored = itertools.count(), superlu.factored
    monkeypatch.setattr(superlu, "factored", lambda *args, **how: (next(count) and None) or factored(*args, **how))
    D = DATA * np.linspace(5.1, 5.9, 9)[:, None]  # of which no other test has factors
    traced = lambda A, D: jax.vmap(lambda d: direct(A.with_data(d), RHS).x)(D)  # noqa: E731  (its pattern, too)
    solve = quick_jit(traced)
    got = solve(A, D)
    np.testing.assert_allclose(got, [dense_solve(d, RHS) for d in D], rtol=1e-9, atol=1e-12)
    assert next(count) == 9 and jsf.cache_info()["factors for programs"].entries >= 9  # for derivatives
    monkeypatch.setattr(host_calls, "LARGEST", 0)
    np.testing.assert_allclose(solve(A, 2 * D), got / 2, rtol=1e-9, atol=1e-12)
    assert jsf.cache_info()["factors for programs"].entries == host_calls.KEPT


def test_a_right_hand_side_on_a_mesh_is_solved_on_it():
    for kind in jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto:
        mesh = jax.make_mesh((1,), ("rows",), axis_types=(kind,))
        b = jax.device_put(RHS, jax.NamedSharding(mesh, jax.P("rows")))
        np.testing.assert_allclose(direct(A, b).x, np.linalg.solve(matrix().toarray(), RHS), rtol=1e-9)


def test_a_solution_whose_square_overflows_is_no_infinity():
    S = jsf.gallery.poisson(4)
    A, b = jsf.from_scipy(1e-22 * S, "csr", dtype="float32"), np.full(S.shape[0], 1e-22, np.float32)
    assert direct(A, b).success


@pytest.mark.parametrize(
    ("dtype", "scale"), [(np.float32, 1e25), (np.float32, 1e-25), (np.float64, 1e200), (np.float64, 1e-235)]
)
def test_is_a_solution_beyond_the_dtype_told(dtype, scale):
    wide, b = A.with_data((DATA / scale).astype(dtype)), (RHS * scale).astype(dtype)
    for solve in (direct, jitted):
        sol = solve(wide, b)
        assert sol.status is Status.OUT_OF_RANGE and np.all(np.isfinite(sol.x))


SMALL = {"regular": np.array([[1.0, 2], [2, 1]]), "singular": np.array([[1.0, 2], [2, 4]])}
SCALES = {4: (1e-36, 1e-25, 1.3e-19, 1.0, 1e19, 1.5e38, 3e38), 8: (1e-306, 1e-200, 1e-155, 1.0, 1e155, 1e307, 1.7e308)}


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64, np.complex128])
@pytest.mark.parametrize("solve", [direct, jitted], ids=["eager", "jit"])
def test_is_the_residual_norm_that_of_x_wherever_the_dtype_holds_it(solve, dtype):
    info, shape = np.finfo(dtype), np.array([0.6, -0.9] if np.dtype(dtype).kind == "f" else [0.6 + 0.9j, -0.9])
    for (kind, S), scale in itertools.product(SMALL.items(), SCALES[info.dtype.itemsize]):
        own, b = jsf.from_dense(S, "csr", dtype=dtype), (scale * shape).astype(dtype)
        for rhs in (b, np.stack([b, 0 * b, b / 8], axis=1)):
            sol = solve(own, rhs)
            wide, x = rhs.astype(np.clongdouble), np.asarray(sol.x).astype(np.clongdouble)
            assert sol.x.dtype == dtype and np.all(np.isfinite(x))
            true, b_norm = np.linalg.norm(wide - S @ x, axis=0), np.linalg.norm(wide, axis=0)
            is_held = true <= info.max
            np.testing.assert_array_equal(np.isinf(sol.residual_norm), ~is_held)
            error = np.abs(np.asarray(sol.residual_norm, np.longdouble) - true)
            bound = 0.01 * true + 8 * np.finfo(float).eps * b_norm + info.tiny
            assert np.all((error <= bound) | ~is_held), (kind, scale)
            np.testing.assert_array_equal(np.asarray(sol.code) == Status.CONVERGED, (kind == "regular") | (b_norm == 0))
            assert np.all((np.asarray(sol.code) == Status.OUT_OF_RANGE) | is_held)


def test_do_kept_factors_follow_an_array_that_changes():
    """JAX on a CPU takes an aligned array of NumPy as it is."""
    own = jax.tree.map(lambda a: aligned(np.array(a)), A)
    F = factorized(own)
    own.values[...] *= 2
    sol = F.solve(RHS)
    assert sol.success
    np.testing.assert_allclose(sol.x, np.linalg.solve(matrix().toarray(), RHS), rtol=1e-9)


def test_an_x_that_only_its_dtype_keeps_from_the_tolerance_comes_from_the_host_at_once(compiled):
    S = jsf.gallery.poisson(20, dim=2)
    A, b = jsf.from_scipy(S, "csr", dtype="float32"), jnp.ones(S.shape[0], jnp.float32)
    assert direct(A, b, rtol=1e-2).status is Status.CONVERGED  # compiles what brings results to the device
    before = compiled()
    sol = direct(A, b, rtol=1e-6)
    assert (sol.status, sol.iterations, compiled()) == (Status.ROUNDED, 1, before)
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), b), rtol=1e-7)


def test_threads_that_factor_one_pattern_at_once_solve_their_own_systems():
    solve = quick_jit(lambda data, b: direct(A.with_data(data), b).x)
    scales = np.linspace(1, 3, 24)
    with ThreadPoolExecutor(4) as pool:
        xs = list(pool.map(lambda scale: solve(scale * DATA, RHS), scales))
    np.testing.assert_allclose(scales[:, None] * xs, np.tile(dense_solve(DATA, RHS), (24, 1)), rtol=1e-9)


def test_equal_values_on_another_pattern_and_for_another_recipe_have_factors_of_their_own():
    row, col = (np.asarray(a) for a in (A.row_ids, A.col_ids))
    both = quick_jit(lambda A, b: (direct(A, b).x, ilu(A, drop_tol=0.5, fill=1) @ b))
    for cols in (col, (col + 1) % N, col):
        S = sp.csr_array((DATA, (row, cols)), shape=(N, N))
        other = jsf.from_scipy(S, "coo")
        x, rough = both(other, RHS)
        np.testing.assert_allclose(x, np.linalg.solve(S.toarray(), RHS), rtol=1e-9)
        np.testing.assert_allclose(rough, ilu(other, drop_tol=0.5, fill=1) @ RHS, rtol=1e-9)
        assert np.max(np.abs(x - rough)) > 1e-3
