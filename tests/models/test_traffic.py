"""Performance models: the formulas against counting by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from jaxsparse_fmt.models import traffic

row_lengths = st.lists(st.integers(0, 40), max_size=150).map(lambda lengths: np.array(lengths, np.int32))
sizes = st.integers(1, 40)
widths = st.sampled_from([(8, 4), (4, 4), (16, 4), (2, 2), (8, 8)])  # bytes of a value and of an index


def slices(lengths: np.ndarray, size: int) -> list[list[int]]:
    return [lengths[i : i + size].tolist() for i in range(0, len(lengths), size)]


@given(row_lengths, sizes)
def test_a_warp_iterates_until_its_last_thread_is_done(lengths, warp):
    iterations = 0
    for rows in slices(lengths, warp):
        while any(length > 0 for length in rows):
            rows = [length - 1 for length in rows]
            iterations += 1
    assert traffic.warp_iterations(lengths, warp) == iterations


@given(row_lengths, sizes)
def test_sorting_never_adds_iterations_or_changes_the_work(lengths, warp):
    ordered = traffic.by_falling_length(lengths)
    assert ordered.tolist() == sorted(lengths.tolist(), reverse=True)
    assert traffic.warp_iterations(ordered, warp) <= traffic.warp_iterations(lengths, warp)
    assert traffic.work(ordered) == traffic.work(lengths)


@given(row_lengths)
def test_work_is_the_products_and_sums_of_every_row(lengths):
    assert traffic.work(lengths) == sum(b + (b - 1) for b in lengths.tolist() if b)


@given(st.integers(1, 500), st.floats(1, 500), st.floats(0, 1), widths)
def test_code_balance_counts_what_a_product_loads_and_stores(n_rows, row_length, alpha, width):
    value, index = width
    nnz = n_rows * row_length
    moved = nnz * (value + index) + alpha * nnz * value + n_rows * 2 * value
    assert traffic.code_balance(row_length, alpha, value, index) == pytest.approx(moved / (2 * nnz))
    assert traffic.product_seconds(n_rows, row_length, alpha, 1e9, value, index) == pytest.approx(moved / 1e9)


@given(st.floats(0.5, 20), st.floats(4, 50), st.none() | st.floats(0, 1), widths)
def test_at_the_row_length_found_a_product_takes_so_many_transfers(products, ratio, alpha, width):
    value, index = width
    found = traffic.row_length_at(products, ratio, alpha, value, index)
    product = traffic.product_seconds(7, found, 1 / found if alpha is None else alpha, ratio * 1e9, value, index)
    assert product == pytest.approx(products * traffic.transfer_seconds(7, 1e9, value))


@given(row_lengths, sizes)
def test_places_are_those_of_the_padded_rectangles(lengths, size):
    longest = max(lengths.tolist(), default=0)
    assert traffic.ell_places(lengths) == longest * len(lengths)
    assert traffic.ell_places(lengths, size) == longest * len(slices(lengths, size)) * size
    assert traffic.sliced_places(lengths, size) == sum(max(rows) * size for rows in slices(lengths, size))


@given(row_lengths)
def test_hyb_is_as_wide_as_a_third_of_the_rows(lengths):
    reach = [k for k in range(41) if 3 * sum(length >= k for length in lengths.tolist()) >= len(lengths)]
    assert traffic.hyb_width(lengths) == (max(reach) if len(lengths) else 0)


@pytest.mark.parametrize(
    ("lengths", "width"), [([], 0), ([0, 0], 0), ([7, 6, 7], 7), ([1, 1, 1, 50], 13), ([3, 4, 4, 1], 3)]
)
def test_hyb_can_be_as_wide_as_the_mean_row(lengths, width):
    assert traffic.hyb_width(np.array(lengths, int), "mean") == width


@pytest.mark.parametrize("rule", traffic.HYB_RULES)
@pytest.mark.parametrize("lengths", [[], [7, 6, 7], [1, 1, 1, 50]], ids=str)
def test_the_width_of_hyb_is_the_same_for_lengths_on_a_device(lengths, rule):
    assert traffic.hyb_width(jnp.array(lengths, jnp.int32), rule) == traffic.hyb_width(np.array(lengths, int), rule)


def test_an_unknown_rule_of_width_is_refused_by_name():
    with pytest.raises(ValueError, match="'third' or 'mean', got 'half'"):
        traffic.hyb_width(np.array([1]), "half")


@given(st.integers(1, 30), st.integers(1, 30), st.floats(0, 1), sizes, st.integers(0, 9))
def test_diagonals_are_counted_once_a_slice(n_rows, n_cols, density, slice_size, seed):
    dense = np.random.default_rng(seed).random((n_rows, n_cols)) < density
    places = [(i, j) for i in range(n_rows) for j in range(n_cols) if dense[i, j]]
    csr = sp.csr_array(dense)
    assert traffic.diagonals(csr) == len({j - i for i, j in places})
    assert traffic.diagonals(csr, slice_size) == len({(i // slice_size, j - i) for i, j in places})


def test_csr_takes_what_its_format_does():
    A = jsf.from_scipy(jsf.gallery.poisson(4), "csr")
    assert traffic.csr_bytes(A.to_scipy(), 8) == A.nbytes


def test_a_product_moves_the_storage_and_both_vectors():
    assert traffic.bytes_moved(1000, (30, 50)) == 1000 + 8 * 80
    assert traffic.bytes_moved(1000, (30, 50), vector_bytes=4) == 1000 + 4 * 80


def test_counts_beyond_32_bits_are_right():
    lengths = np.full(3, 2**30, np.int32)
    assert traffic.ell_places(lengths) == traffic.warp_iterations(lengths, 1) == 3 * 2**30
    assert traffic.work(lengths) == 6 * 2**30 - 3


@pytest.mark.parametrize("size", [0, -32])
def test_an_empty_warp_is_refused_by_name(size):
    with pytest.raises(ValueError, match=f"at least 1 row; got {size}"):
        traffic.warp_iterations(np.array([1]), size)


@given(row_lengths, st.integers(0, 30), st.integers(1, 9), widths)
def test_pieces_are_what_long_rows_go_on_in(lengths, width, piece, bytes_of):
    value, _ = bytes_of
    cut = [[min(piece, n - width - k) for k in range(0, n - width, piece)] for n in lengths.tolist() if n > width]
    pieces = traffic.pieces(lengths, width, piece)
    assert pieces.tolist() == [n for row in cut for n in row]
    entries, several = sum(map(sum, cut)), len(pieces) > len(cut)
    pointers = len(cut) + len(pieces) + 1 + (len(cut) + 1 if several else 0)
    expected = entries * (value + 4) + 4 * pointers if entries else 0
    assert traffic.tail_bytes(entries, len(cut), len(pieces), value) == expected


@given(st.floats(0.5, 20), st.floats(4, 50), st.floats(0.5, 3), widths)
def test_a_halo_in_place_of_the_bus_meets_the_papers_conditions(products, ratio, halo, width):
    value, index = width
    row_length = traffic.row_length_at(products, ratio, None, value, index, transferred=halo)
    if row_length <= 0:
        return
    product = traffic.product_seconds(7, row_length, 1 / row_length, ratio * 1e9, value, index)
    assert product == pytest.approx(products * 7 * halo * value / 1e9)
