"""Singular systems whose null spaces are given, against the dense pseudo-inverse and its derivatives by JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import Mesh

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt.gallery import elasticity, rigid_body_modes
from solvers.solution import Status
from tests.lowering import quick_jit
from tests.marks import deep, few
from tests.solvers.methods import CASES, REFINED, Case

N, FIRST = 24, 14  # unknowns, and those of the first of two components
EDGES = np.array(
    [(i, i + 1) for i in range(N - 1) if i != FIRST - 1]
    + [(i, i + 5) for i in range(N - 5) if i + 5 < FIRST or i >= FIRST]
)
WEIGHTS = 1 + np.arange(len(EDGES)) % 3 / 2
RHS = np.sin(1 + np.arange(N) ** 2.0)
LOSS = np.cos(np.arange(N) * 1.7)
COMPONENTS = np.stack([np.arange(N) < FIRST, np.arange(N) >= FIRST], axis=1) * [1.0, 3.0]
INCIDENCE = np.zeros((len(EDGES), N))
INCIDENCE[np.arange(len(EDGES)), EDGES[:, 0]], INCIDENCE[np.arange(len(EDGES)), EDGES[:, 1]] = 1, -1
GRAPH = sp.csr_array(INCIDENCE.T @ np.diag(WEIGHTS) @ INCIDENCE)
ROW, COL = GRAPH.tocoo().coords


def dense(weights):
    return INCIDENCE.T @ (weights[:, None] * INCIDENCE)


def sparse(weights):
    """The Laplacian of the graph, whose null space every choice of weights keeps."""
    return jsf.from_scipy(GRAPH, "csr").with_data(dense(weights)[ROW, COL])


def chain(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """1 − Tᵀ of a Markov chain, and its stationary distribution."""
    rng = np.random.default_rng(0)
    T = rng.uniform(size=(n, n)) * (rng.uniform(size=(n, n)) < 0.2) + np.roll(np.eye(n), 1, 0)
    A = np.eye(n) - (T / T.sum(1, keepdims=True)).T
    return A, np.linalg.svd(A)[2][-1]


def wrong(got, expected) -> float:
    return float(jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected))


SOLVERS = [(str(case), case.solver) for case in (*CASES, *REFINED[:1])]
SOLVERS += [("solve", solvers.solve), ("direct", solvers.direct)]


@pytest.mark.parametrize(("name", "solver"), [row if row[0] in ("cg", "gmres") else deep(*row) for row in SOLVERS])
def test_are_x_and_its_derivatives_those_of_the_pseudo_inverse(name, solver):
    def loss(x_of, weights, b):
        return jnp.sum(LOSS * jnp.sin(x_of(weights, b)))

    def ours(weights, b):
        return solver(sparse(weights), b, nullspace=COMPONENTS, rtol=1e-13).x

    found, expected = (
        quick_jit(jax.value_and_grad(functools.partial(loss, f), (0, 1)))(WEIGHTS, RHS)
        for f in (ours, lambda weights, b: jnp.linalg.pinv(dense(weights)) @ b)
    )
    assert abs(found[0] - expected[0]) < 1e-9
    assert max(map(wrong, found[1], expected[1])) < 1e-9
    A, inverse = sparse(WEIGHTS), np.linalg.pinv(GRAPH.toarray())
    for b, status in ((RHS, Status.LEAST_SQUARES), (GRAPH @ RHS, Status.CONVERGED)):
        sol = solver(A, b, nullspace=COMPONENTS, rtol=1e-10)
        assert sol.status == status and wrong(sol.x, inverse @ b) < 1e-8
        assert np.max(np.abs(COMPONENTS.T @ sol.x)) < 1e-13
        np.testing.assert_allclose(sol.residual_norm, np.linalg.norm(b - GRAPH @ np.asarray(sol.x)), atol=1e-13)


@pytest.mark.parametrize("case", few([case for case in CASES if case.kind == "general"], 1), ids=str)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_does_a_markov_chain_have_its_left_null_space(case: Case, preconditioned):
    A, stationary = chain()
    M = 1 / np.diag(A) if preconditioned else None
    sol = case.solver(jnp.asarray(A), RHS, nullspace=stationary, left_nullspace="constant", rtol=1e-11, M=M)
    assert sol.status == Status.LEAST_SQUARES and wrong(sol.x, np.linalg.pinv(A) @ RHS) < 1e-9


def test_is_the_derivative_right_where_the_null_space_moves_with_the_data():
    A, _ = chain(9)

    def of_rates(t):
        T = jnp.where(A.T != 0, jnp.exp(t), 0)
        return jnp.eye(9) - (T / T.sum(1, keepdims=True)).T

    def ours(A):
        stationary = jnp.linalg.solve(A + 1 / 9, jnp.full(9, 1 / 9))
        return solvers.gmres(A, RHS[:9], nullspace=stationary, left_nullspace="constant", rtol=1e-13).x

    t = np.sin(np.arange(81.0)).reshape(9, 9)
    found, expected = (
        quick_jit(jax.grad(lambda t, f=f: jnp.sum(LOSS[:9] * f(of_rates(t)))))(t)
        for f in (ours, lambda A: jnp.linalg.pinv(A) @ RHS[:9])
    )
    assert wrong(found, expected) < 1e-9


def test_is_no_gradient_of_200_random_losses_finite_and_wrong():
    rng = np.random.default_rng(1)
    inverse = np.linalg.pinv(GRAPH.toarray())
    weights = rng.standard_normal((200, N)) * rng.choice([0, 1, 1e6], (200, 1))
    weights[::7] = COMPONENTS[:, rng.integers(2, size=29)].T  # which see the null space alone

    @quick_jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def gradient(w, c):
        return jax.grad(lambda b: c @ solvers.cg(sparse(w), b, nullspace=COMPONENTS, rtol=1e-12).x)(jnp.asarray(RHS))

    found = gradient(WEIGHTS, weights)
    errors = np.linalg.norm(found - weights @ inverse, axis=1) / np.maximum(np.linalg.norm(weights, axis=1), 1e-300)
    assert np.all(errors < 1e-9)


@pytest.mark.deep
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_has_a_free_body_its_six_rigid_motions(dtype):
    S = elasticity(3, clamped=False)
    Z = rigid_body_modes(np.stack(np.meshgrid(*3 * [np.arange(3)], indexing="ij"), axis=-1).reshape(-1, 3))
    b = np.sin(np.arange(81.0) ** 2).astype(dtype) * (1j if dtype is np.complex128 else 1)
    A = jsf.from_scipy(S, "bsr", dtype=np.float32 if dtype is np.float32 else None)
    rtol = 1e-6 if dtype is np.float32 else 1e-10
    sol = solvers.cg(A, b, nullspace=Z.astype(dtype), rtol=rtol)
    assert sol.status == Status.LEAST_SQUARES and sol.x.dtype == dtype
    assert wrong(sol.x, np.linalg.pinv(S.toarray(), rcond=1e-10) @ b) < 100 * rtol


@pytest.mark.deep
def test_lie_the_vectors_over_several_devices():
    sharded = jsf.shard(GRAPH, Mesh(np.array(jax.devices()[:3]), "rows"))
    options = {"nullspace": COMPONENTS, "rtol": 1e-10, "M": solvers.precond.jacobi(sharded)}
    inverse = np.linalg.pinv(GRAPH.toarray())
    sol = solvers.cg(sharded, RHS, **options)
    assert sol.status == Status.LEAST_SQUARES and wrong(sol.x, inverse @ RHS) < 1e-8
    gradient = jax.jit(jax.grad(lambda b: LOSS @ solvers.cg(sharded, b, **options).x))
    assert wrong(gradient(RHS), inverse @ LOSS) < 1e-8


@pytest.mark.deep
def test_solves_with_sorted_rows_several_columns_a_pytree_and_negative_values():
    both = np.stack([RHS, GRAPH @ RHS], axis=1)
    x = np.linalg.pinv(GRAPH.toarray()) @ both
    options = {"nullspace": COMPONENTS, "rtol": 1e-10}
    for sol, expected in (
        (solvers.cg(jsf.from_scipy(GRAPH, "pjds"), RHS, x0=RHS, **options), x[:, 0]),
        (solvers.cg(jsf.from_scipy(-GRAPH), both, **options), -x),
    ):
        assert np.all(np.ravel(sol.code)[:1] == Status.LEAST_SQUARES) and wrong(sol.x, expected) < 1e-8
    A = jsf.from_scipy(GRAPH)
    sol = solvers.cg(
        lambda v: {"u": (A @ v["u"].ravel()).reshape(v["u"].shape)},
        {"u": RHS.reshape(4, 6)},
        nullspace=[{"u": z.reshape(4, 6)} for z in COMPONENTS.T],
        rtol=1e-10,
    )
    assert wrong(sol.x["u"].ravel(), x[:, 0]) < 1e-8


def test_is_a_traced_vector_that_A_does_not_take_to_zero_a_failure_without_derivatives():
    @quick_jit
    def solved(z):
        return solvers.cg(sparse(WEIGHTS), RHS, nullspace=z)

    gradient = quick_jit(jax.grad(lambda b, z: LOSS @ solvers.cg(sparse(WEIGHTS), b, nullspace=z).x))
    for z in (RHS, np.zeros(N), np.full(N, np.nan)):
        sol = solved(z)
        assert sol.status == Status.BREAKDOWN and np.all(np.isfinite(sol.x))
        assert np.all(np.isnan(gradient(RHS, z)))
    assert solved(COMPONENTS).status == Status.LEAST_SQUARES


A, STATIONARY = chain()
REFUSED = [
    ("cg", {"nullspace": "ones"}, "'constant', an array .* got 'ones'"),
    ("cg", {"nullspace": np.ones(3)}, r"nullspace must be .* got \(3, 1\)"),
    ("cg", {"nullspace": np.eye(N)}, r"with m < 24, .* got \(24, 24\)"),
    ("cg", {"nullspace": []}, r"got a list of \[\]"),
    ("cg", {"nullspace": [np.ones(N), 2 * np.ones(N)]}, "the 2 vectors of nullspace are linearly dependent"),
    ("cg", {"nullspace": np.full(N, np.inf)}, "nullspace has a NaN, an infinity"),
    ("cg", {"nullspace": RHS}, r"A does not take nullspace to 0, but misses it by \d.* of ‖A‖; give"),
    ("direct", {"nullspace": RHS}, "A does not take nullspace to 0"),
    ("cg", {"left_nullspace": "constant"}, "left_nullspace needs nullspace"),
    ("cg", {"nullspace": "constant", "left_nullspace": "constant"}, "left_nullspace is for A that is not symmetric"),
    ("gmres", {"nullspace": COMPONENTS, "left_nullspace": "constant"}, "nullspace has 2 vectors and left_nullspace 1"),
    ("cg", {"nullspace": "constant", "adjoint": "unrolled", "maxiter": 3}, "'unrolled' takes no nullspace"),
    ("cg", {"nullspace": 1j * np.ones(N)}, "complex128 in a system of float64"),
    ("solve", {"nullspace": "constant", "method": "direct"}, "method='direct' takes no nullspace; direct"),
    ("lsmr", {"nullspace": "constant"}, "lsmr has no keyword 'nullspace'"),
]


@pytest.mark.parametrize(("name", "keywords", "message"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_refuses_in_words(name, keywords, message):
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(solvers, name)(jsf.from_scipy(GRAPH, "csr"), RHS, **keywords)


def test_is_a_matrix_with_a_nan_not_finite():
    sol = solvers.cg(sparse(WEIGHTS * np.nan), RHS, nullspace=COMPONENTS)
    assert sol.status == Status.NON_FINITE and np.all(np.isfinite(sol.x))


def test_refuses_the_null_space_of_A_for_that_of_its_transpose():
    with pytest.raises(ValueError, match=r"A is not symmetric: .* give left_nullspace="):
        solvers.gmres(jnp.asarray(A), RHS, nullspace=STATIONARY)
    with pytest.raises(ValueError, match="Aᴴ does not take left_nullspace to 0"):
        solvers.gmres(jnp.asarray(A), RHS, nullspace=STATIONARY, left_nullspace=STATIONARY)
