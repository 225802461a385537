"""Results of the compiled operations against those of dense arrays."""

import operator

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._aligned import ALIGNMENT
from jaxsparse_fmt.kernels.cpu import csr_operations

RNG = np.random.default_rng(3)


def random(n_rows: int, n_cols: int, dtype: type = float) -> sp.csr_array:
    """Small whole numbers, some of them stored zeros, whose sums often cancel; some rows are empty, one is long."""
    present = RNG.random((n_rows, n_cols)) < RNG.choice([0, 0.002, 0.02], n_rows)[:, None]
    present[n_rows // 2] = RNG.random(n_cols) < 0.7
    row, col = np.nonzero(present)
    values = RNG.integers(-2, 3, row.size) + (1j * RNG.integers(-2, 3, row.size) if dtype is complex else 0)
    S = sp.csr_array((values.astype(dtype), (row, col)), shape=(n_rows, n_cols))
    S.sort_indices()
    return S


def same(got: sp.csr_array, dense: np.ndarray, present: np.ndarray) -> None:
    got.check_format(full_check=True)
    row, col = np.nonzero(present)
    np.testing.assert_array_equal(got.indices, col)
    np.testing.assert_array_equal(np.repeat(np.arange(got.shape[0]), np.diff(got.indptr)), row)
    np.testing.assert_array_equal(got.data, dense[row, col])
    if csr_operations.AT_ONCE == 0 and got.nnz > ALIGNMENT:  # else SciPy may copy what fills less than half of its base
        assert got.data.ctypes.data % ALIGNMENT == got.indices.ctypes.data % ALIGNMENT == 0


def present(S: sp.csr_array) -> np.ndarray:
    return sp.csr_array((np.ones(S.nnz), S.indices, S.indptr), S.shape).toarray() > 0


@pytest.mark.parametrize("at_once", [0, 2**22], ids=["counted", "at once"])
def test_have_results_the_entries_of_dense_ones_with_those_that_cancel(at_once, monkeypatch):
    monkeypatch.setattr(csr_operations, "AT_ONCE", at_once)
    S, R = random(300, 9000), random(300, 9000)
    s, r = S.toarray(), R.toarray()
    for f in csr_operations.OPERATIONS:
        places = present(S) & present(R) if f is operator.mul else present(S) | present(R)
        same(csr_operations.combined(f, S, R), f(s, r), places)
    square = random(9000, 300)
    product = present(S).astype(int) @ present(square) > 0
    same(csr_operations.product(S, square), s @ square.toarray(), product)
    rows, columns = np.array([7, 3, 3, 150, 0]), np.array([0, 2, 63, 64, 4096, 8999])
    number = np.full(9000, -1, np.int32)
    number[columns] = np.arange(6)
    lengths = np.diff(S.indptr)[rows]
    same(csr_operations.crossed(S, rows, lengths, number, 6), s[rows][:, columns], present(S)[rows][:, columns])
    same(csr_operations.crossed(S, rows, lengths, number[:0], 9000), s[rows], present(S)[rows])


def test_are_sums_of_two_dtypes_in_the_wider_one():
    S, R = random(40, 50).astype(np.float32), random(40, 50, complex)
    same(csr_operations.combined(operator.sub, S, R), S.toarray() - R.toarray(), present(S) | present(R))


def test_is_a_transpose_sorted():
    S = random(200, 70)
    same(csr_operations.transposed(S), S.toarray().T, present(S).T)


def test_lie_entries_on_their_diagonals():
    S = random(60, 90)
    diagonals = csr_operations.occupied(S)
    row, col = np.nonzero(present(S))
    np.testing.assert_array_equal(diagonals, np.unique(col - row + 59))
    values, full = np.zeros(diagonals.size * 60, np.float32), np.zeros((diagonals.size, 60), bool)
    csr_operations.put_on_diagonals(S, diagonals, values, full)
    assert np.count_nonzero(full) == S.nnz
    for k, diagonal in enumerate(diagonals - 59):
        at = np.arange(max(-diagonal, 0), min(60, 90 - diagonal))
        np.testing.assert_array_equal(values[k * 60 + at], S.toarray()[at, at + diagonal])
        np.testing.assert_array_equal(full[k, at], present(S)[at, at + diagonal])


def test_stays_a_first_entry_that_is_not_finite_in_its_row():
    S, R = random(300, 300), random(300, 300)
    S.data[0], first = np.inf, np.flatnonzero(np.diff(S.indptr))[0]
    for got in (csr_operations.combined(operator.sub, S, R), csr_operations.product(S, R)):
        assert np.isfinite(got.toarray()[np.arange(300) != first]).all()


def test_go_arrays_that_kernels_cannot_read_another_way(monkeypatch):
    monkeypatch.setattr(csr_operations, "FEW", 0)
    S = random(40, 50)
    assert csr_operations.serves(S)
    turned, apart = S.copy(), S.copy()
    turned.data = S.data.astype(">f8")
    apart.data = np.repeat(S.data, 2)[::2]
    for T in (turned, apart):
        assert not csr_operations.serves(T)
        for format in ("csc", "dia"):
            assert abs(jsf.from_scipy(T, format, "float64").to_scipy() - S).nnz == 0
