"""ShardedMatrix against SciPy and against the same matrix on one device."""

import copy
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import vector_passes
from jaxsparse_fmt.distributed.common_format import MODES
from jaxsparse_fmt.distributed.processes import together
from jaxsparse_fmt.kernels.backends import selection
from solvers import precond
from tests import zoo
from tests.distributed.problems import DEVICES, KINDS, MESH, irregular, take
from tests.marks import few
from tests.oracle import assert_derivatives_agree, assert_refused

S = irregular()
X = np.random.default_rng(1).standard_normal((90, 2))
DATA = np.random.default_rng(2).standard_normal(S.nnz)
OTHER = S.copy()
OTHER.data = DATA
LAYOUTS = [*zoo.FIRST_LAYOUTS, zoo.Layout("sell", (("slice_size", 4),)), zoo.Layout("hyb", (("width", 0),))]
WAYS = [*zip(LAYOUTS, itertools.cycle(["overlap", "naive", "overlap", "overlap"]), itertools.cycle(KINDS))]


@jax.jit
def anew(B, data, x):
    """A product with new values, and those as the matrix tells them."""
    B = B.with_data(data)
    return B @ x, B.data


times = jax.jit(lambda B, x: B @ x)
both_ways = jax.jit(lambda B, x: (B @ x, B.T @ x))


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("layout", "mode", "kind"), few(WAYS, 5), ids=str)
def test_every_format_agrees_with_scipy(layout, mode, kind, monkeypatch):
    take(kind, monkeypatch)
    B = jsf.shard(S, MESH, format=layout.format, mode=mode, **dict(layout.options))
    assert [part.name for part in B.shards.blocks] == [layout.format] * 2
    assert (B.shards.halo.pairs is None) == (kind == "all_to_all")
    product, data = anew(B, DATA, X[:, 0])
    close(product, OTHER @ X[:, 0])
    np.testing.assert_array_equal(data, DATA)


ORDERS = {"reorder": "rcm", "mode": "vector"}, {"reorder": np.random.default_rng(4).permutation(90)}


@pytest.mark.parametrize("options", few(ORDERS, 1), ids=["rcm", "permutation"])
def test_the_basis_hides_how_unknowns_are_renumbered(options):
    B = jsf.shard(S, MESH, format="ell", **options)
    product, data = anew(B, DATA, X[:, 0])
    close(product, OTHER @ X[:, 0])
    np.testing.assert_array_equal(data, DATA)
    assert abs(B.to_scipy() - S).max() == 0
    assert jax.jit(lambda: B.to_scipy().nnz)() == S.nnz
    np.testing.assert_array_equal(B.diagonal(), S.diagonal())
    inside = B.in_basis @ B.basis.enter(X[:, 0])
    assert inside.sharding.spec[0] == "rows"
    close(B.basis.leave(inside), S @ X[:, 0])


@pytest.mark.parametrize(("n_rows", "n_cols"), few([(90, 40), (5, 7), (1, 1), (0, 0), (3, 0), (0, 3)], 3), ids=str)
def test_shapes_that_eight_devices_do_not_divide(n_rows, n_cols):
    shape = n_rows, n_cols
    T = irregular(*shape) if min(shape) >= 20 else sp.csr_array(np.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape))
    B = jsf.shard(T, MESH, format="ell")
    close(times(B, np.ones(shape[1])), T @ np.ones(shape[1]))
    back = B.to_scipy()
    assert back.shape == shape and (back.nnz, abs(back - T).sum()) == (T.nnz, 0)


def test_an_empty_place_never_spreads_a_nan():
    x = X[:, 0].copy()
    x[7] = np.nan
    touched = (S @ np.where(np.arange(90) == 7, 1.0, 0.0)) != 0
    B = jsf.shard(S, MESH, format="ell")
    inside = B.in_basis @ B.basis.enter(x)
    np.testing.assert_array_equal(np.isnan(B.basis.leave(inside)), touched)
    assert not np.any(np.asarray(inside)[np.asarray(B.basis.unknowns()) >= 90])


