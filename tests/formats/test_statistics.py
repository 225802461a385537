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


def windows_of(columns, span: int) -> int:
    """Windows that hold the columns, each from the least column that no window before has."""
    count, end = 0, -1
    for column in sorted(columns):
        if column >= end:
            count, end = count + 1, column + span
    return count


@every_case
@pytest.mark.parametrize("block", [1, 4, 128])
def test_misses_are_the_sectors_of_each_block_and_few_windows_hold_its_columns(case, block):
    S = sp.csr_array(case.scipy())
    n_rows = S.shape[0]
    blocks = [S.indices[S.indptr[k] : S.indptr[min(k + block, n_rows)]] for k in range(0, n_rows, block)]
    sectors = sum(np.unique(columns // 4).size for columns in blocks)
    some = statistics.sample(S, min(block, max(n_rows, 1)))
    assert some.blocks(block, 4) == sectors
    most = max([windows_of(columns, 5) for columns in blocks], default=0)
    for n in (1, 2, 3):
        assert statistics.are_within(some, block, n, 5) == (most <= n)


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
