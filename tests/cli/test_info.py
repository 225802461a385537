"""The description of a matrix agrees with dense arithmetic."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt.cli import info
from tests.process import allocating_at_most


def facts(S: scipy.sparse.csr_array) -> dict[str, str]:
    return dict(info.facts(info.describe(S)))


def random_matrix(seed: int, n: int = 6, is_complex: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.integers(-2, 3, (n, n)).astype(float)
    return a + 1j * rng.integers(-2, 3, (n, n)) * (a != 0) if is_complex else a


@pytest.mark.parametrize("is_complex", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_asymmetry_finds_the_worst_place(is_complex: bool, seed: int):
    a = random_matrix(seed, is_complex=is_complex)
    i, j, excess = info.asymmetry(scipy.sparse.csr_array(a))
    difference = abs(a - a.conj().T)
    assert excess == pytest.approx(difference.max(), rel=1e-6)
    assert difference[i, j] == pytest.approx(difference.max(), rel=1e-6)


def test_asymmetry_forgives_rounding_beside_its_own_row_and_column_and_leaves_nan_to_the_solver():
    for is_complex in (False, True):
        a = random_matrix(3, is_complex=is_complex)
        a = a + a.conj().T
        a[1, 4] *= 1 + 1e-12
        assert info.asymmetry(scipy.sparse.csr_array(a))[2] == 0
    a = np.diag([1e20, 1.0, 1.0])
    a[1, 2] = 0.5
    assert info.asymmetry(scipy.sparse.csr_array(a)) == (1, 2, pytest.approx(0.5, rel=1e-6))
    assert info.asymmetry(scipy.sparse.csr_array(np.array([[np.nan, 1.0], [1.0, 2.0]])))[2] == 0


def test_describe_agrees_with_dense_arithmetic():
    a = random_matrix(5, n=9)
    a[4] = 0
    row, col = np.nonzero(a)
    told = facts(scipy.sparse.csr_array(a))
    lengths = (a != 0).sum(axis=1)
    assert told["nnz"].startswith(f"{row.size},")
    assert told["row lengths"].startswith(f"min 0, mean {lengths.mean():.4g}, max {lengths.max()}")
    assert told["empty rows"] == str((lengths == 0).sum())
    assert told["diagonals"].startswith(f"{len(set(col - row))} of 17")
    assert told["bandwidth"] == f"{(row - col).max()} below the main diagonal, {(col - row).max()} above"


@pytest.mark.parametrize(
    ("a", "word"),
    [
        ([[1, 2], [2, 1]], "symmetric"),
        ([[1, 2j], [-2j, 1]], "Hermitian"),
        ([[1, 2j], [2j, 1]], "symmetric"),
        ([[0, 2], [-2, 0]], "skew-symmetric"),
        ([[1, 2], [3, 1]], "of the pattern only"),
        ([[1, 2], [0, 1]], "none; 67% of the entries have a mirror image in the pattern"),
        ([[1, 2, 3]], "none: not square"),
        ([[0]], "symmetric"),
    ],
)
def test_symmetry_is_named(a: list[list[complex]], word: str):
    assert facts(scipy.sparse.csr_array(np.array(a)))["symmetry"] == word


def test_few_entries_in_two_billion_columns_are_described_in_little_memory():
    n = 2 * 10**9
    wide = scipy.sparse.csr_array((np.ones(3), (np.array([0, 1, 2]), np.array([0, 1, n - 1]))), (3, n))
    with allocating_at_most(10**6):
        told = facts(wide)
    assert told["diagonals"] == f"2 of {n + 2:,} hold entries"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 3)])
def test_a_matrix_without_entries_can_be_described(shape: tuple[int, int]):
    assert info.describe(scipy.sparse.csr_array(shape))
