"""Conjugate gradients: the answer, the count, the status, the loop, and the derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, bicgstab, cg, fcg, precond
from tests.lowering import equations
from tests.marks import few
from tests.solvers.methods import N, matrix, neumann
from tests.solvers.real import each_file, is_hermitian_with_positive_diagonal


def system(seed: int = 0, format: str = "csr", dtype=np.float64):
    S = matrix("definite", seed, dtype)
    rng = np.random.default_rng(seed + 1)
    b = rng.standard_normal(N) + (1j * rng.standard_normal(N) if S.dtype.kind == "c" else 0)
    return S, jsf.from_scipy(S, format), jnp.asarray(b.astype(dtype))


@pytest.mark.parametrize("solver", few([cg, functools.partial(cg, one_reduction=True), fcg], 2))
def test_is_a_negative_definite_system_solved_in_the_steps_of_its_negative(solver):
    _, A, b = system()
    inverse = 1 / A.diagonal()

    @jax.jit
    def solved(data, M):
        def total(data):
            sol = solver(A.with_data(data), b, M=M)
            return jnp.sum(sol.x), sol

        return jax.grad(total, has_aux=True)(data)

    for M in (np.ones(N), inverse):
        (gradient, want), (same, sol), (_, of_M) = solved(A.data, M), solved(-A.data, M), solved(-A.data, -M)
        assert int(sol.code) == int(of_M.code) == Status.CONVERGED and int(sol.n_iterations) == int(want.n_iterations)
        np.testing.assert_array_equal(sol.x, -want.x)
        np.testing.assert_array_equal(of_M.x, -want.x)
        np.testing.assert_array_equal(same, gradient)  # x is odd in the values of A


def test_atol_stops_where_rtol_would_go_on():
    _, A, b = system()
    atol = 1e-2 * float(jnp.linalg.norm(b))
    by_atol, by_rtol = cg(A, b, rtol=0.0, atol=atol), cg(A, b, rtol=1e-2)
    assert by_atol.success and by_atol.iterations == by_rtol.iterations


@pytest.mark.parametrize("form", [False, True])
def test_no_form_steps_along_a_negative_curvature_that_is_found_after_two_steps(form):
    S = sp.csr_array(jsf.gallery.poisson(14, dim=2) - 2 * sp.eye_array(196))
    sol = cg(jsf.from_scipy(S, "csr"), np.sin(np.arange(196) ** 1.3), one_reduction=form)
    assert sol.status is Status.NOT_POSITIVE_DEFINITE and sol.iterations == 2


@pytest.mark.parametrize("M", [None, np.full(N, 0.5, np.float32)])
@pytest.mark.parametrize("size", [1e-25, 1e-17, 1e17, 1e25])
def test_the_form_with_one_reduction_squares_no_number_beyond_the_dtype(size, M):
    """It sums squares of A·p, which for these A overflow in float32, or vanish."""
    S, A, b = system(dtype=np.float32)
    A, M = A.with_data(A.data * np.float32(size)), None if M is None else M / np.float32(size)
    sol, usual = (cg(A, b, M=M, rtol=1e-5, one_reduction=form) for form in (True, False))
    assert sol.success and sol.iterations <= usual.iterations + 2
    np.testing.assert_allclose(size * np.asarray(sol.x), np.linalg.solve(S.toarray(), b), rtol=0, atol=1e-3)
    near_one = np.diag(1 + 1e-5 * np.random.default_rng(2).standard_normal(N))  # rounding leaves squares below zero
    assert np.all(cg(jnp.asarray(near_one, "float32"), b, one_reduction=True, history=True).history >= 0)


@pytest.mark.parametrize(("dtype", "kappa", "more"), [(np.float64, 1e6, 1.1), (np.float32, 1e4, 1.1)])
def test_both_forms_take_as_many_steps_on_an_ill_conditioned_matrix(dtype, kappa, more):
    d = np.geomspace(1, kappa, 200)
    A, b, rtol = jsf.from_scipy(sp.diags_array(d).tocsr(), "csr", dtype), np.ones(200, dtype), 1e-4
    one, two = (cg(A, b, rtol=rtol, one_reduction=form) for form in (True, False))
    assert one.success and two.success and one.iterations <= more * two.iterations
    np.testing.assert_allclose(np.asarray(one.x) * d, 1, rtol=0, atol=1e-4 * 200**0.5)


@pytest.mark.parametrize("M", [None, np.full(27, 0.5)])
def test_a_step_is_two_kernels_and_with_an_M_four(M):
    with jsf.use_backend("interpret"):
        A = jsf.from_scipy(jsf.gallery.poisson(3), "dia")
        program = jax.make_jaxpr(lambda A, b: cg(A, b, M=M, check_every=1).x)(A, np.ones(27))
    loops = [str(e.params["body_jaxpr"]) for e, _ in equations(program.jaxpr) if e.primitive.name == "while"]
    step = next(body for body in loops if "sparse_product_sums" in body and "while[" not in body)
    kernels = [step.count(f"= {name}[") for name in ("sparse_product_sums", "vector_sweep")]
    assert kernels == ([1, 1] if M is None else [1, 3])


@pytest.mark.parametrize("solver", [cg, fcg, bicgstab], ids=lambda s: s.__name__)
def test_a_singular_system_without_solution_ends_where_the_residual_grows_with_the_best_x(solver):
    """Later x are 1e32 times as long, and their residuals 1e17."""
    S, b = neumann(200), np.random.default_rng(0).standard_normal(200)
    sol = solver(jsf.from_scipy(S, "csr"), b, history=True)
    true = np.linalg.norm(b - S @ np.asarray(sol.x))
    assert sol.status is Status.DIVERGED and "singular" in sol.status.message and sol.iterations < 1200
    assert true == pytest.approx(float(sol.residual_norm), rel=1e-6) and true <= 1.12 * float(jnp.min(sol.history))
    assert np.linalg.norm(sol.x) < 1e5


def test_a_long_wait_of_a_symmetric_matrix_ends_nothing():
    d = np.concatenate([np.geomspace(1e-9, 1e-6, 60), np.geomspace(1, 10, 40)])
    sol = cg(jnp.diag(d), np.ones(100), rtol=1e-7, maxiter=20_000)
    assert sol.success and sol.iterations > 600


@pytest.mark.parametrize("size", [1.0, 1e15])
def test_a_skew_part_is_told_however_fast_the_residual_grows(size):
    """I + K with K = −Kᵀ: every curvature is positive, and every step multiplies the residual by about `size`."""
    upper = sp.diags_array(np.full(N - 1, size), offsets=1)
    sol = cg(jsf.from_scipy((sp.eye_array(N) + upper - upper.T).tocsr(), "csr"), np.ones(N))
    assert sol.status is Status.NOT_SYMMETRIC and np.all(np.isfinite(sol.x))


def test_history_inside_jit_has_a_fixed_length_and_ends_in_nan():
    _, A, b = system()
    norms = jax.jit(lambda A, b: cg(A, b, rtol=1e-8, history=200).history)(A, b)
    k = cg(A, b, rtol=1e-8).iterations
    assert norms.shape == (201,)
    assert np.all(np.isfinite(norms[: k + 1])) and np.all(np.isnan(norms[k + 1 :]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_at_the_ends_of_the_dtype_are_solved(dtype):
    for size in (0.9 * np.finfo(dtype).max, 2 * np.finfo(dtype).tiny):
        b = np.array([1, 0.75, -0.5], dtype) * dtype(size)
        sol = cg(jsf.from_dense(np.eye(3, dtype=dtype)), b)
        assert sol.success
        np.testing.assert_allclose(sol.x, b, rtol=1e-6)


@pytest.mark.deep
def test_does_a_solve_end_however_rarely_it_looks_whether_it_is_over():
    _, A, b = system()
    sol = cg(A, b, rtol=1e-8, check_every=10**9, maxiter=10**9)
    assert sol.success and sol.iterations == cg(A, b, rtol=1e-8).iterations


def test_is_a_history_beyond_the_memory_refused(monkeypatch):
    _, A, b = system()
    monkeypatch.setattr("jaxsparse_fmt.formats.memory.free", lambda: 2 * 10**9)
    with pytest.raises(ValueError, match=r"history=1000000000 take 8 GB, and only 2 GB .* free; keep fewer norms"):
        cg(A, b, history=10**9)


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e-3])
def test_an_x0_far_from_a_tiny_b_does_not_hide_it(scale):
    S, A, b = system(dtype=np.float32)
    b = b * scale
    sol = cg(A, b, np.ones(N, np.float32), rtol=1e-5)
    residual = np.float64(b) - S @ np.float64(sol.x)
    assert sol.success and np.linalg.norm(residual) <= 2e-5 * np.linalg.norm(np.float64(b))
    assert float(sol.residual_norm) == pytest.approx(np.linalg.norm(residual), rel=0.5)


def test_mapped_over_it_multiplies_with_the_kernel_still():
    with jsf.use_backend("interpret"):
        A, B = jsf.from_scipy(jsf.gallery.poisson(3), "ell"), np.ones((3, 27))
        assert "gather" not in str(jax.make_jaxpr(jax.vmap(lambda b: cg(A, b).x))(B))


def test_integers_are_solved_as_floats():
    sol = cg(jsf.from_scipy(sp.csr_array(2 * np.eye(3, dtype=int))), np.array([2, 4, 6]))
    np.testing.assert_allclose(sol.x, [1, 2, 3])


def test_an_array_as_M_is_the_diagonal_matrix_that_it_lists():
    _, A, b = system()
    d = 1 / (A.diagonal() + 0.5)
    want = cg(lambda v: A @ v + 0.5 * v, b, M=lambda r: d * r, rtol=1e-10)
    for M in (d, np.asarray(d), jnp.diag(d)):
        sol = cg(lambda v: A @ v + 0.5 * v, b, M=M, rtol=1e-10)
        assert sol.iterations == want.iterations
        np.testing.assert_allclose(sol.x, want.x, rtol=1e-12)
    assert np.all(cg(A, np.stack([b, 2 * b], axis=1), M=d).success)


@pytest.mark.deep
def test_x0_and_M_carry_no_derivative_and_a_far_x0_does_not_spoil_it():
    _, A, b = system()
    f = lambda b, x0, s: cg(A, b, x0, M=lambda r: s * r, rtol=1e-12).x.sum()  # noqa: E731
    gb, gx, gs = jax.grad(f, (0, 1, 2))(b, 1e6 * jnp.ones(N), 2.0)
    assert not np.any(gx) and gs == 0
    np.testing.assert_allclose(gb, cg(A, jnp.ones(N), rtol=1e-12).x, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------- real matrices


MAXITER = 3000
DENSE = 2500  # rows up to which positive definiteness is decided by eigenvalues


@each_file
def test_same_answer_as_scipy_or_an_honest_status(path):
    S = sp.csr_array(jsf.io.read_scipy(path))
    if not is_hermitian_with_positive_diagonal(S):
        pytest.skip("not Hermitian with a positive diagonal")
    b = S @ np.ones(S.shape[0])
    A = jsf.from_scipy(S)
    sol = cg(A, b, M=precond.jacobi(A), rtol=1e-8, maxiter=MAXITER)
    x = np.asarray(sol.x)
    relative = np.linalg.norm(b - S @ x) / np.linalg.norm(b)
    assert np.all(np.isfinite(x))
    assert float(sol.residual_norm) == pytest.approx(relative * np.linalg.norm(b), rel=1e-3)
    assert sol.success == (relative <= 1e-8)

    inverse, steps = sp.diags_array(1 / S.diagonal()), []
    want, info = spla.cg(S, b, M=inverse, rtol=1e-8, maxiter=MAXITER, callback=steps.append)
    if info == 0 and np.linalg.norm(b - S @ want) <= 1e-8 * np.linalg.norm(b):
        assert sol.status is Status.CONVERGED, sol
        assert abs(sol.iterations - len(steps)) <= max(2, 0.02 * len(steps))
    if sol.status is Status.NOT_POSITIVE_DEFINITE and S.shape[0] <= DENSE:
        assert np.linalg.eigvalsh(S.toarray())[0] < 1e-10 * abs(S).max()
