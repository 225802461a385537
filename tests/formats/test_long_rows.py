"""Rows split in a main storage and pieces: where the pieces lie, and that their sums are exact and repeat."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._types import CsrArrays
from jaxsparse_fmt.formats import long_rows
from tests.formats.pictures import LENGTHS, RAGGED

ROWS = [1, 255, 0, 256, 257, 512, 100_000, 513]
ENDS = np.append(0, np.cumsum(ROWS))
NUMBERS = np.random.default_rng(1)
LONG = sp.csr_array(
    (NUMBERS.integers(-9, 10, ENDS[-1]) * 1.0, np.concatenate([np.arange(n) for n in ROWS]), ENDS), (8, 100_000)
)
FORMATS = {
    "hyb": lambda S, width, dtype=None: jsf.from_scipy(S, "hyb", dtype, width=width),
    "sell": lambda S, width, dtype=None: jsf.from_scipy(S, "sell", dtype, slice_size=4, max_width=width),
}
both = pytest.mark.parametrize("format", FORMATS)


@jax.jit
def products(A, x, y):
    return A @ x, A.T @ y


def pieces_of(rest: list[int]) -> list[list[int]]:
    return [[min(256, n - start) for start in range(0, n, 256)] for n in rest]


@pytest.mark.parametrize("width", [0, 1, 255, 256, 300])
def test_every_row_goes_on_in_pieces_of_256_and_a_last_one(width):
    values, arrays = long_rows.tail_of(LONG, width, np.float64)
    rest = [max(n - width, 0) for n in ROWS]
    pieces = pieces_of([n for n in rest if n])
    assert arrays["tail_rows"].tolist() == [r for r, n in enumerate(rest) if n]
    assert np.diff(arrays["tail_ptr"]).tolist() == list(itertools.chain(*pieces))
    assert np.diff(arrays["piece_ptr"]).tolist() == [len(p) for p in pieces]
    beyond = np.concatenate([np.arange(n) >= width for n in ROWS])
    np.testing.assert_array_equal(values, LONG.data[beyond])
    np.testing.assert_array_equal(arrays["tail_col"], LONG.indices[beyond])


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("width", [0, 255, 256, 511, 512])
@pytest.mark.parametrize("n_rows", range(1, len(ROWS) + 1))
def test_the_last_piece_is_as_long_as_is_told_before_it_is_cut(n_rows, width, on_device):
    S = LONG[:n_rows]
    csr = CsrArrays(*map(jnp.asarray, (S.data, S.indices, S.indptr)), S.shape) if on_device else S
    pieces = long_rows.pieces_beyond(csr, width, 256)
    rest = [n - width for n in ROWS[:n_rows] if n > width]
    assert (pieces is None) == (not rest)
    if pieces is not None:
        assert pieces.last == pieces.lengths[-1] == pieces_of(rest)[-1][-1]


def test_rows_of_one_piece_need_no_second_pass():
    _, arrays = long_rows.tail_of(RAGGED, 3, np.float64)
    assert arrays["piece_ptr"] is None
    np.testing.assert_array_equal(np.diff(arrays["tail_ptr"]), (LENGTHS - 3)[LENGTHS > 3])


def test_without_long_rows_there_is_no_tail():
    values, arrays = long_rows.tail_of(RAGGED, 40, np.float64)
    assert values.size == 0 and set(arrays) == set(long_rows.TAIL) and not any(arrays.values())


@pytest.mark.some(width=1)
@both
@pytest.mark.parametrize(("width", "dtype"), [(1, np.float64), (300, np.float32)])
def test_sums_of_integers_are_exact_both_ways(format, width, dtype):
    A = FORMATS[format](LONG, width, dtype)
    x, y = (NUMBERS.integers(-3, 4, n).astype(dtype) for n in (100_000, 8))
    product, transposed = products(A, x, y)
    np.testing.assert_array_equal(product, LONG @ x)
    np.testing.assert_array_equal(transposed, LONG.T @ y)


@both
def test_two_runs_agree_to_the_last_bit(format):
    S = LONG.copy()
    S.data = NUMBERS.standard_normal(S.nnz)
    A, x, y = FORMATS[format](S, 1), NUMBERS.standard_normal(100_000), np.ones(8)
    first, again = (np.asarray(products(A, x, y)[0]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, S @ x, rtol=1e-12, atol=1e-10)


@both
def test_data_and_matrix_come_back(format):
    A = FORMATS[format](LONG, 1)
    assert A.tail_col is not None
    np.testing.assert_array_equal(A.data, LONG.data)
    np.testing.assert_array_equal(A.with_data(2 * A.data).values, 2 * np.asarray(A.values))
    back = A.to_scipy()
    np.testing.assert_array_equal(back.indices, LONG.indices)
    np.testing.assert_array_equal(back.indptr, LONG.indptr)


@both
def test_poison_in_x_reaches_only_the_rows_that_read_it(format):
    x = np.ones(100_000)
    x[600] = np.nan
    product, _ = products(FORMATS[format](LONG, 1), x, np.ones(8))
    assert np.isnan(product).tolist() == [n > 600 for n in ROWS]
