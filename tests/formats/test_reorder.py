"""The orders of `reorder=`: what permutes, what Cuthill-McKee gathers, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.reordered import cuthill_mckee, permuted
from tests.formats.test_reordered import GRAPH, PERM, bandwidth, reordered, shuffled
from tests.zoo import CASES, Layout

pytestmark = pytest.mark.some(layout=2)


def test_permuted_is_what_scipy_gives_and_says_where_entries_came_from(rng):
    S, perm = sp.csr_array(GRAPH.scipy()), rng.permutation(22)
    moved, entry = permuted(S, perm)
    assert moved.has_sorted_indices and abs(moved - S[perm][:, perm]).max() == 0
    np.testing.assert_array_equal(moved.data, S.data[entry])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_cuthill_mckee_gathers_the_entries_around_the_diagonal(index):
    S, _ = shuffled(jsf.gallery.poisson(12, dim=2))
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    perm = cuthill_mckee(S)
    assert bandwidth(permuted(S, perm)[0]) <= 13 < 100 < bandwidth(S)


def test_values_that_cancel_are_neighbours_too():
    """The pattern of S + Sᵀ counts, where the values of a skew-symmetric matrix would leave nothing."""
    n = 60
    chain = sp.csr_array(sp.diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[1, -1]))
    S, _ = shuffled(chain)
    assert bandwidth(permuted(S, cuthill_mckee(S))[0]) == 1 < bandwidth(S)


def test_of_a_pattern_that_is_not_symmetric_both_directions_count():
    n = 60
    S, _ = shuffled(sp.csr_array(sp.diags_array([np.ones(n), np.ones(n - 1)], offsets=[0, 1])))
    assert bandwidth(permuted(S, cuthill_mckee(S))[0]) == 1 < bandwidth(S)


@pytest.mark.parametrize("given", [PERM, PERM.astype(np.uint16), PERM.tolist(), jnp.asarray(PERM)], ids=type)
def test_place_k_takes_the_unknown_that_the_users_order_names(given):
    A, dense = reordered(Layout("csr"), GRAPH.scipy(), given), GRAPH.dense()
    np.testing.assert_array_equal(A.perm, PERM)
    np.testing.assert_array_equal(A.in_basis.todense(), dense[PERM][:, PERM])


SQUARE = GRAPH.scipy()

REFUSED = {
    "another word": ("amd", ValueError, "reorder must be 'rcm', a permutation or None; got 'amd'"),
    "too short": (PERM[:21], ValueError, r"reorder must hold 22 numbers, one for each unknown; got shape \(21,\)"),
    "a table": (PERM[None], ValueError, r"got shape \(1, 22\)"),
    "a flag": (True, ValueError, r"got shape \(\)"),
    "floats": (PERM / 1, TypeError, "a permutation in integers; got dtype float64"),
    "too high": (PERM + 1, ValueError, "a permutation of the numbers 0 to 21; it holds 22"),
    "negative": (PERM - 1, ValueError, "a permutation of the numbers 0 to 21; it holds -1"),
    "twice": (np.where(PERM == 4, 7, PERM), ValueError, "it holds 7 2 times and 4 never"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_order_is_refused(name):
    order, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        jsf.from_scipy(SQUARE, reorder=order)


@pytest.mark.parametrize("order", ["rcm", np.arange(17)])
def test_a_matrix_that_is_not_square_is_refused(order):
    with pytest.raises(ValueError, match="which a 17 × 13 matrix does not allow; leave it out"):
        jsf.from_scipy(CASES["irregular"].scipy(), reorder=order)


def test_what_reorder_does_not_change_is_refused_as_ever():
    with pytest.raises(ValueError, match="format='auto' chooses the layout itself; name a format to set slice_size"):
        jsf.from_scipy(SQUARE, slice_size=4, reorder="rcm")
    with pytest.raises(ValueError, match="format 'ell' would take"):
        jsf.from_scipy(SQUARE, "ell", max_bytes=40, reorder="rcm")
