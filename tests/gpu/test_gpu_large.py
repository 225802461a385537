"""More than 2³¹ stored entries, for real: 64-bit offsets through conversion and product."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf

pytestmark = pytest.mark.gpu

N, WIDTH = 2**27, 17  # 2.28·10⁹ entries
NEEDED = 100e9  # bytes: CSR, the converted matrix, and what converting takes


@pytest.fixture(scope="module")
def band() -> jsf.CSR:
    """A band of 17 entries a row, made on the device: small whole numbers, so that every sum is exact."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("needs the GPU's memory for itself; run this file without -n")
    memory = jax.devices()[0].memory_stats() or {}
    if memory.get("bytes_limit", 0) < NEEDED:
        pytest.skip(f"needs {NEEDED / 1e9:.0f} GB on the GPU")

    @jax.jit
    def arrays():
        row = jnp.arange(N, dtype=jnp.int32)[:, None]
        k = jnp.arange(WIDTH, dtype=jnp.int32)
        first = jnp.clip(row - WIDTH // 2, 0, N - WIDTH)
        values = ((row + k) % 3).astype(jnp.float32)
        return values.reshape(-1), (first + k).reshape(-1), jnp.arange(N + 1, dtype=jnp.int64) * WIDTH

    values, col_idx, row_ptr = arrays()
    return jsf.CSR(values, (N, N), N * WIDTH, "auto", col_idx, row_ptr, 16)


@jax.jit
def expected(x):
    """The product from the band's definition, entry by entry of all rows."""
    row = jnp.arange(N, dtype=jnp.int32)
    first = jnp.clip(row - WIDTH // 2, 0, N - WIDTH)
    y = jnp.zeros(N, jnp.float32)
    for k in range(WIDTH):
        y += ((row + k) % 3).astype(jnp.float32) * x[first + k]
    return y


@pytest.mark.parametrize("format", ["csr", "ell", "hll", "sell", "pjds"])
@pytest.mark.parametrize("backend", ["triton", "mosaic"])
def test_products_beyond_31_bits_are_exact(band, format, backend):
    x = (jnp.arange(N, dtype=jnp.int32) % 5).astype(jnp.float32)
    A = band if format == "csr" else band.asformat(format, max_bytes=2**40)
    assert A.n_stored > 2**31 and any(a.dtype == jnp.int64 for a in jax.tree.leaves(A)) == (format != "ell")
    with jsf.use_backend(backend):
        y = A @ x
    np.testing.assert_array_equal(int(jnp.sum(y != expected(x))), 0)
