"""Performance models: the formulas against counting by hand."""

import dataclasses

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


# ---------------------------------------------------------------------------------------------------- many devices

ROUND = traffic.Machine(memory=1e9, link=1e8, network=1e7, launches=1e-5, reduction=2e-5, collective=3e-5, hop=4e-5)


def test_a_step_of_cg_on_two_devices_by_hand():
    """1,000 rows of 7 entries a device, 12 bytes an entry; 100 unknowns come in one exchange.

    product  84,000 + 16,000 bytes at 1 GB/s         100 µs
    vectors  10 µs, 64,000 bytes                      74 µs; the rows on the boundary 3,200 bytes, 3.2 µs
    exchange 30 µs, 800 bytes at 0.1 GB/s             38 µs, half of it beside the product
    sums     2 × 20 µs                                40 µs
    """
    load = traffic.Load(2, 1000, 7000, near=100, boundary=100, collectives=1)
    step = traffic.cg_step(load, ROUND)
    assert step == traffic.Step(*(pytest.approx(1e-6 * t) for t in (100, 77.2, 38, 19, 40)))
    assert step.seconds == pytest.approx(236.2e-6)
    assert step.products == pytest.approx(100 / 38)
    assert traffic.cg_step(load, ROUND, "vector").seconds == pytest.approx((100 + 74 + 17.6 + 38 + 40) * 1e-6)
    assert traffic.cg_step(load, ROUND, "naive").seconds == pytest.approx((100 + 74 + 32 + 19 + 40) * 1e-6)
    assert traffic.cg_step(load, ROUND, one_reduction=True).seconds == pytest.approx((100 + 77.2 + 32 + 19 + 20) * 1e-6)


def test_the_sum_of_pipelined_cg_costs_what_product_and_exchange_leave_of_it():
    """13·8,000 bytes and 3,200 on the boundary beside the product; a sum of 20 µs is hidden, of 200 not whole."""
    load = traffic.Load(2, 1000, 7000, near=100, boundary=100, collectives=1)
    step = traffic.cg_step(load, ROUND, one_reduction="pipelined")
    assert step == traffic.Step(*(pytest.approx(1e-6 * t) for t in (100, 117.2, 38, 19, 0)))
    slow = traffic.cg_step(load, dataclasses.replace(ROUND, reduction=2e-4), one_reduction="pipelined")
    assert slow.reductions == pytest.approx(1e-6 * (200 - 100 - 19))


def test_a_step_on_one_device_is_its_memory_traffic():
    step = traffic.cg_step(traffic.Load(1, 1000, 7000), ROUND)
    assert step.seconds == pytest.approx((84_000 + 10 * 8_000) / 1e9 + 1e-5)
    assert step.products == np.inf


def test_four_hosts_add_their_network_and_two_hops_a_sum():
    near = traffic.cg_step(traffic.Load(32, 1000, 7000, near=100, collectives=1), dataclasses.replace(ROUND, hop=0))
    far = traffic.cg_step(traffic.Load(32, 1000, 7000, far=100, collectives=1), ROUND)
    assert far.exchange == pytest.approx(near.exchange + 4e-5 + 800 / 1e7 - 800 / 1e8)
    assert far.reductions == pytest.approx(near.reductions + 2 * 2 * 4e-5)


def test_all_wait_for_the_slowest_device():
    uneven = traffic.Load(2, np.array([10, 1000]), np.array([7000, 70]), np.array([5, 50]), collectives=1)
    step = traffic.cg_step(uneven, ROUND, "vector")
    assert step.product == pytest.approx((84_000 + 160) / 1e9)
    assert step.exchange == pytest.approx(3e-5 + 400 / 1e8)
    assert step.vectors == pytest.approx(1e-5 + 8 * (8 * 1000 + 2 * 1050) / 1e9)


@pytest.mark.parametrize(
    ("alone", "face", "permutes", "gather"),
    [(353, 200**2, 443, 415), (120, 256**2, 213, 193), (707, 512**2, 818, 800)],
    ids=["200³", "256×256×32", "512×512×64"],
)
def test_what_eight_gpus_add_to_a_step_is_as_measured(alone, face, permutes, gather):
    """Microseconds of cg with f64 on 8 H200, 7-point, two psums a step: 2 permutes, or a gather of both faces."""
    two = traffic.Load(8, 0, 1e12, near=2 * face, collectives=2)
    one = traffic.Load(8, 0, 1e12, near=7 * 2 * face, collectives=1)
    for load, measured in ((two, permutes), (one, gather)):
        step = traffic.cg_step(load, traffic.Machine())
        added = step.exchange - step.hidden + step.reductions
        assert alone + 1e6 * added == pytest.approx(measured, rel=0.08)


@given(st.floats(0.5, 20), st.floats(4, 50), st.floats(0.5, 3), widths)
def test_a_halo_in_place_of_the_bus_meets_the_papers_conditions(products, ratio, halo, width):
    value, index = width
    row_length = traffic.row_length_at(products, ratio, None, value, index, transferred=halo)
    if row_length <= 0:
        return
    product = traffic.product_seconds(7, row_length, 1 / row_length, ratio * 1e9, value, index)
    assert product == pytest.approx(products * 7 * halo * value / 1e9)


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="one of overlap, naive, vector; got 'magic'"):
        traffic.cg_step(traffic.Load(1, 1, 1), ROUND, "magic")
