"""Every format, in every layout, asked the same questions; dense arithmetic answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import jaxsparse_fmt as jsf
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_close, assert_product, assert_same_storage, draw, faces, magnitude, wide
from tests.zoo import ALL, CASES, FIRST_LAYOUTS, LAYOUTS, PAIRS, SORTED, Layout

# Compilation takes nearly all the time here, so functions are compiled at module level and shared between tests, and
# the tests of one pair follow one another.
every_layout = pytest.mark.parametrize("layout", few(LAYOUTS, 3), ids=str)
every_format = pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 3), ids=str)

IRREGULAR = CASES["irregular"]


DIALECTS = [pytest.param(dialect, marks=pytest.mark.gpu) for dialect in ("triton", "mosaic")]
BY_DIALECT = [pytest.param((ALL, one, *d.values), marks=d.marks) for one in LAYOUTS for d in DIALECTS]


@pytest.fixture(scope="module", params=[*PAIRS, *BY_DIALECT], ids=lambda pair: "-".join(map(str, pair)))
def pair(request):
    """A case, its layout, and the matrix."""
    case, layout, *backend = request.param
    return case, layout, layout.of(case.scipy(), backend=backend[0] if backend else "auto")


# --------------------------------------------------------------------------------------------------------- products


def test_the_three_faces_equal_dense_arithmetic(pair, rng):
    case, _, A = pair
    dense, (row, col) = case.dense(), case.places()
    X = rng.standard_normal((case.shape[1], 6))
    Y = rng.standard_normal((case.shape[0], 6))
    product, transposed, sampled = faces(A, X, Y)
    assert_product(product, dense, X, np.float64)
    assert_product(transposed, dense.T, Y, np.float64)
    assert_close(sampled, (Y @ X.T)[row, col], 6 * np.abs(X).max(initial=0) * np.abs(Y).max(initial=0))


def test_poison_in_a_vector_reaches_exactly_the_places_that_read_it(pair):
    """Six columns of each vector, each poisoned in every sixth place; the rest are ones."""
    case, _, A = pair
    reads = case.pattern().astype(int)
    for poison in (np.nan, np.inf):
        X, Y = np.ones((case.shape[1], 6)), np.ones((case.shape[0], 6))
        for vectors in (X, Y):
            vectors[np.arange(len(vectors)), np.arange(len(vectors)) % 6] = poison
        product, transposed, _ = faces(A, X, Y)
        np.testing.assert_array_equal(~np.isfinite(product), reads @ ~np.isfinite(X) > 0)
        np.testing.assert_array_equal(~np.isfinite(transposed), reads.T @ ~np.isfinite(Y) > 0)


DTYPES = [
    (np.float32, np.float32),
    (np.float64, np.float64),
    (np.complex64, np.complex64),
    (np.complex128, np.complex128),
    (jnp.bfloat16, np.float32),
    (np.float16, np.float32),
    (np.float32, np.float64),
    (np.float64, np.complex128),
    (np.complex64, np.float64),
    (jnp.bfloat16, jnp.bfloat16),
]


@quick_jit
def products(A, x, X, y, Y):
    return {
        "A@x": A @ x,
        "A@X": A @ X,
        "A.T@y": A.T @ y,
        "A.T@Y": A.T @ Y,
        "x@A": y @ A,
        "X@A": (Y.T @ A).T,
        "x@A.T": x @ A.T,
        "rmatvec": A.rmatvec(y),
        "A.H@Y": A.H @ Y,
        "A.T.rmatvec": A.T.rmatvec(x),
    }


# All kinds are made of the three faces, so the quick tier asks for each dtype in one format of two. The deep one asks
# each format for single and for complex numbers.
KINDS = dict.fromkeys(
    [(SORTED if i % 2 else Layout("csr"), *pair) for i, pair in enumerate(DTYPES)]
    + [(layout, *pair) for layout, pair in zip(FIRST_LAYOUTS, DTYPES, strict=False)]
    + [(layout, *DTYPES[i]) for k, layout in enumerate(FIRST_LAYOUTS) for i in (0, 2 + k % 2)]
    + [(layout, *pair) for layout in (Layout("csr"), SORTED) for pair in DTYPES]
)


@pytest.mark.parametrize(
    "layout, stored, vector",
    [pytest.param(*row, marks=pytest.mark.deep if i >= len(DTYPES) else ()) for i, row in enumerate(KINDS)],
    ids=lambda v: str(v) if isinstance(v, Layout) else np.dtype(v).name,
)
@pytest.mark.parametrize("backend", ["auto", *DIALECTS])
def test_products_of_every_kind_in_every_dtype(layout, stored, vector, backend, rng):
    kind = np.complex64 if np.dtype(stored).kind == "c" else np.float32
    A, a = layout.of(IRREGULAR.scipy(kind), dtype=stored, backend=backend), IRREGULAR.dense(stored)
    assert A.dtype == stored
    x, X, y, Y = (draw(rng, vector, *shape) for shape in ((13,), (13, 3), (17,), (17, 3)))
    got = products(A, x, X, y, Y)
    x, X, y, Y = map(wide, (x, X, y, Y))
    dtype = jnp.promote_types(stored, vector)
    for name, dense, v in (
        ("A@x", a, x),
        ("A@X", a, X),
        ("A.T@y", a.T, y),
        ("A.T@Y", a.T, Y),
        ("x@A", a.T, y),
        ("X@A", a.T, Y),
        ("x@A.T", a, x),
        ("rmatvec", a.conj().T, y),
        ("A.H@Y", a.conj().T, Y),
        ("A.T.rmatvec", a.conj(), x),
    ):
        assert_product(got[name], dense, v, dtype)


@every_format
def test_spmv_scales_adds_and_never_reads_y_when_beta_is_zero(layout, rng):
    a, x, y = IRREGULAR.dense(), rng.standard_normal(13), rng.standard_normal(17)
    A = layout.of(IRREGULAR.scipy())
    assert_close(jsf.spmv(A, x, y, alpha=2, beta=-0.5), 2 * (a @ x) - 0.5 * y, 2 * magnitude(a, x) + np.abs(y).max())
    assert_product(jsf.spmv(A, x, np.full(17, np.nan), beta=0.0), a, x)
    assert_product(jsf.spmv(A, x), a, x)


def test_a_traced_beta_of_zero_keeps_nans_out_and_has_its_derivative(rng):
    a, x, y = IRREGULAR.dense(), rng.standard_normal(13), rng.standard_normal(17)
    A = jsf.from_scipy(IRREGULAR.scipy())
    with_beta = jax.jit(lambda y, beta: jsf.spmv(A, x, y, 1.0, beta))
    assert_product(with_beta(np.full(17, np.nan), 0.0), a, x)
    np.testing.assert_array_equal(np.isnan(with_beta(np.full(17, np.nan), 1.0)), True)
    np.testing.assert_allclose(jax.jacfwd(with_beta, 1)(y, 0.0), y)


@every_format
def test_narrow_values_accumulate_wide(layout):
    """Summed in bfloat16, 1 + 1/256 + 1/256 + … would stay 1."""
    a = np.concatenate([[[1.0]], np.full((1, 2048), 1 / 256)], axis=1)
    A = layout.of(scipy.sparse.csr_array(a), dtype=jnp.bfloat16)
    y = A @ np.ones(2049, jnp.bfloat16)
    assert y.dtype == jnp.bfloat16
    assert float(y[0]) == 9.0


# ---------------------------------------------------------------------------------------------------------- storage


@quick_jit
def views(A):
    return A.data, A.with_data(2 * A.data).data, A.diagonal(), A.todense(), A.T.todense()


STORED = few([(IRREGULAR, layout) for layout in LAYOUTS], 3)
for _name in ("no_rows", "no_columns", "no_entries", "explicit_zero"):
    STORED += few([(CASES[_name], layout) for layout in FIRST_LAYOUTS], 1)
every_stored = pytest.mark.parametrize("case, layout", STORED, ids=str)


@every_stored
def test_storage_gives_back_what_was_put_in(case, layout):
    A, dense, places = layout.of(case.scipy()), case.dense(), case.places()
    data, doubled, diagonal, todense, transposed = (np.asarray(a) for a in views(A))
    np.testing.assert_array_equal(data, dense[places])
    np.testing.assert_array_equal(doubled, 2 * dense[places])
    np.testing.assert_array_equal(diagonal, np.diagonal(dense))
    np.testing.assert_array_equal(todense, dense)
    np.testing.assert_array_equal(transposed, dense.T)
    assert (A.shape, A.nnz, A.ndim) == (case.shape, len(places[0]), 2)
    assert A.T.shape == case.shape[::-1]
    assert A.fill == (A.nnz / A.n_stored if A.n_stored else 1.0)
    S = A.to_scipy()
    S.check_format(full_check=True)
    assert S.format == "csr" and S.shape == case.shape and S.has_canonical_format
    for got, want in zip((*S.tocoo().coords, S.data), (*places, dense[places]), strict=True):  # zeros too
        np.testing.assert_array_equal(got, want)


@every_layout
def test_repr_is_one_short_line(layout):
    A = layout.of(IRREGULAR.scipy())
    for text in (repr(A), repr(A.T)):
        assert "\n" not in text and len(text) < 120
        assert all(word in text for word in (layout.format, "17×13", f"nnz={A.nnz}", "float64"))


@every_layout
def test_layout_rebuilds_the_same_storage(layout):
    A = layout.of(IRREGULAR.scipy())
    B = jsf.from_scipy(IRREGULAR.scipy(), A.name, **A.layout)
    assert_same_storage(B, A)


@every_format
@pytest.mark.parametrize("dtype", few([jnp.bfloat16, np.float32, np.complex128], 1))
def test_astype_changes_values_and_nothing_else(layout, dtype):
    A = layout.of(IRREGULAR.scipy())
    B = A.astype(dtype)
    assert B.dtype == dtype and A.dtype == np.float64
    assert B.n_stored == A.n_stored and B.nnz == A.nnz
    S = B.to_scipy()
    assert S.dtype == {2: np.float32}.get(np.dtype(dtype).itemsize, dtype)
    np.testing.assert_array_equal(S.toarray(), IRREGULAR.dense())
