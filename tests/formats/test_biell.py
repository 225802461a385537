"""BiELL: the rows of a warp, sorted and in bisected groups."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored, value_sizes

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
@value_sizes
def test_bytes_follow_the_formula(format, value):
    A = stored(format, value)
    assert A.nbytes == A.n_stored * (value + 4) + 24 * 4 + 4 + 8 * 99


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


@bisected
def test_every_entry_lies_in_one_place(format):
    values = np.asarray(stored(format).values)
    np.testing.assert_array_equal(np.sort(values[values != 0]), RAGGED.data)


@bisected
def test_groups_pad_less_than_warps_do_and_these_less_than_ell(format):
    warps = stored("hll", slice_size=32, sigma=32 if format == "biell" else 128)
    assert stored(format).n_stored < warps.n_stored < stored("ell").n_stored


def test_a_warp_holds_its_own_rows_the_longest_first():
    perm = np.asarray(stored("biell").perm)
    for start in range(0, 99, 32):
        rows = range(start, min(start + 32, 99))
        assert perm[start : start + 32].tolist() == sorted(rows, key=lambda r: -LENGTHS[r])


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
