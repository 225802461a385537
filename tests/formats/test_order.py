"""Orders of unknowns: what Cuthill-McKee gathers, what permutes, and what is refused."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.order import order_of
from tests.zoo import CASES

N = 60
PERM = np.random.default_rng(6).permutation(N)
CHAIN = sp.diags_array([np.ones(N), np.ones(N - 1), -np.ones(N - 1)], offsets=[0, 1, -1])
ABOVE = sp.diags_array([np.ones(N), np.ones(N - 1)], offsets=[0, 1])


def bandwidth(S) -> int:
    row, col = S.tocoo().coords
    return int(np.abs(row - col).max(initial=0))


# Values of S + Sᵀ that cancel, and a pattern that is not symmetric, are neighbours too.
@pytest.mark.parametrize("S", [CHAIN, ABOVE, jsf.from_scipy(CHAIN, "csr")], ids=["skew", "one side", "ours"])
def test_cuthill_mckee_gathers_the_entries_around_the_diagonal(S):
    S = S.to_scipy() if isinstance(S, jsf.SparseMatrix) else sp.csr_array(S)
    S = S[PERM][:, PERM]
    perm = jsf.order(S, "rcm")
    np.testing.assert_array_equal(np.sort(perm), np.arange(N))
    assert bandwidth(S[perm][:, perm]) == 1 < bandwidth(S)


REFUSED = {
    "another word": ("amd", ValueError, "reorder must be 'rcm', a permutation or None; got 'amd'"),
    "too short": (PERM[:21], ValueError, r"numbers 0 to 59; got shape \(21,\), with 21 different ones"),
    "floats": (PERM / 1, TypeError, "a permutation in integers; got dtype float64"),
    "too high": (PERM + 1, ValueError, "with 60 different ones from 1 to 60"),
    "twice": (np.where(PERM == 4, 7, PERM), ValueError, "with 59 different ones from 0 to 59"),
}


@pytest.mark.parametrize(("order", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_order_is_refused(order, error, words):
    with pytest.raises(error, match=words):
        order_of(sp.csr_array(CHAIN), order)


def test_order_refuses_another_word_and_a_matrix_that_is_not_square():
    with pytest.raises(ValueError, match="how must be 'rcm'; got 'amd'"):
        jsf.order(CHAIN, "amd")
    with pytest.raises(ValueError, match="which a 17 × 13 matrix does not allow"):
        jsf.order(CASES["irregular"].scipy())
