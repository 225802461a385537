"""Sharded matrices on several GPUs: every mode, format and exchange, the solvers and their derivatives, as on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import cg, precond, refine
from tests import zoo
from tests.distributed.problems import KINDS, irregular, take
from tests.solvers.methods import CASES as METHODS

pytestmark = pytest.mark.multigpu

S = irregular(700, 700)
POISSON = jsf.gallery.poisson((24, 20, 20))
B = np.random.default_rng(0).standard_normal(POISSON.shape[0])
X = np.random.default_rng(1).standard_normal((700, 2))


@pytest.fixture(scope="module")
def mesh():
    devices = jax.devices()
    return jax.sharding.Mesh(np.array(devices[: min(len(devices), 8)]), ("rows",))


times = jax.jit(lambda A, x: A @ x)
both_ways = jax.jit(lambda A, x: (A @ x, A.T @ x))


def close(got, wanted, rtol=1e-11):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=rtol, atol=rtol * np.abs(np.asarray(wanted)).max())


@pytest.mark.parametrize("backend", ["triton", "mosaic"])
@pytest.mark.parametrize("layout", zoo.FIRST_LAYOUTS, ids=str)
def test_every_format_agrees_with_scipy(layout, backend, mesh):
    A = jsf.shard(S, mesh, format=layout.format, backend=backend, **dict(layout.options))
    product, transposed = both_ways(A, X)
    close(product, S @ X)
    close(transposed, S.T @ X)
    close(times(A, X[:, 0]), S @ X[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["overlap", "naive", "vector"])
def test_every_mode_and_exchange_agrees_with_scipy(mode, kind, mesh, monkeypatch):
    take(kind, monkeypatch)
    for matrix, x in ((S, X[:, 0]), (POISSON, B)):
        A = jsf.shard(matrix, mesh, format="hll", mode=mode)
        assert A.shards.halo.kind == kind or mesh.size == 2
        close(times(A, x), matrix @ x)


gradients = jax.jit(jax.grad(lambda A, data, x: jnp.sum(jnp.sin(A.with_data(data) @ x)), argnums=(1, 2)))
of_columns = jax.jit(jax.vmap(lambda A, x: A @ x, in_axes=(None, 1), out_axes=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reorder", [None, "rcm"])
def test_every_exchange_goes_home_and_has_derivatives(kind, reorder, mesh, monkeypatch):
    take(kind, monkeypatch)
    A, x = jsf.shard(S, mesh, format="csr", reorder=reorder), X[:, 0]
    product, transposed = both_ways(A, X)
    close(product, S @ X)
    close(transposed, S.T @ X)
    close(of_columns(A, X), S @ X)
    of_data, of_x = gradients(A, S.data, x)
    slope = np.cos(S @ x)
    row, col = S.tocoo().coords
    close(of_data, slope[row] * x[col])
    close(of_x, S.T @ slope)


def test_every_device_holds_its_share_and_no_more(mesh):
    A = jsf.shard(POISSON, mesh, format="hll")
    for leaf in jax.tree.leaves(A.shards):
        shards = leaf.addressable_shards
        assert {s.device for s in shards} == set(mesh.devices.flat)
        assert all(s.data.shape[0] == 1 for s in shards)


@pytest.mark.parametrize("format", ["dia", "sell", "hll"])
@pytest.mark.parametrize("merged", [False, True], ids=["cg", "one_reduction"])
def test_cg_takes_the_steps_of_one_device(merged, format, mesh):
    one = cg(jsf.from_scipy(POISSON, format), B, rtol=1e-10, one_reduction=merged)
    many = cg(jsf.shard(POISSON, mesh, format=format), B, rtol=1e-10, one_reduction=merged)
    assert many.success and abs(many.iterations - one.iterations) <= 1
    assert np.linalg.norm(B - POISSON @ np.asarray(many.x)) <= 1.01e-10 * np.linalg.norm(B)
    close(many.x, one.x, 1e-8)


@pytest.mark.parametrize("case", METHODS, ids=str)
def test_every_method_solves_over_several_gpus(case, mesh):
    M, b = case.system()
    sol = case.solver(jsf.shard(M, mesh, format="ell"), b, rtol=1e-9)
    assert sol.success and np.linalg.norm(b - M @ np.asarray(sol.x)) <= 1.01e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_refinement_takes_the_steps_of_one_device(dtype, mesh):
    rtol = 1e-12 if dtype == "float32" else 1e-8
    one = refine(jsf.from_scipy(POISSON, "hll"), B, rtol=rtol, dtype=dtype)
    many = refine(jsf.shard(POISSON, mesh, format="hll"), B, rtol=rtol, dtype=dtype)
    assert many.success and np.linalg.norm(B - POISSON @ np.asarray(many.x)) <= 1.01 * rtol * np.linalg.norm(B)
    assert abs(many.iterations - one.iterations) <= max(2, 0.1 * one.iterations)


def test_gradients_of_a_solve_are_those_of_one_device(mesh):
    w = np.random.default_rng(2).standard_normal(B.size)

    def loss(data, A, b):
        A = A.with_data(data)
        return jnp.vdot(w, cg(A, b, M=precond.jacobi(A), rtol=1e-12).x)

    gradients = jax.jit(jax.grad(loss, argnums=(0, 2)))
    one, many = jsf.from_scipy(POISSON, "csr"), jsf.shard(POISSON, mesh, format="csr")
    for wanted, got in zip(gradients(POISSON.data, one, B), gradients(POISSON.data, many, B), strict=True):
        close(got, wanted, 1e-7)
