"""The `hot` columns of csr5: their order, bytes and products."""

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from tests.formats.test_csr5 import MATRICES, N_COLS, NUMBERS, TILE, made, of_lengths, product

hot_columns = pytest.mark.parametrize("hot", [1, 50, N_COLS])


@hot_columns
def test_the_most_used_columns_come_first_and_all_others_in_their_order(hot):
    S, A, plain = MATRICES["wide"], made("wide", hot=hot), made("wide")
    used = dict.fromkeys(range(N_COLS), 0)
    for column in S.indices.tolist():
        used[column] += 1
    by_use = sorted(used, key=lambda column: -used[column])  # of columns used alike the first one first
    assert A.col_order.tolist() == by_use[:hot] + sorted(by_use[hot:]) and A.col_order.dtype == np.int32
    (col, last), (own, own_last) = (B.tiles.columns(B.arrays) for B in (A, plain))
    np.testing.assert_array_equal(np.append(A.col_order, N_COLS)[col], own)
    np.testing.assert_array_equal(last, own_last)
    np.testing.assert_array_equal(A.values, plain.values)
    assert plain.col_order is None


@pytest.mark.parametrize(
    ("columns", "narrow"),
    [([7, 90_000], (False, True)), ([50_000, 50_001], (True, False))],
    ids=["brought together", "torn apart"],
)
def test_whether_columns_fit_16_bits_is_asked_of_those_in_the_new_order(columns, narrow):
    """Both are used more than any other column, and the first one most."""
    S = of_lengths([2, 2, 1], np.array([*columns, *columns, columns[0]]))
    hots = [0, 2 if narrow[1] else 1]
    made = [jsf.from_scipy(S, "csr5", tile_shape=TILE, hot=hot) for hot in hots]
    assert tuple(A.marked_col is None for A in made) == narrow
    for A in made:
        np.testing.assert_array_equal(A.to_scipy().indices, S.indices)


@pytest.mark.parametrize("hot", [50, N_COLS])
@pytest.mark.parametrize("backend", ["interpret", "xla"])
def test_an_order_of_the_columns_changes_no_bit_of_a_product(hot, backend):
    """Numbers have half of the digits, so that products are exact wherever a CPU fuses."""
    x = NUMBERS.standard_normal(N_COLS).astype(np.float32).astype(np.float64)
    with_order, plain = (product(made("wide", backend=backend, hot=h), x) for h in (hot, 0))
    np.testing.assert_array_equal(with_order, plain)


@pytest.mark.some(hot=1)
@hot_columns
def test_data_rows_and_columns_come_back_from_a_new_order(hot):
    S, A = MATRICES["wide"], made("wide", hot=hot)
    np.testing.assert_array_equal(A.data, S.data)
    back = A.with_data(2 * S.data).to_scipy()
    np.testing.assert_array_equal(back.indices, S.indices)
    np.testing.assert_array_equal(back.data, 2 * S.data)
    y = NUMBERS.integers(-3, 4, 200).astype(np.float64)
    np.testing.assert_array_equal(A.T @ y, S.T @ y)
    wide = A.with_wide_columns()
    assert wide.marked_delta is None
    np.testing.assert_array_equal(wide.to_scipy().indices, S.indices)
