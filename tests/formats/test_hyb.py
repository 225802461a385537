"""HYB: how wide the ELL part is, and what lies beside it."""

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored

WIDEST_FOR_A_THIRD = max(K for K in range(41) if 3 * np.count_nonzero(LENGTHS > K - 1) >= 99)


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("hyb"), "hyb", width=1))


def test_the_width_is_what_a_third_of_the_rows_reach_or_their_mean():
    assert stored("hyb").width == stored("hyb", width="third").width == WIDEST_FOR_A_THIRD
    A = stored("hyb", width="mean")
    assert A.width == round(RAGGED.nnz / 99) and A.layout == {"width": 6}
    jax.tree.map(np.testing.assert_array_equal, A, stored("hyb", **A.layout))


@pytest.mark.parametrize("width", [0, 5, 40, 50])
def test_the_ell_part_has_the_first_entries_of_every_row_and_the_rest_follows_by_row(width):
    A = stored("hyb", width=width)
    j = np.arange(RAGGED.nnz) - np.repeat(RAGGED.indptr[:-1], LENGTHS)
    ell, rest = np.split(np.asarray(A.values), [width * 99])
    np.testing.assert_array_equal(ell.reshape(-1, 99).T[np.arange(width) < LENGTHS[:, None]], RAGGED.data[j < width])
    np.testing.assert_array_equal(rest, RAGGED.data[j >= width])
    np.testing.assert_array_equal(A.tail_col, RAGGED.indices[j >= width])
    np.testing.assert_array_equal(A.tail_row, np.repeat(np.arange(99), LENGTHS)[j >= width])


@pytest.mark.parametrize("backend", ["auto", "xla", "interpret"])
def test_poison_in_x_reaches_only_the_rows_that_read_it(backend):
    x = np.ones(120)
    x[60] = np.nan
    y = stored("hyb", width=3, backend=backend) @ x
    np.testing.assert_array_equal(np.isnan(y), (RAGGED != 0)[:, [60]].toarray()[:, 0])
