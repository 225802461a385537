"""Solves inside a user's shard_map with its default check: every device has its own system, against dense algebra."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxsparse_fmt as jsf
from solvers import cg, direct, eigsh, factorized, gmres, lobpcg, lsmr, precond
from tests.marks import deep, few
from tests.solvers.methods import CASES, REFINED

MESH = jax.sharding.Mesh(jax.devices("cpu")[:2], ("device",))
OWN, SAME = PartitionSpec("device"), PartitionSpec()
FACTORS = np.array([1.0, 1.7])


def everywhere(f, *args, in_specs=OWN):
    """f of each device's own, stacked."""

    def one(*args):
        return jax.tree.map(lambda a: jnp.asarray(a)[None], f(*(a[0] for a in args)))

    return jax.shard_map(one, mesh=MESH, in_specs=in_specs, out_specs=OWN)(*args)


def systems(case):
    """Values, right-hand sides and dense matrices of two systems with one pattern."""
    S, b = case.system()
    return S, np.outer(FACTORS, S.data), np.stack([b, b[::-1]]), [k * S.toarray() for k in FACTORS]


def check(solve, case):
    """The solutions, and the gradients of ‖x‖² by the values and the right-hand sides."""
    S, data, b, dense = systems(case)
    A = jsf.from_scipy(S, "ell")

    def answer(A, b):
        sol = solve(A, b)
        return sol.x, sol.code

    @jax.jit
    def both(data, b):
        f = lambda data, b: everywhere(lambda d, b: answer(A.with_data(d), b), data, b)  # noqa: E731
        x, back, code = jax.vjp(f, data, b, has_aux=True)
        return x, code, back(2 * x)

    x, code, (by_data, by_b) = both(data, b)
    assert not np.any(code)
    row, col = S.tocoo().coords
    for k, D in enumerate(dense):
        wanted = np.linalg.solve(D, b[k])
        y = np.linalg.solve(D.T, 2 * wanted)
        np.testing.assert_allclose(x[k], wanted, rtol=0, atol=1e-7 * np.abs(wanted).max())
        np.testing.assert_allclose(by_b[k], y, rtol=0, atol=1e-6 * np.abs(y).max())
        np.testing.assert_allclose(by_data[k], -y[row] * wanted[col], rtol=0, atol=1e-6 * np.abs(y).max())


@pytest.mark.parametrize("case", few([*CASES, REFINED[0]], 1), ids=str)
def test_every_method_solves_each_devices_own_system_with_gradients(case):
    check(functools.partial(case.solver, rtol=1e-11), case)


def test_direct_solves_each_devices_own_system_with_gradients():
    check(direct, CASES[0])


def test_factors_of_values_that_all_devices_share_have_gradients():
    S, b = CASES[0].system()
    A, B = jsf.from_scipy(S, "csr"), np.stack([b, b[::-1]])

    def total(data):
        f = jax.shard_map(
            lambda d, b: factorized(A.with_data(d)) @ b[0], mesh=MESH, in_specs=(SAME, OWN), out_specs=OWN
        )
        return jnp.sum(f(data, B))

    row, col = S.tocoo().coords
    y, x = np.linalg.solve(S.toarray().T, np.ones(b.size)), np.linalg.solve(S.toarray(), B.sum(axis=0))
    np.testing.assert_allclose(jax.jit(jax.grad(total))(A.data), -y[row] * x[col], rtol=1e-9, atol=1e-12)


def made_here(make):
    return lambda A, b: cg(A, b, M=make(A), rtol=1e-11)


def made_before(make):
    M = make(jsf.from_scipy(CASES[0].system()[0], "csr"))
    return lambda A, b: gmres(A, b, M=M, rtol=1e-11)


def inverse_diagonal(A):
    return lambda r: r / A.diagonal()


def of_a_function(_):
    return lambda A, b: cg(lambda v: A @ v, b, rtol=1e-11)


BLOCKS = functools.partial(precond.block_jacobi, block_size=4)


@pytest.mark.parametrize(
    ("solver", "make"),
    [
        *few(((made_here, make) for make in (precond.jacobi, BLOCKS, precond.chebyshev, inverse_diagonal)), 1),
        *(deep(made_before, getattr(precond, name)) for name in ("incomplete_cholesky", "incomplete_lu", "multigrid")),
        (of_a_function, None),
    ],
)
def test_a_preconditioner_may_be_made_here_or_before_and_a_function_be_the_matrix(solver, make):
    check(solver(make), CASES[0])


