"""The kernels on a real GPU, by both dialects: the questions of test_every_format.py where only hardware answers."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxsparse_fmt as jsf
from tests.oracle import assert_close, assert_product, draw, wide
from tests.zoo import CASES, LAYOUTS, SORTED, Layout

pytestmark = pytest.mark.gpu

ROOT = pathlib.Path(__file__).parents[2]
DIALECTS = ["triton", "mosaic", "auto"]


def block_diagonal() -> sp.coo_array:
    """The whole zoo as one matrix, so that one compilation asks about all of it, degenerate blocks included."""
    return sp.coo_array(sp.block_diag([case.scipy() for case in CASES.values()]))


@functools.cache
def stacked() -> tuple[sp.coo_array, np.ndarray]:
    S = block_diagonal()
    return S, S.toarray()


@functools.cache
def irregular(n: int = 100_000) -> sp.csr_array:
    """Lognormal row lengths, some rows empty, columns anywhere."""
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(2, 0.7, n).astype(int), 200)
    lengths[::97] = 0
    row = np.repeat(np.arange(n), lengths)
    S = sp.csr_array((rng.integers(1, 33, row.size) / 8, (row, rng.integers(0, n + 7, row.size))), (n, n + 7))
    S.sum_duplicates()
    return S


@jax.jit
def questions(A, x, X, Y):
    """Vector and multi-vector product, transposed product, and the cotangents of values and vectors."""
    product, pullback = jax.vjp(lambda values, X: A._with_values(values) @ X, A.values, X)
    for_values, for_x = pullback(Y)
    return A @ x, product, A.T @ Y, A._with_values(for_values).data, for_x


def ask(A, S, rng, vector) -> None:
    """Against SciPy in 64 bits, within the bound of Kokkos Kernels' tests."""
    n_rows, n_cols = S.shape
    x, X, Y = (draw(rng, vector, *shape) for shape in ((n_cols,), (n_cols, 3), (n_rows, 3)))
    result = jnp.promote_types(A.dtype, vector)
    y, product, transposed, for_data, for_x = questions(A, x, X, Y.astype(result))
    x, X, Y = map(wide, (x, X, Y))
    S = sp.csr_array(S)

    def size(M, v):
        return np.diff(M.indptr).max() * abs(M.data).max() * abs(v).max()

    S_T = S.T.tocsr()
    assert_close(y, S @ x, size(S, x), result)
    assert_close(product, S @ X, size(S, X), result)
    assert_close(transposed, S_T @ Y, size(S_T, Y), result)
    assert_close(for_x, S_T @ Y, size(S_T, Y), vector)
    row, col = S.tocoo().coords
    assert_close(for_data, np.einsum("kp,kp->k", Y[row], X[col]), 3 * abs(X).max() * abs(Y).max(), A.dtype)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_faces_equal_scipy_in_every_layout(layout, dialect, rng):
    S, _ = stacked()
    ask(layout.of(S, backend=dialect), S, rng, np.float64)


GPU_LAYOUTS = [Layout("csr"), Layout("ellr"), Layout("hll", (("slice_size", 32), ("sigma", 64)))]


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize(
    "stored, vector",
    [(np.float32, np.float32), (jnp.bfloat16, np.float32), (np.float16, np.float32), (np.float32, np.float64)],
    ids=lambda d: np.dtype(d).name,
)
@pytest.mark.parametrize("layout", GPU_LAYOUTS, ids=str)
def test_all_faces_equal_scipy_in_every_dtype(layout, stored, vector, dialect, rng):
    S, _ = stacked()
    ask(layout.of(S, dtype=stored, backend=dialect), S, rng, vector)


