"""Shards whose arrays differ in size, width or presence, made alike."""

import itertools

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed.padding import widest
from tests.distributed.problems import MESH
from tests.marks import few

TWO = jax.make_mesh((2,), ("rows",), devices=MESH.devices[:2])
HALF = 70_000  # rows of a shard, whose columns 16 bits do not reach
NEAR = ([0, 0, 1, 2, 3, 4, 7, 7], [0, 5, 1, 2, 9, 9, 3, 8])
FAR = ([0, 0, 1, 2, 2, 3, 5, 5, 6], [0, HALF - 1, 65_000, 1, 2, 40_000, 0, 50_000, 3])
FARTHER = ([0] * 70, [*range(0, HALF, 1000)])
LONG = ([6] * 600 + [3], [*range(600), 2])
NONE = ([], [])
LAYOUTS = {
    "sell": {"slice_size": 4},
    "hyb": {"width": 2},
    "csr5": {"tile_shape": (128, 8), "hot": 0},
    "csr5, hot": {"tile_shape": (128, 8), "hot": 4},
}


@pytest.mark.parametrize(
    ("one", "other"),
    few([(NEAR, FAR), (FARTHER, FAR), (LONG, NEAR), (FAR, NONE)], 3),
    ids=["windows", "widths", "long rows", "none"],
)
@pytest.mark.parametrize("name", few(LAYOUTS, 2))
def test_shards_stay_what_they_were(name, one, other):
    row, col = np.concatenate(
        [np.array(of, int).reshape(2, -1) + HALF * k for k, of in enumerate((one, other))], axis=1
    )
    S = sp.csr_array((np.arange(1.0, len(row) + 1), (row, col)), (2 * HALF, 2 * HALF))
    S.sort_indices()
    A = jsf.shard(S, TWO, format=name.split(",")[0], by="rows", **LAYOUTS[name])
    x = np.random.default_rng(0).standard_normal(2 * HALF)
    np.testing.assert_allclose(A @ x, S @ x, rtol=1e-13)
    np.testing.assert_array_equal(A.data, S.data)


@pytest.mark.parametrize(
    ("backend", "format"), few(itertools.product(("auto", "interpret"), ("dia", "hdia", "bsr")), 3)
)
def test_stored_zeros_keep_their_place_beside_shards_without_a_pattern(format, backend):
    full, holes = np.arange(1.0, 37).reshape(6, 6), np.diag(np.ones(6)) + np.diag([1.0, 0, 1, 0, 1], 1)
    options = {"bsr": {"block_shape": (3, 3)}, "hdia": {"slice_size": 3}}.get(format, {})
    for blocks in ([full, full], [full, holes], [holes, full]):
        S = sp.csr_array(sp.block_diag([sp.csr_array(block) for block in blocks]))  # dense ones would keep their zeros
        S.data[4] = 0.0
        A = jsf.shard(S, TWO, format=format, by="rows", backend=backend, **options)
        np.testing.assert_array_equal(A.data, S.data)
        x = np.where(np.arange(12) == S.indices[4], np.inf, 1.0)  # times a stored zero NaN, times a hole nothing
        np.testing.assert_array_equal(A @ x, S @ x)


def test_pointers_of_64_bits_in_one_shard_widen_those_of_the_others():
    forms = [({}, {"row_ptr": np.dtype(kind)}) for kind in ("int32", "int64")]
    assert widest(forms)[1] == widest(forms[::-1])[1] == {"row_ptr": np.int64}
