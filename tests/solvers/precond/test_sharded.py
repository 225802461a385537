"""Multigrid of matrices over several devices: iterations beside one device, the sizes of all arrays, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.basis import within
from solvers import Status, cg, gmres, precond
from solvers.precond import _sharded
from tests.distributed.problems import MESH
from tests.marks import few
from tests.solvers.precond.operators import trilinear

THREE = jax.make_mesh((3,), ("rows",), devices=jax.devices("cpu")[:3])
L = sp.csr_array(jsf.gallery.poisson(16))
N = L.shape[0]
b = np.random.default_rng(0).normal(size=N)
ALONE = jsf.from_scipy(L, "csr")
CONVECTION = sp.csr_array(
    L + sp.diags_array(np.full(N - 1, 0.6), offsets=1) - sp.diags_array(np.full(N - 1, 0.6), offsets=-1)
)


def solved(A, M):
    return cg(A, b, M=M, rtol=1e-8, maxiter=100)


def in_pieces(A, *B):
    """Multigrid with two levels in pieces, which larger matrices have; the other tests have one, and whole ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sharded, "WHOLE", 100)
        return precond.multigrid(A, *B, max_coarse=100)


@pytest.fixture(scope="module")
def built():
    A = jsf.shard(L, MESH, format="csr")
    return A, in_pieces(A)


@pytest.mark.deep
def test_eight_devices_have_the_levels_of_one_and_take_as_many_iterations(built):
    A, M = built
    one = precond.multigrid(ALONE, max_coarse=100)
    alone, sol = solved(ALONE, one), solved(A, M)
    assert M.sizes == one.sizes and sol.status == Status.CONVERGED and abs(sol.iterations - alone.iterations) <= 1
    np.testing.assert_allclose(L @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * np.linalg.norm(b))


def test_elements_on_cubes_coarsen_as_on_one_device():
    S = trilinear(12)
    A, b = jsf.shard(S, THREE, format="csr"), np.random.default_rng(0).normal(size=12**3)
    steps = [cg(of, b, M=precond.multigrid(of, max_coarse=100), rtol=1e-8).iterations for of in (A, jsf.from_scipy(S))]
    assert abs(steps[0] - steps[1]) <= 1


def test_every_array_of_a_device_has_its_share_of_the_rows(built):
    """But for the coarsest inverse. With two planes of points a device, halos and padding weigh more than its rows."""
    A, M = built
    inside = jax.tree.leaves(M.levels)
    held = [max(shard.data.size for shard in leaf.addressable_shards) for leaf in inside]
    assert max(held) <= 2 * A.nnz / MESH.size
    alone = sum(leaf.size for leaf in jax.tree.leaves(precond.multigrid(ALONE, max_coarse=100).levels))
    assert sum(held) <= 4.5 * alone / MESH.size
    assert len(M.levels) >= 2 and M.whole == 0 and M.coarse_inverse.shape[0] <= 100


def test_the_operator_is_symmetric_and_the_same_in_the_users_order_and_inside():
    A = jsf.shard(L, THREE, format="csr", reorder="rcm")
    narrow, M = precond.multigrid(A, dtype="float32"), precond.multigrid(A, np.ones((N, 1)))
    assert narrow.dtype == np.float32 and narrow.levels[0].A.dtype == np.float32
    np.testing.assert_allclose(narrow @ b, M @ b, rtol=0, atol=1e-4 * np.abs(M @ b).max())
    x, y = np.random.default_rng(1).normal(size=(2, N))
    np.testing.assert_allclose(y @ (M @ x), x @ (M @ y), rtol=1e-10)
    inner = within(M, A.basis) @ A.basis.enter(jnp.asarray(x))
    np.testing.assert_allclose(A.basis.leave(inner), M @ x, rtol=1e-10)
    assert solved(A, M).status == Status.CONVERGED and M.whole == 1
    assert f"multigrid {N}×{N}" in repr(M) and "sharded" in repr(M)


PHASES = sp.diags_array(np.exp(1j * np.arange(N)))
DAMPED = sp.csr_array(PHASES @ CONVECTION @ PHASES.conj() + sp.diags_array(0.3j * (np.arange(N) % 3)))


@pytest.mark.parametrize("S", few([CONVECTION, DAMPED], 1), ids=["real", "complex"])
def test_convection_takes_as_many_iterations_as_on_one_device(S):
    A, alone, rhs = jsf.shard(S, THREE, format="csr"), jsf.from_scipy(S, "csr"), b.astype(S.dtype)
    M, one = precond.multigrid(A), precond.multigrid(alone)
    sol, wanted = gmres(A, rhs, M=M, rtol=1e-8), gmres(alone, rhs, M=one, rtol=1e-8)
    assert sol.success and sol.iterations <= 1.15 * wanted.iterations + 1
    np.testing.assert_allclose(S @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * np.linalg.norm(b))
    x, y = np.random.default_rng(1).normal(size=(2, N))
    np.testing.assert_allclose(y @ (M @ x), x @ (M.T @ y), rtol=1e-10)


@pytest.mark.parametrize("dense", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_deflated_solve_takes_as_many_steps_as_on_one_device(dense):
    octant = (np.indices((16, 16, 16)).reshape(3, -1).T >= 8) @ np.array([4, 2, 1])
    W = precond.subdomains(np.ones(N), octant)
    alone = cg(ALONE, b, M=precond.coarse_space(ALONE, W), rtol=1e-8)
    A = jsf.shard(L, THREE, format="csr", reorder="rcm")
    sol = cg(A, b, M=precond.coarse_space(A, W.toarray() if dense else W), rtol=1e-8)
    assert sol.success and abs(int(sol.iterations) - int(alone.iterations)) <= 1
    assert sol.iterations < cg(ALONE, b, M=precond.jacobi(ALONE), rtol=1e-8).iterations
    np.testing.assert_allclose(L @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * np.linalg.norm(b))


@pytest.mark.deep
def test_a_near_null_space_may_be_sharded_and_gradients_pass_through_the_solve(built):
    A, M = built
    B = jax.device_put(np.ones(N), jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("rows")))
    again = in_pieces(A, B)
    np.testing.assert_allclose(again @ b, M @ b, rtol=1e-9, atol=1e-9)
    f = lambda b: jnp.sum(cg(A, b, M=M, rtol=1e-10).x ** 2)  # noqa: E731
    x = sp.linalg.spsolve(L.tocsc(), b)
    np.testing.assert_allclose(jax.grad(f)(b), 2 * sp.linalg.spsolve(L.tocsc(), x), rtol=0, atol=1e-6 * abs(x).max())


def test_a_cycle_that_diverges_is_named(built):
    with pytest.warns(RuntimeWarning, match="cycle diverges"):
        precond.multigrid(built[0].shift(-2.0), max_coarse=1000)
