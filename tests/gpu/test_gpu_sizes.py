"""Columns, batches and places beyond the limits of a grid and of 31 bits, on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from tests.gpu.test_gpu_formats import every_dialect, stacked
from tests.oracle import assert_product, draw
from tests.zoo import CASES, SORTED, Layout

pytestmark = pytest.mark.gpu


@every_dialect
@pytest.mark.parametrize("p", [1, 8, 11, 12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", [SORTED, *map(Layout, ("bsr", "biell", "csr"))], ids=str)
def test_any_number_of_columns(layout, dtype, p, dialect, rng):
    S, dense = stacked()
    A, X = layout.of(S, dtype=dtype, backend=dialect), draw(rng, dtype, dense.shape[1], p)
    assert_product(A @ X, dense, X)


@every_dialect
def test_a_batch_beyond_65535_fits_the_grid(dialect):
    """CUDA's second and third grid axes end there; the Jacobian with respect to 70,000 entries must not."""
    A = Layout("csr").of(CASES["explicit_zero"].scipy(np.float32), backend=dialect)
    D = jnp.arange(70_000, dtype=jnp.float32)[:, None] * jnp.ones(A.nnz, jnp.float32)
    got = jax.jit(jax.vmap(lambda data: A.with_data(data) @ jnp.ones(4, jnp.float32)))(D)
    lengths = CASES["explicit_zero"].pattern().sum(axis=1)
    np.testing.assert_array_equal(got, np.arange(70_000)[:, None] * lengths)


@every_dialect
def test_columns_beyond_65535_blocks_fit_the_grid(dialect):
    A = Layout("csr").of(CASES["explicit_zero"].scipy(np.float32), backend=dialect)
    p = 8 * 65536 + 1
    X = jnp.broadcast_to(jnp.arange(p, dtype=jnp.float32), (4, p))
    np.testing.assert_array_equal(A @ X, CASES["explicit_zero"].dense().sum(axis=1)[:, None] * np.arange(p))


@every_dialect
def test_more_than_two_to_the_31_places_are_addressed(dialect):
    """One column of x a block of 2¹⁶: the product has 2³¹ + 2¹⁶ numbers. 8.6 GB."""
    n, p = 2**16, 2**15 + 1
    A = Layout("hll").of(sp.eye_array(n, format="csr", dtype=np.float32) * 3, backend=dialect)
    y = jax.jit(lambda A: A @ jnp.ones((n, p), jnp.float32))(A)
    assert y.size > 2**31
    assert float(jnp.min(y)) == float(jnp.max(y)) == 3
