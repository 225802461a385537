"""LSMR: Krylov.jl's kinds of problems against LAPACK, what its status claims, its derivatives, and the door."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Adjoint, LeastSquaresSolution, Status, lsmr
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_derivatives_agree

M_, N_ = 40, 25
RNG = np.random.default_rng(7)
TALL, SQUARE = RNG.standard_normal((M_, N_)), RNG.standard_normal((N_, N_))
B = RNG.standard_normal(M_)
SINGULAR = TALL.copy()
SINGULAR[:, 3] = SINGULAR[:, 4] - 2 * SINGULAR[:, 5]


def shortest(A, b, damp: float = 0.0):
    """By LAPACK: λ·I below A, zeros below b."""
    n = A.shape[1]
    below = np.zeros((n, *np.shape(b)[1:]))
    return np.linalg.lstsq(np.vstack([A, damp * np.eye(n)]), np.concatenate([b, below]), rcond=1e-12)[0]


def norms(A, x, b, damp: float = 0.0):
    """‖b − A·x‖ and ‖Aᴴ(b − A·x) − λ²·x‖."""
    r = b - A @ np.asarray(x)
    return np.linalg.norm(r, axis=0), np.linalg.norm(A.conj().T @ r - damp**2 * np.asarray(x), axis=0)


@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize(
    ("A", "b"),
    few([(TALL, B), (TALL, TALL @ RNG.standard_normal(N_)), (SQUARE, B[:N_]), (SINGULAR, B), (SINGULAR.T, B[:N_])], 2),
    ids=["over", "over, consistent", "square", "over, singular", "under, singular"],
)
def test_the_shortest_least_squares_solution_is_lapacks(A, b, damp):
    sol = lsmr(jnp.asarray(A), b, damp=damp, rtol=1e-11)
    want = shortest(A, b, damp)
    assert sol.status is Status.CONVERGED, sol
    np.testing.assert_allclose(sol.x, want, rtol=0, atol=1e-7 * np.abs(want).max())
    residual, normal = norms(A, sol.x, b, damp)
    scale = np.linalg.norm(A, 2) * np.linalg.norm(b)
    np.testing.assert_allclose(sol.residual_norm, residual, rtol=1e-6, atol=1e-14 * scale)
    np.testing.assert_allclose(sol.normal_residual_norm, normal, rtol=1e-2, atol=1e-14 * scale)
    whole = np.hypot(residual, damp * np.linalg.norm(sol.x))
    assert whole <= 1.001e-11 * np.linalg.norm(b) or normal <= 1.01e-11 * np.linalg.norm(A, 2) * whole


@pytest.mark.parametrize("dtype", few([np.float32, np.complex64], 1))
def test_other_dtypes_are_solved_in_their_own(dtype):
    A = (TALL + (1j * TALL[::-1] if dtype == np.complex64 else 0)).astype(dtype)
    sol = lsmr(jnp.asarray(A), B.astype(dtype), rtol=1e-4)
    assert sol.success and sol.x.dtype == dtype
    np.testing.assert_allclose(sol.x, shortest(A.astype(np.result_type(dtype, float)), B), rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", few(["pjds", "transposed", "dense"], 1))
def test_every_kind_of_matrix_gives_the_same_solution(kind):
    S = sp.random_array((M_, N_), density=0.2, rng=np.random.default_rng(2), format="csr")
    A = jsf.from_scipy(S, "pjds")
    if kind == "transposed":
        A = jsf.from_scipy(sp.csr_array(S.T), "csr").T
    elif kind == "dense":
        A = jnp.asarray(S.toarray())
    b = np.stack([B, 0 * B, 1e-100 * B[::-1]], 1)
    sol = lsmr(A, b, rtol=1e-10)
    assert np.all(sol.success) and sol.iterations[1] == 0 and sol.normal_residual_norm.shape == (3,)
    scale = np.array([1, 1, 1e100])
    np.testing.assert_allclose(sol.x * scale, shortest(S.toarray(), b) * scale, rtol=0, atol=1e-7)


def test_two_functions_solve_for_one_unknown_and_vmap_maps_them():
    A = (lambda v: TALL @ v.reshape(N_)), (lambda u: TALL.T @ u.reshape(M_))
    b = np.stack([B, B[::-1]], 1)
    np.testing.assert_allclose(lsmr(A, B, rtol=1e-10).x, shortest(TALL, B), atol=1e-7)
    columns = jax.vmap(lambda b: lsmr(A, b, rtol=1e-10).x, 1, 1)(b)
    np.testing.assert_allclose(columns, shortest(TALL, b), atol=1e-7)


def test_a_preconditioner_for_columns_of_all_sizes_saves_most_steps():
    d = 10.0 ** np.linspace(-3, 3, N_)
    A, lengths = TALL * d, np.sum((TALL * d) ** 2, axis=0)
    plain = lsmr(jnp.asarray(A), B, rtol=1e-9, maxiter=5000)
    helped = lsmr(jnp.asarray(A), B, M=lambda r: r / lengths, rtol=1e-12)
    assert helped.success and helped.iterations < 0.3 * plain.iterations
    np.testing.assert_allclose(helped.x * d, shortest(TALL, B), rtol=0, atol=1e-7)


def test_the_normal_residual_falls_at_every_step_as_in_the_paper_and_callbacks_see_it():
    seen, reports = [], []
    options = {"callback": lambda x: seen.append(np.array(x)), "progress": lambda *report: reports.append(report)}
    sol = lsmr(jnp.asarray(TALL), B, rtol=1e-9, history=True, **options)
    jax.effects_barrier()
    assert len(seen) == sol.iterations and [k for k, _ in reports] == list(range(16, sol.iterations + 1, 16))
    np.testing.assert_allclose([r for _, r in reports], [norms(TALL, seen[k - 1], B)[0] for k, _ in reports], rtol=1e-4)
    np.testing.assert_allclose(sol.history[1:], [norms(TALL, x, B)[1] for x in seen], rtol=1e-4, atol=1e-13)
    assert np.all(np.diff(sol.history) < 0)
    theirs = sp.linalg.lsmr(TALL, B, atol=1e-9, btol=1e-9)
    assert abs(sol.iterations - theirs[2]) <= 2


def test_a_start_at_the_solution_takes_no_step_and_one_far_off_is_left():
    A, exact = jnp.asarray(TALL), shortest(TALL, B)
    assert lsmr(A, B, exact, rtol=1e-9).iterations == 0
    far = lsmr(A, B, 1e30 * exact, rtol=1e-9)
    assert far.success and far.iterations == lsmr(A, B, rtol=1e-9).iterations
    lost = lsmr(A, B, np.nan * exact)
    assert lost.status is Status.NON_FINITE and not np.any(lost.x)
    np.testing.assert_allclose(lost.residual_norm, np.linalg.norm(B))  # of the x that is returned


@pytest.mark.parametrize(
    ("A", "b", "options", "status"),
    few(
        [
            (TALL, 0 * B, {}, Status.CONVERGED),
            (TALL, np.where(np.arange(M_) == 3, np.nan, B), {}, Status.NON_FINITE),
            (TALL * np.nan, 0 * B, {}, Status.NON_FINITE),
            (TALL, B, {"maxiter": 2}, Status.MAXITER),
            (TALL, B, {"rtol": 0.0, "maxiter": 10**6}, Status.CONVERGED),  # to rounding
            (TALL, B, {"M": lambda r: -r}, Status.NOT_POSITIVE_DEFINITE),
            (TALL, B, {"M": lambda r: np.nan * r}, Status.NON_FINITE),
        ],
        2,
    ),
)
def test_endings_have_their_status(A, b, options, status):
    sol = lsmr(jnp.asarray(A), b, **options)
    assert sol.status is status and np.all(np.isfinite(sol.x))
    assert isinstance(sol, LeastSquaresSolution)


@pytest.mark.parametrize(("dtype", "rtol", "noise"), [(np.float32, 1e-6, 1e-3), (np.float64, 1e-10, 1e-8)])
def test_a_solution_that_is_exact_to_rounding_converges_whatever_the_residual(dtype, rtol, noise):
    """The Gauss-Newton step of an exponential fit, whose residual lies between rtol and eps / rtol of b."""
    t = np.linspace(0, 1, 50)
    J, exact = np.stack([np.exp(-2 * t), -3 * t * np.exp(-2 * t)], 1), np.array([0.3, -0.2])
    A, b = J.astype(dtype), (J @ exact + noise * RNG.standard_normal(50)).astype(dtype)
    sol = lsmr(A, b, rtol=rtol)
    assert sol.status is Status.CONVERGED
    want = shortest(A.astype(float), b.astype(float))
    np.testing.assert_allclose(sol.x, want, rtol=0, atol=300 * np.finfo(dtype).eps)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_of_any_size_are_solved_as_those_about_one_unless_x_is_outside_the_dtype(size):
    plain, sol = lsmr(TALL, B, rtol=1e-10), lsmr(size * TALL, size**0.5 * B, rtol=1e-10)
    assert sol.status is Status.CONVERGED and sol.iterations == pytest.approx(plain.iterations, abs=1)
    np.testing.assert_allclose(sol.x * size**0.5, plain.x, rtol=1e-7)
    outside, wide = lsmr(size * TALL, B / size, rtol=1e-10), np.longdouble
    assert outside.status is Status.OUT_OF_RANGE and np.all(np.isfinite(outside.x))
    left = (B / size).astype(wide) - (size * TALL).astype(wide) @ np.asarray(outside.x).astype(wide)
    np.testing.assert_allclose(outside.residual_norm, float(np.sqrt(np.sum(left**2))), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_matrix_of_the_least_numbers_is_not_taken_for_zero(dtype):
    """XLA takes a product below `tiny` for 0 on a CPU, so that a row of A seemed to have no part in b."""
    tiny, wide = np.finfo(dtype).tiny, np.clongdouble
    for A, b in (([[100, 0], [0, 1.1]], [0, 0.52]), (1000 * (SQUARE[:9, :9] + 5 * np.eye(9)), 1e-5 * B[:9])):
        A, b = (np.asarray(A) * tiny).astype(dtype), np.asarray(b, dtype)
        sol = jax.tree.map(np.asarray, lsmr(A, b, rtol=1e-3, maxiter=100))
        left = np.linalg.norm((b - A.astype(wide) @ sol.x.astype(wide)).astype(complex))
        assert sol.success and left <= 1.01e-3 * np.linalg.norm(b)
        assert abs(sol.residual_norm - left) <= 0.01 * left + 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(("dtype", "damp", "shape"), [(np.float32, 1e10, (8, 5)), (np.float64, 1e150, (5, 8))])
def test_a_damp_far_above_the_matrix_is_within_range(dtype, damp, shape):
    """x is Aᴴ·b / λ² then, which float32 holds for a b of 1e20."""
    A, b = TALL[: shape[0], : shape[1]].astype(dtype), B[: shape[0]].astype(dtype)
    sol = lsmr(A, dtype(1e20) * b, damp=damp, rtol=1e-4)
    assert sol.success
    np.testing.assert_allclose(sol.x * (damp / 1e10) ** 2, A.T @ b, rtol=1e-3)


def by_normal_equations(A, b, damp=None):
    H = A.conj().T
    if damp is None and A.shape[0] < A.shape[1]:
        return H @ jnp.linalg.solve(A @ H, b)
    return jnp.linalg.solve(H @ A + (0 if damp is None else damp**2) * jnp.eye(A.shape[1]), H @ b)


@pytest.mark.parametrize(
    ("shape", "damped"), few([((7, 12), True), ((7, 12), False), ((12, 7), True), ((12, 7), False)], 1), ids=str
)
def test_gradients_and_their_derivatives_are_those_of_the_dense_solution(shape, damped):
    """In A, b and damp, first order, and forward over reverse."""
    rng = np.random.default_rng(1)
    point = rng.standard_normal(shape), rng.standard_normal(shape[0]), *([0.6] if damped else [])
    ours = lambda A, b, damp=0.0: lsmr(A, b, damp=damp, rtol=1e-12, maxiter=500).x  # noqa: E731
    assert_derivatives_agree(ours, by_normal_equations, *point)


def test_complex_gradients_in_the_values_of_a_format_are_those_of_the_dense_solution():
    S = sp.random_array((12, 7), density=0.6, rng=np.random.default_rng(4), format="csr")
    S = sp.csr_array(S + 1j * sp.csr_array(S)[::-1])
    stored, b = jsf.from_scipy(S, "csr"), jnp.asarray(B[:12])

    def gradient(solve):
        return quick_jit(jax.grad(lambda data: jnp.sum(jnp.abs(solve(stored.with_data(data))) ** 4)))(stored.data)

    got = gradient(lambda A: lsmr(A, b, rtol=1e-12).x)
    want = gradient(lambda A: by_normal_equations(A.todense(), b + 0j, None))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-7 * float(jnp.max(jnp.abs(want))))


def test_where_columns_depend_on_one_another_b_has_a_derivative_and_the_matrix_none():
    w = jnp.arange(1.0, N_ + 1)
    f = lambda A, b: jnp.vdot(w, lsmr(A, b, rtol=1e-10).x)  # noqa: E731
    in_A, in_b = quick_jit(jax.grad(f, (0, 1)))(jnp.asarray(SINGULAR), jnp.asarray(B))
    np.testing.assert_allclose(in_b, np.linalg.pinv(SINGULAR).T @ w, rtol=1e-6, atol=1e-6)
    assert np.all(np.isnan(in_A))


def test_a_derivative_whose_own_solve_fails_is_nan():
    f = lambda b: jnp.sum(lsmr(jnp.asarray(TALL), b, adjoint=Adjoint(maxiter=5)).x)  # noqa: E731
    assert np.all(np.isnan(jax.grad(f)(jnp.asarray(B))))
