"""Matrices to and from the real CuPy: the same memory, and products that wait for one another."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.algebra import by_cupy

pytestmark = pytest.mark.gpu

S = jsf.gallery.poisson(20)
X = np.random.default_rng(0).standard_normal(S.shape[0])


@pytest.fixture
def sparse():
    return pytest.importorskip("cupyx.scipy.sparse")


@pytest.mark.parametrize("format", ["csr", "sell", "dia"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_a_matrix_goes_both_ways_and_csr_keeps_its_memory(sparse, dtype, format):
    theirs = sparse.csr_matrix(sp.csr_matrix(S.astype(dtype)))
    ours = jsf.from_cupy(theirs, format)
    back = jsf.to_cupy(ours)
    assert np.array_equal(back.get().toarray(), S.toarray())
    np.testing.assert_allclose(ours @ X.astype(dtype), S @ X, atol=100 * np.finfo(dtype).eps)
    is_same = theirs.data.data.ptr == ours.values.unsafe_buffer_pointer() == back.data.data.ptr
    assert is_same == (format == "csr")


def test_each_library_waits_for_what_the_other_computes(sparse):
    import cupy

    theirs, ours = sparse.csr_matrix(sp.csr_matrix(S)), jsf.from_scipy(S, "csr")
    for factor in range(1, 20):
        np.testing.assert_allclose(jsf.from_cupy(theirs * factor) @ X, factor * (S @ X), rtol=1e-10, atol=1e-10)
        scaled = jsf.to_cupy(ours.with_data(ours.data * factor))
        np.testing.assert_allclose((scaled @ cupy.asarray(X)).get(), factor * (S @ X), rtol=1e-10, atol=1e-10)


def test_a_product_by_cupy_is_that_by_sorting_bit_for_bit_the_same_each_time(sparse, monkeypatch):
    del sparse
    R = sp.random_array((3000, 3000), density=0.06, rng=np.random.default_rng(1), format="csr")
    A = jsf.from_scipy(R, "csr")
    first = (A @ A.T).to_scipy()
    for _ in range(3):
        again = (A @ A.T).to_scipy()
        assert np.array_equal(again.data, first.data)
    monkeypatch.setattr(by_cupy, "_modules", lambda: None)
    plain = (A @ A.T).to_scipy()
    assert np.array_equal(plain.indptr, first.indptr) and np.array_equal(plain.indices, first.indices)
    np.testing.assert_allclose(first.data, plain.data, rtol=1e-12)
