"""The kernels on a real GPU, by both dialects, as test_every_format.py asks them: sizes, bits, and every layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import conversions
from jaxsparse_fmt.formats import csr5_tiles
from tests.oracle import assert_close, assert_product, assert_same_storage, draw, wide
from tests.zoo import ALL, CASES, FIRST_LAYOUTS, LAYOUTS, SORTED, Layout

pytestmark = pytest.mark.gpu

every_dialect = pytest.mark.parametrize("dialect", ["triton", "mosaic"])


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
def product(A, x):
    return A @ x


def always(f, *args, times: int = 3) -> np.ndarray:
    """f(*args), the same to the last bit in every run."""
    first, *others = (np.asarray(f(*args)) for _ in range(times))
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first


def longest_sum(S, x) -> float:
    """max_nnz_row·max|a|·max|x|, as in the bound of Kokkos Kernels' tests."""
    return np.diff(S.indptr).max() * abs(S.data).max() * abs(wide(x)).max()


FEW = [layout for layout in FIRST_LAYOUTS if layout.format in ("csr", "csr5", "hll", "sell", "hdia", "biell")]
# Layout, dtypes of the values and of the vector, columns, and whether the transposed product is asked, by a transpose
# that the matrix carries.
KINDS = [
    *((layout, "float32", "float32", (), False) for layout in LAYOUTS),
    *((layout, "float32", "float32", (), True) for layout in FIRST_LAYOUTS),
    *((layout, *dtypes, (), False) for layout in FEW for dtypes in (("bfloat16", "float32"), ("float32", "float64"))),
    *(
        (layout, dtype, dtype, (p,), False)
        for layout in (SORTED, *map(Layout, ("bsr", "biell", "csr")))
        for dtype in ("float32", "float64")
        for p in (1, 8, 11, 12)
    ),
]


@every_dialect
@pytest.mark.parametrize(("layout", "stored", "vector", "columns", "transpose"), KINDS, ids=str)
def test_products_are_right_and_the_same_in_every_run(layout, stored, vector, columns, transpose, dialect, rng):
    A, dense = layout.of(ALL.scipy(), dtype=stored, backend=dialect, transpose=transpose), ALL.dense()
    A, dense = (A.T, dense.T) if transpose else (A, dense)
    x = draw(rng, vector, dense.shape[1], *columns)
    scatters = layout.format == "csc" and not transpose
    assert_product(always(product, A, x, times=1 if scatters else 3), dense, x, vector)


ONE_LANE = [
    *(Layout("csr", (("threads_per_row", 1),)), *map(Layout, ("ell", "ellr", "jds", "pjds", "pellr", "sell"))),
    *(Layout("hll", (("slice_size", 128),)), Layout("hll", (("slice_size", 96), ("sigma", 1 << 20)))),
]


def csr5(tile_shape: tuple[int, int], **options: int) -> Layout:
    return Layout("csr5", (("tile_shape", tile_shape), *options.items()))


TILES = [csr5((128, 8)), csr5((512, 32)), csr5((512, 32), keep_sums=True)]
# Several lanes a row, or two parts of one.
SHARED = [
    *(*map(Layout, ("coo", "csr", "biell", "bijad", "hyb")), *TILES, csr5((512, 32), hot=1000)),
    *(Layout("ellr", (("threads_per_row", 4),)), Layout("ellrt", (("threads_per_row", 8),))),
    Layout("bsr", (("block_shape", (2, 2)),)),
]


@every_dialect
def test_products_are_the_same_to_the_last_bit_in_every_run_and_layout_with_one_lane_a_row(dialect, rng):
    S = irregular()
    x = draw(rng, jnp.float64, S.shape[1])
    first, *others = (always(product, layout.of(S, backend=dialect, max_bytes=2**30), x) for layout in ONE_LANE)
    assert_close(first, S @ np.asarray(x), longest_sum(S, x))
    for other in others:
        np.testing.assert_array_equal(first, other)


