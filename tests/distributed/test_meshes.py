"""ShardedMatrix on meshes whose axes are explicit, auto or both, inside `jax.set_mesh`, outside, and in shard_map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.basis import IDENTITY
from solvers import Status, cg, expm_multiply, lobpcg, lsmr, precond, solve
from tests.core.test_mesh_axes import both_ways, close, placed, solved
from tests.distributed import programs
from tests.distributed.problems import MESH, take
from tests.marks import few
from tests.oracle import assert_refused

EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto
KINDS = {"explicit": (EXPLICIT, EXPLICIT), "auto": (AUTO, AUTO), "mixed": (EXPLICIT, AUTO)}
MESHES = {kind: jax.make_mesh((4, 2), ("rows", "batch"), of, devices=MESH.devices) for kind, of in KINDS.items()}
S = jsf.gallery.poisson(4, dim=2)
D = S.toarray()
X = np.random.default_rng(0).standard_normal((16, 2))
PLACES = [(None, None), ("rows", None), ("rows", "batch")]


def shard(mesh, **options):
    return jsf.shard(S, mesh, **{"format": "ell"} | options)


@pytest.mark.parametrize("made", few(["inside", "outside"], 1))
@pytest.mark.parametrize("kind", few(KINDS, 1))
def test_products_and_derivatives_are_right_inside_set_mesh(kind, made):
    mesh = MESHES[kind]
    B = shard(mesh)
    with jax.set_mesh(mesh):
        B = shard(mesh, reorder=np.random.default_rng(0).permutation(len(D))) if made == "inside" else B
        assert made == "outside" or B.domain.over.mesh.axis_types == KINDS[kind]
        for axes in PLACES:
            x = placed(mesh, X, *axes)
            y, transposed, (by_data, by_x) = both_ways(B, x)
            close(y, D @ X)
            close(transposed, D.T @ X)
            close(by_x, D.T @ D @ X)
            row, col = S.tocoo().coords
            close(by_data, np.sum((D @ X)[row] * X[col], axis=1))
            assert jax.typeof(by_x).sharding == jax.typeof(x).sharding
        close((-(2 * B) / 4).astype("complex128").H @ X, D @ X / -2)
        close(B.diagonal(), np.diag(D))
        close(B.todense(), D)


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_a_batch_over_another_axis_stays_there(kind):
    mesh = MESHES[kind]
    with jax.set_mesh(mesh):
        B, Y = shard(mesh), placed(mesh, X.T, "batch")
        out, back = jax.jit(lambda B, Y: jax.vjp(jax.vmap(lambda x: B @ x), Y))(B, Y)
        (by_Y,) = jax.jit(lambda back, out: back(out))(back, out)
        for got, want in ((out, (D @ X).T), (by_Y, (D @ D @ X).T)):
            close(got, want)
            assert kind == "auto" or jax.typeof(got).sharding.spec == PartitionSpec("batch", None)


@pytest.mark.parametrize("kind", ["explicit", "auto"])
def test_devices_of_another_axis_compute_columns_of_their_own(kind, monkeypatch):
    """No column travels."""
    mesh = MESHES[kind]
    take("permute", monkeypatch)
    with jax.set_mesh(mesh):
        b = placed(mesh, X, "rows", "batch")
        solve = jax.jit(lambda B, b: cg(B, b, rtol=1e-12).x).lower(shard(mesh), b).compile()
        found = programs.facts(solve.as_text())
        x = solve(shard(mesh), b)
    assert found["collectives"]["all-gather"] == 0 < found["collectives"]["collective-permute"]
    assert x.sharding.spec == PartitionSpec("rows", "batch")
    close(x, np.linalg.solve(D, X), 1e-8)


def test_a_batch_may_be_given_its_axis_by_name():
    B = shard(MESHES["auto"])
    product = jax.jit(jax.vmap(lambda x: B @ x, spmd_axis_name="batch"))
    close(product(X.T), (D @ X).T)
    close(product(np.stack([X, 2 * X])), np.stack([D @ X, 2 * D @ X]))  # columns stay together: "batch" is taken
    norm = lambda X: jnp.sum(jax.vmap(lambda b: cg(B, b, rtol=1e-12).x, spmd_axis_name="batch")(X) ** 2)  # noqa: E731
    close(jax.jit(jax.grad(norm))(X.T), 2 * np.linalg.solve(D, np.linalg.solve(D, X)).T, 1e-8)


@pytest.mark.deep
@pytest.mark.parametrize("made", ["inside", "outside"])
def test_solves_and_their_gradients_lie_as_the_right_hand_side_does(made):
    mesh, inverse = MESHES["explicit"], np.linalg.inv(D)
    B = shard(mesh)
    with jax.set_mesh(mesh):
        B = shard(mesh) if made == "inside" else B
        for axes in PLACES[1:]:
            b = placed(mesh, X, *axes)
            for got, wanted in zip(solved(B, b), (inverse @ X, inverse.T @ inverse @ X), strict=True):
                close(got, wanted, 1e-8)
                assert jax.typeof(got).sharding == jax.typeof(b).sharding


@pytest.mark.deep
@pytest.mark.parametrize("options", [None, {"theta": 0.0}, {"cycle": "W"}], ids=str)
def test_preconditioners_work_inside_set_mesh(options):
    mesh = MESHES["explicit"]
    with jax.set_mesh(mesh):
        B, b = shard(mesh), placed(mesh, X[:, 0], "rows")
        M = precond.multigrid(B, max_coarse=10, **options) if options else precond.chebyshev(B, M=precond.jacobi(B))
        sol = cg(B, b, M=M, rtol=1e-12)
        close(M @ b, jax.jit(lambda M, b: M @ b)(M, b))
    close(sol.x, np.linalg.solve(D, X[:, 0]), 1e-8)


def test_other_meshes_are_refused_by_name():
    B, C = shard(MESHES["auto"]), shard(MESHES["auto"], axis=("rows", "batch"))
    with jax.set_mesh(jax.make_mesh((8,), ("other",))):
        assert_refused(lambda: B @ X[:, 0], ValueError, r"set.*'other': 8.*its own mesh")
    with jax.set_mesh(MESHES["explicit"]):
        abstract, words = jax.sharding.get_abstract_mesh(), r"or jax.sharding.get_mesh\(\) inside .*got AbstractMesh"
        assert_refused(lambda: shard(abstract), TypeError, words)
        close(shard(jax.sharding.get_mesh()) @ X[:, 0], D @ X[:, 0])
    specs = {"in_specs": PartitionSpec("rows"), "out_specs": PartitionSpec("rows"), "axis_names": {"rows"}}
    alone = jax.shard_map(lambda x: C.in_basis @ x, mesh=MESHES["auto"], **specs)
    words = r"axes \('rows', 'batch'\) together, and shard_map is over \['"
    assert_refused(lambda: alone(C.basis.enter(X)), ValueError, words)


def test_a_device_may_multiply_its_piece_inside_a_users_shard_map():
    mesh, piece = MESHES["auto"], PartitionSpec("rows")
    B = shard(mesh, reorder="rcm")
    use = lambda f, *specs: jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=piece)  # noqa: E731
    twice = use(lambda B, x: B.in_basis @ (B.in_basis @ x), piece, piece)
    close(jax.jit(lambda B, x: B.basis.leave(twice(B, B.basis.enter(x))))(B, X), D @ D @ X)
    inside = B.basis.enter(X)
    whole, closed = use(lambda B, x: B @ x, piece, piece), use(lambda x: B.in_basis @ x, piece)
    copied = use(lambda B, x: B.in_basis @ x, piece, PartitionSpec())
    for call, words in (
        (lambda: whole(B, inside), "user's order, is not for one device; inside shard_map"),
        (lambda: closed(inside), r"4 devices' shards is not for one device.*argument of in_specs"),
        (lambda: copied(B, X), r"takes a piece of x, \(\d,\); got \(16, 2\)"),
    ):
        assert_refused(call, ValueError, words)


def test_is_an_index_that_is_first_used_inside_shard_map_that_of_any_context():
    A, everywhere = jsf.from_scipy(S, "ell"), PartitionSpec()
    rows = lambda x: x + A.row_ids  # noqa: E731
    with jax.set_mesh(MESHES["explicit"]):
        inside = jax.shard_map(rows, in_specs=everywhere, out_specs=everywhere)(jnp.zeros(S.nnz, int))
    np.testing.assert_array_equal(inside, S.tocoo().row)
    np.testing.assert_array_equal(jax.device_put(1, jax.devices("cpu")[0]) + A.row_ids, 1 + S.tocoo().row)
    B = shard(MESHES["auto"], format="dia")
    with jax.set_mesh(MESHES["explicit"]):
        scaled = B.scale_rows(np.arange(16))
        close(scaled @ X, np.arange(16)[:, None] * (D @ X))


@pytest.mark.parametrize("kind", few(KINDS, 1))
def test_random_starts_are_drawn_on_all_devices(kind):
    """The same numbers as on one device."""
    mesh = MESHES[kind]
    with jax.set_mesh(mesh):
        B = shard(mesh, reorder="rcm")
        start = B.basis.noise((16, 3), float)
        assert start.sharding.spec[0] == "rows"
        values = lobpcg(B, 2).eigenvalues
    np.testing.assert_array_equal(start, IDENTITY.noise((16, 3), float))
    close(values, np.linalg.eigvalsh(D)[:2], 1e-10)


def test_an_explicit_mesh_without_a_context_works_as_an_auto_one():
    B = shard(MESHES["explicit"])
    assert set(B.domain.over.mesh.axis_types) == {AxisType.Auto}
    close(jax.grad(lambda x: jnp.sum((B @ x) ** 2))(X), 2 * D.T @ D @ X)
    for axes in PLACES:
        close(B @ placed(MESHES["explicit"], X, *axes), D @ X)
    copies, lone = placed(MESHES["explicit"], X[:, 0], None), jax.device_put(X[:, 0], jax.devices("cpu")[1])
    for f, want in (
        (lambda b: jnp.sum(cg(B, b, rtol=1e-12).x), np.linalg.solve(D.T, np.ones(len(D)))),
        (lambda x: jnp.sum((B @ x) ** 2), 2 * D.T @ D @ X[:, 0]),
    ):
        for got in (jax.grad(f)(copies), jax.grad(f)(lone), jax.jit(jax.grad(f))(copies)):
            close(got, want, 1e-8)


@pytest.mark.parametrize("kind", few(KINDS, 1))
def test_two_axes_together_count_as_one(kind, monkeypatch):
    """Boxes of 4 × 2 devices; x lies over both axes, and the result and its cotangent as x does."""
    mesh, both = MESHES[kind], ("rows", "batch")
    take("permute", monkeypatch)
    B = shard(mesh, axis=both, by=jsf.boxes((4, 4), (4, 2)))
    assert B.parts == 8 and len(B.shards.halo.sizes) == 3
    np.testing.assert_array_equal(B.to_scipy().todense(), D)
    with jax.set_mesh(mesh):
        x = placed(mesh, X, both)
        y, transposed, (_, by_x) = both_ways(B, x)
        for got, wanted in ((y, D @ X), (transposed, D.T @ X), (by_x, D.T @ D @ X)):
            close(got, wanted)
        assert jax.typeof(by_x).sharding == jax.typeof(x).sharding
    close(cg(B, X[:, 0], rtol=1e-12, one_reduction=True).x, np.linalg.solve(D, X[:, 0]), 1e-8)
    words = r"a tuple in the mesh's order: 'rows', 'batch'; got \('batch', 'rows'\)"
    assert_refused(lambda: shard(mesh, axis=both[::-1]), ValueError, words)


def test_every_device_knows_how_the_columns_of_others_ended():
    """Else no process could read the status where the columns lie on devices of several processes."""
    B, sharding = shard(MESHES["auto"]), NamedSharding(MESHES["auto"], PartitionSpec(None, "batch"))
    b, half = (jax.device_put(a, sharding) for a in (X, X * [1, np.nan]))
    assert not b.is_fully_replicated
    for found in (cg(B, b), lsmr(B, b), expm_multiply(B, b, -0.1)):
        assert found.code.shape == (2,) and all(a.is_fully_replicated for a in (found.code, found.n_iterations))
    assert solve(B, half).code.tolist() == [Status.CONVERGED, Status.NON_FINITE]