COMPLEX = """
import sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
from tests.gpu.test_gpu_formats import irregular
from tests.oracle import assert_close, draw, wide
from tests.zoo import Layout
format, dtype = sys.argv[1:]
S = irregular(2000).astype(dtype) * np.array(1 - 0.5j, dtype)
A, rng = Layout(format).of(S), np.random.default_rng(0)
x, y = draw(rng, dtype, 2007), draw(rng, dtype, 2000)
for got, matrix, v in ((A @ x, S, x), (A.T @ y, S.T, y), (A.rmatvec(y), S.conj().T, y)):
    assert_close(got, matrix @ wide(v), abs(matrix).sum(axis=1).max() * abs(wide(v)).max(), np.dtype(dtype))
"""


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("format", ["csr", "hll"])
def test_complex_matrices_run_on_the_gpu(format, dtype):
    """In a process of its own: XLA of JAX 0.11.2 crashes while it compiles a sorted segment sum of complex64."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", COMPLEX, format, dtype]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("case", ["one_by_one", "one_entry", "wide", "tall"])
def test_small_matrices_that_leave_most_lanes_idle(case, dialect, rng):
    case = CASES[case]
    ask(SORTED.of(case.scipy(), backend=dialect), case.scipy(), rng, np.float64)


@pytest.mark.parametrize("case", ["no_rows", "no_columns", "no_entries"])
def test_matrices_without_entries(case):
    A = Layout("hll").of(CASES[case].scipy())
    rows, cols = A.shape
    np.testing.assert_array_equal(A @ np.ones(cols), np.zeros(rows))
    np.testing.assert_array_equal(A.T @ np.ones(rows), np.zeros(cols))


LARGE = [
    Layout("csr"),
    Layout("ell"),
    Layout("ellr"),
    Layout("hll", (("slice_size", 128),)),
    Layout("hll", (("slice_size", 32), ("sigma", 1024))),
    Layout("hll", (("slice_size", 96), ("sigma", 1 << 20))),
]


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("layout", LARGE, ids=str)
def test_a_large_irregular_matrix(layout, dialect, rng):
    ask(layout.of(irregular(), backend=dialect, max_bytes=2**30), irregular(), rng, np.float64)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_products_are_the_same_to_the_last_bit_in_every_run_and_layout(dialect, rng):
    x = draw(rng, jnp.float64, irregular().shape[1])
    product = jax.jit(lambda A, x: A @ x)
    results = []
    for layout in LARGE:
        A = layout.of(irregular(), backend=dialect, max_bytes=2**30)
        results += [np.asarray(product(A, x)) for _ in range(3)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_poison_in_a_vector_reaches_exactly_the_rows_that_read_it(layout, dialect):
    S, dense = stacked()
    A = layout.of(S, backend=dialect)
    pattern = np.zeros(dense.shape, int)
    pattern[S.coords] = 1
    for poison in (np.nan, np.inf):
        X, Y = np.ones((dense.shape[1], 3)), np.ones((dense.shape[0], 3))
        for vectors in (X, Y):
            vectors[np.arange(len(vectors)), np.arange(len(vectors)) % 3] = poison
        _, product, transposed, for_data, _ = questions(A, X[:, 0], X, Y)
        np.testing.assert_array_equal(~np.isfinite(product), pattern @ ~np.isfinite(X) > 0)
        np.testing.assert_array_equal(~np.isfinite(transposed), pattern.T @ ~np.isfinite(Y) > 0)
        assert not np.isfinite(for_data).any()  # one column of three is poisoned for every entry


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_padding_takes_no_gradient_even_from_poison(dialect):
    A = SORTED.of(CASES["irregular"].scipy(), backend=dialect)
    gradient = jax.grad(lambda values: jnp.sum(A._with_values(values) @ jnp.full(13, jnp.nan)))(A.values)
    padding = np.asarray(A.col_idx) == 13
    np.testing.assert_array_equal(np.isnan(gradient), ~padding)
    np.testing.assert_array_equal(np.asarray(gradient)[padding], 0)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("p", [1, 8, 11])
def test_any_number_of_columns(p, dialect, rng):
    S, dense = stacked()
    A, X = SORTED.of(S, backend=dialect), draw(rng, jnp.float64, dense.shape[1], p)
    assert_product(A @ X, dense, X)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_vmap_and_second_derivatives(dialect, rng):
    case = CASES["full_row"]
    A, (row, col) = SORTED.of(case.scipy(), backend=dialect), case.places()
    D, X = rng.standard_normal((4, A.nnz)), rng.standard_normal((4, 15))
    dense = np.zeros((4, *case.shape))
    dense[:, row, col] = D
    got = jax.jit(jax.vmap(lambda data, x: A.with_data(data) @ x))(D, X)
    np.testing.assert_allclose(got, np.einsum("brc,bc->br", dense, X), rtol=1e-12, atol=1e-12)

    def sparse_loss(data, x):
        return jnp.sum(jnp.tanh(A.with_data(data) @ x / 8))

    def dense_loss(data, x):
        return jnp.sum(jnp.tanh(jnp.zeros(case.shape).at[row, col].set(data) @ x / 8))

    got, want = (jax.jit(jax.hessian(f, (0, 1)))(A.data, X[0]) for f in (sparse_loss, dense_loss))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), got, want)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_a_batch_beyond_65535_fits_the_grid(dialect):
    """CUDA's second and third grid axes end there; the Jacobian with respect to 70,000 entries must not."""
    A = Layout("csr").of(CASES["explicit_zero"].scipy(np.float32), backend=dialect)
    D = jnp.arange(70_000, dtype=jnp.float32)[:, None] * jnp.ones(A.nnz, jnp.float32)
    got = jax.jit(jax.vmap(lambda data: A.with_data(data) @ jnp.ones(4, jnp.float32)))(D)
    lengths = CASES["explicit_zero"].pattern().sum(axis=1)
    np.testing.assert_array_equal(got, np.arange(70_000)[:, None] * lengths)


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_columns_beyond_65535_blocks_fit_the_grid(dialect):
    A = Layout("csr").of(CASES["explicit_zero"].scipy(np.float32), backend=dialect)
    p = 8 * 65536 + 1
    X = jnp.broadcast_to(jnp.arange(p, dtype=jnp.float32), (4, p))
    np.testing.assert_array_equal(A @ X, CASES["explicit_zero"].dense().sum(axis=1)[:, None] * np.arange(p))


