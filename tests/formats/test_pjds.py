"""pJDS: blocks of sorted rows, padded to their longest."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("pjds"), "pjds", block_size=2))


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 50, 100])
@pytest.mark.parametrize("block_size", [1, 3, 32])
def test_one_full_row_stores_the_papers_number_of_places(n, block_size):
    """Kreutzer et al., §II.A; the last block may be cut short, and a block larger than the matrix is the matrix."""
    dense = np.eye(n)
    dense[n // 2] = 1
    A = jsf.from_scipy(sp.csr_array(dense), "pjds", block_size=block_size)
    b = min(block_size, n)
    assert A.n_stored == (b + 1) * n - b


@pytest.mark.parametrize("block_size", [1, 4, 7, 32, 98, 99, 1000])
def test_the_rows_of_a_block_end_together_with_its_first(block_size):
    A = stored("pjds", block_size=block_size)
    lengths = LENGTHS[np.asarray(A.perm)]
    np.testing.assert_array_equal(A.row_lengths, lengths)
    assert np.all(np.diff(lengths) <= 0)
    padded = np.repeat(lengths[::block_size], block_size)[:99]
    rows_reached = [np.count_nonzero(padded > j) for j in range(40)]
    np.testing.assert_array_equal(A.col_start, np.append(0, np.cumsum(rows_reached)))


def test_blocks_of_one_row_store_no_padding():
    assert stored("pjds", block_size=1).n_stored == RAGGED.nnz


def test_column_j_holds_entry_j_of_the_sorted_rows():
    A = stored("pjds", block_size=8)
    perm, start, values = (np.asarray(a) for a in (A.perm, A.col_start, A.values))
    for j in range(40):
        rows = perm[LENGTHS[perm] > j]
        np.testing.assert_array_equal(values[start[j] :][: len(rows)], RAGGED.data[RAGGED.indptr[rows] + j])
        assert not np.any(values[start[j] + len(rows) : start[j + 1]])