@pytest.mark.parametrize(("kind", "mode"), few(itertools.product(KINDS, MODES), 2))
def test_both_products_of_every_mode_and_exchange_and_their_derivatives_are_those_of_a_dense_matrix(
    kind, mode, monkeypatch
):
    take(kind, monkeypatch)
    B, coords = jsf.shard(S, MESH, format="ell", mode=mode), S.tocoo().coords
    for got, want in zip(both_ways(B, X), (S @ X, S.T @ X), strict=True):
        close(got, want)
    assert abs(B.to_scipy() - S).max() == 0
    both = lambda A, x: jnp.concatenate([A @ x, A.T @ x])  # noqa: E731
    ours = lambda data, x: both(B.with_data(data), x)  # noqa: E731
    dense = lambda data, x: both(jnp.zeros(S.shape).at[coords].set(data), x)  # noqa: E731
    assert_derivatives_agree(ours, dense, DATA, X[:, 0], rtol=1e-11)


def test_vmap_maps_over_vectors_and_over_values():
    B = jsf.shard(S, MESH, format="ell")
    close(jax.vmap(B.matvec)(X.T).T, S @ X)
    many = jax.jit(jax.vmap(lambda data: B.with_data(data) @ X[:, 0]))(np.stack([S.data, DATA]))
    close(many, np.stack([S @ X[:, 0], OTHER @ X[:, 0]]))


@pytest.mark.parametrize("dtype", few(["float32", "complex128"], 1))
def test_other_dtypes_multiply_in_their_own_precision(dtype):
    T = (S * (1 + 2j)).astype(dtype) if dtype == "complex128" else S.astype(dtype)
    B = jsf.shard(T, MESH, format="hll", slice_size=4)
    assert B.dtype == dtype and B.astype("complex64").dtype == "complex64"
    wanted = T.conj().T @ X[:, 0].astype(dtype)
    got = B.rmatvec(X[:, 0].astype(dtype))
    np.testing.assert_allclose(got, wanted, atol=200 * np.finfo(dtype).eps)
    eighths = sp.csr_array(np.round(8 * S.todense()) / 8)
    B = jsf.shard_from_rows(lambda a, b: eighths[a:b], 90, MESH, format="ell", dtype="bfloat16")
    assert B.dtype == "bfloat16" and abs(B.to_scipy() - eighths).max() == 0


@pytest.mark.parametrize(("mode", "backend"), few([(mode, "xla") for mode in MODES] + [("overlap", "interpret")], 1))
def test_sums_come_with_the_product(mode, backend):
    """Rows of 0 to 60 entries, whose kernel has none, and short ones, whose kernel has."""
    x, w = np.random.default_rng(3).standard_normal((2, 90))
    for T in (S, sp.csr_array(sp.diags_array([1.0, 2.0, 3.0], offsets=[-1, 0, 40], shape=(90, 90)))):
        with jsf.use_backend(backend):
            B = jsf.shard(T, MESH, format="ell", mode=mode)
            y, s = with_sums(B, x, w)
        close(y, T @ x)
        close(s, np.array([w @ (T @ x), w @ (T @ x), (T @ x) @ (T @ x)]))


SUMS = vector_passes.Pass(tuple, lambda _, y, w: ((), ((w, y), (y, y))))


@jax.jit
def with_sums(B, x, w):
    piece = PartitionSpec("rows")

    def own(B, x, w):
        _, dot = B.in_basis.matvec_dot(x, w)
        y, sums = B.in_basis._matvec_sums(x, SUMS, w)
        return y, jax.lax.psum(jax.numpy.stack([vector_passes.total(a) for a in (dot, *sums)]), "rows")

    operands = B, B.basis.enter(x), B.basis.enter(w)
    y, s = B.basis.run(own, operands, (piece, piece, piece), (piece, PartitionSpec()))
    return B.basis.leave(y), s


def test_the_report_counts_what_the_matrix_has():
    B = jsf.shard(S, MESH, format="ell")
    told = B.record.imbalance
    starts = np.concatenate([[0], np.cumsum(told.rows)])
    for k, (a, b) in enumerate(itertools.pairwise(starts)):
        cols = S.indices[S.indptr[a] : S.indptr[b]]
        assert told.nnz[k] == len(cols)
        assert told.halo[k] == len({int(c) for c in cols if not a <= c < b})
    assert "all_to_all instead of" in B.report() and "most / mean" in B.report() and f"{DEVICES} devices" in repr(B)


