"""The kernels of the formats that store rows by rule: interpreted against their references, and lowered for CUDA."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery
from jaxsparse_fmt.core import vector_passes
from jaxsparse_fmt.kernels import spmv
from jaxsparse_fmt.kernels.backends import tuning
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Explicit, Rule
from tests.lowering import SIGNATURES, lowered, quick_jit
from tests.marks import few
from tests.oracle import assert_close, draw, magnitude, wide
from tests.zoo import CASES, FIRST_LAYOUTS, LAYOUTS, SORTED, Layout

# Layouts that differ in their kernels: one of every format, and what else the rules distinguish.
KERNELS = FIRST_LAYOUTS + [
    layout
    for layout in LAYOUTS
    if str(layout) in ("csr-threads_per_row1", "csr-threads_per_row4", "ellr-threads_per_row2", "sell-slice_size4")
]
every_kernel = pytest.mark.parametrize("layout", KERNELS, ids=str)
TALL = CASES["tall"]  # two tiles of rows


@functools.partial(quick_jit, static_argnames="backend")
def product(A, values, x, backend="interpret"):
    """As a format hands it to its kernels: values [b, n_stored], x [b, n_cols, p]."""
    return A._without_values._product_face(values, x, backend)


@functools.partial(quick_jit, static_argnames="backend")
def outer(A, y, x, backend="interpret"):
    return A._without_values._outer_face(y, x, backend)


@quick_jit
def places(A):
    return A.entries()[:3]


def check_kernels(case, layout, rng, batch: int, p: int, stored: str = "float64", vector: str = "float64") -> None:
    """Interpreted, against dense arithmetic; the interpreter's outputs start as NaN, so a place left out shows."""
    A, a = layout.of(case.scipy(stored), dtype=stored), case.dense(stored)
    values = np.asarray(A.values) * np.arange(1, batch + 1, dtype=A.values.real.dtype)[:, None]
    x, y = draw(rng, vector, batch, case.shape[1], p), draw(rng, vector, batch, case.shape[0], p)
    want = np.arange(1, batch + 1)[:, None, None] * np.einsum("rc,bcp->brp", a, x)
    assert_close(product(A, values, x), want, batch * magnitude(a, np.asarray(x)), jnp.promote_types(stored, vector))
    row, col, entry = (np.asarray(c) for c in places(A))
    live = entry < A.nnz
    want = np.zeros((batch, A.n_stored), y.dtype)
    want[:, live] = np.einsum("bkp,bkp->bk", np.asarray(y)[:, row[live]], np.asarray(x)[:, col[live]])
    got = np.asarray(outer(A, y, x))
    assert_close(got, want, p * np.abs(x).max() * np.abs(y).max(), vector)
    np.testing.assert_array_equal(got[:, ~live], 0)


@every_kernel
def test_interpreted_kernels_read_exactly_what_is_stored(layout):
    """Not padding, not dead lanes, not past the last row: poison reaches the rows that hold its column alone."""
    A, stored = layout.of(TALL.scipy()), TALL.pattern()
    x, y = np.ones((1, 3, 2)), np.ones((1, 150, 2))
    x[0, 1, 0], x[0, 2, 1] = np.nan, np.inf
    poisoned = stored @ ~np.isfinite(x[0])
    np.testing.assert_array_equal(~np.isfinite(product(A, A.values[None], x)[0]), poisoned)
    y[0, ~stored.any(axis=1)] = np.nan  # rows without entries
    x[:] = 1
    live = np.asarray(places(A)[2]) < A.nnz
    np.testing.assert_array_equal(outer(A, y, x)[0], 2 * live)


@pytest.mark.parametrize(
    "case, layout, batch, p",
    [
        *(("tall", layout, 1, 2) for layout in KERNELS),
        ("irregular", Layout("csr"), 2, 11),
        ("irregular", Layout("biell"), 2, 1),
        ("irregular", Layout("bsr", (("block_shape", (2, 3)),)), 3, 1),
        ("irregular", Layout("jds"), 2, 1),
        ("irregular", Layout("hdia", (("slice_size", 5), ("sigma", 10))), 2, 9),
        ("long_rows", Layout("hyb", (("width", 1),)), 2, 1),
        ("tall", Layout("pjds", (("block_size", 200),)), 1, 1),  # whole tiles of padding
        ("irregular", Layout("csr", (("threads_per_row", 4),)), 2, 10),  # runs of two, and some past the last
        ("tall", SORTED, 1, 12),  # the same where neighbouring lanes share them
        ("tall", SORTED, 3, 17),  # several tiles of rows, blocks of columns and batch entries at once
    ],
    ids=str,
)
def test_interpreted_kernels_equal_dense_arithmetic(case, layout, batch, p, rng):
    check_kernels(CASES[case], layout, rng, batch, p)