@every_dialect
@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_large_products_are_right_and_the_same_to_the_last_bit_in_every_run(layout, dialect, rng):
    """With one row of 60,000 entries, that is of several pieces, where a format cuts."""
    S = irregular()
    if layout.format in ("hyb", "csr", "csr5", "coo"):
        full = sp.csr_array((np.ones(60_000), (np.full(60_000, 7), np.arange(60_000))), S.shape)
        S = sp.csr_array(S + full)
    A, x = layout.of(S, backend=dialect, max_bytes=2**30), draw(rng, jnp.float64, S.shape[1])
    assert_close(always(product, A, x, times=4), S @ np.asarray(x), longest_sum(S, x))


@every_dialect
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"slice_size": 32, "sigma": 1024}], ids=str)
@pytest.mark.parametrize("name", ["poisson", "elasticity"])
def test_sell_with_16_bit_columns_is_hll_to_the_last_bit(name, options, dtype, dialect, rng):
    S = jsf.gallery.poisson(40) if name == "poisson" else jsf.gallery.elasticity(10)
    S.data[:] = rng.standard_normal(S.nnz)
    sell = jsf.from_scipy(S, "sell", dtype, backend=dialect, **options)
    hll = jsf.from_scipy(S, "hll", dtype, backend=dialect, **{"slice_size": 128} | options)
    assert sell.delta is not None and sell.col_idx is None
    for x in (draw(rng, dtype, S.shape[1]), draw(rng, dtype, S.shape[1], 3)):
        np.testing.assert_array_equal(product(sell, x), product(hll, x))


@every_dialect
def test_slices_multiply_right_with_columns_nearer_and_further_apart_than_16_bits(dialect, rng):
    wide = irregular()  # columns anywhere in 100,007
    near = sp.diags_array([1.0, -0.5, 2.0], offsets=[0, 1, 900], shape=wide.shape).tocsr()
    for S in (near, wide):
        A, x = Layout("sell", (("slice_size", 32),)).of(S, backend=dialect), draw(rng, jnp.float64, S.shape[1])
        assert (A.delta is None) == (S is wide)
        assert_close(product(A, x), S @ np.asarray(x), longest_sum(S, x))


@every_dialect
@pytest.mark.parametrize("format", ["csc", "dia"])
def test_a_transposed_product_by_a_kernel_is_the_same_to_the_last_bit_in_every_run(format, dialect, rng):
    S = irregular() if format == "csc" else jsf.gallery.convection_diffusion(30)
    A, y = Layout(format).of(S, backend=dialect), draw(rng, jnp.float64, S.shape[0])
    transposed = jax.jit(lambda A, y: A.T @ y)
    assert_close(always(transposed, A, y), S.T @ np.asarray(y), longest_sum(S.T.tocsr(), y))


@every_dialect
@pytest.mark.parametrize("format", ["auto", "tune"])
@pytest.mark.parametrize("make", [irregular, lambda: jsf.gallery.poisson(40)], ids=["irregular", "stencil"])
def test_what_is_chosen_here_multiplies_right(make, format, dialect, rng):
    S = make()
    A, x = jsf.from_scipy(S, format, backend=dialect), rng.standard_normal(S.shape[1])
    np.testing.assert_allclose(product(A, x), S @ x, rtol=1e-12, atol=1e-12 * abs(S).max() * np.abs(x).max() * 200)


MATRICES = lambda: irregular(1000), lambda: jsf.gallery.poisson(40), lambda: jsf.gallery.elasticity(12)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("make", MATRICES, ids=["irregular", "stencil", "blocks"])
@pytest.mark.parametrize("rented", [0, conversions.RENTED])
def test_a_conversion_on_the_gpu_is_the_hosts(layout, make, rented, monkeypatch):
    monkeypatch.setattr(conversions, "RENTED", rented)
    S = make()
    assert_same_storage(jsf.from_scipy(S, "csr").asformat(layout.format, **dict(layout.options)), layout.of(S))


