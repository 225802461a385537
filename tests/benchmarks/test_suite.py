"""The matrices of the suite: made in proportion, canonical, and of the class that they stand for."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import suite

TINY = 1 / 4000
every_case = pytest.mark.parametrize("case", suite.SUITES["standard"], ids=lambda c: c.name)


@every_case
def test_every_matrix_is_canonical_and_square(case):
    S = case.make(TINY)
    again = sp.csr_array((S.data, S.indices, S.indptr), shape=S.shape)  # forgets what it was said to be
    assert again.has_canonical_format and S.shape[0] == S.shape[1]
    assert (S.dtype, S.indices.dtype, S.indptr.dtype) == (np.float64, np.int32, np.int32)
    assert np.all(np.isfinite(S.data)) and S.indices.min() >= 0 and S.indices.max() < S.shape[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 70), st.floats(0, 1), st.floats(0, 2), st.integers(0, 2**32 - 1))
def test_a_band_has_exactly_the_entries_asked_for(rows, bandwidth, share, spread, seed):
    places = sum(min(i, bandwidth) + min(rows - 1 - i, bandwidth) + 1 for i in range(rows))
    nnz = rows + round(share * (places - rows))
    S = suite.banded(rows, nnz, bandwidth, spread, seed)
    again = sp.csr_array((S.data, S.indices, S.indptr), shape=S.shape)
    row = np.repeat(np.arange(rows), np.diff(S.indptr))
    assert S.nnz == nnz and again.has_canonical_format
    assert np.all(S.diagonal() > 0)
    assert np.abs(S.indices - row).max() <= bandwidth


def test_a_chain_of_a_tamed_matrix_neither_overflows_nor_vanishes():
    for case in (suite.SUITES["standard"][0], suite.SUITES["held-out"][2]):
        S = suite.tamed(case.make(TINY)).astype(np.float32)
        x = np.ones(S.shape[0], np.float32)
        for _ in range(128):
            x = S @ x
        assert 1e-30 < np.abs(x).max() < 1e30
