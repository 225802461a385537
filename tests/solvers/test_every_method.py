"""Every Krylov method, asked the same questions; dense arithmetic and SciPy answer.

Methods know no formats, so most matrices and preconditioners here are dense arrays. They compile in a third of the
time, and several tests share a program, where each new function needs one of its own.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from solvers import Status
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_derivatives_agree
from tests.solvers.methods import CASES, REFINED, Case, N, matrix, neumann, right_hand_side

every_method = pytest.mark.parametrize("case", few(CASES, 2), ids=str)
one_method = pytest.mark.parametrize("case", few(CASES, 1), ids=str)
one_solver = pytest.mark.parametrize("case", few(CASES + REFINED, 1), ids=str)
every_solver = pytest.mark.parametrize("case", few(CASES + REFINED, 2), ids=str)


def dense(S):
    return jax.device_put(S.toarray())


def true_residual(S, x, b):
    return np.linalg.norm(np.asarray(b) - S @ np.asarray(x), axis=0)


def test_every_public_solver_is_asked():
    asked = {getattr(case.solver, "func", case.solver).__name__ for case in CASES + REFINED}
    others = {"Adjoint", "Solution", "SolverError", "Status", "precond", "eigsh", "EigenSolution", "lobpcg"}
    others |= {"lsmr", "LeastSquaresSolution", "solve", "direct", "factorized", "Factorized", "spsolve_triangular"}
    others |= {"svds", "SingularSolution", "logdet", "solve_banded", "solve_block_tridiagonal"}
    others |= {"eigs", "expm_multiply", "FunctionSolution", "nullspace"}
    assert asked == set(solvers.__all__) - others


@every_solver
def test_the_answer_is_the_dense_one_and_the_residual_true(case: Case):
    S, b = case.system()
    sol = case.solver(dense(S), b, rtol=1e-11)
    assert sol.status is Status.CONVERGED, sol
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), b), rtol=1e-8, atol=1e-9)
    assert float(sol.residual_norm) == pytest.approx(true_residual(S, sol.x, b), rel=1e-3)
    assert true_residual(S, sol.x, b) <= 1.001e-11 * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("dtypes", "rtol"),
    [("complex128", 1e-10), ("float32", 1e-5), ("float32 float64", 1e-10), ("float16", 1e-3), ("bfloat16", 1e-3)],
)
@one_method
def test_every_dtype_is_solved_and_sixteen_bits_in_thirty_two(case: Case, dtypes, rtol):
    """The square of this right-hand side's norm lies beyond float16. A vector may be wider than the matrix."""
    dtype, wide = dtypes.split()[0], dtypes.split()[-1]
    S, b = case.system(dtype=np.complex128 if dtype == "complex128" else np.float64)
    A, b = dense(S).astype(dtype), jnp.asarray(100 * b, wide)
    sol = case.solver(A, b, rtol=rtol)
    assert sol.success and sol.x.dtype == ("float32" if "16" in dtype else wide)
    A, b = (np.asarray(a.astype(np.complex128)) for a in (A, b))
    assert true_residual(A, sol.x, b) <= 1.1 * rtol * np.linalg.norm(b)


def steps_of_scipy(case: Case, S, b, rtol: float) -> int:
    """Until the true residual meets the tolerance; SciPy's minres has a rule of its own, and stops earlier by it."""
    relative: list[float] = []
    if case.name == "gmres":
        case.scipy(S, b, rtol=rtol, callback=relative.append, callback_type="pr_norm", restart=30)
    else:
        case.scipy(
            S, b, rtol=1e-4 * rtol, callback=lambda x: relative.append(true_residual(S, x, b) / np.linalg.norm(b))
        )
    return 1 + next(k for k, r in enumerate(relative) if r <= rtol)


@pytest.mark.parametrize("case", few([c for c in CASES if c.scipy is not None], 2), ids=str)
def test_iterations_are_scipys(case: Case):
    """Summed over eight systems: rounding moves single counts by one or two."""
    systems = [case.system(seed) for seed in range(8)]
    ours = sum(case.solver(dense(S), b, rtol=1e-10).iterations for S, b in systems)
    theirs = sum(steps_of_scipy(case, S, b, 1e-10) for S, b in systems)
    assert abs(ours - theirs) <= 0.02 * theirs


