"""The faces from coordinates alone, in any order and with padding anywhere."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsparse_fmt.kernels import coordinates
from tests.oracle import assert_close, magnitude

N_ROWS, N_COLS = 7, 5


@pytest.fixture
def stored(rng):
    """Two matrices of one pattern in no order, every third place padding: values [2, k], row, column, dense [2, …]."""
    places = rng.choice(N_ROWS * N_COLS, 18, replace=False)
    row, col = np.divmod(places, N_COLS)
    col[::3] = N_COLS
    values = rng.standard_normal((2, 18)) * (col < N_COLS)
    dense = np.zeros((2, N_ROWS, N_COLS + 1))
    dense[:, row, col] = values
    return jnp.asarray(values), jnp.asarray(row), jnp.asarray(col), dense[:, :, :N_COLS]


def test_the_faces_equal_dense_arithmetic(stored, rng):
    values, row, col, a = stored
    x, y = rng.standard_normal((2, N_COLS, 3)), rng.standard_normal((2, N_ROWS, 3))
    size = max(magnitude(b, x) for b in a) + max(magnitude(b.T, y) for b in a)
    product = coordinates.product_reference(values, x, row, col, n_rows=N_ROWS, n_cols=N_COLS)
    assert_close(product, a @ x, size)
    assert_close(coordinates.transposed_reference(values, y, row, col, n_cols=N_COLS), a.swapaxes(1, 2) @ y, size)
    sampled = coordinates.outer_reference(jnp.asarray(y), jnp.asarray(x), row, col, n_cols=N_COLS)
    outer = np.pad(y @ x.swapaxes(1, 2), ((0, 0), (0, 0), (0, 1)))
    assert_close(sampled, outer[:, row, col], 3 * np.abs(x).max() * np.abs(y).max())


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_padding_reads_neither_its_row_nor_any_column(stored, poison):
    values, row, col, a = stored
    live = col < N_COLS
    only_padding = np.setdiff1d(np.arange(N_ROWS), row[live])
    x, y = np.ones((2, N_COLS, 1)), np.ones((2, N_ROWS, 1))
    x[:, -1], y[:, only_padding] = poison, poison  # a clipped column would be the last
    product = coordinates.product_reference(values, x, row, col, n_rows=N_ROWS, n_cols=N_COLS)
    np.testing.assert_array_equal(~np.isfinite(product[..., 0]), a[:, :, -1] != 0)
    assert np.isfinite(coordinates.transposed_reference(values, y, row, col, n_cols=N_COLS)).all()
    sampled = coordinates.outer_reference(jnp.asarray(y), jnp.asarray(x), row, col, n_cols=N_COLS)
    np.testing.assert_array_equal(sampled[:, ~live], 0)


def test_sums_run_in_the_widest_type_and_never_below_single_precision():
    assert coordinates.accumulator(jnp.bfloat16) == coordinates.accumulator(jnp.float16, jnp.bfloat16) == jnp.float32
    assert coordinates.accumulator(jnp.bfloat16, jnp.float64) == jnp.float64
    assert coordinates.accumulator(jnp.float32, jnp.complex64) == jnp.complex64
    ones, row = jnp.full((1, 512), 1 / 256, jnp.bfloat16), jnp.zeros(512, jnp.int32)
    product = coordinates.product_reference(ones, jnp.ones((1, 1, 1), jnp.bfloat16), row, row, n_rows=1, n_cols=1)
    assert product.dtype == jnp.bfloat16 and float(product[0, 0, 0]) == 2
