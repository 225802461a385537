"""Questions of SciPy's and BCOO's own tests of these operations, with NumPy as the oracle; and the zoo in all dtypes.

Results are read from the arrays of "csr", so that nothing compiles.
"""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.zoo import CASES

DTYPES = {"float32": 1e-6, "bfloat16": 0.02, "float16": 2e-3, "complex64": 1e-6}


def dense(A: jsf.SparseMatrix) -> np.ndarray:
    """A without SciPy's or XLA's help, after a check that its rows are sorted and their columns differ."""
    assert isinstance(A, jsf.CSR)
    ptr, col, data = np.asarray(A.row_ptr), np.asarray(A.col_idx), np.asarray(A.data)
    out = np.zeros(A.shape, np.result_type(data.dtype, np.float32) if data.dtype.kind == "c" else np.float64)
    for row, (start, stop) in enumerate(itertools.pairwise(ptr)):
        assert np.all(np.diff(col[start:stop]) > 0)
        out[row, col[start:stop]] = data[start:stop]
    return out


def csr(a) -> jsf.SparseMatrix:
    return jsf.from_scipy(sp.csr_array(np.asarray(a, np.float32)), "csr")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", few(CASES.values(), 4), ids=str)
def test_the_zoo_adds_and_multiplies_in_every_dtype(case, dtype):
    A = jsf.from_scipy(case.scipy(np.complex64 if dtype == "complex64" else np.float32), "csr").astype(dtype)
    D, P = case.dense(dtype if dtype == "complex64" else np.float32), case.pattern()
    T = A.T.asformat("csr")
    for got, expected, places in (
        (A @ T, D @ D.T, P.astype(int) @ P.T.astype(int)),
        (A + A, 2 * D, P),
        (A - 2 * A, -D, P),
        (A.multiply(A), D * D, P),
    ):
        assert got.dtype == A.dtype
        assert got.nnz == np.count_nonzero(places)  # zeros and cancelled sums stay
        np.testing.assert_allclose(dense(got), expected, rtol=DTYPES[dtype], atol=DTYPES[dtype] * abs(D).max(initial=1))


# ------------------------------------------------------------------------------------------------------------- SciPy's


@pytest.mark.parametrize("k", [-(2**31), -4, -2, -1, 0, 1, 2, 5, 2**31 - 1, 2**40])
def test_triangles_about_any_diagonal_are_numpys(k):
    D = np.array([[2, 0, 1, 0], [0, 3, 0, 6], [-5, 0, 0, 7]], np.float32)
    np.testing.assert_array_equal(dense(jsf.tril(csr(D), k)), np.tril(D, k))
    np.testing.assert_array_equal(dense(jsf.triu(csr(D), k)), np.triu(D, k))


# -------------------------------------------------------------------------------------------------------------- BCOO's
