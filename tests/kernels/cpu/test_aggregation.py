"""Coarse matrices of a multigrid's set-up against dense products, in pieces and with an end where they grow dense."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.kernels.cpu import aggregation


@pytest.mark.parametrize("piece", [100, 2**27])
@pytest.mark.parametrize(("b", "k", "dtype"), [(1, 1, np.float64), (2, 3, np.complex128)])
def test_a_coarse_matrix_is_the_product_or_none_where_it_has_too_many_blocks(b, k, dtype, piece, monkeypatch):
    monkeypatch.setattr(aggregation, "PIECE", piece)
    n, m = 40, 12
    rng = np.random.default_rng(0)
    numbers = lambda *shape: rng.uniform(1, 2, shape) + (1j * rng.uniform(1, 2, shape) if k > 1 else 0)  # noqa: E731
    A = np.kron(np.eye(n) + np.eye(n, k=3), np.ones((b, b))) * numbers(n * b, n * b)
    P = np.kron(np.eye(n, m) + np.eye(n, m, -7), np.ones((b, k))) * numbers(n * b, m * k)
    sizes = ((P.conj().T, (k, b)), (A, (b, b)), (P, (b, k)))
    R, A, P = (sp.csr_array(S.astype(dtype)).tobsr(size) for S, size in sizes)
    C: Any = aggregation.galerkin(R, A, P, np.inf)
    np.testing.assert_allclose(C.toarray(), R.toarray() @ A.toarray() @ P.toarray(), rtol=1e-12, atol=1e-12)
    assert C.has_sorted_indices and C.blocksize == (k, k)
    assert aggregation.galerkin(R, A, P, C.indices.size) is not None
    assert aggregation.galerkin(R, A, P, C.indices.size - 1) is None
