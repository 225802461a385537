"""The bridge to lineax: either half with the other's, derivatives, what failures are called, and the door."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Solution, Status, bicgstab, cg, direct, fcg, gmres, host_calls, minres, precond, refine, solve
from tests.marks import deep, few
from tests.solvers.methods import N, matrix, right_hand_side

lx = pytest.importorskip("lineax")
bridge = importlib.import_module("solvers.lineax")
Krylov, SparseOperator = bridge.Krylov, bridge.SparseOperator

POSITIVE, NEGATIVE = lx.positive_semidefinite_tag, lx.negative_semidefinite_tag
DEFINITE, GENERAL = matrix("definite"), matrix("general")
B = right_hand_side()
EXACT = np.linalg.solve(DEFINITE.toarray(), B)
OURS, THEIRS = Krylov(cg, rtol=1e-12), lx.CG(rtol=1e-12, atol=1e-12)


def stored(S, format: str = "csr"):
    return jsf.from_scipy(S, format)


def assert_near(got, want, rtol: float = 1e-8):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


@pytest.mark.parametrize("method", few([cg, fcg, minres, gmres, bicgstab, refine], 1), ids=lambda f: f.__name__)
def test_every_method_solves_our_operator_and_its_statistics_are_true(method):
    solution = lx.linear_solve(SparseOperator(stored(DEFINITE, "pjds")), B, Krylov(method, rtol=1e-10, max_steps=200))
    assert_near(solution.value, EXACT, 1e-7)
    stats, residual = solution.stats, np.linalg.norm(B - DEFINITE @ np.asarray(solution.value))
    assert solution.result == lx.RESULTS.successful and stats["status"] == Status.CONVERGED
    assert residual <= 1.01e-10 * np.linalg.norm(B) and stats["residual_norm"] == pytest.approx(residual, rel=1e-3)
    assert 10 < stats["num_steps"] < 100 and stats["max_steps"] == 200


@pytest.mark.parametrize(
    "solver",
    few([THEIRS, lx.BiCGStab(1e-10, 1e-10), lx.GMRES(1e-10, 1e-10), lx.AutoLinearSolver(well_posed=True)], 1),
    ids=lambda solver: type(solver).__name__,
)
def test_their_solvers_take_our_operator_and_our_preconditioner(solver):
    A = stored(DEFINITE)
    options = {"preconditioner": SparseOperator(precond.jacobi(A), POSITIVE)}
    assert_near(lx.linear_solve(SparseOperator(A, POSITIVE), B, solver, options=options).value, EXACT)


def test_vectors_and_the_preconditioner_may_be_of_pytrees():
    d = 10.0 ** np.linspace(-2, 2, N)  # without a preconditioner SciPy's cg takes thousands of steps
    S = sp.csr_array(sp.diags_array(d) @ DEFINITE @ sp.diags_array(d))
    A, in_tree = stored(S), lambda v: {"field": jnp.reshape(v[:20], (4, 5)), "rest": jnp.asarray(v[20:])}
    b = in_tree(B)
    product = lambda v: in_tree(A @ jnp.concatenate([v["field"].ravel(), v["rest"]]))  # noqa: E731
    operator = lx.FunctionLinearOperator(product, jax.eval_shape(lambda: b))
    options = {"preconditioner": lx.DiagonalLinearOperator(in_tree(1 / S.diagonal())), "y0": in_tree(0 * B)}
    value = lx.linear_solve(operator, b, Krylov(cg, rtol=1e-12, max_steps=100), options=options).value
    want = in_tree(np.linalg.solve(S.toarray(), B))
    for leaf in "field", "rest":
        np.testing.assert_allclose(value[leaf], want[leaf], rtol=1e-6)


def test_least_squares_by_the_normal_equations():
    S = sp.csr_array(sp.eye_array(80, N) + sp.random_array((80, N), density=0.05, rng=np.random.default_rng(3)))
    b = np.random.default_rng(4).standard_normal(80)
    value = lx.linear_solve(SparseOperator(stored(S)), b, lx.Normal(OURS)).value
    assert_near(value, np.linalg.lstsq(S.toarray(), b)[0])


@pytest.mark.parametrize(("shape", "rank"), [((14, 9), 5), deep((9, 14), 9), deep((14, 9), 9), deep((9, 14), 5)])
def test_lsmr_finds_lineaxs_least_squares_solution_and_its_derivatives(shape, rank):
    """Of any rank, which changes of the factors keep; lineax's SVD answers."""
    rng = np.random.default_rng(2)
    point = rng.standard_normal((shape[0], rank)), rng.standard_normal((rank, shape[1])), rng.standard_normal(shape[0])
    along = tuple(jnp.asarray(rng.standard_normal(p.shape)) for p in point)

    def solved(solver):
        def f(left, right, b):
            return lx.linear_solve(lx.MatrixLinearOperator(left @ right), b, solver).value

        return jax.jit(lambda *point: jax.jvp(f, point, along))(*point)

    ours, exact = solved(bridge.LeastSquares(rtol=1e-11)), solved(lx.SVD(rcond=1e-10))
    for got, want in zip(ours, exact, strict=True):
        assert_near(got, want, 1e-7)


