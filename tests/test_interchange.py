"""To and from the matrices of JAX, and training of a whole matrix: every format, inside jit and outside."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from jax.core import Tracer
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from jaxsparse_fmt import interchange
from jaxsparse_fmt._aligned import aligned
from tests.marks import few
from tests.oracle import assert_refused
from tests.zoo import ALL, CASES, FIRST_LAYOUTS

S = CASES["irregular"].scipy(np.float64).tocsr()
every_format = pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)

# [4, 4]: (1, 2) comes twice, and the last pair of indices is padding.
INDICES = np.array([[3, 0], [1, 2], [0, 1], [1, 2], [4, 4]])
DATA = np.array([1.0, 2, 3, 4, 99])
DENSE = np.array([[0, 3, 0, 0], [0, 0, 6, 0], [0, 0, 0, 0], [1.0, 0, 0, 0]])


def padded(data, indices=None):
    return sparse.BCOO((data, jnp.asarray(INDICES) if indices is None else indices), shape=(4, 4))


@every_format
def test_bcoo_and_bcsr_hold_the_matrix(layout):
    A = layout.of(ALL.scipy())
    assert A.row_ids.dtype == A.col_ids.dtype == np.int32
    for B in (jsf.to_bcoo(A), jsf.to_bcsr(A)):
        np.testing.assert_array_equal(B.todense(), ALL.dense())
        assert B.indices_sorted and B.unique_indices and B.nse == A.nnz
        np.testing.assert_array_equal(jsf.from_bcoo(B, "csr").todense(), ALL.dense())


def test_to_bcoo_under_jit_has_constant_indices_and_derivatives():
    A = jsf.from_scipy(S, "hll", slice_size=4)
    x = np.arange(S.shape[1]) / 8

    @jax.jit
    def loss(data):
        B = jsf.to_bcoo(A.with_data(data))
        assert not isinstance(B.indices, Tracer)
        C = jsf.to_bcsr(A.with_data(data))
        return jnp.sum(B @ x) + jnp.sum(C.todense() @ x)

    np.testing.assert_allclose(jax.grad(loss)(A.data), 2 * x[S.indices], rtol=1e-12)
    for convert in (jsf.to_bcoo, jsf.to_bcsr):  # of a matrix that is traced whole
        np.testing.assert_array_equal(jax.jit(convert)(A).todense(), S.toarray())


@every_format
def test_from_bcoo_under_jit_sums_duplicates_and_differentiates(layout):
    indices, weights = jnp.asarray(INDICES), np.arange(16.0).reshape(4, 4)

    def dense(data):
        return jsf.from_bcoo(padded(data, indices), layout.format, **dict(layout.options)).todense()

    @jax.jit
    def both(data):
        return dense(data), jax.grad(lambda d: jnp.sum(weights * dense(d)))(data)

    B = sparse.BCSR.fromdense(jnp.asarray(DENSE))
    again = jax.jit(lambda d: jsf.from_bcsr(sparse.BCSR((d, B.indices, B.indptr), shape=(4, 4)), "csr").todense())
    np.testing.assert_array_equal(again(2 * B.data), 2 * DENSE)
    got, gradient = both(DATA)
    np.testing.assert_array_equal(got, DENSE)
    np.testing.assert_array_equal(gradient, [12, 6, 1, 6, 0])  # padding takes none


@pytest.mark.parametrize("kind", ["BCOO", "BCSR"])
@pytest.mark.parametrize("nse", [4, 7])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_is_padding_left_out_on_a_cpu_and_on_an_accelerator(kind, nse, on_cpu, monkeypatch):
    monkeypatch.setattr(interchange, "is_on_cpu", lambda a: on_cpu)
    dense = np.diag([2.0, 3, 0, 4]) + np.diag([1.0], k=3)
    B = sparse.BCOO.fromdense(jnp.asarray(dense), nse=nse)
    if kind == "BCSR":
        R = sparse.BCSR.from_bcoo(B)
        B = sparse.BCSR((R.data, R.indices, R.indptr), shape=R.shape, indices_sorted=True, unique_indices=True)
    assert B.indices_sorted and B.unique_indices and B.nse == nse
    A = jsf.from_bcoo(B)
    assert A.nnz == 4
    np.testing.assert_array_equal(A.todense(), dense)
    np.testing.assert_array_equal(jax.jit(lambda x: jsf.from_bcoo(B, "csr") @ x)(np.arange(4.0)), dense @ np.arange(4))


def test_traced_indices_are_refused_with_the_cure():
    B = sparse.BCSR.fromdense(jnp.asarray(DENSE))
    of_csr = jax.jit(lambda i: jsf.from_csr(VALUES, i, POINTER, (3, 4)).data)
    for call, words in (
        (lambda: jax.jit(jsf.from_bcoo)(padded(DATA)), "indices of this BCOO are traced.*outside jit"),
        (lambda: jax.jit(jsf.from_bcsr)(B), "indices of this BCSR are traced"),
        (lambda: of_csr(COLUMNS), r"from_csr needs the indices.*with_data"),
    ):
        assert_refused(call, ValueError, words)


def test_what_is_no_matrix_on_one_device_is_refused_with_the_cure():
    A = jsf.from_scipy(S, "csr")
    stack = jax.vmap(A.with_data)(np.ones((2, A.nnz)))
    for convert in (jsf.to_bcoo, jsf.to_bcsr):
        assert_refused(lambda of=convert: of(A.T), TypeError, "asformat")
        assert_refused(lambda of=convert: of(stack), ValueError, "stack of matrices")
    assert_refused(lambda: jsf.from_cupy(S.tocsc()), TypeError, "tocsr")


class Foreign:
    """A CSR matrix as CuPy's, with NumPy's arrays in its place: they have `__dlpack__` too."""

    format = "csr"

    def __init__(self, arrays, shape):
        self.data, self.indices, self.indptr = arrays
        self.shape = shape


def test_csr_arrays_come_in_by_dlpack_without_a_copy():
    arrays = tuple(map(aligned, (S.data, S.indices, S.indptr), (S.dtype, np.int32, np.int32)))
    A = jsf.from_cupy(Foreign(arrays, S.shape))
    np.testing.assert_array_equal(A.todense(), S.toarray())
    shared = [a.unsafe_buffer_pointer() for a in (A.values, A.col_idx, A.row_ptr)]
    assert shared == [a.ctypes.data for a in arrays]
    np.testing.assert_array_equal(jsf.from_cupy(Foreign(arrays, S.shape), "ell").todense(), S.toarray())


def test_csr_arrays_go_out_by_dlpack_without_a_copy(monkeypatch):
    stand_in = types.SimpleNamespace(from_dlpack=np.from_dlpack)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", types.SimpleNamespace(csr_matrix=Foreign))
    with jax.default_device(jax.devices("cpu")[0]):  # NumPy, which stands in for CuPy, reads no other memory
        A = jsf.from_scipy(S, "csr")
        F = jsf.to_cupy(A)
    assert F.data.ctypes.data == A.values.unsafe_buffer_pointer()
    np.testing.assert_array_equal(F.indices, S.indices)


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [
        *(([1, 0, 2], [0, 2, 3]), ([0, 0, 2], [0, 2, 3]), ([0, 1, 3], [0, 2, 3]), ([0, 1, 2], [0, 2, 4])),
        *(([], [0, 5, 5]), ([], [1, 1, 1]), ([], [0, 0, 5])),
    ],
)
def test_csr_arrays_that_are_not_canonical_are_refused(indices, indptr):
    def taken(indptr):
        arrays = np.ones(len(indices), np.float32), np.array(indices, np.int32), np.array(indptr, np.int32)
        return jsf.from_cupy(Foreign(arrays, (2, 3)))

    assert_refused(lambda: taken(indptr), ValueError, "sum_duplicates")
    if not indices:
        assert taken([0, 0, 0]).nnz == 0


# Rows of one entry, of two that are not sorted and repeat, and of none; the last number belongs to no row.
COLUMNS, POINTER, VALUES = np.array([2, 3, 0, 3, 1]), np.array([0, 1, 4, 4]), np.array([1.0, 2, 3, 4, 99])
BY_ROW = jsf.from_csr, scipy.sparse.csr_array, (3, 4)
BY_COLUMN = jsf.from_csc, scipy.sparse.csc_array, (4, 3)


@pytest.mark.parametrize(("make", "of_scipy", "shape"), [BY_ROW, BY_COLUMN], ids=["csr", "csc"])
def test_are_three_arrays_the_matrix_of_scipy_with_known_and_with_traced_values(make, of_scipy, shape):
    want = of_scipy((VALUES[:4], COLUMNS[:4], POINTER), shape=shape).toarray()
    for arrays in ((VALUES, COLUMNS, POINTER), tuple(map(jnp.asarray, (VALUES, COLUMNS, POINTER)))):
        np.testing.assert_array_equal(make(*arrays, shape).todense(), want)
        np.testing.assert_array_equal(make(arrays, shape, format="ell").todense(), want)
    B = make(VALUES.astype(np.float16).tolist(), COLUMNS.tolist(), POINTER.tolist(), shape, "csr", "float32")
    assert (B.name, B.dtype, B.nnz) == ("csr", np.float32, 3)

    def energy(v):
        return jnp.sum(make(v, COLUMNS, POINTER, shape, "csr").todense() ** 2)

    slopes = jax.jit(jax.vmap(jax.grad(energy)))(np.stack([VALUES, -VALUES]))
    np.testing.assert_array_equal(slopes[0], [2.0, 12.0, 6.0, 12.0, 0.0])
    np.testing.assert_array_equal(slopes[1], -slopes[0])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"indptr": [0, 2, 1, 4]}, ValueError, "broken row pointer"),
        ({"indptr": [0, 1, 4]}, ValueError, "broken row pointer"),
        ({"indptr": [0.0, 1, 4, 4]}, TypeError, "indptr must hold integers"),
        ({"indices": [2, 3, 0, 4, 1]}, ValueError, "column"),
        ({"data": [1.0]}, ValueError, r"one length.*got shapes \(1,\), \(5,\), \(4,\)"),
        ({"shape": None}, ValueError, "shape must be two numbers"),
    ],
)
def test_are_arrays_that_are_no_matrix_refused(change, error, words):
    given = {"data": VALUES, "indices": COLUMNS, "indptr": POINTER, "shape": (3, 4)} | change
    assert_refused(lambda: jsf.from_csr(**given), error, words)
