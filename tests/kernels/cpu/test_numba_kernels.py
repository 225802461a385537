"""The kernels for the CPU: equal to dense arithmetic, the same bits always, and never in the way."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.backends import selection, tuning
from jaxsparse_fmt.kernels.cpu import ffi
from tests.lowering import lowered
from tests.oracle import assert_close, assert_product
from tests.process import printed
from tests.zoo import CASES, Layout

pytest.importorskip("numba")

NATIVE = ["csr", "dia", "coo", "csc"]


def irregular(n_rows: int, n_cols: int, mean: int, rng) -> sp.csr_array:
    """Rows of 0 to 2·mean entries, a full one, and empty ones at both ends."""
    lengths = rng.integers(0, 2 * mean, n_rows)
    lengths[[0, -1]], lengths[n_rows // 2] = 0, n_cols
    ptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
    col = np.concatenate([np.sort(rng.choice(n_cols, n, replace=False)) for n in lengths])
    return sp.csr_array((rng.standard_normal(ptr[-1]), col.astype(np.int32), ptr), (n_rows, n_cols))


@functools.cache
def large() -> sp.csr_array:
    """Large enough that products are cut into pieces."""
    S = irregular(2_500, 700, 30, np.random.default_rng(5))
    assert S.nnz > 2 * tuning.LAUNCH.serial_entries
    return S


def calls(f, *args) -> int:
    """How often the compiled f calls a kernel here."""
    return jax.jit(f).trace(*args).lower().as_text().count(f"@{ffi.TARGET}")


# -------------------------------------------------------------------------------------------------------- right answers


@pytest.mark.parametrize("name", NATIVE)
def test_a_large_product_runs_in_kernels_and_is_right(name, rng):
    S = jsf.gallery.poisson(24) if name == "dia" else large()
    A, x, y = jsf.from_scipy(S, name), rng.standard_normal(S.shape[1]), rng.standard_normal(S.shape[0])
    program = jax.jit(lambda A, x, y: (A @ x, A.T @ y)).lower(A, x, y)
    assert program.as_text().count(f"@{ffi.TARGET}") == 2
    product, transposed = program.compile()(A, x, y)
    for got, T, v in ((product, S, x), (transposed, S.T, y)):
        size = np.diff(T.tocsr().indptr).max() * np.abs(S.data).max() * np.abs(v).max()
        assert_close(got, T @ v, size, np.float64)


def test_pointers_may_have_64_bits_and_columns_may_be_padding(rng):
    S = irregular(8, 31, 6, rng)  # column 30 is padding
    x, expected = rng.standard_normal((1, 30, 2)), S.toarray()[:, :30]
    for dtype in (np.int32, np.int64):
        ptr, col = jnp.asarray(S.indptr.astype(dtype)), jnp.asarray(S.indices)
        got = spmv_cpu.of_rows("product", jnp.asarray(S.data)[None], jnp.asarray(x), ptr, col, (8, 30))
        assert got is not None
        assert_product(got[0], expected, x[0], np.float64)


@pytest.mark.deep
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=40), st.sampled_from(NATIVE), st.integers(1, 3), st.integers(1, 9)
)
def test_any_cut_into_pieces_gives_every_row_once(lengths, name, p, pieces):
    rng = np.random.default_rng(len(lengths))
    ptr = np.append(0, np.cumsum(lengths))
    col = np.concatenate([rng.choice(12, n, replace=False) for n in lengths]).astype(np.int32)
    S = sp.csr_array((rng.standard_normal(ptr[-1]), col, ptr), (len(lengths), 12))
    S.sort_indices()
    A = jsf.from_scipy(S, name)
    X, Y = rng.standard_normal((12, p)), rng.standard_normal((len(lengths), p))
    dense = S.toarray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmv_cpu, "_pieces", lambda *_: pieces)
        if A.n_stored == 0:
            return
        v, x, y = A.values[None], jnp.asarray(X)[None], jnp.asarray(Y)[None]
        assert_product(A._without_values._native_face("product", v, x)[0], dense, X)
        assert_product(A._without_values._native_face("transposed", v, y)[0], dense.T, Y)
        sampled = A._with_values(A._without_values._native_face("outer", y, x)[0]).data
        row = np.repeat(np.arange(len(lengths)), lengths)
        np.testing.assert_allclose(sampled, (Y @ X.T)[row, S.indices], atol=1e-12)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("name", ["dia", "sell", "coo", "csc"])
def test_a_sampled_product_in_pieces_is_dense_arithmetic_and_zero_in_padding(name, pieces, rng, monkeypatch):
    monkeypatch.setattr(spmv_cpu, "_pieces", lambda *_: pieces)
    options = (("slice_size", 4), ("sigma", 8)) if name == "sell" else ()
    S = irregular(29, 23, 3, rng) if name != "dia" else sp.csr_array(sp.diags_array([1.0, 0, 2], offsets=[-7, 0, 2]))
    A = Layout(name, options).of(S)
    Y, X = rng.standard_normal((S.shape[0], 2)), rng.standard_normal((S.shape[1], 2))
    values = A._without_values._native_face("outer", jnp.asarray(Y)[None], jnp.asarray(X)[None])
    assert values is not None
    data = A._with_values(values[0]).data
    np.testing.assert_allclose(data, np.sum(Y[S.nonzero()[0]] * X[S.indices], axis=1), atol=1e-12)
    np.testing.assert_allclose(np.sum(np.abs(values)), np.sum(np.abs(data)))


# ------------------------------------------------------------------------------------------------------------- the bits


def test_bits_are_the_same_serial_parallel_and_again(monkeypatch, rng):
    S, x = large(), rng.standard_normal(large().shape[1])
    A, y = jsf.from_scipy(S, "csr"), rng.standard_normal(S.shape[0])
    product, transposed = np.asarray(A @ x), np.asarray(A.T @ y)
    for _ in range(5):
        np.testing.assert_array_equal(A @ x, product)
        np.testing.assert_array_equal(A.T @ y, transposed)
    monkeypatch.setattr(spmv_cpu, "_pieces", lambda *_: 1)
    np.testing.assert_array_equal(jax.jit(lambda A, x: A @ x)(A, x), product)


def test_eight_devices_run_kernels_at_the_same_time(rng):
    S, devices = large(), jax.devices()
    assert len(devices) == 8
    X, A = rng.standard_normal((8, S.shape[1])), jsf.from_scipy(S, "csr")
    want = [np.asarray(A @ x) for x in X]
    product = jax.jit(lambda A, x: A @ x)
    there = [(jax.device_put(A, d), jax.device_put(x, d)) for x, d in zip(X, devices, strict=True)]
    for _ in range(20):
        for got, y in zip([product(A, x) for A, x in there], want, strict=True):
            np.testing.assert_array_equal(got, y)
    mesh = Mesh(np.array(devices), ("d",))
    mapped = jax.jit(
        jax.shard_map(jax.vmap(lambda x: A @ x), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    )
    np.testing.assert_array_equal(mapped(X), want)


# ------------------------------------------------------------------------------------------------------ transformations


def test_batches_and_derivatives_run_in_kernels(rng):
    S = large()
    A, dense = jsf.from_scipy(S, "csr"), S.toarray()
    X, D = rng.standard_normal((3, S.shape[1])), rng.standard_normal((3, S.nnz))
    product = lambda d, x: A.with_data(d) @ x  # noqa: E731
    assert calls(jax.vmap(product), D, X) == 1
    got = jax.jit(jax.vmap(product))(D, X)
    for y, d, x in zip(got, D, X, strict=True):
        np.testing.assert_allclose(y, sp.csr_array((d, S.indices, S.indptr), S.shape) @ x, atol=1e-10)
    np.testing.assert_allclose(jax.vmap(lambda x: A @ x)(X), X @ dense.T, atol=1e-10)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum((A @ x) ** 3)))
    assert calls(gradient, X[0]) == 2
    np.testing.assert_allclose(gradient(X[0]), dense.T @ (3 * (dense @ X[0]) ** 2), rtol=1e-10, atol=1e-8)


def test_an_exported_program_and_one_for_other_devices_call_nothing_of_this_process():
    A, x = jsf.from_scipy(large(), "csr"), np.ones(large().shape[1])
    product = jax.jit(lambda x: A @ x)
    exported = jax.export.export(product)(x)
    assert ffi.TARGET not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(x), A @ x)
    for platform in ("cuda", "rocm", "tpu"):
        assert ffi.TARGET not in lowered(lambda A, x: A @ x, A, x, platforms=(platform,))
    assert ffi.TARGET in lowered(lambda A, x: A @ x, A, x, platforms=("cpu",))


COMPILED = """
import pickle, sys
import jax, numpy as np, scipy.sparse as sp
from jax.experimental import serialize_executable
import jaxsparse_fmt as jsf
jax.config.update("jax_enable_x64", True)
"""
WRITES = """
f = lambda A, x: (A @ x, A.T @ x)
A = jsf.from_scipy(sp.diags_array([np.arange(20.0), np.ones(19)], offsets=[0, 1]), "csr")
with jsf.use_backend("xla"):
    plain = jax.jit(f).lower(A, np.ones(20)).compile()
