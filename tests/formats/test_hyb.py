"""HYB: how wide the ELL part is, and what lies beside it. How that is summed is asked in `test_long_rows.py`."""

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.long_rows import TAIL
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored, value_sizes

WIDEST_FOR_A_THIRD = max(K for K in range(41) if 3 * np.count_nonzero(LENGTHS > K - 1) >= 99)


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("hyb"), "hyb", width=1))


@value_sizes
@pytest.mark.parametrize("width", [0, 1, 7, 12])
def test_bytes_follow_the_formula(value, width):
    """No row has more than one piece here."""
    rest = np.maximum(LENGTHS - width, 0)
    tail = rest.sum() * (value + 4) + 4 * np.count_nonzero(rest) + 4 * (np.count_nonzero(rest) + 1)
    assert stored("hyb", value, width=width).nbytes == width * 99 * (value + 4) + tail


def test_bytes_follow_the_formula_where_rows_have_several_pieces():
    S = jsf.gallery.power_law(1000, mean=200)
    lengths = np.diff(S.indptr)
    rest = np.maximum(lengths - 50, 0)
    pieces, long = (-(-rest // 256)).sum(), np.count_nonzero(rest)
    assert pieces > long
    tail = rest.sum() * 12 + 4 * long + 4 * (pieces + 1) + 4 * (long + 1)
    assert stored("hyb", matrix=S, width=50).nbytes == 50 * 1000 * 12 + tail


def test_the_width_is_what_a_third_of_the_rows_reach_or_their_mean():
    assert stored("hyb").width == stored("hyb", width="third").width == WIDEST_FOR_A_THIRD
    assert stored("hyb", width="mean").width == round(RAGGED.nnz / 99)


def test_the_ell_part_has_the_first_entries_of_every_row_and_the_rest_follows_by_row():
    A = stored("hyb", width=5)
    j = np.arange(RAGGED.nnz) - np.repeat(RAGGED.indptr[:-1], LENGTHS)
    ell, rest = np.split(np.asarray(A.values), [5 * 99])
    np.testing.assert_array_equal(ell.reshape(5, 99).T[np.arange(5) < LENGTHS[:, None]], RAGGED.data[j < 5])
    np.testing.assert_array_equal(rest, RAGGED.data[j >= 5])
    np.testing.assert_array_equal(A.tail_col, RAGGED.indices[j >= 5])
    np.testing.assert_array_equal(A.tail_rows, np.flatnonzero(LENGTHS > 5))


def test_width_zero_is_all_tail():
    A = stored("hyb", width=0)
    assert A.width == 0 and A.col_idx.size == 0
    np.testing.assert_array_equal(A.values, RAGGED.data)


@pytest.mark.parametrize("width", [40, 50])
def test_a_width_that_holds_every_row_is_ell_without_a_tail(width):
    A = stored("hyb", width=width)
    assert all(getattr(A, name) is None for name in TAIL)
    assert A.n_stored == width * 99
    np.testing.assert_array_equal(A.col_idx[: 40 * 99], stored("ell").col_idx)


def test_the_layout_says_the_number_that_a_rule_gave():
    A = stored("hyb", width="mean")
    assert A.layout == {"width": 6}
    jax.tree.map(np.testing.assert_array_equal, A, stored("hyb", **A.layout))
