"""`solve`, which chooses: what it takes, that it goes on where a method fails, and that it never claims too much."""

import functools
import importlib
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, direct, factorized, precond, solve
from solvers.host import Host
from solvers.ways import SMALL
from tests.distributed.problems import MESH
from tests.lowering import quick_jit
from tests.marks import deep
from tests.oracle import assert_derivatives_agree
from tests.solvers import real
from tests.solvers.methods import neumann

N = 60


def tridiagonal(n: int = N, low: float = -1.0, high: float = -1.0, middle: float = 2.5) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([low, middle, high], offsets=[-1, 0, 1], shape=(n, n)))


def saddle_point() -> sp.csr_array:
    """Symmetric, with zeros on the diagonal."""
    B = sp.random_array((N // 3, N), density=0.2, rng=np.random.default_rng(0))
    return sp.csr_array(sp.block_array([[tridiagonal(), B.T], [B, None]]))


def residual(S: sp.csr_array, b: np.ndarray, x: jax.Array) -> float:
    return float(np.linalg.norm(b - S @ np.asarray(x, np.result_type(S.dtype, float))) / np.linalg.norm(b))


GALLERY = {
    "small": (lambda: jsf.gallery.poisson(8), "direct"),
    "saddle point": (saddle_point, "direct"),
    "narrow band": (lambda: tridiagonal(2 * SMALL), "direct"),
    "diffusion": (lambda: jsf.gallery.poisson(20), "cg with jacobi"),
    "convection": (lambda: jsf.gallery.convection_diffusion(20), "bicgstab with jacobi"),
}


@pytest.mark.parametrize("name", GALLERY)
def test_solve_takes_a_method_that_suits_the_matrix_and_says_why(name, compiled):
    make, method = GALLERY[name]
    S = sp.csr_array(make())
    A, b, before = jsf.from_scipy(S), S @ np.ones(S.shape[0]), compiled()
    sol = solve(A, b, rtol=1e-8)
    assert compiled() - before <= (2 if method == "direct" else 1)  # the facts and a diagonal M are the host's
    assert sol.status is Status.CONVERGED and residual(S, b, sol.x) <= 1e-8
    assert sol.method == method and sol.tried[-1].startswith(f"{method} (") and sol.tried[-1].endswith(": CONVERGED")


@pytest.mark.deep
def test_multigrid_follows_where_steps_without_set_up_do_not_suffice(monkeypatch):
    """On a device so slow that some 90 steps of cg cost as much as multigrid with its steps, and factors more."""
    devices = importlib.import_module("solvers.estimates").DEVICES
    monkeypatch.setitem(devices["cpu"], "bandwidth", 1e8)
    monkeypatch.setitem(devices["host"], "work", 1e6)
    S = jsf.gallery.poisson(100, 2)
    b = S @ np.ones(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-8)
    assert sol.method == "cg with multigrid" and residual(S, b, sol.x) <= 1e-8
    assert [line.partition(" (")[0] for line in sol.tried] == ["cg with jacobi", "cg with multigrid"]


@pytest.mark.parametrize("name", ["small", "diffusion", "convection"])
def test_solve_succeeds_in_jaxs_default_precision(name):
    S = sp.csr_array(GALLERY[name][0]())
    with jax.enable_x64(False):
        sol = solve(jsf.from_scipy(S), np.ones(S.shape[0]), rtol=1e-5)
        assert sol.x.dtype == jnp.float32 and sol.success and residual(S, np.ones(S.shape[0]), sol.x) <= 2e-5


def test_solve_goes_on_where_a_method_fails():
    """cg finds out that an indefinite matrix is not definite, multigrid helps no more; gmres or the factors do."""
    S = sp.csr_array(jsf.gallery.poisson(20) - 0.5 * sp.eye_array(20**3))
    b = S @ np.ones(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-8)
    assert sol.success and residual(S, b, sol.x) <= 1e-8
    assert "cg with jacobi" in sol.tried[0] and "CONVERGED" not in sol.tried[0] and len(sol.tried) > 1
    assert sol.tried[-1].startswith(sol.method)


def test_a_singular_matrix_ends_with_a_true_reason():
    S, b = neumann(N), np.random.default_rng(0).standard_normal(N)
    A = jsf.from_scipy(S)
    sol = solve(A, b)
    assert sol.status in (Status.LEAST_SQUARES, Status.SINGULAR) and not sol.success
    least = np.linalg.norm(b - S @ np.linalg.lstsq(S.toarray(), b)[0])
    assert least * (1 - 1e-9) <= float(sol.residual_norm) <= 1.01 * least
    # With a b in the range there is a solution, which is found.
    sol = solve(A, S @ b, rtol=1e-8)
    assert sol.status is Status.CONVERGED and residual(S, S @ b, sol.x) <= 1e-8


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e25), (np.float64, 1e200)])
@pytest.mark.parametrize("dense", [0, 500])
def test_is_a_singular_system_whose_squares_overflow_called_solved(monkeypatch, dtype, scale, dense):
    monkeypatch.setattr(sys.modules["solvers.ways"], "DENSE", dense)
    A = jsf.from_scipy(sp.csr_array(np.triu(np.ones((N, N)), 1)), "csr", dtype=dtype)
    sol = solve(A, np.full(N, scale, dtype))
    assert sol.status is Status.LEAST_SQUARES and sol.method == ("singular values" if dense else "lsmr")
    np.testing.assert_allclose(sol.residual_norm, scale, rtol=1e-3)