@pytest.mark.parametrize("dialect", DIALECTS[:2])
def test_more_than_two_to_the_31_places_are_addressed(dialect):
    """One column of x a block of 2¹⁶: the product has 2³¹ + 2¹⁶ numbers. 8.6 GB."""
    n, p = 2**16, 2**15 + 1
    A = Layout("hll").of(sp.eye_array(n, format="csr", dtype=np.float32) * 3, backend=dialect)
    y = jax.jit(lambda A: A @ jnp.ones((n, p), jnp.float32))(A)
    assert y.size > 2**31
    assert float(jnp.min(y)) == float(jnp.max(y)) == 3


def test_shard_map_on_one_gpu(rng):
    S, dense = stacked()
    A, X = SORTED.of(S), draw(rng, jnp.float64, dense.shape[1], 4)
    mesh = Mesh(np.array(jax.devices("cuda")[:1]), ("rows",))
    product = jax.shard_map(lambda A, X: A @ X, mesh=mesh, in_specs=(P(), P(None, "rows")), out_specs=P(None, "rows"))
    assert_product(jax.jit(product)(A, X), dense, X)


def test_auto_runs_a_kernel():
    A = Layout("hll").of(CASES["irregular"].scipy())
    text = jax.jit(lambda A, x: A @ x).lower(A, np.ones(13)).as_text()
    assert "xla.gpu.triton" in text or "mosaic_gpu" in text


def test_use_backend_switches_between_kernels_of_one_matrix(rng):
    A, x = Layout("hll").of(irregular()), draw(rng, jnp.float64, irregular().shape[1])
    product, results, texts = jax.jit(lambda A, x: A @ x), [], []
    for name in ("triton", "mosaic", "xla"):
        with jsf.use_backend(name):
            results.append(product(A, x))
            texts.append(product.lower(A, x).as_text())
    for result in results:
        S = irregular()
        assert_close(result, S @ np.asarray(x), np.diff(S.indptr).max() * abs(S.data).max() * np.abs(x).max())
    assert len(set(texts)) == 3
