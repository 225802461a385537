"""Into the formats: what is kept, what is refused, and with which words."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from jaxsparse_fmt._aligned import aligned
from jaxsparse_fmt.choose import tune
from solvers import cg, precond
from tests.marks import deep
from tests.oracle import assert_refused
from tests.process import printed
from tests.zoo import CASES, FIRST_LAYOUTS, LAYOUTS

S = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
A = jsf.from_scipy(S, "csr")


def int32(*numbers):
    return np.array(numbers, np.int32)


def test_every_scipy_format_is_taken():
    for kind, flavour in itertools.product(("csr", "csc", "coo", "bsr", "dia", "dok", "lil"), ("array", "matrix")):
        made = getattr(sp, f"{kind}_{flavour}")(S)
        np.testing.assert_array_equal(jsf.from_scipy(made, "csr").to_scipy().toarray(), S.toarray())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "float64", "complex64", "complex128"])
def test_numbers_keep_their_dtype_and_integers_become_floats(dtype):
    B = jsf.from_scipy(S.astype(dtype), "ell")
    assert B.dtype == (dtype if np.dtype(dtype).kind in "fc" else "float64")
    np.testing.assert_array_equal(B.to_scipy().toarray(), S.astype(dtype).toarray())


def test_numbers_of_the_other_byte_order_are_taken():
    values, place = np.array([2.0, 4.0], ">f4"), np.arange(2).astype(">i4")
    A = jsf.from_coo(place, place, values, (2, 2), "csr")
    np.testing.assert_array_equal(jsf.from_dense(np.diag(values)).todense(), A.todense())
    np.testing.assert_array_equal(A.with_data(values) @ values, values**2)
    np.testing.assert_allclose(cg(A, values).x, [1, 1], rtol=1e-6)


@pytest.mark.parametrize("dtype", [">f4", ">i4", np.longdouble], ids=str)
def test_does_each_format_take_numbers_of_another_byte_order_or_width_from_scipy(dtype):
    T = sp.diags_array([np.arange(1.0, 10000)], offsets=[1], shape=(10000, 10000)).tocsr()  # so many go to kernels
    want, T.data = T.copy(), T.data.astype(dtype)
    for layout in FIRST_LAYOUTS:
        assert (layout.of(T, dtype="float64").to_scipy() != want).nnz == 0


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_sixteen_bit_arrays_are_taken_and_kept(dtype):
    """SciPy has no 16-bit floats; a dense or coordinate array does."""
    assert jsf.from_dense(jnp.asarray(S.toarray(), dtype), "ell").dtype == dtype
    assert jsf.from_coo([0], [1], np.ones(1, dtype), (2, 3)).dtype == dtype


def test_narrow_types_that_scipy_lacks_are_taken_as_wide_ones():
    assert jsf.from_dense(np.eye(2).astype(jnp.int4), "csr").dtype == np.zeros(1).dtype
    assert jsf.from_dense(EIGHTS, "csr", "float32").dtype == np.float32


def unsorted_csr(index):
    B = sp.csr_array((2, 3))
    B.indptr, B.indices, B.data = index([0, 3, 5]), index([2, 0, 2, 1, 0]), np.array([1.0, 2, 3, 4, 5])
    return B


GIVEN = {
    "csr": lambda: unsorted_csr(np.int32),
    "csr with int64 indices": lambda: unsorted_csr(np.int64),
    "coo": lambda: unsorted_csr(np.int32).tocoo(),
    "csc": lambda: sp.csc_array((np.array([1.0, 2, 3, 4]), int32(1, 0, 1, 0), int32(0, 2, 3, 4)), (2, 3)),
    "duplicates": lambda: CASES["duplicates"].scipy(),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_the_input_is_not_changed(kind):
    B = GIVEN[kind]()
    arrays = lambda: (*B.coords, B.data) if B.format == "coo" else (B.indptr, B.indices, B.data)  # noqa: E731
    before, dense = [a.copy() for a in arrays()], B.toarray()
    for format in ("csr", "coo", "hll"):
        np.testing.assert_array_equal(jsf.from_scipy(B, format).todense(), dense)
    for a, then in zip(arrays(), before, strict=True):
        np.testing.assert_array_equal(a, then)


@pytest.mark.parametrize(
    "layout", [one if one.format in ("csr", "coo", "csc", "hll") else deep(one) for one in FIRST_LAYOUTS], ids=str
)
def test_writing_in_the_input_later_changes_no_matrix(layout):
    """Not even if it begins where JAX on a CPU would work in NumPy's memory."""
    T = sp.csr_array(tuple(aligned(a, a.dtype) for a in (S.data, S.indices, S.indptr)), S.shape)
    A, data = layout.of(T), aligned(np.arange(S.nnz), S.dtype)
    B = A.with_data(data)
    given = T.data, T.indices, T.indptr, data
    assert not any(np.shares_memory(np.asarray(a), g) for a in jax.tree.leaves((A, B)) for g in given)


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "from_coo"])
@pytest.mark.parametrize("value, dtype", [(100, "int8"), (200, "uint8"), (2**62, "int64"), (True, "bool")])
def test_duplicates_of_whole_numbers_are_summed_as_numbers(value, dtype, kind):
    data, row, col = np.full(3, value, dtype), int32(0, 0, 1), int32(1, 1, 0)
    arrays = {"csr": (data, col, int32(0, 2, 3)), "csc": (data, int32(1, 0, 0), int32(0, 1, 3))}
    of_scipy = "coo" if kind == "from_coo" else kind
    made = getattr(sp, f"{of_scipy}_array")(arrays.get(kind, (data, (row, col))), shape=(2, 2))
    B = jsf.from_coo(row, col, data, (2, 2), "csr") if kind == "from_coo" else jsf.from_scipy(made, "csr")
    np.testing.assert_array_equal(B.data, [2.0 * value, value])
    assert made.dtype == dtype and made.nnz == 3 and np.all(made.data == value)