def test_another_matrix_of_the_same_sizes_compiles_nothing_anew():
    traced = []
    product = jax.jit(lambda B, x: traced.append(1) or B @ x)
    for matrix in (S, 2 * S):
        product(jsf.shard(matrix, MESH, format="ell"), X[:, 0])
    assert len(traced) == 1


@pytest.mark.parametrize("mode", ["overlap", "naive", "vector"])
def test_rows_made_in_pieces_are_the_same_matrix_and_stay_as_they_were(mode):
    asked, kept = [], {}

    def rows_of(start, stop):
        asked.append((start, stop))
        return kept.setdefault((start, stop), S[start:stop])

    starts = [0, 0, 3, 30, 40, 41, 60, 89, 90]
    B = jsf.shard_from_rows(rows_of, 90, MESH, format="ell", mode=mode, starts=starts)
    assert sorted(asked) == sorted([(0, 0), *itertools.pairwise(starts)])  # (0, 0) tells the dtype
    assert B.record.imbalance.rows.tolist() == np.diff(starts).tolist()
    assert abs(B.to_scipy() - S).max() == 0
    close(times(B, X[:, 0]), S @ X[:, 0])
    assert all(abs(rows - S[start:stop]).max() == 0 for (start, stop), rows in kept.items() if stop > start)


def test_scipys_habits_are_those_of_every_matrix():
    B = jsf.shard(S, MESH, format="ell")
    x = X[:, 0]
    for got, want in (
        *((B.dot(x), S @ x), ((-(2 * B) / 4) @ x, S @ x / -2), (X.T @ B, X.T @ S), (abs(B) @ x, abs(S) @ x)),
        *((B.transpose() @ x, S.T @ x), ((-B).conj().real.H @ x, -S.T @ x), (B.toarray(), S.toarray())),
        *((jsf.spmv(B, x, X[:, 1], 2.0, 3.0), 2 * (S @ x) + 3 * X[:, 1]), (B.mean(1), S.mean(axis=1))),
        *((B.sum(axis), S.sum(axis)) for axis in (None, 0, 1)),
    ):
        close(got, want)
    assert B.tocsr().name == B.T.asformat("csr").name == "csr" and B.copy() is not B
    assert abs(B.T.asformat("csr").to_scipy() - S.T).max() == 0


def test_a_copy_has_arrays_of_its_own_and_a_pickle_is_refused_with_a_cure():
    B = jsf.shard(S, MESH, format="ell")
    for made in (copy.copy(B), copy.deepcopy([B])[0]):
        assert made.shards.blocks[0].values is not B.shards.blocks[0].values and abs(made.to_scipy() - S).max() == 0
    assert_refused(lambda: pickle.dumps(B), TypeError, "to_scipy")
    assert_refused(lambda: len(B), TypeError, "ambiguous")


def test_in_basis_names_no_entry_by_numbers_that_are_the_users():
    """A preconditioner made so would be one of other unknowns."""
    A = jsf.shard(S, MESH, format="ell").in_basis
    by_entries = A.entries, A.todense, A.to_scipy, lambda: A.asformat("csr")
    for use in (*by_entries, lambda: precond.block_jacobi(A, 4), lambda: precond.multigrid(A)):
        assert_refused(use, ValueError, "in its own order; take A's")


def test_threads_promote_and_choose_as_their_caller():
    """By JAX's settings of the process: those of a context the threads do not have."""
    strict = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
    before = {name: getattr(jax.config, name) for name in strict}
    try:
        for name, value in strict.items():
            jax.config.update(name, value)
        assert abs(jsf.shard(S, MESH).to_scipy() - S).max() == 0
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    with jsf.use_backend("xla"):
        assert together(lambda _: selection.active_backend("auto"), [0]) == {0: "xla"}


of_data = jax.jit(jax.grad(lambda data, A, x: jnp.sum(jnp.sin(A.with_data(data) @ x))))
of_whole = jax.jit(jax.grad(lambda A, x: jnp.sum(jnp.sin(A @ x)), allow_int=True))


