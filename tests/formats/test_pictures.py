"""Each format stores what its picture shows; and what only some formats have."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored

# csr5, of tiles too small for it: test_csr5.py
DRAWN: dict[str, dict] = {name: {} for name in jsf.FORMATS if name != "csr5"} | {
    "bsr": {"block_shape": (2, 2)},
    "ellrt": {"threads_per_row": 2},
    "hdia": {"slice_size": 2},
    "hll": {"slice_size": 2},
    "hyb": {"width": 1},
    "pellr": {"lengths_per": "row"},
    "pjds": {"block_size": 2},
    "sell": {"slice_size": 2},
}


@pytest.mark.parametrize("format", DRAWN)
def test_the_arrays_are_those_of_the_picture(format):
    assert_as_drawn(jsf.from_scipy(drawn_matrix(format), format, **DRAWN[format]))


def by_length(S):
    return S[np.argsort(-np.diff(S.indptr), stable=True)]


# Formats that store the arrays of another one, of the sorted or the transposed matrix.
ALIKE = {
    "csc, csr of the transpose": lambda: (stored("csc"), stored("csr", matrix=RAGGED.T.tocsr())),
    "threads of csr": lambda: (stored("csr", threads_per_row=1), stored("csr", threads_per_row=32)),
    "threads of ellr": lambda: (stored("ellr", threads_per_row=1), stored("ellr", threads_per_row=4)),
    "ellrt of one thread": lambda: (stored("ellrt", threads_per_row=1), stored("ellr")),
    "pellr": lambda: (stored("pellr", lengths_per="row"), stored("ellr", matrix=by_length(RAGGED))),
    "bijad": lambda: (stored("bijad"), stored("biell", matrix=by_length(RAGGED))),
    "hyb of the mean row": lambda: (stored("hyb", width="mean"), stored("hyb", width=round(RAGGED.nnz / 99))),
    "sell of wide slices": lambda: (
        jsf.from_scipy(of_span(65_535), "sell", slice_size=2),
        jsf.from_scipy(of_span(65_535), "hll", slice_size=2),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_two_formats_store_the_same_arrays(name):
    one, other = (
        [np.asarray(a) for a in jax.tree.leaves(A) if a is not getattr(A, "perm", None)] for A in ALIKE[name]()
    )
    for a in one:
        assert any(a.dtype == b.dtype and np.array_equal(a, b) for b in other)


# ------------------------------------------------------------------------------------------------- of one format alone


def test_a_length_of_pellr_for_a_warp_is_that_of_its_longest_row():
    lengths = np.asarray(stored("pellr", lengths_per="row").row_lengths)
    assert stored("pellr", lengths_per="warp").row_lengths.tolist() == [
        max(lengths[i : i + 32]) for i in (0, 32, 64, 96)
    ]


def test_hyb_is_as_wide_as_a_third_of_the_rows_reach():
    widest = max(K for K in range(41) if 3 * np.count_nonzero(LENGTHS > K - 1) >= 99)
    assert stored("hyb").width == stored("hyb", width="third").width == widest


@pytest.mark.parametrize("width", [0, 5, 40, 50])
def test_hyb_has_the_first_entries_of_every_row_and_the_rest_follows_by_row(width):
    A = stored("hyb", width=width)
    j, row = np.arange(RAGGED.nnz) - np.repeat(RAGGED.indptr[:-1], LENGTHS), np.repeat(np.arange(99), LENGTHS)
    ell, rest = np.split(np.asarray(A.values), [width * 99])
    np.testing.assert_array_equal(ell.reshape(-1, 99).T[np.arange(width) < LENGTHS[:, None]], RAGGED.data[j < width])
    for got, whole in ((rest, RAGGED.data), (A.tail_col, RAGGED.indices), (A.tail_row, row)):
        np.testing.assert_array_equal(got, whole[j >= width])


def of_span(span: int) -> sp.csr_array:
    """A slice of two rows with two entries each, whose first entries lie in the columns 7 and 7 + span."""
    col = np.array([7, 199_999, 7 + span, 199_999])
    return sp.csr_array((np.arange(1.0, 5), col, [0, 2, 4]), (2, 200_000))


@pytest.mark.parametrize(("span", "fits"), [(0, True), (65_534, True), (65_535, False)])
def test_differences_of_sell_up_to_65534_take_16_bits(span, fits):
    """65535 means padding."""
    A = jsf.from_scipy(of_span(span), "sell", slice_size=2)
    assert (A.col_idx is None) == fits
    if fits:
        assert A.delta.tolist() == [0, span, 0, 0] and A.col_base.tolist() == [7, 199_999]
    np.testing.assert_array_equal(A.to_scipy().indices, of_span(span).indices)


def bisect(lengths: np.ndarray) -> list[list[list[tuple[int, int]]]]:
    """The groups of one warp of biell: columns of 32 lanes, each with its row and the number of its entry.

    A group of R rows goes on, 32 / R entries of a row at a time, while more than half of its rows have entries left.
    """
    taken, groups = 0, []
    for rows in (32, 16, 8, 4, 2, 1):
        columns = []
        while np.count_nonzero(lengths > taken) > rows // 2:
            columns.append([(lane % rows, taken + lane // rows) for lane in range(32)])
            taken += 32 // rows
        groups.append(columns)
    return groups


def test_groups_of_biell_hold_what_bisecting_says():
    A = stored("biell")
    perm = np.append(A.perm, np.full(29, 99))
    lengths, indptr = np.append(LENGTHS, 0)[perm], np.append(RAGGED.indptr, RAGGED.nnz)[perm]
    starts, values, cols = [0], [], []
    for warp in range(0, 128, 32):
        for columns in bisect(lengths[warp : warp + 32]):
            for row, j in (place for column in columns for place in column):
                there = j < lengths[warp + row]
                values.append(RAGGED.data[indptr[warp + row] + j] if there else 0)
                cols.append(RAGGED.indices[indptr[warp + row] + j] if there else 120)
            starts.append(len(values))
    for got, wanted in ((A.slice_ptr, starts), (A.values, values), (A.col_idx, cols)):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("matrix", "block"),
    [
        (jsf.gallery.elasticity(4), 3),
        (jsf.gallery.elasticity((2, 5, 3), clamped=False), 3),
        (jsf.gallery.cfd(4, 6, 23), 6),
        (jsf.gallery.cfd(5, 4, 10), 4),
        (jsf.gallery.poisson(10), 1),
        (RAGGED, 1),
    ],
    ids=["3", "3, floating", "6", "4", "stencil", "ragged"],
)
def test_bsr_finds_the_block_that_the_problem_has(matrix, block):
    assert jsf.from_scipy(matrix, "bsr").block_shape == (block, block)


@pytest.mark.parametrize(("slice_size", "sigma"), [(8, 1), (7, 1), (8, 24), (16, 99), (1, 1), (200, 1)])
def test_a_slice_of_hdia_has_the_diagonals_of_its_rows_and_no_others(slice_size, sigma):
    A = stored("hdia", slice_size=slice_size, sigma=sigma)
    perm = np.arange(99) if A.perm is None else np.asarray(A.perm)
    chunks, offsets, row, col = np.asarray(A.slice_ptr) // slice_size, np.asarray(A.offsets), *RAGGED.nonzero()
    slice_of = np.empty(99, int)
    slice_of[perm] = np.arange(99) // slice_size
    for s in range(-(-99 // slice_size)):
        own = np.unique((col - row)[slice_of[row] == s])
        np.testing.assert_array_equal(offsets[chunks[s] : chunks[s + 1]], own)
