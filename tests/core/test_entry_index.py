"""The index behind `data` and `with_data`: what it costs, how long it lives, and whose it is."""

import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import entry_index
from tests.lowering import operations
from tests.marks import few
from tests.zoo import ALL, CASES, FIRST_LAYOUTS, Layout

S = CASES["irregular"].scipy().tocsr()
SYMMETRIC = jsf.gallery.poisson(4)
IN_ORDER = ("csr", "coo")
every_format = pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 3), ids=str)
WAYS = [*((layout, {}) for layout in FIRST_LAYOUTS), (Layout("hll"), {"transpose": True})]
every_way = pytest.mark.parametrize(("layout", "options"), few(WAYS, 3), ids=str)


@pytest.mark.parametrize("format", IN_ORDER)
def test_are_the_entries_of_csr_and_coo_their_values(format):
    A = jsf.from_scipy(S, format)
    data = jnp.arange(61.0)
    assert A.data is A.values and A.with_data(data).values is data
    assert operations(lambda A: A.data, A) == operations(lambda A, d: A.with_data(d), A, data) == []


@every_format
def test_is_the_index_of_each_pattern_its_own(layout):
    """Two matrices of equal sizes, whose entries lie elsewhere; and a traced pattern, of which none is kept."""
    T = CASES["even_rows"].scipy().tocsr()
    for M in (T, sp.csr_array(T.T)):
        A = layout.of(M)
        data = np.arange(1.0, T.nnz + 1)
        wanted = sp.csr_array((data, M.indices, M.indptr), M.shape).toarray()
        for B in (A.with_data(data), jax.jit(lambda A, d: A.with_data(d))(A, data), jax.device_get(A).with_data(data)):
            np.testing.assert_array_equal(B.todense(), wanted)
            np.testing.assert_array_equal(B.data, data)


def test_does_the_index_die_with_its_pattern():
    gc.collect()
    before = len(jax.live_arrays())
    A = jsf.from_scipy(S, "ell")
    assert A.with_data(2 * A.data).data.shape == A.T.data.shape and len(jax.live_arrays()) > before
    del A
    gc.collect()
    assert len(jax.live_arrays()) == before


def test_does_an_index_that_was_donated_come_again():
    A = jsf.from_scipy(S, "ell")
    jax.jit(lambda row: row + 1, donate_argnums=0)(A.row_ids)
    np.testing.assert_array_equal(A.row_ids, S.nonzero()[0])


def test_is_an_index_that_is_first_asked_for_inside_jit_usable_outside():
    A = jsf.from_scipy(S, "hll")
    inside = jax.jit(lambda d: A.with_data(d).data.sum())
    np.testing.assert_allclose(inside(np.ones(61)), 61)
    np.testing.assert_array_equal(A.data, S.data)
    np.testing.assert_array_equal(jax.vmap(lambda d: A.with_data(d).data)(np.ones((2, 61))), 1)


def matrices():
    for layout in FIRST_LAYOUTS:
        yield layout.of(ALL.scipy())
    yield Layout("pjds").of(CASES["even_rows"].scipy()).in_basis
    yield jsf.from_scipy(SYMMETRIC, "dia")


@pytest.mark.parametrize("A", few(matrices(), 3), ids=lambda A: A.name)
def test_is_the_index_the_same_by_numpy_by_a_program_and_by_a_kernel(A):
    for host, program in (
        (entry_index._index, entry_index._index_by_program),
        (entry_index._index, jax.jit(entry_index._index)),  # a Numba kernel's, in "dia"
        (entry_index._ids, entry_index._ids_by_program),
    ):
        for found, wanted in zip(host(A), program(A), strict=True):
            assert getattr(found, "dtype", None) == getattr(wanted, "dtype", None)
            np.testing.assert_array_equal(found, wanted)


def test_is_the_index_of_many_entries_on_diagonals_a_kernels(monkeypatch):
    wanted = entry_index._index(jsf.from_scipy(SYMMETRIC, "dia"))
    monkeypatch.setattr(entry_index, "MANY", 0)
    monkeypatch.setattr(entry_index, "_entries_on_host", None)
    A = jsf.from_scipy(SYMMETRIC, "dia")
    jax.tree.map(np.testing.assert_array_equal, entry_index.of_values(A), wanted)
    np.testing.assert_array_equal(A.with_data(2 * A.data).data, 2 * SYMMETRIC.data)


@pytest.mark.parametrize("dtype", few(["bfloat16", "float64", "complex64", "int32"], 2))
def test_does_a_place_past_the_end_give_zero_whoever_gathers(dtype, rng):
    a = jnp.asarray(rng.integers(1, 99, (3, 50)), dtype)
    index = jnp.asarray(rng.permutation(np.append(np.arange(50), np.full(9, 50))), jnp.int32)
    wanted = np.append(np.asarray(a), np.zeros((3, 1), a.dtype), axis=1)[:, index]
    for gather in (entry_index.permuted, jax.jit(entry_index.permuted), entry_index._permuted):
        found = jax.vmap(gather, (0, None, None))(a, index, index)
        assert found.dtype == a.dtype
        np.testing.assert_array_equal(found, wanted)