MORE_TILES = [csr5((1024, 8)), csr5((128, 8), keep_sums=True)]  # the last cut, and kept
N_ROWS, N_COLS = 5000, 1_000_000
SLOTS = np.arange(150)  # of numbers that rows read, and the columns that these have
NEAR, MESHED, FAR = SLOTS, SLOTS // 8 * 3000 + SLOTS % 8, 1000 + 6000 * SLOTS


@functools.cache
def near_and_far() -> dict[str, sp.csr_array]:
    """The same rows, many of them cut in small tiles and some empty, with columns near, in windows, or far apart."""
    rng = np.random.default_rng(4)
    lengths = rng.integers(0, 40, N_ROWS)
    lengths[[7, 2500]], lengths[::97] = (150, 149), 0
    slots = np.concatenate([np.sort(rng.choice(SLOTS, n, replace=False)) for n in lengths])
    early = np.repeat(np.arange(N_ROWS) < 2000, lengths)
    columns = {"narrow": NEAR[slots], "meshed": MESHED[slots], "wide": np.where(early, NEAR[slots], FAR[slots])}
    data, ends = rng.standard_normal(slots.size), np.append(0, np.cumsum(lengths))
    return {kind: sp.csr_array((data, col, ends), (N_ROWS, N_COLS)) for kind, col in columns.items()}


@every_dialect
@pytest.mark.parametrize("p", [1, 5, 12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", [*TILES, *MORE_TILES], ids=str)
def test_narrow_and_wide_columns_give_the_same_bits_in_every_run(layout, dtype, p, dialect, rng, monkeypatch):
    """Sums pass from lane to lane; so few places are spare that long rows are cut."""
    monkeypatch.setattr(csr5_tiles, "SPARE", 160)
    x, results = np.zeros((N_COLS, p)), []
    x[NEAR] = x[MESHED] = x[FAR] = rng.standard_normal((SLOTS.size, p))
    x = jnp.asarray(x, dtype)
    for kind, S in near_and_far().items():
        A = layout.of(S, dtype=dtype, backend=dialect)
        stored = {name for name in ("col_base", "windows", "marked_col") if getattr(A, name) is not None}
        assert stored == {{"narrow": "col_base", "meshed": "windows", "wide": "marked_col"}[kind]}
        assert (A.long_rows is not None) == (dict(layout.options)["tile_shape"] == (128, 8))
        results += [np.asarray(product(A, x)) for _ in range(3)]
        assert_close(results[-1], S @ wide(x), longest_sum(S, x), dtype)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


# ------------------------------------------------------------------------ beyond the limits of a grid and of 31 bits


@every_dialect
def test_a_batch_beyond_65535_and_columns_beyond_as_many_blocks_fit_the_grid(dialect):
    """CUDA's second and third grid axes end there; the Jacobian with respect to 70,000 entries must not."""
    case, p = CASES["explicit_zero"], 8 * 65536 + 1
    A = Layout("csr").of(case.scipy(np.float32), backend=dialect)
    D = jnp.arange(70_000, dtype=jnp.float32)[:, None] * jnp.ones(A.nnz, jnp.float32)
    got = jax.jit(jax.vmap(lambda data: A.with_data(data) @ jnp.ones(4, jnp.float32)))(D)
    np.testing.assert_array_equal(got, np.arange(70_000)[:, None] * case.pattern().sum(axis=1))
    X = jnp.broadcast_to(jnp.arange(p, dtype=jnp.float32), (4, p))
    np.testing.assert_array_equal(A @ X, case.dense().sum(axis=1)[:, None] * np.arange(p))


@every_dialect
def test_more_than_two_to_the_31_places_are_addressed(dialect):
    """One column of x a block of 2¹⁶: the product has 2³¹ + 2¹⁶ numbers. 8.6 GB."""
    n, p = 2**16, 2**15 + 1
    A = Layout("hll").of(sp.eye_array(n, format="csr", dtype=np.float32) * 3, backend=dialect)
    y = jax.jit(lambda A: A @ jnp.ones((n, p), jnp.float32))(A)
    assert y.size > 2**31
    assert float(jnp.min(y)) == float(jnp.max(y)) == 3