@settings(max_examples=25, deadline=None)  # each new number of entries compiles anew
@given(st.data())
def test_from_coo_adds_like_numpy_and_keeps_zeros(data):
    triplets = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-64, 64)), max_size=20))
    row, col, eighths = np.array(triplets, int).reshape(-1, 3).T
    want = np.zeros((5, 4))
    np.add.at(want, (row, col), eighths / 8)
    layout = data.draw(st.sampled_from(LAYOUTS))
    B = jsf.from_coo((eighths / 8, (row, col)), shape=want.shape, format=layout.format, **dict(layout.options))
    np.testing.assert_array_equal(B.to_scipy().toarray(), want)
    assert B.nnz == len({*zip(row.tolist(), col.tolist(), strict=True)})


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_a_matrix_of_ours_is_taken_with_its_16_bits(dtype):
    sharded = jsf.shard(S, jax.make_mesh((1,), ("rows",)), dtype=dtype)
    narrow = A.astype(dtype)
    for source, dense in ((narrow, S.toarray()), (narrow.T, S.toarray().T), (sharded, S.toarray())):
        B = jsf.from_scipy(source, "hll")
        assert (B.name, B.dtype) == ("hll", dtype)
        np.testing.assert_array_equal(B.todense(), dense)
        assert jsf.from_scipy(source, "hll", np.float32).dtype == np.float32


@pytest.mark.parametrize("name", ["auto", "tune"])
def test_a_stored_matrix_chooses_anew_as_one_from_outside_does(name, monkeypatch):
    monkeypatch.setattr(tune, "seconds_per_product", lambda A: float(A.name != "hll"))
    with jsf.use_backend("xla"):  # where "hll" is among the first few of the ranking
        for source in (A, jsf.from_scipy(S, "coo", "bfloat16", backend="xla")):
            want, got = jsf.from_scipy(S, name, source.dtype), source.asformat(name)
            assert (got.name == "hll") == (name == "tune")
            assert (got.name, got.layout, got.dtype) == (want.name, want.layout, source.dtype)
            assert got.backend == source.backend
            np.testing.assert_array_equal(got.todense(), source.todense())


