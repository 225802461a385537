"""format="auto": what is ranked first, and that it can be had."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from tests.zoo import CASES

every_platform = pytest.mark.parametrize("platform", ["cpu", "gpu"])


def arrow(n: int) -> sp.csr_array:
    """A diagonal and one full row."""
    row = np.concatenate([np.zeros(n, int), np.arange(1, n)])
    return sp.csr_array((np.ones(2 * n - 1), (row, np.concatenate([np.arange(n), np.arange(1, n)]))), (n, n))


@every_platform
@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_every_choice_can_be_built_and_is_as_large_as_it_says(case, platform):
    choices = jsf.choose.rank(case.scipy(), platform=platform)
    assert {c.format for c in choices} <= set(jsf.FORMATS)
    assert [c.cost for c in choices] == sorted(c.cost for c in choices)
    for choice in choices:
        A = jsf.from_scipy(case.scipy(), choice.format, **choice.layout)
        unread = sum(A.arrays[name].nbytes for name in A.unread if name in A.arrays)
        assert choice.nbytes == A.nbytes - unread
        assert choice.moved == choice.nbytes + 8 * sum(case.shape)
        assert "a product" in choice.reason
        assert ("padding" in choice.reason) == (choice.nbytes > 0 and round(1 - A.fill, 9) > 0)


@every_platform
def test_even_rows_are_padded_and_one_long_row_is_not(platform):
    assert jsf.choose.rank(jsf.gallery.poisson(12), platform=platform)[0].format in ("ell", "hll")
    assert jsf.choose.rank(arrow(20_000), platform=platform)[0].format != "ell"


@pytest.mark.parametrize("dtype, itemsize", [(None, 8), (np.float32, 4), (np.complex128, 16)])
def test_bytes_are_those_of_the_stored_dtype(dtype, itemsize):
    S = jsf.gallery.poisson(4)
    csr = next(c for c in jsf.choose.rank(S, dtype=dtype) if c.format == "csr")
    assert csr.nbytes == S.nnz * (itemsize + 4) + 4 * (S.shape[0] + 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=300), st.sampled_from(["cpu", "gpu"]))
def test_the_first_choice_is_never_refused_nor_worse_than_csr(lengths, platform):
    row = np.repeat(np.arange(len(lengths)), lengths)
    S = sp.csr_array((np.ones(row.size), (row, np.arange(row.size))), (len(lengths), max(row.size, 1)))
    best = jsf.choose.rank(S, platform=platform)[0]
    csr = next(c for c in jsf.choose.rank(S, platform=platform) if c.format == "csr")
    assert best.cost <= csr.cost
    jsf.from_scipy(S, best.format, **best.layout)


def test_a_huge_unbalanced_matrix_gets_a_format_that_fits():
    A = jsf.from_scipy(arrow(300_000))
    assert A.nbytes < 10 * 300_000 * 24


def test_ranking_does_not_change_the_matrix():
    S = CASES["duplicates"].scipy()
    before = S.data.copy(), S.row.copy(), S.col.copy()
    jsf.choose.rank(S)
    for then, now in zip(before, (S.data, S.row, S.col), strict=True):
        np.testing.assert_array_equal(then, now)