COMPLEX = [
    ("complex128", "complex128"),
    ("complex64", "complex64"),
    ("float64", "complex128"),
    ("complex64", "float32"),
]


@pytest.mark.parametrize("layout, numbers", few([(a, COMPLEX[i % 4]) for i, a in enumerate(KERNELS)], 3), ids=str)
def test_interpreted_kernels_of_complex_numbers_equal_dense_arithmetic(layout, numbers, rng):
    check_kernels(CASES["irregular"], layout, rng, 2, 3, *numbers)


@pytest.mark.parametrize("slice_size", few([32, 128, 200, 256], 2))
def test_slices_multiply_right_whether_they_fill_a_block_or_a_part(slice_size, rng):
    """Slice sizes on both sides of the choice between one slice a block and lanes that look up their own slice."""
    lengths = rng.integers(0, 7, 300)
    row = np.repeat(np.arange(300), lengths)
    S = sp.coo_array((rng.standard_normal(row.size), (row, rng.integers(0, 50, row.size))), (300, 50))
    x, a = rng.standard_normal((1, 50, 2)), S.toarray()
    for name in ("hll", "sell", "hdia"):
        A = Layout(name, (("slice_size", slice_size),)).of(S)
        assert_close(product(A, A.values[None], x), np.einsum("rc,bcp->brp", a, x), magnitude(a, x))


@pytest.mark.parametrize("batch, p", [(1, 1), (2, 3)])
def test_the_transposed_product_of_csc_is_a_kernel(batch, p, rng):
    A, a = Layout("csc").of(TALL.scipy()), TALL.dense()
    y = draw(rng, jnp.float64, batch, 150, p)
    values = A.values * jnp.arange(1.0, batch + 1)[:, None]
    got = jax.jit(lambda A, v, y: A._without_values._transposed_face(v, y, "interpret"))(A, values, y)
    want = np.arange(1, batch + 1)[:, None, None] * np.einsum("rc,brp->bcp", a, y)
    assert_close(got, want, batch * magnitude(a.T, np.asarray(y)))


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(
    "p, dtype, threads",
    [
        (1, "float64", 1),
        (3, "float64", 8),
        (8, "float64", 1),
        (1, "bfloat16", 8),
        (8, "float32", 8),
        (3, "complex64", 1),
    ],
)
def test_products_are_added_to_their_rows_and_to_no_others(p, dtype, threads, backend, rng):
    rows, n = np.array([0, 7, 8, 30, 31]), 30  # the last two lie beyond y
    S = sp.csr_array(rng.random((rows.size, 40)) < 0.5).astype(np.float64)
    y, x = draw(rng, dtype, 2, n, p), draw(rng, dtype, 2, 40, p)
    arrays = {"slice_ptr": jnp.asarray(S.indptr), "col_idx": jnp.asarray(S.indices)}
    rule = Rule(S.shape, S.nnz, Slices(rows.size, 1, threads), Explicit())
    got = quick_jit(functools.partial(spmv.added, rule=rule, backend=backend))(y, jnp.asarray(rows), x, arrays)
    want = wide(y).copy()
    for b in range(2):
        want[b, rows[:3]] += (S @ wide(x[b]))[:3]
    assert_close(got, want, 3 * magnitude(S.toarray(), wide(x)) + np.abs(want).max(), dtype)


# ---------------------------------------------------------------------------------------------------- the reference


@pytest.mark.deep
def test_one_long_row_does_not_set_the_pace_of_all():
    """60,000 rows, one of them full: column by column that would be 3.6·10⁹ places, more than int32 counts."""
    n = 60_000
    row = np.concatenate([np.arange(n), np.zeros(n, int)])
    S = sp.csr_array((np.ones(2 * n), (row, np.concatenate([np.arange(n), np.arange(n)]))), (n, n))
    A, x = Layout("csr").of(S, backend="xla"), jnp.ones(n)
    np.testing.assert_array_equal(A @ x, S @ np.ones(n))


# ----------------------------------------------------------------------------------------- lowered for CUDA on the CPU


def kernels_in(text: str, dialect: str) -> int:
    """How many kernels of `dialect` a program calls; none of another."""
    assert not any(name in text for name in SIGNATURES.values() if name != SIGNATURES[dialect])
    return text.count(f"custom_call @{'__gpu$' if dialect == 'triton' else ''}{SIGNATURES[dialect]}")


@functools.cache
def tall(layout, dtype):
    return layout.of(TALL.scipy(), dtype=dtype)


