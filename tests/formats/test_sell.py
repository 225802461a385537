"""SELL: 16-bit column differences, narrow values under wide vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix
from tests.oracle import draw

N_COLS = 200_000


def slices_of_two(*spans: int) -> sp.csr_array:
    """Slices of two rows with two entries each: their first entries lie in columns 7 and 7 + span."""
    first = np.array([[7, 7 + span] for span in spans]).reshape(-1)
    col = np.stack([first, np.full(first.size, N_COLS - 1)], axis=1)
    row_ptr = np.arange(0, col.size + 1, 2)
    return sp.csr_array((np.arange(1.0, col.size + 1), col.reshape(-1), row_ptr), (len(col), N_COLS))


def test_the_arrays_are_those_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("sell"), "sell", slice_size=2)
    assert_as_drawn(A)
    assert A.col_idx is None


@pytest.mark.parametrize(("span", "fits"), [(0, True), (65_534, True), (65_535, False), (65_536, False)])
def test_differences_up_to_65534_take_16_bits(span, fits):
    """65535 means padding."""
    S = slices_of_two(span)
    A = jsf.from_scipy(S, "sell", slice_size=2)
    assert (A.col_idx is None) == fits
    if fits:
        assert A.delta.tolist() == [0, span, 0, 0] and A.col_base.tolist() == [7, N_COLS - 1]
    np.testing.assert_array_equal(A.to_scipy().indices, S.indices)


def test_one_slice_too_wide_for_16_bits_gives_all_32():
    S = slices_of_two(3, 65_535, 2)
    A, hll = (jsf.from_scipy(S, name, slice_size=2) for name in ("sell", "hll"))
    assert A.delta is None and A.col_base is None and A.nbytes == hll.nbytes - hll.row_lengths.nbytes
    np.testing.assert_array_equal(A.col_idx, hll.col_idx)
    np.testing.assert_array_equal(A.data, S.data)


@jax.jit
def product(A, x):
    return A @ x


WIDE = slices_of_two(3, 65_535, 65_534, 100_000, 1)
SAME_AS_HLL = [
    (RAGGED, {"slice_size": 8}),
    (RAGGED, {"slice_size": 8, "sigma": 32}),
    (WIDE, {"slice_size": 2}),
    (jsf.gallery.power_law(400, mean=8), {"slice_size": 32}),
]


@pytest.mark.some(matrix=2)
@pytest.mark.parametrize(("matrix", "layout"), SAME_AS_HLL, ids=["ragged", "sorted", "wide", "power law"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_hll_to_the_last_bit(matrix, layout, dtype, rng):
    """Where both run alike: on a CPU there is a kernel for "hll" only."""
    x = draw(rng, dtype, matrix.shape[1])
    A = jsf.from_scipy(matrix, "sell", dtype, **layout)
    with jsf.use_backend("xla"):
        np.testing.assert_array_equal(product(A, x), product(jsf.from_scipy(matrix, "hll", dtype, **layout), x))


# -------------------------------------------------------------------------------------------------- narrow values


@pytest.mark.parametrize(
    ("stored_as", "vector", "tiny"), [("float32", "float64", 2.0**-40), ("bfloat16", "float32", 2.0**-15)]
)
def test_narrow_values_sum_in_the_type_of_the_vector(stored_as, vector, tiny):
    ones = sp.csr_array((np.ones(RAGGED.nnz), RAGGED.indices, RAGGED.indptr), RAGGED.shape)
    A = jsf.from_scipy(ones, "sell", jnp.dtype(stored_as), slice_size=8)
    y = product(A, jnp.full(120, 1 + tiny, vector))
    assert A.dtype == stored_as and y.dtype == vector
    np.testing.assert_array_equal(y, LENGTHS * (1 + tiny))
