"""DIA: diagonals without column indices, and the pattern that tells a stored zero from padding."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import statistics
from tests.formats.pictures import RAGGED, assert_as_drawn, drawn_matrix, holes, holes_drawn, stored, value_sizes


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("dia"), "dia"))


def test_the_pattern_names_the_empty_places_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("dia"), "dia")
    np.testing.assert_array_equal(holes(A), holes_drawn(A))


@value_sizes
def test_bytes_follow_the_formula(value):
    A = stored("dia", value)
    diagonals = len(np.unique(np.subtract(*RAGGED.nonzero())))
    assert A.nbytes == diagonals * (99 * value + 4) + -(-diagonals * 99 // 8)


@pytest.mark.parametrize("shape", [(99, 120), (120, 99), (3, 50), (50, 3), (1, 40), (40, 1)])
@pytest.mark.parametrize("block", [7, statistics.BLOCK])
def test_place_r_of_a_diagonal_is_the_entry_at_r_and_r_plus_its_offset(shape, block, monkeypatch):
    monkeypatch.setattr(statistics, "BLOCK", block)  # rows that are stored at a time
    dense = np.resize(RAGGED.toarray(), shape)
    dense[0, -1] = dense[-1, 0] = 7  # the two outermost diagonals
    A = jsf.from_scipy(sp.csr_array(dense), "dia")
    offsets = np.asarray(A.offsets)
    assert offsets[0] == 1 - shape[0] and offsets[-1] == shape[1] - 1 and np.all(np.diff(offsets) > 0)
    row = np.arange(shape[0])
    col = row + offsets[:, None]
    inside = (col >= 0) & (col < shape[1])
    wanted = np.where(inside, dense[row, np.clip(col, 0, shape[1] - 1)], 0)
    np.testing.assert_array_equal(np.asarray(A.values).reshape(-1, shape[0]), wanted)
    np.testing.assert_array_equal(holes(A), np.flatnonzero(inside & (wanted == 0)))
    np.testing.assert_array_equal(A.data, dense[dense != 0])


def diagonal(n: int, missing: int) -> sp.csr_array:
    """A diagonal of n places of which some hold no entry."""
    row = np.arange(missing, n)
    return sp.csr_array((row + 1.0, (row, row)), (n, n))


def test_a_full_band_has_no_pattern_and_gives_its_entries_back():
    S = jsf.gallery.poisson(50, dim=1)
    S.data[:] = np.arange(S.nnz)
    A = jsf.from_scipy(S, "dia")
    assert A.pattern is None
    np.testing.assert_array_equal(A.data, S.data)
    np.testing.assert_array_equal(A.to_scipy().indices, S.indices)


@pytest.mark.parametrize(("missing", "dtype", "size"), [(1, "int32", 1), (9, "int32", 9), (10, "int8", 40)])
def test_the_pattern_is_a_list_where_that_is_shorter_than_bits(missing, dtype, size):
    """320 places: 40 bytes of bits, 4 for each number of a list."""
    A = jsf.from_scipy(diagonal(320, missing), "dia")
    assert A.pattern.dtype == dtype and A.pattern.shape == (size,)
    np.testing.assert_array_equal(holes(A), np.arange(missing))


def test_a_stored_zero_asks_for_bits_unless_nothing_is_missing():
    few, none = diagonal(320, 1), diagonal(320, 0)
    few.data[5] = none.data[5] = 0
    assert jsf.from_scipy(few, "dia").pattern.dtype == "uint8"
    assert jsf.from_scipy(none, "dia").pattern is None


@pytest.mark.parametrize("missing", [0, 1])
def test_a_stored_zero_is_an_entry_and_padding_is_not(missing):
    S = diagonal(40, missing)
    S.data[5] = 0
    A = jsf.from_scipy(S, "dia")
    assert A.nnz == 40 - missing
    np.testing.assert_array_equal(A.data, S.data)
    y = A @ np.full(40, np.nan)
    np.testing.assert_array_equal(np.isnan(y), np.arange(40) >= missing)


def test_data_may_become_zero_where_the_pattern_is_a_list():
    A = jsf.from_scipy(diagonal(320, 1), "dia")
    B = A.with_data(0 * A.data)
    assert B.pattern.dtype == "int32" and B.nnz == 319
    assert B.to_scipy().nnz == 319 and B.data.shape == (319,)
