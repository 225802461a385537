"""JAX's switches: the whole public interface under each, against dense arithmetic.

Those that only refuse something are on at the same time: a failure names what was refused.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.experimental import sparse

import jaxsparse_fmt as jsf
import solvers
from solvers import precond
from tests.lowering import quick_jit
from tests.zoo import FIRST_LAYOUTS

N = 24


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for switch in (
            jax.debug_nans(True),
            jax.debug_key_reuse(True),
            jax.enable_checks(True),
            jax.legacy_prng_key("error"),
            jax.numpy_dtype_promotion("strict"),
            jax.numpy_rank_promotion("raise"),
        ):
            stack.enter_context(switch)
        yield


@contextlib.contextmanager
def leaks() -> Iterator[None]:
    """And infinities, which stand for NaN in tangents where NaNs are hunted: not both at a time."""
    with jax.checking_leaks(), jax.debug_infs(True):
        yield


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    with jax.enable_x64(False), jax.default_matmul_precision("bfloat16"):
        yield


@dataclasses.dataclass(frozen=True)
class Switch:
    name: str
    on: Callable[[], contextlib.AbstractContextManager[Any]]
    eps: float = 2.0**-52

    def __str__(self) -> str:
        return self.name


SWITCHES = [
    Switch("refusing", refusing),
    Switch("disable_jit", jax.disable_jit),
    Switch("leaks and infinities", leaks),
    Switch("32 bits", narrow, 2.0**-23),
]
every_switch = pytest.mark.parametrize("switch", SWITCHES, ids=str)

_rng = np.random.default_rng(3)
_sparse = sp.random_array((N, N), density=0.1, rng=_rng)
DEFINITE = sp.csr_array(_sparse.T @ _sparse + 0.5 * sp.eye_array(N))
GENERAL = sp.csr_array(_sparse + 2 * sp.eye_array(N))
for _S in (DEFINITE, GENERAL):
    _S.sort_indices()
BAND = sp.csr_array(sp.diags_array([np.full(N, 2.5), -np.ones(N - 1), -np.ones(N - 1)], offsets=[0, 1, -1]))
B, X = _rng.standard_normal(N), _rng.standard_normal((N, 2))


def close(got: Any, want: Any, switch: Switch, times: float = 1000) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=times * switch.eps * np.abs(want).max())


def every_face(A: Any, data: Any, x: Any, X: Any) -> Any:
    """Products, and the derivatives of ‖A·x‖² with respect to the entries and x."""
    gradients = jax.grad(lambda data, x: jnp.sum((A.with_data(data) @ x) ** 2), (0, 1))(data, x)
    mapped = jax.vmap(lambda x: A @ x, 1, 1)(X)
    forward = jax.jvp(lambda data: A.with_data(data).T @ x, (data,), (data,))[1]
    return A @ x, A @ X, mapped, A.T @ x, x @ A, A.H @ x, forward, A.diagonal(), A.todense(), gradients


def check_faces(A: Any, S: Any, switch: Switch) -> None:
    x, X_ = jnp.asarray(B, A.dtype), jnp.asarray(X, A.dtype)
    *found, (by_data, by_x) = quick_jit(every_face)(A, A.data, x, X_)
    dense, transposed = S.toarray(), S.toarray().T @ B
    both = dense @ X
    for got, want in zip(found, (dense @ B, both, both, *(transposed,) * 4, dense.diagonal(), dense), strict=True):
        close(got, want, switch)
    row, col = S.nonzero()
    y = 2 * (dense @ B)
    close(by_data, y[row] * B[col], switch)
    close(by_x, dense.T @ y, switch)


# Leaks and 32 bits depend on no format; formats that store the same arrays are one to them.
FORMATS = [
    (switch, layout)
    for switch in SWITCHES
    for layout in FIRST_LAYOUTS
    if switch.name in ("refusing", "disable_jit") or layout.format in ("csr", "hll", "sell", "dia")
]


@pytest.mark.deep
@pytest.mark.parametrize(("switch", "layout"), FORMATS, ids=str)
def test_every_format_computes_the_same_under(switch, layout):
    S = BAND if layout.format in ("dia", "hdia") else GENERAL
    with switch.on():
        A = layout.of(S)
        check_faces(A, S, switch)
        close(A @ B, S @ B, switch)  # op by op
        close(A.with_data(2 * np.asarray(A.data)).data, 2 * S.data, switch)
        close(A.in_basis @ A.basis.enter(jnp.asarray(B, A.dtype)), A.basis.enter(jnp.asarray(S @ B)), switch)
        close(jsf.spmv(A, B, B, 2.0, 3.0), 2 * (S @ B) + 3 * B, switch)
        close((2 * A / 4).astype("float32").asformat("csr").todense(), S.toarray() / 2, switch, 2.0**30)
        assert A.to_scipy().nnz == S.nnz and repr(A)


@every_switch
def test_every_door_is_open_under(switch):
    dense, coo = GENERAL.toarray(), GENERAL.tocoo()
    with switch.on():
        from_jax = sparse.BCOO.fromdense(jnp.asarray(dense))
        made = [
            jsf.from_scipy(GENERAL),
            jsf.from_scipy(GENERAL, "tune"),
            jsf.from_dense(dense),
            jsf.from_coo(coo.row, coo.col, coo.data, coo.shape, "csr"),
            jsf.from_bcoo(from_jax),
            *(jsf.from_scipy(GENERAL, "hll", slice_size=4, backend=backend) for backend in ("interpret", "xla")),
            jsf.from_scipy(GENERAL, "hll", transpose=True),
        ]
        for A in made:
            close(A @ B, GENERAL @ B, switch)
            close(A.T @ B, GENERAL.T @ B, switch)
        for dtype, unit in (("bfloat16", 2.0**-6), ("complex64", 2.0**-20)):
            A = jsf.from_scipy(GENERAL, "hll", slice_size=4, dtype=dtype)
            close(A @ B, GENERAL @ B, switch, max(unit / switch.eps, 1000))
        for S in (jsf.gallery.hpcg(3), jsf.gallery.elasticity(2), jsf.gallery.power_law(100)):
            close(jsf.from_scipy(S) @ np.ones(S.shape[1]), S @ np.ones(S.shape[1]), switch)


# Solver, matrix, options, and what makes M.
METHODS: dict[str, tuple[Any, sp.csr_array, dict[str, Any], Any]] = {
    "cg": (solvers.cg, DEFINITE, {}, precond.jacobi),
    "cg in one reduction": (solvers.cg, DEFINITE, {"one_reduction": True}, precond.jacobi),
    "minres": (solvers.minres, DEFINITE, {}, precond.jacobi),
    "bicgstab": (solvers.bicgstab, GENERAL, {}, precond.jacobi),
    "gmres": (solvers.gmres, GENERAL, {}, precond.jacobi),
    "flexible gmres": (solvers.gmres, GENERAL, {"flexible": True}, precond.jacobi),
    "solve": (solvers.solve, GENERAL, {}, precond.jacobi),
    "refined cg": (solvers.refine, DEFINITE, {"dtype": "float32"}, precond.jacobi),
    "refined gmres": (solvers.refine, GENERAL, {"dtype": "bfloat16", "method": "gmres"}, precond.jacobi),
    "fcg": (solvers.fcg, DEFINITE, {}, precond.jacobi),
    "block_jacobi": (solvers.fcg, DEFINITE, {}, lambda A: precond.block_jacobi(A, 3)),
    "chebyshev": (solvers.fcg, DEFINITE, {}, precond.chebyshev),
    "incomplete_cholesky": (solvers.fcg, DEFINITE, {}, lambda A: precond.incomplete_cholesky(A, solve_sweeps=2)),
    "incomplete_lu": (solvers.fcg, DEFINITE, {}, precond.incomplete_lu),
    "ilu": (solvers.fcg, DEFINITE, {}, precond.ilu),
    "multigrid": (solvers.fcg, DEFINITE, {}, precond.multigrid),
    "factorized": (solvers.fcg, DEFINITE, {}, solvers.factorized),
}


@pytest.mark.deep
@every_switch
@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_preconditioner_solves_under(switch, name):
    solve, S, options, make = METHODS[name]
    if switch.name == "32 bits" and options.get("dtype") == "float32":
        options = {"dtype": "bfloat16"}  # narrower than the vectors
    x, rtol = np.linalg.solve(S.toarray(), B), 1e-5 if switch.eps > 1e-10 else 1e-9
    plain = make(jsf.from_scipy(S, "csr"))
    with switch.on():
        A = jsf.from_scipy(S, "hll", slice_size=4)
        M = make(A)
        made = [M @ B, M @ X]
        sol = solve(A, B, M=M, rtol=rtol, history=True, **options)
        assert sol.success and sol.history.shape == (sol.iterations + 1,)
        np.testing.assert_allclose(sol.x, x, atol=100 * rtol)
    assert np.linalg.norm(B - S @ np.asarray(sol.x, float)) <= 1.1 * rtol * np.linalg.norm(B)  # the stopping rule
    for got, v in zip(made, (B, X), strict=True):
        close(got, plain @ v, switch, 1e5)


def of(solver: Any) -> Any:
    return lambda A, b, rtol: solver(A, b, rtol=rtol, history=50).x


def of_a_function(A: Any, b: Any, rtol: float) -> Any:
    return solvers.cg(lambda v: A @ v, b, M=lambda r: r / 2, rtol=rtol).x


TRIANGLE, by_dense = sp.csr_array(sp.tril(GENERAL)), jnp.linalg.solve
# Matrix, what solves with it to a tolerance, and its like for a dense one.
SOLVES: dict[str, tuple[sp.csr_array, Any, Any]] = {
    "cg": (DEFINITE, of(solvers.cg), by_dense),
    "gmres": (GENERAL, of(solvers.gmres), by_dense),
    "solve": (GENERAL, of(solvers.solve), by_dense),
    "a function": (DEFINITE, of_a_function, by_dense),
    "direct": (GENERAL, lambda A, b, _: solvers.direct(A, b).x, by_dense),
    "factors": (GENERAL, lambda A, b, _: solvers.factorized(A).T @ b, lambda a, b: by_dense(a.T, b)),
    "triangle": (TRIANGLE, lambda A, b, _: solvers.spsolve_triangular(jsf.tril(A), b), by_dense),
    "eigenvalue": (
        DEFINITE,
        lambda A, b, rtol: solvers.eigsh(A, 1, which="LA", tol=rtol).eigenvalues * b,
        lambda a, b: jnp.linalg.eigvalsh(a)[-1] * b,
    ),
}


@pytest.mark.deep
@every_switch
@pytest.mark.parametrize("name", SOLVES)
def test_solves_are_differentiated_and_mapped_over_under(switch, name):
    S, solve, dense = SOLVES[name]
    rtol = 1e-5 if switch.eps > 1e-10 else 1e-9

    def everything(f, data, b):
        x, pullback = jax.vjp(f, data, b)
        forward = jax.jvp(lambda b: f(data, b), (b,), (b,))[1]
        return x, *pullback(2 * x), forward, jax.vmap(lambda b: f(data, b))(jnp.stack([b, 2 * b]))

    of_dense = lambda data, b: dense(jnp.zeros((N, N)).at[S.nonzero()].set(data), b)  # noqa: E731
    want = everything(of_dense, jnp.asarray(S.data), jnp.asarray(B))
    with switch.on():
        A = jsf.from_scipy(S, "csr")
        of_ours = lambda data, b: solve(A.with_data(data), b, rtol)  # noqa: E731
        found = everything(of_ours, A.data, jnp.asarray(B, A.dtype))
    for got, wanted in zip(found, want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1000 * rtol * np.abs(wanted).max())


# Without the search for leaks: it reports a tracer that a finalizer of JAX's own refers to.
@pytest.mark.deep
@pytest.mark.parametrize("switch", [s for s in SWITCHES if s.on is not leaks], ids=str)
def test_sharded_matrices_compute_the_same_under(switch):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    with switch.on():
        A = jsf.shard(DEFINITE, mesh, format="ell")
        close(A @ B, DEFINITE @ B, switch)
        slope = jax.grad(lambda x: jnp.sum((A @ x) ** 2))(jnp.asarray(B, A.dtype))
        close(slope, 2 * (DEFINITE.T @ (DEFINITE @ B)), switch)
        assert solvers.cg(A, B, rtol=1e-5, history=True).success


OTHERS = {
    "lsmr": lambda A, b: solvers.lsmr(A, b, damp=0.5).x,
    "lobpcg": lambda A, b: solvers.lobpcg(A, 1, X0=b[:, None]).eigenvalues,
    "eigsh": lambda A, b: solvers.eigsh(A, 1, v0=b).eigenvalues,
}


@pytest.mark.deep
@pytest.mark.parametrize("name", OTHERS)
def test_values_and_vectors_of_two_dtypes_are_promoted_whatever_the_users_code_may(name):
    A, b = jsf.from_scipy(jsf.gallery.poisson(8, dim=1), "csr"), np.linspace(1, 2, 8, dtype=np.float32)

    def both(data, b):
        x, back = jax.vjp(lambda data, b: OTHERS[name](A.with_data(data), b), data, b)
        return x, back(jnp.ones_like(x))

    want = both(A.data, b)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.tree.map(np.testing.assert_array_equal, both(A.data, b), want)