def test_lsmr_takes_our_rectangular_operator_and_tells_both_residuals():
    S = sp.random_array((30, 12), density=0.3, rng=np.random.default_rng(5), format="csr")
    b = np.arange(1.0, 31.0)
    lengths = np.maximum(sp.linalg.norm(S, axis=0) ** 2, 1)
    options = {"preconditioner": lx.DiagonalLinearOperator(1 / jnp.asarray(lengths)), "y0": jnp.ones(12)}
    solution = lx.linear_solve(SparseOperator(stored(S)), b, bridge.LeastSquares(rtol=1e-11), options=options)
    x = np.linalg.lstsq(S.toarray(), b, rcond=None)[0]
    assert_near(solution.value, x, 1e-7)
    assert solution.stats["residual_norm"] == pytest.approx(np.linalg.norm(b - S @ x))
    assert solution.stats["normal_residual_norm"] < 1e-8 < solution.stats["residual_norm"]


def test_narrow_values_solve_under_wide_vectors():
    A = stored(DEFINITE).astype("float32")
    value = lx.linear_solve(SparseOperator(A, dtype="float64"), B, OURS).value
    assert value.dtype == np.float64
    assert_near(value, np.linalg.solve(np.asarray(A.todense(), np.float64), B))


@pytest.mark.parametrize("solver", [OURS, THEIRS], ids=["ours", "theirs"])
def test_a_negative_definite_operator_is_solved_with_a_positive_preconditioner(solver):
    A = stored(DEFINITE)
    operator = lx.TaggedLinearOperator(SparseOperator(-A), NEGATIVE)
    options = {"preconditioner": SparseOperator(precond.jacobi(A), POSITIVE), "y0": jnp.asarray(B)}
    assert_near(lx.linear_solve(operator, B, solver, options=options).value, -EXACT)


def test_a_matrix_and_a_preconditioner_reach_the_method_unwrapped():
    """So that it enters their basis, and sees a pytree and not a function."""
    A, seen = stored(DEFINITE, "pjds"), {}

    def method(A, b, x0=None, *, M=None):
        seen.update(A=A, M=M)
        return Solution(b, jnp.int32(0), jnp.int32(0), jnp.float64(0), None)

    M = precond.jacobi(A)
    for preconditioner in M, SparseOperator(M), lx.TaggedLinearOperator(SparseOperator(M), POSITIVE):
        lx.linear_solve(SparseOperator(A), B, Krylov(method), options={"preconditioner": preconditioner})
        assert isinstance(seen["A"], jsf.PJDS) and isinstance(seen["M"], type(M))