def test_shards_that_read_half_of_a_symmetric_matrix_read_all_of_other_entries():
    P, x = jsf.gallery.poisson((6, 5, 3)), X[:, 0]
    A, D = jsf.shard(P, MESH, format="dia"), sp.diags_array(x)
    local = A.shards.blocks[0]
    assert local.nbytes_read < 0.7 * local.nbytes
    row, col = P.tocoo().coords
    uneven = P.copy()
    uneven.data = P.data + np.sin(np.arange(P.nnz))
    (product, data), B = anew(A, uneven.data, x), A.with_data(uneven.data)
    close(product, uneven @ x)
    np.testing.assert_array_equal(data, uneven.data)
    assert jax.tree.structure(A) == jax.tree.structure(B)
    for M, T in ((A, P), (B, uneven), (A + B, P + uneven), (2 * A, 2 * P), (B.scale_rows(x), D @ uneven)):
        product, transposed = both_ways(M, x)
        close(product, T @ x)
        close(transposed, T.T @ x)
        assert abs(M.to_scipy() - T).max() < 1e-15
    for M, T in ((A.scale_cols(x), P @ D), (A.shift(x), P + D)):
        close(times(M, x), T @ x)
    close(B.diagonal(), uneven.diagonal())
    shifted = jax.jit(lambda data, x: A.with_data(data).scale_rows(x).shift(1.0) @ x)
    close(shifted(uneven.data, x), x * (uneven @ x) + x)

    slopes = sp.csr_array((np.cos(P @ x)[row] * x[col], P.indices, P.indptr))
    close(of_data(P.data, A, x), slopes.data)
    part = np.searchsorted(A.record.imbalance.rows.cumsum(), np.arange(90), "right")
    mean = (slopes + slopes.T).tocsr()[row, col] / 2  # an entry and its image in the same shard are one number
    close(A.data_of(of_whole(A, x)), np.where(part[row] == part[col], mean, slopes.data))


def test_a_mesh_of_one_axis_needs_no_name_and_one_of_two_does():
    close(jsf.shard(S, jax.sharding.Mesh(MESH.devices, ("x",)), format="csr") @ X, S @ X)
    two = jax.sharding.Mesh(MESH.devices.reshape(2, 4), ("x", "y"))
    assert_refused(lambda: jsf.shard(S, two), ValueError, r"axis must name an axis of the mesh.*'x', 'y'; got 'rows'")


def test_rows_and_columns_of_its_entries_and_of_its_transposes_have_the_names_of_one_device():
    A = jsf.shard(S, MESH, format="ell", reorder=np.random.default_rng(0).permutation(90))
    wanted, turned = S.tocoo(), sp.csr_array(S.T).tocoo()
    for got, want in ((A, wanted), (A.T, turned)):
        np.testing.assert_array_equal(got.row_ids, want.row)
        np.testing.assert_array_equal(got.col_ids, want.col)
        np.testing.assert_array_equal(got.data, want.data)
    assert A.layout == A.shards.blocks[0].layout
    close(A.T.with_data(2 * turned.data) @ X, 2 * S.T @ X)


def test_are_its_reductions_those_of_scipy_with_the_zeros_between_entries():
    A = jsf.shard(S, MESH, format="csr")
    for name in ("max", "min", "argmax", "argmin"):
        for axis in (None, 0, 1):
            want = getattr(S, name)(axis=axis)
            want = np.ravel(want.toarray() if hasattr(want, "toarray") else want)
            np.testing.assert_array_equal(np.ravel(getattr(A, name)(axis)), want)
            assert getattr(A, name)(axis).ndim == (axis is not None)
    assert_refused(lambda: A.trace(1), ValueError, "main diagonal alone")


def test_a_transposed_product_of_pieces_inside_shard_map_is_that_of_whole_vectors():
    A = jsf.shard(S, MESH, format="csr")
    spec, x = PartitionSpec("rows"), A.basis.enter(X[:, 0])
    mesh = A.domain.over.mesh
    piecewise = jax.shard_map(lambda A, p: A.in_basis.T @ p, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    close(A.basis.leave(jax.jit(piecewise)(A, x)), S.T @ X[:, 0])
