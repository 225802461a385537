"""BiELL: the rows of a warp, sorted and in bisected groups."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored

bisected = pytest.mark.parametrize("format", ["biell", "bijad"])


def bisect(lengths: np.ndarray) -> list[list[list[tuple[int, int]]]]:
    """The groups of one warp: columns of 32 lanes, each with its row and the number of its entry.

    A group of R rows goes on, 32 / R entries of a row at a time, while more than half of its rows have entries left.
    """
    taken, groups = 0, []
    for rows in (32, 16, 8, 4, 2, 1):
        columns = []
        while np.count_nonzero(lengths > taken) > rows // 2:
            columns.append([(lane % rows, taken + lane // rows) for lane in range(32)])
            taken += 32 // rows
        groups.append(columns)
    return groups


@bisected
def test_the_arrays_are_those_of_the_picture(format):
    assert_as_drawn(jsf.from_scipy(drawn_matrix(format), format))


@bisected
def test_groups_hold_what_bisecting_says(format):
    A = stored(format)
    perm = np.append(A.perm, np.full(29, 99))
    lengths, indptr = np.append(LENGTHS, 0)[perm], np.append(RAGGED.indptr, RAGGED.nnz)[perm]
    starts, values, cols = [0], [], []
    for warp in range(0, 128, 32):
        for columns in bisect(lengths[warp : warp + 32]):
            for row, j in (place for column in columns for place in column):
                there = j < lengths[warp + row]
                values.append(RAGGED.data[indptr[warp + row] + j] if there else 0)
                cols.append(RAGGED.indices[indptr[warp + row] + j] if there else 120)
            starts.append(len(values))
    np.testing.assert_array_equal(A.slice_ptr, starts)
    np.testing.assert_array_equal(A.values, values)
    np.testing.assert_array_equal(A.col_idx, cols)


@pytest.mark.parametrize(
    ("lengths", "columns"),
    [
        ([3] * 32, [3, 0, 0, 0, 0, 0]),
        ([3] * 17, [3, 0, 0, 0, 0, 0]),
        ([3] * 16, [0, 2, 0, 0, 0, 0]),
        ([65], [0, 0, 0, 0, 0, 3]),
        ([65, 1], [0, 0, 0, 0, 1, 2]),
        ([8, 4] + [2] * 30, [2, 0, 0, 0, 1, 0]),
        ([40, 7, 6, 2, 1, 1, 1, 1] + [1] * 24, [1, 0, 0, 1, 0, 1]),
    ],
)
def test_a_warp_has_as_many_columns_in_each_group(lengths, columns):
    matrix = sp.csr_array(np.arange(65) < np.array(lengths)[:, None], dtype=float)
    assert (np.diff(jsf.from_scipy(matrix, "biell").slice_ptr) // 32).tolist() == columns