def test_a_method_without_a_preconditioner_or_with_its_own_is_left_to_itself():
    A = stored(GENERAL)

    def value(data, solver):
        return lx.linear_solve(SparseOperator(A.with_data(data)), B, solver).value

    assert_near(value(A.data, Krylov(direct)), np.linalg.solve(GENERAL.toarray(), B))
    slopes = [jax.grad(lambda data, s=s: value(data, s).sum())(A.data) for s in (Krylov(direct), lx.LU())]
    assert_near(*slopes)

    sparse, dense = SparseOperator(A), lx.MatrixLinearOperator(GENERAL.toarray())
    refused = [(sparse, {"y0": B}, "takes no y0"), (sparse, {"preconditioner": sparse}, "takes no preconditioner")]
    for operator, options, words in (*refused, (dense, {}, "needs a SparseOperator")):
        with pytest.raises(TypeError, match=words):
            lx.linear_solve(operator, B, Krylov(direct), options=options)
    assert_near(lx.linear_solve(sparse, B, Krylov(solve), options={"y0": B}).value, value(A.data, lx.LU()))

    given = {}

    def chooses(A, b, x0=None, *, M="auto", rtol=1e-6):
        given["M"] = M
        return cg(A, b, x0, rtol=rtol)

    lx.linear_solve(SparseOperator(stored(DEFINITE)), B, Krylov(chooses, rtol=1e-8))
    assert given["M"] == "auto"


def test_a_narrow_inner_method_takes_their_wide_preconditioner():
    diagonal, structure = stored(DEFINITE).diagonal(), jax.ShapeDtypeStruct((N,), np.float64)
    inverse = lx.FunctionLinearOperator(lambda r: r / diagonal, structure)
    solver, options = Krylov(refine, rtol=1e-12), {"preconditioner": inverse}
    assert_near(lx.linear_solve(SparseOperator(stored(DEFINITE)), B, solver, options=options).value, EXACT, 1e-9)


def indefinite(A):
    row, col = DEFINITE.nonzero()
    return A.with_data(np.where((row == col) & (row % 2 == 0), -1, 1) * A.data)


def unsymmetric(A):
    row, col = DEFINITE.nonzero()
    return A.with_data(A.data + np.where(row < col, 3.0, 0.0))


@pytest.mark.parametrize("transposed", [False, deep(True)])
def test_direct_solves_a_batch_and_its_derivatives_without_superlu(transposed, monkeypatch):
    """lineax traces the arrays of the pattern, which the operator keeps."""
    monkeypatch.setattr(host_calls, "by_factors", None)
    A = stored(GENERAL, "sell")
    data = np.stack([A.data, 2 * np.asarray(A.data)])

    def value(data):
        M = A.with_data(data)
        operator = SparseOperator(M.T if transposed else M)
        return jnp.sum(jnp.sin(lx.linear_solve(operator, B, Krylov(direct), throw=False).value))

    assert "callback" not in jax.jit(jax.vmap(value)).lower(data).as_text()
    row, col = A.row_ids, A.col_ids

    def dense(data):
        D = jnp.zeros(GENERAL.shape).at[row, col].set(data)
        return jnp.sum(jnp.sin(jnp.linalg.solve(D.T if transposed else D, B)))

    for ours, wanted in zip(
        jax.jit(jax.vmap(jax.value_and_grad(value)))(data),
        jax.jit(jax.vmap(jax.value_and_grad(dense)))(data),
        strict=True,
    ):
        assert_near(ours, wanted)


@pytest.mark.parametrize(
    ("change", "status", "result"),
    few(
        [
            (indefinite, Status.NOT_POSITIVE_DEFINITE, "breakdown"),
            (unsymmetric, Status.NOT_SYMMETRIC, "breakdown"),
            (lambda A: 0 * A, Status.BREAKDOWN, "breakdown"),
            (lambda A: A * jnp.nan, Status.NON_FINITE, "nonfinite_input"),
        ],
        1,
    ),
    ids=["indefinite", "unsymmetric", "zero", "nan"],
)
def test_what_cannot_be_solved_has_a_result_and_our_status(change, status, result):
    solution = lx.linear_solve(SparseOperator(change(stored(DEFINITE))), B, OURS, throw=False)
    assert solution.result == getattr(lx.RESULTS, result) and solution.stats["status"] == status
    assert np.all(np.isfinite(solution.value))


