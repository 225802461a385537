"""BSR: dense blocks, their shape chosen or given, padded where they stick out."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import RAGGED, assert_as_drawn, drawn_matrix, holes, stored

SHAPES = [(1, 1), (2, 2), (3, 3), (2, 3), (3, 2), (1, 4), (4, 1), (8, 8), (50, 7), (200, 32)]


def test_the_arrays_are_those_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("bsr"), "bsr", block_shape=(2, 2))
    assert_as_drawn(A)
    assert holes(A).tolist() == [11, 14]  # the two · of the block at the lower right


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