def test_kernels_that_pass_over_vectors_solve_each_devices_system():
    S, data, b, dense = systems(CASES[0])
    A = jsf.from_scipy(S, "ell")
    with jsf.use_backend("interpret"):
        x = jax.jit(lambda data, b: everywhere(lambda d, b: cg(A.with_data(d), b, rtol=1e-11).x, data, b))(data, b)
    for k, D in enumerate(dense):
        np.testing.assert_allclose(x[k], np.linalg.solve(D, b[k]), rtol=0, atol=1e-7)


def test_what_all_devices_solve_alike_is_known_to_be_alike():
    """Its result may leave by out_specs of all devices."""
    S, b = CASES[0].system()
    A = jsf.from_scipy(S, "ell")
    f = jax.shard_map(lambda A, b: cg(A, b, rtol=1e-11).x, mesh=MESH, in_specs=SAME, out_specs=SAME)
    np.testing.assert_allclose(jax.jit(f)(A, b), np.linalg.solve(S.toarray(), b), rtol=0, atol=1e-7)


OTHERS = {
    "lsmr": lambda A, b: lsmr(A, b, damp=0.1).x,
    "lsmr of functions": lambda A, b: lsmr((lambda v: A @ v, lambda v: A.T @ v), b, M=lambda r: r).x,
    "lobpcg": lambda A, b: lobpcg(A, 1).eigenvalues,
    "lobpcg of a function": lambda A, b: lobpcg(lambda v: A @ v, 1, X0=b[:, None]).eigenvalues,
    "eigsh": lambda A, b: eigsh(A, 1).eigenvalues,
    "eigsh of a function": lambda A, b: eigsh(lambda v: A @ v, 1, v0=b).eigenvalues,
}


@pytest.mark.parametrize("name", few(OTHERS, 1))
def test_the_other_solvers_do_what_they_do_outside_with_gradients(name):
    """Of values and vectors that each device has for itself, and of values that all share."""
    solve, A = OTHERS[name], jsf.from_scipy(jsf.gallery.poisson(8, dim=1), "ell")
    b = np.random.default_rng(0).standard_normal((2, 8))

    def own(data, b, factors):
        return everywhere(lambda b, f: solve(A.with_data(f * data), b), b, factors)

    def alone(data, b, factors):
        return jnp.stack([solve(A.with_data(f * data), v) for f, v in zip(factors, b, strict=True)])

    def both(f, data, b, factors):
        x, back = jax.vjp(f, data, b, factors)
        return x, back(jnp.cos(x))

    got, want = (jax.jit(functools.partial(both, f))(A.data, b, FACTORS) for f in (own, alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)
    if name == "lobpcg of a function":
        return  # the batching rule in core/opaque.py traces a program anew, whose `pvary` then meets a varying array
    mapped = jax.shard_map(jax.vmap(lambda b: solve(A, b)), mesh=MESH, in_specs=OWN, out_specs=OWN)
    np.testing.assert_allclose(jax.jit(mapped)(b), np.stack([solve(A, v) for v in b]), rtol=1e-5, atol=1e-5)


def test_a_solve_over_one_device_s_piece_of_a_larger_system_is_refused():
    """Its inner products would be local ones: another system, or devices that wait for one another."""
    A = jsf.shard(jsf.gallery.poisson(4, dim=2), MESH, axis="device")
    b = A.basis.enter(np.arange(16.0))
    by_function = lambda A, x: cg(lambda v: A.in_basis @ v, x, maxiter=5).x  # noqa: E731
    for f, told, typed in (
        (by_function, "the function communicates over .'device'", True),
        (by_function, "the function communicates over .'device'", False),  # there devices waited for ever
        (lambda A, x: cg(A.in_basis, x).x, "is one device's piece", True),
    ):
        mapped = jax.shard_map(f, mesh=MESH, in_specs=(OWN, OWN), out_specs=OWN, check_vma=typed)
        with pytest.raises(ValueError, match=f"inside shard_map.*{told}"):
            jax.jit(mapped)(A, b)