@pytest.mark.parametrize("name", ["auto", "tune", "hll"])
def test_inside_jit_a_known_pattern_converts_and_a_traced_one_is_refused(name):
    dense = jax.jit(lambda data: A.with_data(data).asformat(name).todense())(2 * A.data)
    np.testing.assert_array_equal(dense, 2 * S.toarray())
    words = f"{name!r} cannot be made of a traced pattern.* one of coo, csr, csc"
    assert_refused(lambda: jax.jit(lambda A: A.asformat(name))(A), ValueError, words)


def test_64_bit_values_need_64_bit_jax():
    with jax.enable_x64(False):
        assert jsf.from_scipy(S, "csr").dtype == np.float32
        words = r"dtype float64 needs 64-bit JAX; .*jax_enable_x64.* or ask for float32"
        assert_refused(lambda: jsf.from_scipy(S, "csr", dtype=np.float64), ValueError, words)


def test_lists_of_traced_numbers_are_vectors_and_data():
    gradient = jax.grad(lambda a: (A @ [a, 1.0, 2.0]).sum())(1.0)
    assert gradient == pytest.approx(float(S.toarray()[:, 0].sum()))
    refilled = jax.jit(lambda a: A.with_data([a] * A.nnz).todense().sum())(2.0)
    assert refilled == 2.0 * A.nnz


def spoiled(kind=sp.csr_array, **arrays):
    """S with arrays that SciPy does not check after construction."""
    broken = kind(S)
    for name, array in arrays.items():
        setattr(broken, name, array)
    return broken


ONE = jsf.eye(3)
COO = ([0, 1], [0, 1], [1.0, 2.0], (2, 2))


def coo(row=COO[0], col=COO[1], data=COO[2], shape=COO[3], **options):
    return jsf.from_coo(row, col, data, shape, **options)


def turned(*block_shape):
    return lambda: jsf.from_scipy(S, "bsr", block_shape=block_shape, transpose=True)


traced_as_float32 = jax.jit(lambda data: jsf.from_coo([0], [0], data, (1, 1), "csr", "float32").data)
# As an array it would go entry by entry, for minutes.
BIG, BCOO = jsf.from_scipy(sp.eye_array(300)), sparse.BCOO.fromdense(jnp.eye(300), nse=300)
BATCH, DENSE = (sparse.BCOO.fromdense(jnp.ones((2, 3, 3)), **of) for of in ({"n_batch": 1}, {"n_dense": 1}))
EIGHTS = np.eye(2).astype(jnp.float8_e4m3fn)