def test_too_few_steps_raise_and_say_so():
    with pytest.raises(Exception, match="maximum number of solver steps"):
        lx.linear_solve(SparseOperator(stored(DEFINITE)), B, Krylov(cg, max_steps=3)).value.block_until_ready()


def inverse(A):
    return jnp.linalg.inv(A.todense())


@pytest.mark.parametrize(
    ("kind", "tags", "dtype", "solver", "make_preconditioner"),
    few(
        [
            ("definite", (), np.float64, OURS, None),
            ("definite", POSITIVE, np.complex128, OURS, precond.jacobi),
            ("general", (), np.float64, lx.BiCGStab(rtol=1e-12, atol=1e-12), None),
            ("definite", POSITIVE, np.float64, THEIRS, None),
            # Steps enough with the inverse of A for A and its transpose for Aᵀ, and too few with any other.
            ("general", (), np.complex128, Krylov(bicgstab, rtol=1e-12, max_steps=3), inverse),
        ],
        1,
    ),
    ids=["ours", "ours-hermitian", "theirs", "theirs-positive", "ours-general"],
)
def test_derivatives_under_vmap_are_those_of_a_dense_solve(kind, tags, dtype, solver, make_preconditioner):
    S, b = matrix(kind, dtype=dtype), right_hand_side(dtype=dtype)
    A = stored(S)
    options = {} if make_preconditioner is None else {"preconditioner": make_preconditioner(A)}

    def sparse(data, b):
        return lx.linear_solve(SparseOperator(A.with_data(data), tags), b, solver, options=options).value

    def dense(data, b):
        return jnp.linalg.solve(jnp.zeros(S.shape, dtype).at[S.nonzero()].set(data), b)

    def derivatives(solve):
        def loss(data, b):
            x = solve(data, b)
            return jnp.sum(jnp.sin(x.real) + x.imag**2)

        both = lambda *point: (jax.grad(loss, (0, 1))(*point), jax.jvp(solve, point, (A.data, 2 * b)))  # noqa: E731
        return jax.jit(jax.vmap(both))(jnp.stack([A.data, 3 * A.data]), jnp.stack([b, b[::-1]]))

    jax.tree.map(assert_near, derivatives(sparse), derivatives(dense))


SHORT = lx.DiagonalLinearOperator(jnp.ones(N - 1))
LONG = stored(sp.eye_array(200_000).tocsr(), "dia")


class Opaque:
    shape, dtype, T = (2, 2), np.dtype("float64"), None

    def __matmul__(self, x):
        return x