with jsf.use_backend("numba"):
    native = jax.jit(f).lower(A, np.ones(20)).compile()
with open(sys.argv[1], "wb") as file:
    pickle.dump((*map(serialize_executable.serialize, (plain, native)), A), file)
"""
READS = """
with open(sys.argv[1], "rb") as file:
    plain, native, A = pickle.load(file)
def loaded(written):
    return serialize_executable.deserialize_and_load(*written)
def said(f, *args):
    try:
        return str(jax.block_until_ready(f(*args)))
    except Exception as error:
        return str(error)
x = np.arange(20.0)
print(*map(float, np.concatenate(loaded(plain)(A, x))))
assert "No FFI handler registered for jaxsparse_native" in said(loaded, native)
with jsf.use_backend("numba"):
    jax.jit(lambda A, x: A @ x).lower(A, x).compile()
    assert "kernel that this process lacks; compile the program's function here" in said(loaded(native), A, x)
    jax.jit(lambda A, x: A.T @ x).lower(A, x).compile()
print(*map(float, np.concatenate(loaded(native)(A, x))))
"""


def test_a_program_of_another_process_runs_if_it_is_plain_and_else_needs_its_kernels_here(tmp_path):
    """A null pointer must not be called, and no Python runs to replace it."""
    fresh = {"XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # else JAX cannot serialize what it loads
    _, told = (printed("-c", COMPILED + what, tmp_path / "program", **fresh) for what in (WRITES, READS))
    x, dense = np.arange(20.0), np.diag(np.arange(20.0)) + np.diag(np.ones(19), 1)
    for line in told.splitlines():
        np.testing.assert_array_equal(np.array(line.split(), float), [*(dense @ x), *(dense.T @ x)])


# ----------------------------------------------------------------------------------------------------------- the choice


def test_numba_where_it_cannot_run_is_refused_in_words(monkeypatch):
    A, x = jsf.from_scipy(CASES["irregular"].scipy(), "csr", backend="numba"), np.ones(13)
    with pytest.raises(ValueError, match="'numba' runs on CPUs only"):
        lowered(lambda A, x: A @ x, A, x)
    with pytest.raises(ValueError, match="'numba' runs on CPUs only, and not in a program that is exported"):
        jax.export.export(jax.jit(lambda x: A @ x))(x)
    monkeypatch.setattr(selection, "native_importable", lambda: False)
    with pytest.raises(ValueError, match="needs the numba package: pip install numba"):
        jax.jit(lambda A, x: A @ x)(A, x)
    B = jsf.from_scipy(large(), "csr")
    assert calls(lambda A, x: A @ x, B, np.ones(700)) == 0  # "auto" does without


def test_a_numba_that_fails_costs_one_warning_and_no_product(monkeypatch, rng):
    monkeypatch.setattr(ffi, "_broken", [])

    def fail(*_):
        raise RuntimeError("no LLVM here")

    monkeypatch.setattr(ffi, "_address_of", fail)
    monkeypatch.setattr(ffi, "_table", np.zeros_like(ffi._table))
    case, x = CASES["irregular"], rng.standard_normal(13)
    with pytest.warns(
        UserWarning, match="plain XLA, most of them several times slower: RuntimeError: no LLVM here"
    ) as caught:
        for name in NATIVE:
            A = jsf.from_scipy(case.scipy(), name, backend="numba")
            assert_product(jax.jit(lambda A, x: A @ x)(A, x), case.dense(), x)
    assert len(caught) == 1