def test_entries_of_a_new_size_compile_nothing_on_a_cpu(compiled):
    """Nothing else in this process has arrays of this size."""
    S = sp.csr_array(sp.diags_array([1.0, 2.0, 5.0, 2.0, 1.0], offsets=[-40, -1, 0, 1, 40], shape=(1231, 1231)))
    A = jsf.from_scipy(S, "dia")
    before = compiled()
    B = A.with_data(2 * np.asarray(A.data))
    C = B.with_data(np.asarray(A.data))
    arrays = A.row_ids, A.col_ids, A.csr_arrays().indptr, A.diagonal(), C.data
    assert compiled() == before
    start, again, shared = (vars(M)["start"] for M in (B, C, A))
    assert start is again is not shared
    for got, wanted in zip(arrays, (*S.nonzero(), S.indptr, S.diagonal(), S.data), strict=True):
        np.testing.assert_array_equal(got, wanted)


# ------------------------------------------------------------------------------------------ gradients of a whole matrix


def by_data(M):
    """∂/∂data of Σ sin(A·x)."""
    x = np.arange(M.shape[1]) / 8
    row = np.repeat(np.arange(M.shape[0]), np.diff(M.indptr))
    return np.cos(M @ x)[row] * x[M.indices]


def gradients(A):
    x = jnp.arange(A.shape[1]) / 8
    loss = lambda A: jnp.sum(jnp.sin(A @ x))  # noqa: E731
    return jax.grad(loss, allow_int=True)(A), eqx.filter_grad(loss)(A)


@every_way
def test_has_a_gradient_by_a_whole_matrix_the_entries_that_its_matrix_names(layout, options):
    A = layout.of(S, **options)
    for g in gradients(A):
        np.testing.assert_allclose(A.data_of(g), by_data(S), atol=1e-12)
        assert "float64" in repr(g) and len(repr(g)) < 120
        if layout.format in IN_ORDER and not options:
            np.testing.assert_allclose(g.data, by_data(S), atol=1e-12)
            continue
        for use in (lambda g=g: g.data, lambda g=g: g.todense(), lambda g=g: g @ np.ones(13), lambda g=g: g.to_scipy()):
            with pytest.raises(ValueError, match=r"has values, but no pattern.* A\.data_of\(gradient\)"):
                use()


def test_counts_half_for_each_the_derivative_by_a_number_that_two_entries_share():
    A = jsf.from_scipy(SYMMETRIC, "dia")
    assert A.nbytes_read < A.with_data(A.data).nbytes_read
    both = by_data(SYMMETRIC)
    mirrored = sp.csr_array((both, SYMMETRIC.indices, SYMMETRIC.indptr), SYMMETRIC.shape).T.tocsr()
    mirrored.sort_indices()
    for g in gradients(A):
        np.testing.assert_allclose(A.data_of(g), (both + mirrored.data) / 2, atol=1e-12)
    alone = A.with_data(A.data)
    np.testing.assert_array_equal(alone.data, SYMMETRIC.data)
    np.testing.assert_array_equal(A.with_data(both).data, both)
    np.testing.assert_allclose(
        A.with_data(both) @ np.ones(64), np.add.reduceat(both, SYMMETRIC.indptr[:-1]), atol=1e-12
    )
    for g in gradients(alone):
        np.testing.assert_allclose(alone.data_of(g), both, atol=1e-12)


@every_format
@pytest.mark.parametrize("on_cpu", [True, False])
def test_to_scipy_gives_canonical_arrays_of_its_own_from_either_device(layout, on_cpu, monkeypatch):
    monkeypatch.setattr(entry_index, "is_on_cpu", lambda values: on_cpu)
    A = layout.of(S)
    got = A.to_scipy()
    assert got.has_canonical_format
    np.testing.assert_array_equal(got.indptr, S.indptr)
    np.testing.assert_array_equal(got.indices, S.indices)
    np.testing.assert_array_equal(got.data, S.data)
    got.data[:] = 0  # the user's to change
    np.testing.assert_array_equal(A.data, S.data)


@every_format
def test_a_traced_matrix_does_not_come_to_scipy_and_the_refusal_names_the_cure(layout):
    A, sharded = layout.of(S), jsf.shard(S, jax.make_mesh((1,), ("rows",)))
    for B in (A, A.T, sharded):
        with pytest.raises(ValueError, match="to_scipy needs the numbers of the matrix, which are traced here; call"):
            jax.eval_shape(lambda B: B.to_scipy(), B)


@pytest.mark.parametrize("format", ["csr", "dia", "sell"])
def test_has_a_matrix_in_arrays_of_numpy_its_entries(format):
    A = jsf.from_scipy(jsf.gallery.convection_diffusion(5), format)
    B = jax.tree.map(np.array, A)
    np.testing.assert_array_equal(B.data, A.data)
    np.testing.assert_array_equal(B.with_data(np.asarray(2 * A.data)).data, 2 * A.data)