@every_solver
def test_several_right_hand_sides_are_solved_each_as_if_alone(case: Case):
    S, _ = case.system()
    A, B = dense(S), right_hand_side(5, columns=(4,))
    B[:, 1] = 0
    B[:, 3] *= 1e-100
    sol = case.solver(A, B, rtol=1e-9)
    assert sol.x.shape == (N, 4) and sol.status.shape == sol.iterations.shape == sol.residual_norm.shape == (4,)
    assert np.all(sol.success) and not np.any(sol.x[:, 1]) and sol.iterations[1] == 0
    for k in range(4):
        alone = case.solver(A, B[:, k], rtol=1e-9)
        assert abs(int(sol.iterations[k]) - alone.iterations) <= 2 + 0.1 * alone.iterations * (case in REFINED)
        np.testing.assert_allclose(sol.x[:, k], alone.x, rtol=1e-6, atol=1e-7 * float(jnp.max(jnp.abs(alone.x))))


@every_method
def test_one_column_may_fail_and_the_others_not(case: Case):
    S, _ = case.system()
    B = right_hand_side(5, columns=(3,))
    B[7, 1] = np.nan
    sol = case.solver(dense(S), B, rtol=1e-9)
    assert [Status(int(c)) for c in sol.status] == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    assert np.all(np.isfinite(sol.x))


@every_method
def test_a_preconditioner_helps_and_the_rule_stays_the_true_residual(case: Case):
    S, b = case.system()
    d = 10.0 ** np.linspace(-1.5, 1.5, N)
    scaled = sp.csr_array(sp.diags_array(d) @ S @ sp.diags_array(d))
    A = dense(scaled)
    M = jax.device_put(np.diag(1 / np.abs(scaled.diagonal())))  # positive, as minres wants it
    plain = case.solver(A, b, rtol=1e-9, maxiter=2000)
    helped = case.solver(A, b, M=M, rtol=1e-9, maxiter=2000)
    assert helped.success and helped.iterations < 0.7 * plain.iterations
    assert true_residual(scaled, helped.x, b) <= 1.001e-9 * np.linalg.norm(b)


@every_solver
def test_a_start_near_the_solution_is_used(case: Case):
    S, b = case.system()
    exact = np.linalg.solve(S.toarray(), b)
    A = dense(S)
    near = case.solver(A, b, exact + 1e-7, rtol=1e-9)
    assert near.success and near.iterations < case.solver(A, b, rtol=1e-9).iterations
    assert case.solver(A, b, exact, rtol=1e-9).iterations == 0


@one_solver
@pytest.mark.parametrize(
    ("spoil", "options", "status"),
    [
        (lambda S, b: (S, 0 * b), {"x0": np.ones(N)}, Status.CONVERGED),
        (lambda S, b: (S, np.where(np.arange(N) == 3, np.nan, b)), {}, Status.NON_FINITE),
        (lambda S, b: (S, np.where(np.arange(N) == 3, np.inf, b)), {}, Status.NON_FINITE),
        (lambda S, b: (S * np.nan, b), {}, Status.NON_FINITE),
        (lambda S, b: (S, b), {"M": np.full((N, N), np.nan)}, Status.NON_FINITE),
        (lambda S, b: (S, b), {"maxiter": 2}, Status.MAXITER),
        (lambda S, b: (S, b), {"maxiter": 0}, Status.MAXITER),
    ],
    ids=["zero b", "NaN in b", "infinity in b", "NaN in A", "NaN in M", "two steps", "no step"],
)
def test_plain_endings_have_their_status(case: Case, spoil, options, status):
    S, b = spoil(*case.system())
    sol = case.solver(dense(S), b, **options)
    assert sol.status is status and np.all(np.isfinite(sol.x))
    assert np.any(b) or not np.any(sol.x)
    np.testing.assert_allclose(sol.residual_norm, true_residual(S, sol.x, b), rtol=1e-3)  # of the x that is returned
    assert sol.iterations <= options.get("maxiter", 0) or status is Status.NON_FINITE


