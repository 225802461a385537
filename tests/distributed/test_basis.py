"""Vectors stay in pieces: entering, leaving, products, solves and derivatives in the user's order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import row_partition
from jaxsparse_fmt.distributed.basis import recut
from jaxsparse_fmt.distributed.distribution import Distribution
from solvers import cg, eigsh, precond, solve
from tests.distributed.problems import MESH
from tests.distributed.programs import facts
from tests.marks import deep, few

S = sp.csr_array(jsf.gallery.poisson(32, dim=2))  # 1024 unknowns, 128 a device
N = S.shape[0]
STRIDED = np.concatenate([np.arange(N)[k::8] for k in range(8)])  # every device has unknowns of every block


product = jax.jit(lambda A, x: (A @ x, A.T @ x))
ORDERS = {}, {"reorder": "rcm"}, {"reorder": STRIDED}, {"by": jsf.boxes((32, 32), 8)}


@pytest.mark.parametrize("order", ORDERS, ids=["users", "rcm", "strided", "boxes"])
def test_a_users_vectors_lie_in_blocks_and_keep_their_order(order):
    A = jsf.shard(S, MESH, format="ell", **order)
    x = np.random.default_rng(0).standard_normal(N)
    for y in product(A, x):
        assert y.sharding.spec == PartitionSpec("rows")
        np.testing.assert_allclose(y, S @ x, atol=1e-12)
    unknowns = jnp.arange(N)
    np.testing.assert_array_equal(A.basis.leave(A.basis.enter(unknowns)), unknowns)


def test_no_device_holds_a_vector_of_all_unknowns():
    A = jsf.shard(S, MESH, format="dia")
    stored = max(block.values.shape[1] for block in A.shards.blocks)
    program = product.lower(A, A.basis.placed(np.ones(N))).compile()
    assert facts(program.as_text())["longest"] <= max(stored, 4 * N // 8)  # of solves test_programs.py asks it
    for a, of_scipy in zip(A.entries(), (*S.tocoo().coords, np.arange(S.nnz), S.data), strict=True):
        assert {shard.data.shape for shard in a.addressable_shards} == {(S.nnz // 8,)}
        np.testing.assert_array_equal(a, of_scipy)


U = sp.csr_array(S[3:, 3:])  # 8 devices divide neither its unknowns nor its entries


@pytest.mark.parametrize("order", few([{}, {"reorder": "rcm"}, {"by": "rows"}], 1), ids=str)
def test_is_a_padded_vector_whole_on_no_device_for_any_n(order):
    A, n = jsf.shard(U, MESH, format="csr", **order).padded, U.shape[0]
    b = np.random.default_rng(0).standard_normal(A.shape[0])  # nothing reads its end

    def programs(A, b, data):
        made = A @ b, A.T @ b, A.diagonal(), A.data, A.row_ids, A.col_ids
        return *made, jax.grad(lambda data: jnp.sum(A.with_data(data) @ b))(data)

    program = jax.jit(programs).lower(A, A.basis.placed(b), A.data).compile()
    text = facts(program.as_text())
    assert text["collectives"]["all-gather"] == 0 and text["longest"] < U.nnz
    got = program(A, A.basis.placed(b), A.data)
    row, col = U.tocoo().coords
    wanted = U @ b[:n], U @ b[:n], U.diagonal(), U.data, row, col, b[col]
    for a, w, end in zip(got, wanted, (0, 0, 0, 0, *A.shape, 0), strict=True):
        assert {shard.data.shape[0] for shard in a.addressable_shards} == {-(-len(w) // 8)}
        np.testing.assert_allclose(a, np.pad(w, (0, len(a) - len(w)), constant_values=end), atol=1e-10)
    np.testing.assert_array_equal(A.to_scipy().toarray(), U.toarray())


@pytest.mark.deep
def test_do_preconditioners_and_eigensolvers_take_padded_vectors():
    A = jsf.shard(U, MESH, format="csr").padded
    b, w = np.ones(A.shape[0]), np.linalg.eigvalsh(U.toarray())
    for M in (precond.jacobi(A), precond.schwarz(A, precond.ilu), precond.multigrid(A)):
        x = np.asarray(cg(A, b, M=M, rtol=1e-12).x)
        np.testing.assert_allclose(U @ x[: U.shape[0]], 1, atol=1e-10)
        assert not x[U.shape[0] :].any()
    assert solve(A, b).method.startswith("cg with")  # the padding's zero diagonal hides no definite matrix
    pairs = eigsh(A, 2, which="SA")
    np.testing.assert_allclose(pairs.eigenvalues, w[:2], rtol=1e-6)
    assert {shard.data.shape for shard in pairs.eigenvectors.addressable_shards} == {(128, 2)}


def test_does_a_chain_gather_its_result_alone_where_devices_do_not_divide_n():
    """JAX has no blocks of unequal size outside of jit."""
    A = jsf.shard(U, MESH, format="csr")
    b = A.basis.placed(np.ones(U.shape[0]))
    program = jax.jit(lambda A, b: A @ cg(A, A @ b, rtol=1e-12).x).lower(A, b).compile()
    text = facts(program.as_text())
    assert text["collectives"]["all-gather"] == 1 and not any(loop["all-gather"] for loop in text["loops"])
    np.testing.assert_allclose(program(A, b), U @ np.ones(U.shape[0]), atol=1e-10)


def test_a_device_receives_no_more_than_a_few_blocks_where_every_other_has_unknowns_for_it():
    assert jsf.shard(S, MESH, format="dia", reorder=STRIDED).basis.route.how.width <= 2 * N // 8


@pytest.mark.parametrize("devices", [8, 512])
def test_do_vectors_enter_and_leave_in_few_rounds_where_rows_grow_longer(devices):
    """Rows of 3 to 27 entries, so that many pieces of equal work lie at other distances from their even blocks."""
    cuts = row_partition.equal_nnz(2 * np.linspace(1, 13, 32 * devices).astype(int) + 1, devices)
    spec, mesh = PartitionSpec("rows"), jax.sharding.AbstractMesh((devices,), ("rows",), (jax.sharding.AxisType.Auto,))
    over = Distribution.of(jax.sharding.Mesh(np.resize(MESH.devices, devices), ("rows",)), "rows", np.diff(cuts))
    for source, target in ((over.even, over), (over, over.even)):
        moved = jax.shard_map(lambda x: recut(x, source, target), mesh=mesh, in_specs=spec, out_specs=spec)  # noqa: B023
        program = str(jax.make_jaxpr(moved)(np.zeros(source.places)))
        assert program.count("ppermute[") <= 6  # the even blocks that a piece meets


@pytest.mark.parametrize(("devices", "format"), [(7, "csr"), deep(3, "sell"), deep(5, "dia"), deep(7, "bsr")])
def test_odd_numbers_of_devices_give_what_one_gives(devices, format):
    mesh = jax.make_mesh((devices,), ("rows",), devices=MESH.devices[:devices])
    by, rng = jsf.boxes((32, 32), devices), np.random.default_rng(1)
    by[rng.integers(0, N, 40)] = rng.integers(0, devices, 40)  # parts of any shape, with neighbours at any distance
    A, x = jsf.shard(S, mesh, format=format, by=by), rng.standard_normal(N)
    data = rng.standard_normal(S.nnz)
    T = sp.csr_array((data, S.indices, S.indptr), shape=S.shape)
    np.testing.assert_array_equal(A.data, S.data)
    for y, wanted in zip(product(A.with_data(data), x), (T @ x, T.T @ x), strict=True):
        np.testing.assert_allclose(y, wanted, atol=1e-12)
    np.testing.assert_array_equal(A.to_scipy().toarray(), S.toarray())


def test_a_matrix_without_entries_keeps_a_given_order():
    A = jsf.shard(sp.csr_array((16, 16)), MESH, format="csr", by=np.arange(16) % 8)
    y, _ = product(A.with_data(jnp.zeros(0)), np.ones(16))
    assert A.data.shape == (0,) and not y.any()