def solved(A, b=B, solver=OURS, **options):
    return lx.linear_solve(SparseOperator(A), b, solver, options=options)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: SparseOperator(DEFINITE), TypeError, "from_scipy"),
        (lambda: lx.linear_solve(stored(DEFINITE), B, OURS), AttributeError, r"lineax.SparseOperator\(A\)"),
        (lambda: SparseOperator(np.ones(3)), TypeError, "must be a matrix"),
        (lambda: SparseOperator(lambda v: v), TypeError, "must be a matrix"),
        (lambda: SparseOperator(Opaque()), TypeError, "Opaque"),
        (lambda: SparseOperator(stored(DEFINITE), dtype="float32"), ValueError, "astype"),
        (lambda: solved(LONG, np.ones(200_000), lx.AutoLinearSolver(None)), ValueError, "takes 320 GB.*Krylov"),
        (lambda: solved(stored(DEFINITE), y0=np.ones(N - 1)), ValueError, "y0"),
        (lambda: solved(stored(DEFINITE), preconditioner=SHORT), ValueError, "preconditioner"),
        (lambda: solved(stored(DEFINITE), preconditioner=2.0), TypeError, "preconditioner"),
        (lambda: solved(stored(sp.eye_array(N, 5).tocsr())), ValueError, "LeastSquares"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_cure(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("name", ["M", "x0", "callback", "damp", "tol"])
@pytest.mark.parametrize("solver", [Krylov, bridge.LeastSquares])
def test_a_setting_that_the_method_does_not_take_here_is_refused(solver, name):
    with pytest.raises(TypeError, match=rf"has no setting '{name}'.*rtol.*preconditioner"):
        solver(**{name: None})


def test_the_method_may_be_a_keyword_though_refine_has_one_of_that_name():
    assert Krylov(method=gmres, restart=7).method is gmres
    assert Krylov(refine, method="gmres").settings == {"method": "gmres"}


def test_without_lineax_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lineax", None)
    monkeypatch.delitem(sys.modules, "solvers.lineax")
    with pytest.raises(ImportError, match="pip install lineax"):
        importlib.import_module("solvers.lineax")


# ------------------------------------------------------------------------------------------------------ the operator


COMPLEX = sp.csr_array(GENERAL * (1 + 2j))
JACOBI = precond.jacobi(stored(DEFINITE)), np.diag(1 / DEFINITE.diagonal())


@pytest.mark.parametrize(("A", "dense"), [(stored(COMPLEX), COMPLEX.toarray()), JACOBI], ids=["matrix", "M"])
def test_what_lineax_asks_of_an_operator_is_what_the_dense_matrix_says(A, dense):
    operator = SparseOperator(A)
    x = jnp.asarray(right_hand_side(dtype=np.complex128))
    for got, want in ((operator, dense), (operator.T, dense.T), (lx.conj(operator.T), dense.T.conj())):
        found = got.as_matrix(), got.mv(x), lx.diagonal(got), *lx.tridiagonal(got)
        diagonals = [np.diagonal(want, offset) for offset in (0, 0, -1, 1)]
        for mine, of_dense in zip(found, (want, want @ x, *diagonals), strict=True):
            assert_near(mine, of_dense, 1e-14)
    assert lx.linearise(operator) is operator is lx.materialise(operator)


def test_jacobi_takes_a_sum_of_operators():
    A = SparseOperator(stored(DEFINITE), POSITIVE)
    shift = lx.DiagonalLinearOperator(jnp.linspace(0, 50, N))
    shifted = A + shift + 0.5 * lx.IdentityLinearOperator(A.in_structure())
    M = precond.jacobi(shifted)
    d = DEFINITE.diagonal() + np.linspace(0, 50, N) + 0.5
    assert_near(M @ np.ones(N), 1 / d, 1e-15)
    assert_near(M.refreshed(A) @ np.ones(N), 1 / DEFINITE.diagonal(), 1e-15)
    solution = lx.linear_solve(shifted, B, OURS, options={"preconditioner": M})
    want = np.linalg.solve(DEFINITE.toarray() + np.diag(np.linspace(0, 50, N) + 0.5), B)
    assert_near(solution.value, want)
    tall = lx.MatrixLinearOperator(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match=r"needs a square matrix; got \(3, 2\)"):
        precond.jacobi(tall)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_tridiagonal_system_needs_no_dense_matrix(transposed):
    n = 100_000
    S = sp.diags_array([np.full(n - 1, -1.0), np.full(n, 4.0), np.full(n - 1, -2.0)], offsets=[-1, 0, 1]).tocsr()
    A, b = stored(S, "dia"), np.random.default_rng(6).standard_normal(n)
    A, S = (A.T, S.T) if transposed else (A, S)
    assert_near(S @ np.asarray(lx.linear_solve(SparseOperator(A, lx.tridiagonal_tag), b).value), b, 1e-12)


def test_a_symmetric_operator_is_its_own_transpose_and_keeps_its_format():
    A = stored(DEFINITE)
    for tags in POSITIVE, {POSITIVE}, [lx.symmetric_tag, lx.unit_diagonal_tag]:
        operator = SparseOperator(A, tags)
        assert operator.T is operator and lx.is_symmetric(operator) and not lx.is_diagonal(operator)
    hermitian = SparseOperator(stored(matrix("definite", dtype=np.complex128)), POSITIVE)
    assert lx.is_positive_semidefinite(hermitian.T) and not lx.is_symmetric(hermitian)