VALUE_ERRORS = [
    (lambda: jsf.from_scipy(sp.coo_array(np.ones(3))), "two-dimensional matrix, got shape (3,)"),
    (lambda: jsf.from_scipy(spoiled(indptr=int32(0, 3, 2))), "broken row pointer"),
    (
        lambda: jsf.from_scipy(spoiled(indices=int32(0, 7, 1))),
        "column index 7 is out of range for a matrix with 3 columns; indices count from 0",
    ),
    (lambda: jsf.from_scipy(spoiled(indices=int32(0, -1, 1))), "column index -1 is out"),
    (lambda: jsf.from_scipy(spoiled(sp.csc_array, indices=int32(0, 7, 1))), "row index 7 is out of"),
    (lambda: jsf.from_scipy(spoiled(sp.csc_array, indptr=int32(0, 2, 1, 3))), "broken column pointer"),
    (lambda: jsf.from_scipy(spoiled(sp.bsr_array, indices=int32(0, 7, 1))), "column index 7"),
    (lambda: jsf.from_scipy(spoiled(sp.coo_array, coords=(int32(5, 0, 1), int32(0, 2, 1)))), "row index 5 is out of"),
    (lambda: jsf.from_scipy(spoiled(sp.lil_array, rows=np.array([[0, 9], [1]], object))), "column index 9 is out of"),
    (lambda: coo([], [], [], (2**31, 1)), "2147483648 rows exceed what 32-bit indices address"),
    (lambda: jsf.from_scipy(sp.csr_array((1, 2**31))), "2147483648 columns exceed"),
    (lambda: jsf.from_scipy(S, "elll"), "got 'elll'; did you mean 'ell'?"),
    (lambda: jsf.from_scipy(S, "CSR"), "got 'CSR'; did you mean 'csr'?"),
    (lambda: jax.jit(jsf.from_dense)(np.eye(2)), "traced here; make it outside jit"),
    (lambda: jax.jit(jsf.from_scipy)(A), "traced here; make it outside jit"),
    (lambda: jsf.from_scipy(S, backend="gpu"), "backend must be one of auto, triton"),
    (lambda: jsf.from_scipy(S, slice_size=4), "name a format to set slice_size"),
    (lambda: jsf.from_scipy(S, "hll", slice_size=2**45), "format 'hll' would take"),
    (lambda: jsf.from_scipy(S, "ell", max_bytes=40), "would take 48 B for a matrix of 44 B in CSR"),
    (turned(64, 2), "block_shape[0] must be at most 32 rows with transpose=True, which turns the blocks"),
    (turned(2, 64), "block_shape[1] must be at most 32 columns, which a kernel unrolls; got 64"),
    (lambda: coo(row=[0]), "one-dimensional and of one length; got (1,), (2,), (2,)"),
    (lambda: coo(row=[0, 2]), "row index 2 is out of range for a matrix with 2 rows"),
    (lambda: coo(shape=(2, 2, 2)), "shape must be two numbers from 0 up, (rows, columns)"),
    (lambda: coo(shape=(2, np.nan)), "shape must be two numbers from 0 up"),
    (lambda: jsf.from_dense(np.ones(3)), "two-dimensional array, got shape (3,)"),
    (lambda: A @ np.ones(2), "A @ x with A of shape (2, 3) takes x of shape (3,) or (3, p); got (2,)"),
    (lambda: jax.jit(lambda A, x: A @ x)(A, np.ones(2)), "takes x of shape (3,)"),
    (lambda: A @ 2.0, "takes x of shape (3,) or (3, p); got ()"),
    (lambda: A.T @ np.ones(3), "A.T @ y, or yᵀ @ A, with A of shape (2, 3) takes y of shape (2,)"),
    (lambda: A.with_data(np.ones(4)), "data must have shape (3,)"),
    (lambda: jsf.spmv(A, np.ones(3), beta=1.0), "beta=1.0 adds beta·y, which needs y of shape (2,)"),
    (lambda: jsf.spmv(A, np.ones(3), np.ones(3), beta=1), "got y of shape (3,)"),
    (lambda: jsf.from_bcoo(BATCH), "without batch and dense dimensions; got shape (2, 3, 3)"),
    (lambda: jsf.from_bcoo(DENSE), "without batch and dense dimensions; got shape (2, 3, 3)"),
    (lambda: jsf.random(3, 3, 2), "from 0 to 1; got 2"),
]
TYPE_ERRORS = [
    (lambda: jsf.from_scipy(S, "hll", slicesize=4), "no keyword or layout option 'slicesize'; formats"),
    (lambda: jsf.from_scipy(S.toarray()), "got ndarray; use from_dense"),
    (lambda: jsf.from_scipy(S * 1j, dtype=np.float64), "would drop the imaginary parts"),
    (lambda: traced_as_float32(np.ones(1, complex)), "imaginary parts of a complex128 matrix"),
    (lambda: jsf.from_scipy(S, dtype=int), "dtype int64 cannot hold matrix values"),
    (lambda: jsf.from_dense(EIGHTS), "dtype float8_e4m3fn cannot hold matrix values; ask for one of"),
    (lambda: coo(data=np.array([None, 1])), "data has dtype object, which is not numeric"),
    (lambda: coo(row=[0.0, 1.0]), "row must hold integers, got dtype float64"),
    (lambda: A @ S.T, "got csc_array; convert SciPy's by from_scipy"),
    (lambda: A @ precond.jacobi(ONE), "got Jacobi, and a product of operators"),
    (lambda: precond.jacobi(ONE) @ A, "with another operator as M @ (A @ x)"),
    (lambda: A @ cg(ONE, np.ones(3)), "got Solution; use its x"),
    (lambda: A @ np.sin, "must be an array of numbers; got ufunc"),
    (lambda: A @ np.array(["a", "b", "c"]), "the vector has dtype <U1, which is not numeric"),
    (lambda: A - S, "got csr_array; convert SciPy's by from_scipy"),
    (lambda: S + A, "got csr_array; convert SciPy's by from_scipy"),
    (lambda: jnp.ones((2, 3)) + A, "with a dense array take A.todense()"),
    (lambda: jsf.from_dense(S), "got csr_array; use from_scipy"),
    (lambda: jsf.from_coo(S), "from_coo takes rows, columns and values, got csr_array; use from_scipy"),
    (lambda: jsf.from_csr(A), "from_csr takes values, indices and pointers, got CSR; use from_scipy"),
    (lambda: jsf.choose.rank(S.toarray()), "got ndarray; make a csr_array of it"),
    (lambda: jsf.from_bcoo(sp.coo_array(np.eye(3))), "takes a BCOO or BCSR of jax.experimental.sparse, got coo_array"),
    *((lambda: jsf.from_scipy(BCOO), "from_bcoo for a BCOO"), (lambda: jsf.from_dense(BCOO), "use from_bcoo")),
    *((lambda: BIG @ BCOO, "from_bcoo"), (lambda: BIG.T @ BCOO, "from_bcoo"), (lambda: BIG.rmatvec(BCOO), "from_bcoo")),
    *((lambda: BIG.with_data(BCOO), "from_bcoo"), (lambda: cg(BIG, BCOO), "b is a BCOO")),
]
ERRORS = [(error, *case) for error, cases in ((ValueError, VALUE_ERRORS), (TypeError, TYPE_ERRORS)) for case in cases]