# Of the product, the transposed product and the sampled outer product: other formats have the first and the last.
FACES_WITH_KERNELS = {**{"coo": (1, 0, 0), "csr5": (1, 0, 0), "csc": (0, 1, 0), "hyb": (2, 0, 0)}, "dia": (1, 1, 1)}


# Every format in both dialects with each of these numbers; in the quick tier with one.
NUMBERS = [
    *((jnp.float32, 1), (jnp.float64, 3), (jnp.bfloat16, 2), (jnp.float64, 12)),
    *((jnp.complex128, 1), (jnp.complex64, 4)),
]
LOWERED = [
    (layout, dialect, *NUMBERS[(i + j + k) % len(NUMBERS)])
    for k in range(len(NUMBERS))
    for i, layout in enumerate(FIRST_LAYOUTS)
    for j, dialect in enumerate(SIGNATURES)
]


@pytest.mark.parametrize(
    "layout, dialect, dtype, p",
    [
        pytest.param(*row, marks=pytest.mark.deep if i >= len(LOWERED) // len(NUMBERS) else ())
        for i, row in enumerate(LOWERED)
    ],
    ids=str,
)
def test_every_kernel_lowers_for_cuda(layout, dialect, dtype, p):
    A = tall(layout, dtype)
    x, y = (jnp.ones((1, n, p), jnp.promote_types(dtype, jnp.float32)) for n in (3, 150))
    faces = (
        lambda A: A._without_values._product_face(A.values[None], x, dialect),
        lambda A: A._without_values._transposed_face(A.values[None], y, dialect),
        lambda A: A._without_values._outer_face(y, x, dialect),
    )
    n_kernels = FACES_WITH_KERNELS.get(layout.format, (1, 0, 1))
    asked = [face for face, n in zip(faces, n_kernels, strict=True) if p == 1 or n]
    assert kernels_in(lowered(lambda A: [face(A) for face in asked], A), dialect) == sum(n_kernels)


LARGE = dataclasses.replace(tuning.LAUNCH, least_blocks=0)


@quick_jit
def faces(A, x, y):
    gradient = jax.grad(lambda data: jnp.vdot(y, A.with_data(data) @ x))(A.data)
    product, dot = A.matvec_dot(x, y)
    return A @ x, A.T @ y, product, vector_passes.total(dot), gradient


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_blocks_of_many_rows_of_diagonals_forget_none(dtype, monkeypatch):
    """In CI no matrix has the rows that such blocks begin at."""
    monkeypatch.setattr(tuning, "LAUNCH", LARGE)
    S = (gallery.poisson((701,)) + sp.diags_array([np.arange(660.0)], offsets=[41], shape=(701, 701))).tocsr()
    A = jsf.from_scipy(S, "dia", dtype=dtype, backend="interpret")
    x, y = (np.random.default_rng(k).standard_normal(701).astype(dtype) for k in (0, 1))
    assert tuning.block("triton", "whole diagonals", 701).rows == 512
    wanted, dense = S @ x.astype(float), S.toarray()
    near = {"rtol": 0, "atol": 1e-12 if dtype == "float64" else 2e-3}
    products, transposed, again, dot, gradient = faces(A, x, y)
    np.testing.assert_allclose(products, wanted, **near)
    np.testing.assert_allclose(again, wanted, **near)
    np.testing.assert_allclose(transposed, dense.T @ y.astype(float), **near)
    np.testing.assert_allclose(dot, y @ wanted, rtol=1e-12 if dtype == "float64" else 1e-4)
    row, col = S.sorted_indices().nonzero()
    np.testing.assert_allclose(gradient, y[row] * x[col], rtol=1e-5)


@pytest.mark.parametrize("dialect", SIGNATURES)
def test_a_row_of_several_pieces_takes_one_more_kernel(dialect):
    A = Layout("csr5", (("tile_shape", (128, 8)),)).of(CASES["long_rows"].scipy(), backend=dialect)
    text = lowered(lambda A, x: A @ x, A, np.ones(A.shape[1]))
    assert kernels_in(text, dialect) == 2
    assert "output_operand_alias<" in text and "stablehlo.scatter" not in text  # it adds to y where that lies


@pytest.mark.parametrize("dialect", SIGNATURES)
@pytest.mark.parametrize("stored, vector", COMPLEX[::2], ids=str)
def test_kernels_read_and_write_the_memory_of_complex_arrays(stored, vector, dialect):
    A = SORTED.of(TALL.scipy(stored), backend=dialect)
    text = lowered(lambda A, x: A @ x, A, np.ones(3, vector))
    assert kernels_in(text, dialect) == 1
    assert not any(f"stablehlo.{of}" in text for of in ("real", "imag", "complex", "concatenate"))