@one_solver
def test_a_nan_in_x0_is_reported_and_not_returned(case: Case):
    S, b = case.system()
    for right in (b, b * np.nan):
        sol = case.solver(dense(S), right, np.where(np.arange(N) == 3, np.nan, 1.0))
        assert sol.status is Status.NON_FINITE and np.all(np.isfinite(sol.x))
        np.testing.assert_allclose(sol.residual_norm, true_residual(S, sol.x, right), rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "spoilt"),
    few(
        [(c, spoilt) for c in CASES + REFINED if c.kind == "definite" for spoilt in ("A", "a tenth of M")]
        + [(c, "M") for c in CASES + REFINED if c.kind == "symmetric"],
        2,
    ),
    ids=str,
)
def test_an_indefinite_matrix_or_preconditioner_is_told(case: Case, spoilt):
    S, b = case.system()
    sign = np.where(np.arange(len(b)) % (1 if spoilt == "M" else 10) == 0, -1.0, 1.0)
    A, M = (
        (dense(S - sp.diags_array((1 - sign) * S.diagonal())), None)
        if spoilt == "A"
        else (dense(S), jax.device_put(np.diag(sign)))
    )
    sol = case.solver(A, b, M=M, rtol=1e-9)
    assert sol.status is Status.NOT_POSITIVE_DEFINITE and np.all(np.isfinite(sol.x))


@pytest.mark.parametrize("rtol", [1e-19, 0.0])
@one_solver
def test_a_tolerance_beyond_the_dtype_ends_and_says_so(case: Case, rtol):
    S, b = case.system()
    sol = case.solver(dense(S), b, rtol=rtol, maxiter=10**6)
    assert sol.status in (Status.STAGNATION, Status.BREAKDOWN)
    assert true_residual(S, sol.x, b) <= 1e-13 * np.linalg.norm(b)


@every_solver
def test_a_singular_system_without_solution_never_succeeds(case: Case):
    sol = case.solver(dense(neumann(8)), np.ones(8), rtol=1e-8, maxiter=200)
    assert not sol.success and np.all(np.isfinite(sol.x))


@pytest.mark.parametrize("case", few([c for c in CASES if c.kind in ("definite", "symmetric")], 2), ids=str)
def test_an_unsymmetric_matrix_is_told_from_a_hard_one(case: Case):
    rng = np.random.default_rng(3)
    S = sp.csr_array(np.eye(N) + 5 * np.triu(rng.standard_normal((N, N)), 1))
    sol = case.solver(dense(S), rng.standard_normal(N), rtol=1e-10)
    assert sol.status is Status.NOT_SYMMETRIC and "gmres" in sol.status.message


@pytest.mark.parametrize(
    ("solver", "dtype"), [(solvers.cg, "float32"), (solvers.cg, "float64"), (solvers.minres, "float64")]
)
def test_a_convection_is_told_long_before_the_last_step(solver, dtype):
    S = jsf.gallery.convection_diffusion(8)
    b = np.random.default_rng(1).standard_normal(512).astype(dtype)
    sol = solver(jsf.from_scipy(S, "csr", dtype), b)
    assert sol.status is Status.NOT_SYMMETRIC and sol.iterations < 500  # of 5,120
    assert true_residual(S, sol.x, b) <= 1.001 * np.linalg.norm(b)


@every_method
def test_the_zero_matrix_breaks_down(case: Case):
    sol = case.solver(jnp.zeros((N, N)), np.ones(N))
    ending = Status.LEAST_SQUARES if case.name == "minres" else Status.BREAKDOWN
    assert sol.status is ending and not np.any(sol.x)