@pytest.mark.parametrize(("error", "call", "words"), ERRORS, ids=[words for *_, words in ERRORS])
def test_bad_values_and_types_are_named(error, call, words):
    assert_refused(call, error, re.escape(words))


def test_do_traced_data_make_a_matrix_with_its_transpose():
    def sums(data):
        A = jsf.from_coo([0, 1, 1, 0], [0, 0, 1, 0], data, (2, 3), "csr", transpose=True)
        assert A.name == "paired" and A.dtype == np.float32
        return A.T @ jnp.ones(2, np.float32)

    np.testing.assert_array_equal(jax.jit(sums)(np.arange(4, dtype=np.float32)), [4, 2, 0])


def test_one_warning_of_a_process_says_that_digits_are_lost_and_of_which_line():
    code = """
import warnings
warnings.simplefilter("always")
import numpy as np, jaxsparse_fmt as jsf
jsf.from_dense(np.eye(3), dtype="float32")
jsf.from_dense(np.eye(3, dtype="float32"))
with warnings.catch_warnings(record=True) as said:
    jsf.from_dense(np.eye(3))
    jsf.from_scipy(jsf.gallery.poisson(3))
(one,) = said
print(one.filename, one.category.__name__, one.message)
"""
    told = printed("-W", "error", "-c", code)
    assert told.startswith("<string> UserWarning") and "jax_enable_x64" in told and "dtype='float32'" in told


def test_does_a_seed_draw_one_matrix_of_the_density_asked_for():
    A = jsf.random(30, 20, 0.25, rng=1)
    assert (A.shape, A.name, A.nnz) == ((30, 20), "csr", 150)
    np.testing.assert_array_equal(A.todense(), jsf.random(30, 20, 0.25, rng=np.random.default_rng(1)).todense())
    assert A.data.min() >= 0 and A.data.max() < 1 and 0.3 < A.data.mean() < 0.7
    assert jsf.random(30, 20, 0.25, "ell", "float32").dtype == np.float32


def test_is_a_matrix_that_changed_between_two_conversions_looked_at_again():
    S = sp.csr_array(jsf.gallery.poisson(4))
    jsf.from_scipy(S, "dia")
    S.indices[:2] = 0, 2  # on another diagonal
    S.data[0] = 0
    A = jsf.from_scipy(S, "dia")
    assert (A.to_scipy() != S).nnz == 0 and A.nnz == S.nnz
    assert any(k == 2 for k in np.asarray(A.offsets)) and not vars(S).get("found")
