"""Counts of a storage against counting one by one, and samples against the whole."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import statistics
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal
from tests.zoo import CASES

every_case = pytest.mark.parametrize("case", CASES.values(), ids=str)


@every_case
@pytest.mark.parametrize(("block", "sigma"), [(1, 1), (4, 1), (4, 8), (128, 1)])
def test_misses_are_the_sectors_of_each_block_and_wide_ones_span_many_columns(case, block, sigma):
    S = sp.csr_array(case.scipy())
    lengths, windows = np.diff(S.indptr), range(0, S.shape[0], max(sigma, block))
    order = [
        r for w in windows for r in sorted(range(S.shape[0])[w : w + max(sigma, block)], key=lambda r: -lengths[r])
    ]
    order = range(S.shape[0]) if sigma == 1 else order
    rows = [S.indices[S.indptr[r] : S.indptr[r + 1]] for r in order]
    blocks = [np.concatenate([[], *rows[k : k + block]]) for k in range(0, len(rows), block)]
    sectors = sum(np.unique(columns // 4).size for columns in blocks)
    some = statistics.sample(S, min(max(sigma, block), max(S.shape[0], 1)))
    assert statistics.misses(some, block, sigma, 4) == pytest.approx(sectors / max(S.nnz, 1))
    if sigma == 1:
        spans = [np.ptp(columns) for columns in blocks if columns.size]
        assert statistics.are_blocks_wide(some, block, 5) == any(span >= 5 for span in spans)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 8]))
def test_wide_slices_are_those_whose_jth_entries_lie_far_apart(seed, slice_size):
    widest = 20
    rng = np.random.default_rng(seed)
    rows = [sorted(rng.choice(60, rng.integers(0, 7), replace=False).tolist()) for _ in range(30)]
    columns, row_ptr = list(itertools.chain(*rows)), np.cumsum([0, *map(len, rows)])
    S = sp.csr_array((np.ones(len(columns)), columns, row_ptr), shape=(30, 60))
    wide = False
    for i in range(0, 30, slice_size):
        part = rows[i : i + slice_size]
        width = max(map(len, part))
        columns = [[row[j] for row in part if len(row) > j] for j in range(width)]
        wide |= any(max(c) - min(c) >= widest for c in columns)
    assert statistics.are_slices_wide(statistics.sample(S, slice_size), slice_size, widest) == wide


def test_a_sample_of_an_even_matrix_tells_its_counts(monkeypatch):
    S = jsf.gallery.poisson(24)
    counted = lambda: (  # noqa: E731
        statistics.touched(statistics.sample(S, 32), Diagonal(), 32, 32),
        statistics.touched(statistics.sample(S, 128), Blocked(2, 2), 2, 128),
    )
    whole = counted()
    monkeypatch.setattr(statistics, "ENTRIES", 20_000)
    part = counted()
    assert part != whole
    for got, exact in zip(part, whole, strict=True):
        assert got.places == pytest.approx(exact.places, rel=0.03)
        assert got.holes == pytest.approx(exact.holes, rel=0.2)