@every_method
def test_checking_less_often_changes_neither_count_nor_answer(case: Case):
    S, b = case.system()
    one, many = (case.solver(dense(S), b, rtol=1e-9, check_every=k) for k in (1, 3))
    assert many.iterations == one.iterations
    # XLA rounds a prediction in several steps together in another way than in one.
    rtol, atol = (1e-9, 1e-10) if case.name in ("cg-one_reduction", "cocg") else (1e-12, 1e-14)
    np.testing.assert_allclose(many.x, one.x, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", few(CASES + REFINED[:1], 2), ids=str)
def test_works_inside_jit_and_vmap_over_matrices(case: Case):
    S, b = case.system()
    A, scales = dense(S), np.array([0.5, 1.0, 4.0])
    x = jax.jit(jax.vmap(lambda s: case.solver(s * A, b, rtol=1e-10).x))(scales)
    np.testing.assert_allclose(x, np.linalg.solve(S.toarray(), b) / scales[:, None], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("solver", [solvers.gmres, solvers.idrs], ids=["gmres", "idrs"])
def test_has_a_batch_of_no_systems_no_solutions(solver):
    A = jsf.from_scipy(matrix("definite"), "csr")
    none = jax.eval_shape(jax.vmap(lambda b: solver(A, b).x), np.zeros((0, N)))
    assert none.shape == (0, N)


DIFFERENTIATED = [(case, np.float64) for case in CASES if "-" not in case.name] + [(REFINED[0], np.float64)]


@pytest.mark.parametrize(("case", "dtype"), [(CASES[0], np.complex128), *few(DIFFERENTIATED, 1)], ids=str)
def test_gradients_and_their_derivatives_are_those_of_the_dense_solution(case: Case, dtype):
    """In A and b, whose entries all move alone; of cg all ways to the second."""
    S, b = case.system(dtype=dtype)
    ours = lambda A, b: case.solver(A, b, rtol=1e-13, maxiter=2000).x  # noqa: E731
    is_cg = case.solver is solvers.cg
    assert_derivatives_agree(ours, jnp.linalg.solve, dense(S), b, rtol=1e-6, every_way=is_cg)


@pytest.mark.deep
@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=str)
def test_second_derivatives_through_a_scan_hold_where_a_solve_takes_no_step(case: Case):
    """Reverse mode takes the body of a scan apart; what is differentiated again must still be solves, not loops."""
    A, b = jnp.array([[2.0, -1.0], [-1.0, 3.0]]), jnp.array([1.0, 2.0])

    def misfit(solve):
        step = lambda u, p: (solve(u + p * b), u[0])  # noqa: E731
        return lambda p: jnp.sum((jax.lax.scan(step, jnp.zeros(2), p)[0] - 1) ** 2)

    ours = misfit(lambda rhs: case.solver(A, rhs, rtol=1e-12).x)
    exact = jax.hessian(misfit(lambda rhs: jnp.linalg.solve(A, rhs)))(jnp.zeros(2))
    for outer, inner in ((jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacfwd), (jax.jacrev, jax.jacrev)):
        np.testing.assert_allclose(quick_jit(outer(inner(ours)))(jnp.zeros(2)), exact, rtol=1e-9)


@pytest.mark.deep
@pytest.mark.parametrize("case", [c for c in CASES if c.kind == "general"], ids=str)
def test_the_adjoint_takes_the_transposed_preconditioner(case: Case):
    """With M = A⁻¹ a solve takes a step or two; its adjoint too, if M is transposed with A."""
    S, b = case.system()
    A, inverse = dense(S), jnp.linalg.inv(dense(S))
    steps = functools.partial(case.solver, M=inverse, rtol=1e-9, maxiter=2)
    gradient = jax.grad(lambda b: jnp.sum(steps(A, b).x))(jnp.asarray(b))
    np.testing.assert_allclose(gradient, np.linalg.solve(S.toarray().T, np.ones(N)), rtol=1e-7)


@every_method
def test_callback_and_progress_see_the_iterates(case: Case):
    S, b = case.system()
    seen, reports = [], []
    options = {"callback": lambda x: seen.append(np.array(x)), "progress": lambda k, r: reports.append((k, r))}
    sol = case.solver(dense(S), b, rtol=1e-9, history=True, check_every=1, **options)
    jax.effects_barrier()
    assert len(seen) == sol.iterations and all(k % 16 == 0 for k, _ in reports)
    assert len(reports) == sol.iterations // 16
    residuals = [true_residual(S, x, b) for x in seen]
    np.testing.assert_allclose(sol.history[1:], residuals, rtol=1e-4, atol=1e-12 * np.linalg.norm(b))


@every_method
def test_a_function_as_M_takes_columns_one_by_one(case: Case):
    S = matrix(case.kind)
    A, B = dense(S), right_hand_side(5, columns=(2,))
    sol = case.solver(A, B, M=lambda r: r.reshape(N) * 0.5, rtol=1e-10)
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), B), rtol=1e-6, atol=1e-8)
