"""Statuses never lie, at any scale that a dtype holds: every method over scales, spectra and singular systems.

The oracle is the residual in longdouble of the x that is returned. The deep tier, `pytest -m deep`, takes 10,000
systems; the quick tier takes about fifty, of two methods.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import Status, bicgstab, cg, fcg, gmres, idrs, minres
from tests.marks import deep, few
from tests.solvers.methods import CASES, REFINED, Case, N, right_hand_side

EVERY = [*CASES, REFINED[0], REFINED[4]]
every_method = pytest.mark.parametrize("case", few(EVERY, 2), ids=str)
AT_ONCE = 8
DIGITS = {np.float32: 36, np.float64: 300}
RTOL = {np.float32: 1e-3, np.float64: 1e-8}


def spectrum(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Eigenvalues of up to 1: of any condition, clustered, or with zeros among them."""
    d = rng.choice([np.geomspace(1, 10.0 ** -rng.uniform(0, 8), N), np.repeat(10.0 ** -rng.uniform(0, 4, 4), N // 4)])
    if rng.random() < 0.3:
        d = np.where(np.arange(N) % 5 == 1, 0, d)
    return d if kind == "definite" else d * rng.choice([-1, 1], N)


def system(case: Case, dtype: type, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A [N, N] and b [N] of some scale each, their numbers normal or zero; a compatible b half of the time."""
    d, kind = spectrum(case.kind, rng), rng.integers(3)
    Q = np.eye(N) if kind == 0 else np.linalg.qr(rng.standard_normal((N, N)))[0]
    A = (Q * d) @ Q.T
    A = (A + A.T) / 2
    if case.kind == "general" and kind == 2:
        A = A @ np.linalg.qr(rng.standard_normal((N, N)))[0]
    b = rng.standard_normal(N)
    b = A @ b if rng.random() < 0.5 else np.where(rng.random(N) < rng.choice([0, 0.9]), 0, b)
    of_A, of_b = rng.uniform(-DIGITS[dtype], DIGITS[dtype], 2) * rng.choice([0, 1, 1], 2)
    if rng.random() < 0.5:  # else most solutions lie outside the dtype
        of_b = np.clip(of_A + rng.uniform(-10, 10), -DIGITS[dtype], DIGITS[dtype])
    A, b = ((a.astype(np.longdouble) * np.longdouble(10) ** e).astype(dtype) for a, e in ((A, of_A), (b, of_b)))
    tiny = np.finfo(dtype).tiny  # XLA takes smaller numbers for zero on a CPU
    return np.where(np.abs(A) < tiny, 0, A), np.where(np.abs(b) < tiny, 0, b)


@functools.cache
def solver(case: Case, dtype: type):
    options = {"maxiter": 150} | ({"rtol": RTOL[dtype]})
    return jax.jit(jax.vmap(lambda A, b: case.solver(A, b, **options)))


def norm(v: np.ndarray) -> np.longdouble:
    return np.sqrt(np.sum(v.astype(np.longdouble) ** 2))


Systems = list[tuple[np.ndarray, np.ndarray]]


def lies(case: Case, dtype: type, systems: Systems) -> tuple[list[str], np.ndarray, list[bool]]:
    """What is wrong with the answers, in words; the statuses; and of each CONVERGED, whether a lie would be seen.

    It would not where the rounding errors of a residual exceed half of b, as in float32 at a condition of 1e8.
    """
    stacked = [jnp.asarray(np.stack(a)) for a in zip(*systems, strict=True)]
    sol = jax.tree.map(np.asarray, solver(case, dtype)(*stacked))
    found, seen = [], []
    answers = zip(sol.x, sol.code, sol.residual_norm, strict=True)
    for (A, b), (x, code, size) in zip(systems, answers, strict=True):
        what = f"{case} {dtype.__name__} {Status(int(code)).name}, A {np.max(np.abs(A)):.0e}, b {np.max(np.abs(b)):.0e}"
        if not np.all(np.isfinite(x)):
            found.append(f"{what}: x is not finite")
            continue
        A, b, x = (a.astype(np.longdouble) for a in (A, b, x))
        true = norm(b - A @ x)
        # What rounding leaves of a residual in this dtype, and what its least number does.
        rounding = 4 * np.finfo(dtype).eps * norm(np.abs(A) @ np.abs(x) + np.abs(b)) + N * np.finfo(dtype).tiny
        if code == Status.CONVERGED:
            seen.append(bool(rounding <= norm(b) / 2))
        if code == Status.CONVERGED and true > 1.01 * RTOL[dtype] * norm(b) + rounding:
            found.append(f"{what}: residual {true / norm(b):.1e} of b")
        if abs(size - true) > 0.01 * true + rounding and true < np.finfo(dtype).max / N:  # else it may be infinite
            found.append(f"{what}: residual norm {size:.2e} for {true:.2e}")
        if code == Status.LEAST_SQUARES and norm(A.T @ (b - A @ x)) > 0.05 * norm(A) * true:
            found.append(f"{what}: not least squares")
    return found, sol.code, seen


def campaign(case: Case, dtype: type, batches: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    results = [lies(case, dtype, [system(case, dtype, rng) for _ in range(AT_ONCE)]) for _ in range(batches)]
    assert [text for found, _, _ in results for text in found] == []
    assert np.mean([flag for _, _, seen in results for flag in seen]) >= 0.75
    return np.concatenate([codes for _, codes, _ in results])


# A refinement in float32 has no narrower float32.
BOTH = [(case, dtype) for case in EVERY for dtype in (np.float32, np.float64) if dtype == np.float64 or case in CASES]
FEW = [("cg", np.float32), ("gmres", np.float64)]


@pytest.mark.parametrize(
    ("case", "dtype", "batches"),
    [*((*row, 3) for row in BOTH if (row[0].name, row[1]) in FEW), *(deep(*row, 70) for row in BOTH)],
    ids=str,
)
def test_does_a_status_ever_lie(case: Case, dtype, batches):
    codes = campaign(case, dtype, batches, seed=int(batches > 3))
    assert np.any(codes == Status.CONVERGED)


# Scales of b, and whether the solution has a place in the dtype.
SCALES = [
    (np.float32, 1e-30, True),
    (np.float32, 1e30, True),
    (np.float32, 1e-37, False),
    (np.float64, 1e-290, True),
    (np.float64, 1e300, True),
    (np.float64, 1e-306, False),
]


@every_method
def test_does_the_scale_of_b_change_neither_answer_nor_effort(case: Case):
    for dtype, of_b, fits in SCALES:
        if case in REFINED and dtype == np.float32:
            continue  # there is no narrower float32
        S, b = case.system(dtype=dtype)
        A, big, solve = S.toarray(), np.longdouble, solver(case, dtype)
        scaled_b = (b.astype(big) * big(of_b)).astype(dtype)
        both = solve(jnp.asarray(np.stack([A] * 8)), jnp.asarray(np.stack([b, scaled_b] * 4)))
        plain, scaled = (Status(int(c)) for c in both.code[:2])
        assert plain is Status.CONVERGED, case
        assert scaled is (Status.CONVERGED if fits else Status.OUT_OF_RANGE), (dtype, of_b)
        steps, more = int(both.n_iterations[0]), int(both.n_iterations[1]) - int(both.n_iterations[0])
        # An x that leaves the range of the dtype ends the solve at the first look at it.
        assert more <= 3 + 0.1 * steps and (more >= -3 - 0.1 * steps or not fits)
        residual = norm(scaled_b.astype(big) - A.astype(big) @ np.asarray(both.x[1]).astype(big))
        assert float(both.residual_norm[1]) == pytest.approx(float(residual), rel=1e-2)


@pytest.mark.parametrize("case", few(EVERY, 2), ids=str)
def test_is_a_nan_in_A_seen_where_b_is_zero(case: Case):
    S, _ = case.system()
    A = S.toarray()
    A[3, 3] = np.nan
    B = np.zeros((N, 2))
    B[:, 1] = right_hand_side()
    assert np.all(np.asarray(case.solver(jnp.asarray(A), B).code) == Status.NON_FINITE)


@pytest.mark.parametrize(
    ("dtype", "of_A", "of_b"), [("f8", 1e-300, 1.0), ("f8", 1e200, 1e100), ("f8", 1.0, 1e-290), ("f4", 1.0, 1e-25)]
)
def test_is_x0_used_at_any_scale(dtype, of_A, of_b):
    S, b = EVERY[0].system()
    exact = np.linalg.solve(S.toarray(), b)
    A, b, x0 = (a.astype(dtype) for a in (of_A * S.toarray(), of_b * b, exact / of_A * of_b))
    sol = EVERY[0].solver(jnp.asarray(A), b, x0, rtol=1e-9 if dtype == "f8" else 1e-5)
    assert sol.status is Status.CONVERGED and sol.iterations == 0
    np.testing.assert_allclose(sol.x, x0, rtol=4 * np.finfo(dtype).eps)
    for times, left in ((-1000, -1000), (-1100, 0)):  # with residuals of 1001 and 1101 times b
        far = EVERY[0].solver(jnp.asarray(A), b, times * x0, maxiter=0)
        np.testing.assert_allclose(far.x, left * x0, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("solver", "dtype"), few([(s, t) for s, t in itertools.product((fcg, minres, gmres, bicgstab, idrs), "dF")], 3)
)
def test_does_a_power_of_two_times_A_change_no_digit_of_x(solver, dtype):
    """Squares of A's numbers leave the range of the dtype. An M that fits A does as well as none."""
    S, e = jsf.gallery.poisson(3), 0.7 * np.finfo(dtype).maxexp // 1
    b, A = np.cos(np.arange(27) ** 2).astype(dtype), jsf.from_scipy(S, "csr", dtype)
    solve = jax.jit(lambda f, M: solver(A.with_data(f * A.data), b, M=M))
    for M in (None, A.diagonal() ** -1):
        want = solve(1.0, M)
        assert want.code == Status.CONVERGED
        for f in (2.0 ** (e - 1), 2.0**-e):
            sol = solve(f, None if M is None else M / f)
            assert sol.code == Status.CONVERGED and sol.n_iterations == want.n_iterations
            np.testing.assert_allclose(f * sol.x, want.x, rtol=0 if M is None else 1e-4)
    steps = jax.jit(lambda f: minres(A.with_data(f * A.data), b, maxiter=3, adjoint="unrolled").x)
    if solver is minres:
        np.testing.assert_array_equal(2.0**-e * steps(2.0**-e), steps(1.0))


def test_do_denormal_numbers_of_b_count_as_zeros():
    sol = jax.jit(lambda b: cg(jnp.eye(3), b))(jnp.asarray([1e-320, 0, 2e-320]))
    assert int(sol.code) == Status.CONVERGED and not np.any(sol.x)
