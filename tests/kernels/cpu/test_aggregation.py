"""The kernels of a multigrid's set-up against SciPy's products."""

import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.kernels.cpu import aggregation


def whole(pattern: np.ndarray, b: int, c: int, seed: int, dtype=np.float64) -> sp.csr_array:
    """A matrix of whole blocks b×c in the places of `pattern`."""
    shape = pattern.shape[0] * b, pattern.shape[1] * c
    rng = np.random.default_rng(seed)
    numbers = rng.uniform(1, 2, shape) + (1j * rng.uniform(1, 2, shape) if dtype == np.complex128 else 0)
    return sp.csr_array(np.kron(pattern, np.ones((b, c))) * numbers)


@pytest.mark.parametrize(("b", "k", "dtype"), [(1, 1, np.float64), (2, 3, np.float64), (1, 2, np.complex128)])
def test_a_triple_product_needs_no_room_known_before(b, k, dtype):
    """Rows of R of one block each lead to full rows of R·A·P, and the first row alone has more than the first guess."""
    n, m = 40, 12
    A, P = whole(np.ones((n, n)), b, b, 0, dtype), whole(np.eye(n, m) + np.eye(n, m, -m), b, k, 1, dtype)
    for rows in (np.eye(m, n), np.eye(m, n) * (np.arange(m) == 5)[:, None]):
        R = whole(rows, k, b, 2, dtype)
        C = aggregation.galerkin(R, aggregation.blocks(A, b, b), P, b, k, False)
        assert C.nnz == (R @ A @ P).nnz
        np.testing.assert_allclose(C.toarray(), (R @ A @ P).toarray(), rtol=1e-13)
        assert np.array_equal(C.indices, sp.csr_array(C.tocoo()).indices)


@pytest.mark.parametrize(("b", "k"), [(1, 1), (2, 3)])
def test_the_half_of_a_triple_product_that_is_computed_gives_the_rest(b, k):
    n, m = 40, 12
    A = whole(np.eye(n) + np.eye(n, k=3) + np.eye(n, k=-3), b, b, 0, np.complex128)
    A, P = sp.csr_array(A + A.conj().T), whole(np.eye(n, m) + np.eye(n, m, -7), b, k, 1, np.complex128)
    R = sp.csr_array(P.conj().T)
    C = aggregation.galerkin(R, aggregation.blocks(A, b, b), P, b, k, True)
    np.testing.assert_allclose(C.toarray(), (R @ A @ P).toarray(), rtol=1e-12, atol=1e-12)
    assert abs(C - C.conj().T).max() < 1e-12
    assert np.array_equal(C.indices, sp.csr_array(C.tocoo()).indices)
    blocks = C.nnz // k**2
    assert aggregation.galerkin(R, aggregation.blocks(A, b, b), P, b, k, True, blocks).nnz == C.nnz
    assert aggregation.galerkin(R, aggregation.blocks(A, b, b), P, b, k, True, blocks - 1) is None


def test_which_blocks_have_holes():
    S = whole(np.eye(5) + np.eye(5, k=2), 2, 2, 0)
    assert not aggregation.has_holes(S, 2) and not aggregation.has_holes(S, 1)
    assert aggregation.filled(S, 2) is S
    for row, col in ((0, 0), (3, 7), (8, 9)):
        hole = S.tolil()
        hole[row, col] = 0
        hole = sp.csr_array(hole)
        assert aggregation.has_holes(hole, 2)
        np.testing.assert_array_equal(aggregation.filled(hole, 2).indices, S.indices)
    shifted = sp.csr_array((S.data, (S.indices + 1) % 10, S.indptr), shape=S.shape)
    assert aggregation.has_holes(sp.csr_array(shifted.tocoo()), 2)


def test_the_difference_from_the_transpose_is_the_largest():
    S = sp.random_array((300, 300), density=0.02, random_state=0, format="csr")
    S.sort_indices()
    assert aggregation.asymmetry(S) == pytest.approx(abs(S - S.T).max())
    assert aggregation.asymmetry(sp.csr_array(S + S.T)) == 0
