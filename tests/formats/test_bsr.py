"""BSR: dense blocks, their shape chosen or given, padded where they stick out."""

import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import RAGGED, assert_as_drawn, drawn_matrix, holes, stored, value_sizes

SHAPES = [(1, 1), (2, 2), (3, 3), (2, 3), (3, 2), (1, 4), (4, 1), (8, 8), (50, 7), (200, 32)]


def test_the_arrays_are_those_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("bsr"), "bsr", block_shape=(2, 2))
    assert_as_drawn(A)
    assert holes(A).tolist() == [11, 14]  # the two · of the block at the lower right


def block_rows(r: int, c: int) -> np.ndarray:
    """Blocks in every row of blocks of RAGGED."""
    row, col = RAGGED.nonzero()
    return np.bincount(np.unique(row // r * 1000 + col // c) // 1000, minlength=-(-99 // r))


@value_sizes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes_follow_the_formula(value, shape):
    r, c = shape
    rows = min(math.lcm(r, 128), -(-99 // r) * r)
    widest = [block_rows(r, c)[s : s + rows // r].max() for s in range(0, -(-99 // r), rows // r)]
    A = stored("bsr", value, block_shape=shape)
    assert A.n_stored == sum(widest) * rows * c
    pattern = 0 if A.pattern is None else A.pattern.nbytes
    assert A.nbytes == A.n_stored * value + 4 * A.n_stored // (r * c) + 4 * (len(widest) + 1) + pattern
    assert pattern <= -(-A.n_stored // 8)


@pytest.mark.some(shape=4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_that_do_not_divide_the_shape_are_padded(shape):
    A = stored("bsr", block_shape=shape)
    assert A.shape == RAGGED.shape and A.block_shape == shape
    got = A.to_scipy()
    np.testing.assert_array_equal(got.indices, RAGGED.indices)
    np.testing.assert_array_equal(got.data, RAGGED.data)


@pytest.mark.parametrize(
    ("matrix", "block"),
    [
        (jsf.gallery.elasticity(4), 3),
        (jsf.gallery.elasticity((2, 5, 3), clamped=False), 3),
        (jsf.gallery.cfd(4), 5),
        (jsf.gallery.cfd(4, 6, 23), 6),
        (jsf.gallery.cfd(5, 4, 10), 4),
        (jsf.gallery.poisson(10), 1),
        (RAGGED, 1),
    ],
)
def test_the_block_that_the_problem_has_is_found(matrix, block):
    assert jsf.from_scipy(matrix, "bsr").block_shape == (block, block)


def test_blocks_too_wide_to_unroll_are_refused():
    with pytest.raises(ValueError, match=r"at most 32 columns.*33"):
        stored("bsr", block_shape=(1, 33))


def test_full_blocks_of_3_take_four_ninths_of_a_byte_of_index_an_entry():
    A = stored("bsr", matrix=jsf.gallery.elasticity(4))
    assert A.block_col.nbytes * 9 == 4 * A.n_stored
    assert A.pattern is None  # every block is stored whole


def test_a_slice_is_whole_blocks_and_whole_tiles():
    rows = sp.csr_array(np.ones((1000, 6)))
    for r, lanes in ((1, 128), (2, 128), (3, 384), (5, 640), (8, 128)):
        A = jsf.from_scipy(rows, "bsr", block_shape=(r, 2))
        np.testing.assert_array_equal(np.diff(A.slice_ptr), np.full(-(-1000 // lanes), 6 * lanes))


def test_one_by_one_blocks_are_hll():
    A, B = stored("bsr", block_shape=(1, 1)), stored("hll", slice_size=99)
    np.testing.assert_array_equal(A.values, B.values)
    np.testing.assert_array_equal(A.block_col, B.col_idx)


@pytest.mark.parametrize("zero", [False, True])
def test_a_stored_zero_in_a_block_is_an_entry_and_padding_is_not(zero):
    """Three of four places of a block; one of them holds a zero, or none."""
    S = sp.csr_array((np.array([0.0 if zero else 4.0, 1, 2]), ([0, 0, 1], [0, 1, 1])), (2, 2))
    A = jsf.from_scipy(S, "bsr", block_shape=(2, 2))
    assert A.nnz == 3 and A.n_stored == 4
    np.testing.assert_array_equal(A.data, S.data)
    np.testing.assert_array_equal(np.isnan(A @ np.array([np.nan, 1.0])), [True, False])


def test_blocks_too_many_are_refused_before_they_are_allocated():
    scattered = sp.diags_array(np.ones(50_000)).tocsr()[np.random.default_rng(0).permutation(50_000)]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="format 'bsr' would take"):
            jsf.from_scipy(scattered, "bsr", block_shape=(16, 16))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30e6  # the matrix takes 0.8 MB, its blocks 102 MB
