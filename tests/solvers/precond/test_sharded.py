"""Multigrid of matrices over several devices: iterations beside one device, the sizes of all arrays, refusals."""

import json
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.basis import within
from jaxsparse_fmt.distributed import processes
from jaxsparse_fmt.distributed.distribution import Distribution
from solvers import Status, cg, gmres, precond
from solvers.precond import _cycles, _device_shards, _hierarchy, _sharded
from tests.distributed.problems import MESH, take
from tests.distributed.programs import facts
from tests.distributed.test_processes import finished, started
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


def in_pieces(A, *B, whole=100):
    """Multigrid with two levels in pieces, which larger matrices have; the other tests have one, and whole ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sharded, "WHOLE", whole)
        return precond.multigrid(A, *B, max_coarse=100)


@pytest.fixture(scope="module")
def built():
    A = jsf.shard(L, MESH, format="csr")
    return A, in_pieces(A)


def jumps() -> sp.csr_array:
    """Diffusion whose coefficient is 10⁴ at three points of ten, in no pattern that shards could follow."""
    c = np.where(np.random.default_rng(0).random(N) < 0.3, 1e4, 1.0)
    S = sp.coo_array(L)
    row, col = (ids[S.row != S.col] for ids in S.coords)
    W = sp.csr_array((-2 / (1 / c[row] + 1 / c[col]), (row, col)), shape=S.shape)
    return sp.csr_array(W - sp.diags_array(W @ np.ones(N)) + sp.diags_array(c * (6 - np.bincount(row, minlength=N))))


def anisotropic() -> sp.csr_array:
    D, one = jsf.gallery.poisson(16, dim=1), sp.eye_array(16)
    return sp.csr_array(
        sum(c * sp.kron(sp.kron(a, b), d) for c, a, b, d in ((1, D, one, one), (1, one, D, one), (1e-3, one, one, D)))
    )


def beam() -> tuple[sp.csr_array, np.ndarray]:
    extents = (16, 6, 6)
    points = np.indices(extents).reshape(3, -1).T.astype(float)
    return sp.csr_array(jsf.gallery.elasticity(extents)), jsf.gallery.rigid_body_modes(points)


PROBLEMS = {"7 points": lambda: (L, None), "jumps": lambda: (jumps(), None)}
PROBLEMS |= {"anisotropic": lambda: (anisotropic(), None), "elasticity": beam}


def steps(mesh, name) -> tuple[int, int]:
    """Of cg on the mesh, with two levels in pieces, and on one device."""
    S, B = PROBLEMS[name]()
    cut = jsf.boxes((16, 16, 16), 64) if mesh.size == 64 and S is not L and B is None else "nnz"  # slabs have a plane
    A, alone = jsf.shard(S, mesh, format="csr", by=cut), jsf.from_scipy(S, "csr")
    b = np.random.default_rng(0).normal(size=S.shape[0])
    M, one = in_pieces(A, B, whole=400), precond.multigrid(alone, B, max_coarse=100)
    (sol, wanted) = (cg(of, b, M=made, rtol=1e-8, maxiter=300) for of, made in ((A, M), (alone, one)))
    np.testing.assert_allclose(S @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * float(np.linalg.norm(b)))
    return int(sol.iterations), int(wanted.iterations)


@pytest.mark.parametrize("name", few([*PROBLEMS], 2))
@pytest.mark.parametrize("mesh", few([THREE, MESH], 1), ids=["3", "8"])
def test_shards_that_coarsen_their_own_rows_take_about_as_many_steps_as_one_device(mesh, name):
    of_shards, of_one = steps(mesh, name)
    assert of_shards <= 1.3 * of_one + 2


OF_64 = """
import jax
jax.config.update("jax_enable_x64", True)
from tests.solvers.precond import test_sharded
mesh = jax.make_mesh((64,), ("rows",))
for name in test_sharded.PROBLEMS:
    print("steps", *test_sharded.steps(mesh, name), flush=True)
