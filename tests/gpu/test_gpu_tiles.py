"""CSR5 on a real GPU: sums that pass from lane to lane, whichever the tile and however its columns are stored."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from tests.formats.test_csr5 import few_spare_places  # noqa: F401
from tests.gpu.test_gpu_formats import TILES, every_dialect, longest_sum, product
from tests.oracle import assert_close, wide
from tests.zoo import Layout

pytestmark = pytest.mark.gpu

MORE_TILES = [
    Layout("csr5", (("tile_shape", (1024, 8)),)),
    Layout("csr5", (("tile_shape", (128, 8)), ("keep_sums", True))),  # cut, and kept
]
N_ROWS, N_COLS = 5000, 1_000_000
SLOTS = np.arange(150)  # of numbers that rows read, and the columns that these have
NEAR, MESHED, FAR = SLOTS, SLOTS // 8 * 3000 + SLOTS % 8, 1000 + 6000 * SLOTS


@functools.cache
def near_and_far() -> dict[str, sp.csr_array]:
    """The same rows, many of them cut in small tiles and some empty, with columns near, in windows, or far apart."""
    rng = np.random.default_rng(4)
    lengths = rng.integers(0, 40, N_ROWS)
    lengths[[7, 2500]], lengths[::97] = (150, 149), 0
    slots = np.concatenate([np.sort(rng.choice(SLOTS, n, replace=False)) for n in lengths])
    early = np.repeat(np.arange(N_ROWS) < 2000, lengths)
    columns = {"narrow": NEAR[slots], "meshed": MESHED[slots], "wide": np.where(early, NEAR[slots], FAR[slots])}
    data, ends = rng.standard_normal(slots.size), np.append(0, np.cumsum(lengths))
    return {kind: sp.csr_array((data, col, ends), (N_ROWS, N_COLS)) for kind, col in columns.items()}


@every_dialect
@pytest.mark.parametrize("p", [1, 5, 12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", [*TILES, *MORE_TILES], ids=str)
def test_narrow_and_wide_columns_give_the_same_bits_in_every_run(layout, dtype, p, dialect, rng):
    x, results = np.zeros((N_COLS, p)), []
    x[NEAR] = x[MESHED] = x[FAR] = rng.standard_normal((SLOTS.size, p))
    x = jnp.asarray(x, dtype)
    for kind, S in near_and_far().items():
        A = layout.of(S, dtype=dtype, backend=dialect)
        stored = {name for name in ("col_base", "windows", "marked_col") if getattr(A, name) is not None}
        assert stored == {{"narrow": "col_base", "meshed": "windows", "wide": "marked_col"}[kind]}
        assert (A.long_rows is not None) == (dict(layout.options)["tile_shape"] == (128, 8))
        results += [np.asarray(product(A, x)) for _ in range(3)]
        assert_close(results[-1], S @ wide(x), longest_sum(S, x), dtype)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