@pytest.mark.parametrize(("of_A", "of_b"), [(1e-200, 1e200), (1e200, 1e-200)])
def test_is_a_solution_outside_the_dtype_called_least_squares_or_singular(of_A, of_b):
    dense, b = np.ones((3, 3)) * of_A, np.full(N, of_b)
    A, singular = jsf.from_scipy(of_A * tridiagonal(), "csr"), jsf.from_dense(dense, "csr")
    for sol in (solve(A, b), direct(A, b), quick_jit(direct)(A, b), solve(singular, b[:3])):
        assert sol.status is Status.OUT_OF_RANGE and np.all(np.isfinite(sol.x))
        np.testing.assert_allclose(sol.residual_norm, of_b * np.sqrt(len(sol.x)), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_is_a_singular_system_whose_norms_overflow_called_solved(dtype):
    singular, b = np.triu(np.ones((N, N)), 1), np.full(N, 1e308, dtype)
    sol = solve(jsf.from_dense(singular, "csr"), b)
    assert (sol.status, sol.method) == (Status.LEAST_SQUARES, "singular values")
    np.testing.assert_allclose(sol.residual_norm, 1e308, rtol=1e-6)
    singular[10:] = 0
    sol = solve(jsf.from_dense(singular, "csr"), b)
    assert not sol.success and ["OUT_OF_RANGE" in line for line in sol.tried] == [False, True]
    assert np.isinf(sol.residual_norm) and np.all(np.isfinite(sol.x))


@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_direct_method_tells_as_direct_does(transformed):
    singular = jsf.from_scipy(sp.csr_array(np.triu(np.ones((N, N)), 1)), "csr")
    run = transformed(functools.partial(solve, method="direct"))
    assert run(singular, np.ones(N)).status is Status.SINGULAR
    assert run(singular, np.zeros(N)).status is Status.CONVERGED
    several = solve(singular, np.stack([np.eye(N)[0], np.zeros(N), np.ones(N)], axis=1))
    assert list(np.asarray(several.code)) == [Status.CONVERGED, Status.CONVERGED, Status.LEAST_SQUARES]
    sol = transformed(functools.partial(solve, method="direct", maxiter=0))(jsf.from_scipy(tridiagonal()), np.ones(N))
    assert sol.status is Status.MAXITER and sol.iterations == 0 and np.all(np.asarray(sol.x) == 0)


@pytest.mark.parametrize("power, status", [(2, Status.ROUNDED), (6, Status.SINGULAR)])
def test_the_host_also_ends_direct_solves_that_miss_the_tolerance(monkeypatch, power, status):
    S = sp.csr_array(sp.linalg.matrix_power(tridiagonal(300, middle=2.0), power))
    b = np.random.default_rng(0).standard_normal(300)
    monkeypatch.setattr(sys.modules["solvers.direct"], "by_method", None)  # the compiled loop
    sol = direct(jsf.from_scipy(S), b, rtol=1e-15)
    assert sol.status is status and sol.residual_norm <= np.linalg.norm(b)
    np.testing.assert_allclose(residual(S, b, sol.x) * np.linalg.norm(b), sol.residual_norm, rtol=0.1)
    exact = np.linalg.solve(S.toarray(), b)
    if status is Status.ROUNDED:
        np.testing.assert_allclose(sol.x, exact, rtol=1e-5)
    several = direct(jsf.from_scipy(S), np.stack([b, S @ b, 0 * b], axis=1), rtol=1e-9)
    assert several.status[2] == Status.CONVERGED and np.all(np.asarray(several.x)[:, 2] == 0)


def test_solutions_of_several_methods_are_one_pytree():
    A, b = jsf.from_scipy(tridiagonal()), np.ones(N)
    step = lambda sol, method: (solve(A, b + sol.x, method=method), sol.iterations)  # noqa: E731
    last, _ = jax.lax.scan(lambda sol, _: step(sol, "direct"), step(solve(A, b), "cg")[0], None, 2)
    assert last.success and last.method
    assert jax.jit(lambda sol: len(sol.method))(last) == 0  # one program for all methods


@pytest.mark.parametrize("kind", ["exact", "an entry alone", "a rounding alone", "a zero alone", "other numbers"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_is_a_matrix_symmetric_whose_entries_without_partner_are_rounding(kind, dtype):
    dense = np.random.default_rng(1).standard_normal((7, 7)).astype(dtype) * (1 + 1j if dtype == np.complex128 else 1)
    dense = np.where(np.add.outer(np.arange(7), np.arange(7)) % 3, dense + dense.conj().T, 0)
    S = sp.lil_array(dense)
    assert S[1, 2] == S[2, 1] == 0
    S[1, 2] = {"exact": 0, "an entry alone": 1e-3, "a rounding alone": np.finfo(dtype).eps}.get(kind, 0)
    S = sp.csr_array(S)
    if kind == "other numbers":
        S.data[0] += 1
    if kind == "a zero alone":
        S = sp.csr_array(
            sp.coo_array((np.append(S.data, 0), tuple(map(np.append, S.nonzero(), (1, 2)))), shape=S.shape)
        )
    assert Host(S.astype(dtype)).symmetric == (kind not in ("an entry alone", "other numbers"))


def test_factors_that_would_take_hours_or_the_memory_are_refused_with_numbers(monkeypatch):
    A = jsf.from_scipy(jsf.gallery.poisson(20))
    b = np.ones(A.shape[0])
    monkeypatch.setattr("jaxsparse_fmt.formats.memory.of_host", lambda: 10**9)
    monkeypatch.setattr("solvers.host.COPIES", 100)
    for solver in (direct, lambda A, b: factorized(A), functools.partial(solve, method="direct")):
        with pytest.raises(
            ValueError, match=r"factors of A, of about .*e\+06 entries, take 2[.]08 GB, .* 1 GB of memory are free"
        ):
            solver(A, b)
    monkeypatch.setattr(sys.modules["solvers.ways"], "HOURS", 1e-3)
    with pytest.raises(ValueError, match=r"the factors may take .* hours; direct\(A, b\)"):
        solve(A, b, method="direct")


def test_an_envelope_that_is_too_large_refuses_no_factors_that_fit(monkeypatch):
    n = 2 * SMALL
    S = sp.csr_array(tridiagonal(n) + sp.coo_array((np.full(n, 0.1), (np.arange(n), np.arange(n) // 50)), shape=(n, n)))
    F = spla.splu(S.tocsc())
    monkeypatch.setattr("jaxsparse_fmt.formats.memory.of_host", lambda: 2 * 12 * 10**5 * (F.L.nnz + F.U.nnz))
    monkeypatch.setattr("solvers.host.COPIES", 10**5)
    assert Host(S).envelope[0] > 3 * (F.L.nnz + F.U.nnz)
    assert direct(jsf.from_scipy(S), np.ones(n)).success


@pytest.mark.parametrize("solver", [solve, direct, jax.jit(direct)], ids=["solve", "direct", "jit"])
def test_a_tolerance_of_zero_asks_for_what_the_dtype_allows(solver):
    for S in (tridiagonal(), tridiagonal(low=-0.3), jsf.gallery.poisson(8)):
        sol = solver(jsf.from_scipy(S, "csr"), np.ones(S.shape[0]), rtol=0)
        assert sol.success and residual(S, np.ones(S.shape[0]), sol.x) <= 1e-14


def test_a_few_long_rows_leave_the_factors_small():
    n = 2 * SMALL
    S = sp.lil_array(tridiagonal(n))
    S[0], S[:, 0] = 0.1, 0.1
    S[0, 0] = n
    A, b = jsf.from_scipy(sp.csr_array(S)), np.ones(n)
    assert solve(A, b).method == "direct"


@pytest.mark.parametrize("spread", [False, True])
def test_a_nan_is_found_at_once(spread):
    A = jsf.shard(tridiagonal(), MESH) if spread else jsf.from_scipy(tridiagonal())
    wrong = A.with_data(A.data.at[3].set(np.nan)), np.ones(N)
    for sol in (solve(*wrong), solve(A, np.full(N, np.inf)), solve(A, np.ones(N), np.full(N, np.nan))):
        assert sol.status is Status.NON_FINITE and len(sol.tried) == 1 and np.all(np.asarray(sol.x) == 0)


def test_is_a_nan_found_where_the_singular_values_are_remembered():
    A = jsf.from_dense(np.ones((3, 3)), "csr")
    assert solve(A, np.arange(3.0)).method == "singular values"
    for wrong in ((A.with_data(A.data.at[0].set(np.nan)), np.ones(3)), (A, np.full(3, np.nan))):
        assert solve(*wrong).status is Status.NON_FINITE


def test_a_nan_in_one_column_leaves_the_others():
    A, B = jsf.from_scipy(tridiagonal()), np.ones((N, 3))
    B[4, 1] = np.nan
    sol = solve(A, B)
    assert list(np.asarray(sol.code)) == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    np.testing.assert_allclose(sol.x[:, 0], solve(A, B[:, 0]).x)
    assert np.isnan(sol.residual_norm[1]) and np.all(np.asarray(sol.x)[:, 1] == 0)


def rotated_singular(n: int, rank: int) -> sp.csr_array:
    """Nonsymmetric, of this rank, without a zero row or column."""
    rng = np.random.default_rng(1)
    return sp.csr_array(rng.standard_normal((n, rank)) @ rng.standard_normal((rank, n)))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_singular_system_gets_its_shortest_least_squares_solution(kind):
    S = rotated_singular(N, N // 2) if kind == "dense" else sp.csr_array(np.triu(np.ones((N, N)), 1))
    A = jnp.asarray(S.toarray()) if kind == "dense" else jsf.from_scipy(S)
    b = np.random.default_rng(2).standard_normal(N)
    for right, status in ((S @ b, Status.CONVERGED), (b, Status.LEAST_SQUARES)):
        sol = solve(A, right, rtol=1e-8)
        assert sol.status is status, sol.tried
        if kind == "sparse" or status is Status.LEAST_SQUARES:
            np.testing.assert_allclose(sol.x, np.linalg.lstsq(S.toarray(), right)[0], rtol=1e-6, atol=1e-9)
    assert solve(jnp.ones((3, 3)), np.arange(3.0), method="direct").status is Status.SINGULAR


def test_the_shortest_solution_has_a_derivative():
    S = sp.csr_array(np.triu(np.ones((N, N)), 1))
    A, c = jsf.from_scipy(S), np.cos(np.arange(N))
    b = S @ np.ones(N)
    assert solve(A, b, rtol=1e-10).method == "singular values"
    gradient = jax.grad(lambda b: jnp.dot(c, solve(A, b, rtol=1e-10).x))(b)
    np.testing.assert_allclose(gradient, np.linalg.pinv(S.toarray()).T @ c, atol=1e-7)


def test_a_large_singular_system_is_solved_by_lsmr_alone(monkeypatch):
    monkeypatch.setattr(sys.modules["solvers.ways"], "DENSE", 10)
    S = sp.csr_array(np.triu(np.ones((N, N)), 1))
    sol = solve(jsf.from_scipy(S), S @ np.ones(N), rtol=1e-8)
    assert sol.status is Status.CONVERGED and sol.method == "lsmr"
    assert len(sol.tried) == 3 and "A looks singular" in sol.tried[-1]
    assert solve(jsf.from_scipy(S), np.ones(N), rtol=1e-8).status is Status.LEAST_SQUARES


@pytest.mark.parametrize(
    ("name", "transformed"),
    [("direct", jax.jit), ("cg", lambda f: f), deep("direct", lambda f: f), deep("cg", jax.jit)],
)
def test_derivatives_are_those_of_a_dense_solve(name, transformed):
    A, b = jsf.from_scipy(tridiagonal() if name == "cg" else tridiagonal(low=-0.3), "csr"), np.arange(1.0, N + 1)
    options = {"method": "cg"} if name == "cg" else {}
    ours = lambda data: solve(A.with_data(data), b, rtol=1e-10, **options).x  # noqa: E731
    dense = lambda data: jnp.linalg.solve(jnp.zeros((N, N)).at[A.row_ids, A.col_ids].set(data), b)  # noqa: E731
    assert_derivatives_agree(ours, dense, A.data, rtol=1e-6, jit=transformed)


@pytest.mark.parametrize("options", [{}, {"method": "direct"}], ids=["auto", "direct"])
def test_does_a_nan_in_a_matrix_that_jit_closes_over_have_a_status(options):
    A = jsf.from_scipy(tridiagonal(9))
    wrong = A.with_data(A.data.at[3].set(np.nan))
    sol = jax.jit(lambda b: solve(wrong, b, **options))(np.ones(9))
    assert sol.status is Status.NON_FINITE and np.all(np.asarray(sol.x) == 0)
    assert solve(wrong, np.ones((9, 0)), **options).x.shape == (9, 0)  # nor does a b without columns ask for factors
    assert np.all(np.isnan(jax.grad(lambda b: solve(wrong, b, **options).x.sum())(np.ones(9))))


def test_inside_jit_one_method_is_chosen_when_the_function_is_traced():
    A, b = jsf.from_scipy(tridiagonal(low=-0.3)), np.ones(N)
    closed = jax.jit(lambda b: solve(A, b))(b)
    traced = jax.jit(lambda A, b: solve(A, b))(A, b)
    for sol in (closed, traced):
        assert sol.method == "direct" and sol.success and residual(A.to_scipy(), b, sol.x) <= 1e-6
    large = jax.eval_shape(solve, jsf.from_scipy(tridiagonal(2 * SMALL)), np.ones(2 * SMALL))
    assert large.method == "gmres with ilu"
    named = jax.jit(functools.partial(solve, method="cg"))(jsf.from_scipy(tridiagonal()), b)
    assert named.method == "cg with jacobi" and named.success
    data = tridiagonal(2 * SMALL)
    of_data = lambda A, data, **hints: solve(A.with_data(data), np.ones(2 * SMALL), **hints)  # noqa: E731
    A_large = jsf.from_scipy(data, "csr")
    pattern = jax.eval_shape(functools.partial(of_data, A_large), A_large.data)
    assert pattern.method == "direct"  # whose factors are seen to be small
    for hint, method in (("symmetric", "minres with |jacobi|"), ("definite", "cg with jacobi")):
        hinted = jax.eval_shape(functools.partial(solve, **{hint: True}), A_large, np.ones(2 * SMALL))
        assert hinted.method == method
    singular = jsf.from_scipy(sp.csr_array(np.arange(1.0, 10).reshape(3, 3)), "csr")
    assert jax.jit(lambda b: solve(singular, b))(np.array([1.0, 0, 0])).status is Status.SINGULAR
    many = jax.vmap(lambda b: solve(A, b).x)(np.eye(N)[:3])
    np.testing.assert_allclose(many, np.linalg.inv(tridiagonal(low=-0.3).toarray()).T[:3], atol=1e-5)


def test_columns_dense_matrices_transposes_and_starts_are_taken():
    S = tridiagonal(low=-0.3)
    A, B = jsf.from_scipy(S), np.random.default_rng(0).standard_normal((N, 3))
    want = np.linalg.solve(S.toarray(), B)
    np.testing.assert_allclose(solve(A, B, rtol=1e-10).x, want, atol=1e-8)
    np.testing.assert_allclose(solve(jnp.asarray(S.toarray()), B, rtol=1e-10).x, want, atol=1e-8)
    np.testing.assert_allclose(solve(A.T, B, rtol=1e-10).x, np.linalg.solve(S.toarray().T, B), atol=1e-8)
    assert solve(A, B[:, 0], want[:, 0], rtol=1e-8).iterations == 0


def test_minres_has_a_derivative_where_its_residual_is_exactly_zero():
    A = jsf.from_scipy(sp.csr_array(2 * sp.eye_array(4)))
    slope = jax.grad(lambda b: jnp.sum(solve(A, b, method="minres", M=None).x))(jnp.ones(4))
    np.testing.assert_allclose(slope, 0.5, rtol=1e-6)


def test_the_callers_method_and_m_are_taken():
    A, b = jsf.from_scipy(tridiagonal()), np.ones(N)
    assert solve(A, b, method="minres", M=None).method == "minres"
    of_function = solve(lambda v: A @ v, b, method="minres", M=None)
    assert of_function.success and of_function.method == "minres"
    assert solve(A, b, method="idrs").method == "idrs with ilu"
    sol = solve(A, b, M=precond.jacobi(A))
    assert sol.method == "cg with the given M" and sol.success
    function = solve(lambda v: A @ v, b)
    assert function.method == "gmres" and "only products" in function.tried[0] and function.success
    tree = solve(lambda v: {"a": 2 * v["a"]}, {"a": b}, maxiter=5, history=True)
    assert tree.success and tree.history is not None


def test_a_sharded_matrix_gets_a_method_and_a_preconditioner_that_it_can_have():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    for S, method in ((tridiagonal(), "cg"), (tridiagonal(low=-0.3), "gmres")):
        b = S @ np.ones(N)
        sol = solve(jsf.shard(S, mesh), b)
        assert sol.success and residual(S, b, sol.x) <= 1e-6 and sol.method == f"{method} with block_jacobi"


CASES = os.environ.get("JAXSPARSE_CASES")
FILES = real.FILES + (sorted(pathlib.Path(CASES).glob("*.mtx*")) if CASES else [])
LARGE = 60_000  # unknowns beyond which SciPy is not asked


@pytest.mark.deep
@pytest.mark.skipif(not FILES, reason="JAXSPARSE_MATRICES and JAXSPARSE_CASES name no folder of Matrix Market files")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.partition(".")[0])
def test_solve_solves_what_scipy_solves(path):
    S = sp.csr_array(jsf.io.read_scipy(path))
    if S.shape[0] != S.shape[1] or S.shape[0] > LARGE:
        pytest.skip("not square, or large")
    S = S.astype(np.result_type(S.dtype, float))
    b = S @ np.ones(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-8)
    assert (sol.status is Status.CONVERGED) == (residual(S, b, sol.x) <= 1e-8 * (1 + 1e-6))
    assert np.all(np.isfinite(sol.x)) and sol.tried
    try:
        want = spla.splu(S.tocsc()).solve(b)
    except RuntimeError:
        return  # SciPy finds it singular
    assert sol.success or residual(S, b, want) > 1e-8, sol.tried