"""


@pytest.mark.deep
def test_64_shards_take_about_as_many_steps_as_one():
    ((code, out, err),) = finished([started("-c", OF_64, devices=64, quick=True)], seconds=1500)
    found = [tuple(map(int, line.split()[1:])) for line in out.splitlines() if line.startswith("steps")]
    assert code == 0 and len(found) == len(PROBLEMS), err[-3000:]
    assert all(of_shards <= 1.3 * of_one + 2 for of_shards, of_one in found), found


def collected(parts: int, side: int) -> dict[str, Any]:
    """What compiled programs show of a set-up and of a cycle on so many devices: collectives, lengths, sums."""
    S, mesh = jsf.gallery.poisson(side, dim=2), jax.make_mesh((parts,), ("rows",), devices=jax.devices("cpu")[:parts])
    with pytest.MonkeyPatch.context() as patch:
        take("permute", patch)
        A, small = jsf.shard(S, mesh, format="csr"), jsf.shard(L, mesh, format="csr")
        with jax.enable_x64(True):
            setup = _device_shards.Setup(A, 100)
            programs = [made.result().as_text() for made in setup.ahead()]
        M = in_pieces(small, whole=400)
        cycle = jax.jit(lambda M, r: M @ r).lower(M, small.basis.placed(b)).compile().as_text() or ""
    kinds = [facts(text)["collectives"] for text in (*programs, cycle)]
    sums = [line for text in programs for line in text.splitlines() if " all-reduce(" in line]
    summed = [int(n or 1) for line in sums for n in re.findall(r"\[(\d*)\]", line.partition(" all-reduce(")[0])]
    return {
        "set-up": dict(sum(map(Counter, kinds[:-1]), Counter())),
        "cycle": dict(+Counter(kinds[-1])),
        "rounds": len(A.shards.halo.sizes),
        "longest": max(facts(text)["longest"] for text in programs),
        "share": 8 * A.nnz // parts + 130 * A.shards.halo.width,
        "n": A.shape[0],
        "summed": max(summed),
    }


def check_collected(found: dict[str, Any]) -> None:
    setup, cycle = found["set-up"], found["cycle"]
    for kinds in (setup, cycle):
        assert kinds.keys() == {"collective-permute", "all-reduce"}
    assert setup["collective-permute"] <= 16 * found["rounds"] and setup["all-reduce"] <= 8
    assert found["summed"] <= 8 and cycle["all-reduce"] == 1 and found["longest"] <= found["share"]


def test_a_set_up_sends_to_neighbours_and_a_cycle_sums_once():
    check_collected(collected(8, 64))


COLLECTED = """
import jax, json
jax.config.update("jax_enable_x64", True)
from tests.solvers.precond import test_sharded
print("collected", json.dumps(test_sharded.collected(64, 512)), flush=True)
"""


@pytest.mark.deep
def test_64_devices_send_to_neighbours_and_hold_their_shares():
    ((code, out, err),) = finished([started("-c", COLLECTED, devices=64, quick=True)], seconds=1500)
    assert code == 0, err[-3000:]
    found = json.loads(out.partition("collected ")[2])
    check_collected(found)
    assert found["longest"] < found["n"]  # no vector of all unknowns


def test_no_host_collects_more_than_a_level_that_is_whole(monkeypatch):
    """All that processes share goes through `everyones`; the rest is sent from owner to owner, and lies on devices."""
    A, sizes, pieces = jsf.shard(L, MESH, format="csr"), [], []
    everyones, on_host = processes.everyones, Distribution.on_host

    def counted(make, mesh):
        found = everyones(make, mesh)
        sizes.append(sum(a.nbytes for a in jax.tree.leaves(found) if isinstance(a, np.ndarray)))
        matrices = [S for S in jax.tree.leaves(found) if sp.issparse(S)]
        sizes.append(sum(S.data.nbytes + S.indices.nbytes for S in matrices))
        return found

    def part(over, a):
        pieces.append(max(p.size for p in on_host(over, a).values()))
        return on_host(over, a)

    monkeypatch.setattr(processes, "everyones", counted)
    monkeypatch.setattr(Distribution, "on_host", part)
    M = in_pieces(A)
    assert M.whole == 0 and max(pieces) <= 2 * A.nnz / MESH.size
    most = M.coarse_inverse.shape[0]
    assert 0 < max(sizes) <= 16 * most**2 + 1000 < 8 * A.nnz


def test_the_levels_are_those_of_the_formula_in_dense_algebra(built):
    A, M = built
    level, below = M.levels[0], M.levels[1].A
    assert M.whole == 0
    whole = [np.asarray(m @ jnp.eye(m.shape[1])) for m in (level.A, level.R, level.P, below)]
    live = [np.asarray(of.range.over.emptied(jnp.ones(of.range.over.places))) > 0 for of in (level.A, below)]
    S, R, P, C = whole[0], whole[1][live[1]][:, live[0]], whole[2][live[0]][:, live[1]], whole[3][live[1]][:, live[1]]
    np.testing.assert_allclose(R, P.T, atol=1e-15)
    np.testing.assert_allclose(C, P.T @ L @ P, atol=1e-12)
    owner = np.repeat(np.arange(MESH.size), A.range.over.counts)
    # With the constant in the near-null space, P = (I − ω/λ·D⁻¹·A)·T: T is found again, block by block.
    upper = 1 / (np.asarray(level.recurrence)[0, 1] * (1 + _cycles.FRACTION) / 2)
    T = np.linalg.solve(np.eye(N) - _hierarchy.DAMPING / upper * (L / 6).toarray(), P)
    mine = np.repeat(np.arange(MESH.size), below.range.over.counts)
    assert np.abs(T[owner[:, None] != mine]).max() <= 1e-10
    np.testing.assert_allclose(T.T @ T, np.eye(len(mine)), atol=1e-10)
    assert S.shape[0] == A.range.over.places


@pytest.mark.parametrize("cut", ["empty", "uneven", "parted points"])
def test_shards_may_be_empty_and_uneven_and_part_the_unknowns_of_a_point(cut):
    """And nobody has A: each process makes rows of its own devices."""
    S, B = (L, None) if cut != "parted points" else beam()
    n = S.shape[0]
    starts = {"empty": [0, 0, n // 2, n], "uneven": [0, 100, n - 9, n], "parted points": [0, n // 3 + 1, n // 2 + 1, n]}
    A = jsf.shard_from_rows(lambda start, stop: S[start:stop], n, THREE, format="csr", starts=starts[cut])
    M, b = in_pieces(A, B), np.random.default_rng(0).normal(size=n)
    one = precond.multigrid(jsf.from_scipy(S, "csr"), B, max_coarse=100)
    wanted = cg(jsf.from_scipy(S, "csr"), b, M=one, rtol=1e-8)
    sol = cg(A, b, M=M, rtol=1e-8)
    assert sol.success and sol.iterations <= 1.3 * wanted.iterations + 2
    assert cut != "parted points" or M.sizes[1][0] % 6 == 0  # six coarse unknowns an aggregate
    x, y = np.random.default_rng(1).normal(size=(2, n))
    np.testing.assert_allclose(y @ (M @ x), x @ (M @ y), rtol=1e-9)


def test_points_are_found_in_an_order_that_parts_them():
    """And each unknown of a point has its own constant then."""
    S, B = beam()
    part = np.arange(S.shape[0]) % 3
    A = jsf.shard(S, THREE, format="csr", by=part)
    sol = cg(A, b[: S.shape[0]], M=in_pieces(A, B), rtol=1e-8)
    assert sol.success and sol.iterations < 60


def test_elements_on_cubes_coarsen_as_on_one_device():
    S = trilinear(12)
    A, b = jsf.shard(S, THREE, format="csr"), np.random.default_rng(0).normal(size=12**3)
    found = [cg(of, b, M=precond.multigrid(of, max_coarse=100), rtol=1e-8).iterations for of in (A, jsf.from_scipy(S))]
    assert found[0] <= found[1] + 2


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
    assert f"multigrid {N}×{N}" in repr(M) and f"rows {N} (1344 to 1376 a device) → " in repr(M)
    assert repr(M).endswith(f"(csr, whole) → {M.coarse_inverse.shape[0]} (inverse, whole)>")


PHASES = sp.diags_array(np.exp(1j * np.arange(N)))
DAMPED = sp.csr_array(PHASES @ CONVECTION @ PHASES.conj() + sp.diags_array(0.3j * (np.arange(N) % 3)))


@pytest.mark.parametrize("S", few([CONVECTION, DAMPED], 1), ids=["real", "complex"])
def test_convection_takes_about_as_many_iterations_as_on_one_device(S):
    A, alone, rhs = jsf.shard(S, THREE, format="csr"), jsf.from_scipy(S, "csr"), b.astype(S.dtype)
    M, one = precond.multigrid(A), precond.multigrid(alone)
    sol, wanted = gmres(A, rhs, M=M, rtol=1e-8), gmres(alone, rhs, M=one, rtol=1e-8)
    assert sol.success and sol.iterations <= 1.15 * wanted.iterations + 1
    np.testing.assert_allclose(S @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * float(np.linalg.norm(b)))
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
    np.testing.assert_allclose(L @ np.asarray(sol.x), b, rtol=0, atol=1e-7 * float(np.linalg.norm(b)))


@pytest.mark.deep
def test_a_near_null_space_may_be_sharded_and_gradients_pass_through_the_solve(built):
    A, M = built
    B = jax.device_put(np.ones(N), jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("rows")))
    again = in_pieces(A, B)
    np.testing.assert_allclose(again @ b, M @ b, rtol=1e-9, atol=1e-9)
    f = lambda b: jnp.sum(cg(A, b, M=M, rtol=1e-10).x ** 2)  # noqa: E731
    x = sp.linalg.spsolve(L.tocsc(), b)
    np.testing.assert_allclose(jax.grad(f)(b), 2 * sp.linalg.spsolve(L.tocsc(), x), rtol=0, atol=1e-6 * abs(x).max())


def scaled(S: sp.csr_array) -> sp.csr_array:
    d = sp.diags_array(1 + 0.5 * np.random.default_rng(1).random(N))
    return sp.csr_array(d @ S @ d)


@pytest.mark.parametrize("whole", few([100, 50_000], 1))
def test_other_values_keep_the_aggregates_and_take_about_as_many_steps_as_a_new_set_up(whole, built):
    A = built[0]
    B, M = A.with_data(scaled(L).data), built[1] if whole == 100 else precond.multigrid(A, max_coarse=100)
    R = M.refreshed(B)
    P = [np.asarray(m.levels[0].P @ jnp.eye(m.levels[0].P.shape[1])) for m in (M, R)]
    np.testing.assert_array_equal(P[0], P[1])
    C = np.asarray(R.levels[1].A @ jnp.eye(R.levels[1].A.shape[1]))
    inside = np.asarray(R.levels[0].A @ jnp.eye(R.levels[0].A.shape[1]))
    np.testing.assert_allclose(C, P[0].T @ inside @ P[0], atol=1e-12 * abs(C).max())
    new, frozen = precond.multigrid(B, max_coarse=100), M
    fresh, found, old = (int(solved(B, of).iterations) for of in (new, R, frozen))
    assert found <= fresh + 3 and found < old and (R.whole, len(R.levels)) == (M.whole, len(M.levels))
    np.testing.assert_allclose(M.refreshed(A) @ b, M @ b, rtol=1e-10, atol=1e-12)


@pytest.mark.deep
def test_restrictions_of_an_unsymmetric_matrix_stay_too():
    A = jsf.shard(CONVECTION, MESH, format="csr")
    M = in_pieces(A)
    np.testing.assert_allclose(M.refreshed(A) @ b, M @ b, rtol=1e-10, atol=1e-12)
    assert not M.refreshed(jsf.shard(L, MESH, format="csr")).symmetric
    with pytest.raises(ValueError, match="sharded as the one that M was made of"):
        M.refreshed(jsf.shard(CONVECTION, THREE, format="csr"))


def test_a_cycle_that_diverges_is_named(built):
    with pytest.warns(RuntimeWarning, match="cycle diverges"):
        precond.multigrid(built[0].shift(-2.0), max_coarse=1000)


@pytest.mark.parametrize("maker", [lambda A: precond.multigrid(A, max_coarse=20), precond.schwarz])
def test_a_traced_function_may_make_and_refresh_a_preconditioner_of_a_matrix_that_it_closes_over(maker):
    S = sp.csr_array(jsf.gallery.poisson(4))
    A, c, x = jsf.shard(S, THREE), b[:64], np.linalg.solve(S.toarray(), b[:64])
    M = maker(A)
    for made in (lambda: maker(A), lambda: M.refreshed(A)):
        np.testing.assert_allclose(jax.jit(lambda c, made=made: cg(A, c, M=made(), rtol=1e-10).x)(c), x, atol=1e-8)
    N = A.shift(-0.1)  # indefinite, whose cycle is examined outside jit
    np.testing.assert_allclose(jax.jit(lambda c: maker(N) @ c)(c), maker(N) @ c, rtol=1e-6, atol=1e-9)


def test_multigrid_of_a_diagonal_is_refreshed_though_no_entry_couples():
    A = jsf.shard(sp.diags_array(np.arange(1.0, 65)).tocsr(), MESH)
    M = precond.multigrid(A, max_coarse=8)
    np.testing.assert_allclose(M.refreshed(2 * A) @ b[:64], (M @ b[:64]) / 2, rtol=1e-12)
