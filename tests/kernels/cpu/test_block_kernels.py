"""The products of BSR by whole blocks: at the edges of the matrix, at holes, and in pieces."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.cpu.abi import BLOCK_SIZES
from tests.oracle import assert_product

pytest.importorskip("numba")

pytestmark = pytest.mark.some(size=2)
by_size = pytest.mark.parametrize("size", BLOCK_SIZES)


def with_holes(rng, n_rows: int, n_cols: int, zeros: int) -> sp.csr_array:
    """Rows of which some are empty; the first `zeros` entries are stored zeros."""
    dense = (
        rng.standard_normal((n_rows, n_cols))
        * (rng.random((n_rows, n_cols)) < 0.3)
        * (np.arange(n_rows) % 9 > 1)[:, None]
    )
    S = sp.csr_array(dense)
    S.data[:zeros] = 0
    return S


@by_size
def test_any_cut_and_any_edge_give_every_row_once(size, rng, monkeypatch):
    S, x = with_holes(rng, 803, 37, 0), rng.standard_normal(37)  # several slices, and no size divides 803 or 37
    A, products = jsf.from_scipy(S, "bsr", block_shape=(size, size), backend="numba"), []
    for pieces in (1, 5):
        monkeypatch.setattr(spmv_cpu, "_pieces", lambda *_, n=pieces: n)
        products.append(np.asarray(jax.jit(lambda A, x: A @ x)(A, x)))
    assert_product(products[0], S.toarray(), x)
    np.testing.assert_array_equal(*products)


@by_size
@pytest.mark.parametrize("zeros", [0, 5], ids=["holes are zeros", "holes are bits"])
def test_holes_never_read_x(size, zeros, rng):
    S, product = with_holes(rng, 29, 19, zeros), jax.jit(lambda A, x: A @ x)
    A, pattern = jsf.from_scipy(S, "bsr", block_shape=(size, size), backend="numba"), sp.csr_array(S).copy()
    pattern.data[:] = 1
    for bad in (np.nan, np.inf):
        for col, stored in enumerate(pattern.toarray().T != 0):
            x = np.ones(19)
            x[col] = bad
            y = np.asarray(product(A, x))
            np.testing.assert_array_equal(~np.isfinite(y), stored)
            np.testing.assert_array_equal(y[~stored], np.asarray(product(A, np.ones(19)))[~stored])
