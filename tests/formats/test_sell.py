"""SELL: 16-bit column differences, rows cut where they are long, narrow values under wide vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats.long_rows import TAIL
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored, value_sizes
from tests.lowering import SIGNATURES, lowered
from tests.oracle import draw

N_COLS = 200_000


def slices_of_two(*spans: int) -> sp.csr_array:
    """Slices of two rows with two entries each: their first entries lie in columns 7 and 7 + span."""
    first = np.array([[7, 7 + span] for span in spans]).reshape(-1)
    col = np.stack([first, np.full(first.size, N_COLS - 1)], axis=1)
    row_ptr = np.arange(0, col.size + 1, 2)
    return sp.csr_array((np.arange(1.0, col.size + 1), col.reshape(-1), row_ptr), (len(col), N_COLS))


def test_the_arrays_are_those_of_the_picture():
    A = jsf.from_scipy(drawn_matrix("sell"), "sell", slice_size=2)
    assert_as_drawn(A)
    assert A.col_idx is None and A.index_start is None and all(getattr(A, name) is None for name in TAIL)


@value_sizes
@pytest.mark.parametrize("sigma", [1, 16])
def test_bytes_follow_the_formula(value, sigma):
    A = stored("sell", value, slice_size=8, sigma=sigma, max_width=40)
    perm = 4 * 99 if sigma > 1 else 0
    assert A.n_stored == stored("hll", slice_size=8, sigma=sigma).n_stored
    assert A.nbytes == A.n_stored * (value + 2) + 4 * A.n_stored // 8 + 4 * (13 + 1) + perm


def test_a_wide_slice_takes_two_bytes_more_a_place_and_a_number_for_every_slice():
    A = jsf.from_scipy(slices_of_two(1, 70_000, 2), "sell", slice_size=2)
    narrow = A.n_stored * (8 + 2) + 4 * A.n_stored // 2 + 4 * (3 + 1)
    assert A.nbytes == narrow + 2 * 4 + 4 * 3


@pytest.mark.parametrize(("span", "fits"), [(0, True), (65_534, True), (65_535, False), (65_536, False)])
def test_differences_up_to_65534_take_16_bits(span, fits):
    """65535 means padding."""
    S = slices_of_two(span)
    A = jsf.from_scipy(S, "sell", slice_size=2)
    assert (A.col_idx is None) == fits
    if fits:
        assert A.delta.tolist() == [0, span, 0, 0] and A.col_base.tolist() == [7, N_COLS - 1]
    np.testing.assert_array_equal(A.to_scipy().indices, S.indices)


def test_narrow_and_wide_slices_mix():
    S = slices_of_two(3, 65_535, 65_534, 100_000, 1)
    A = jsf.from_scipy(S, "sell", slice_size=2)
    assert A.index_start.tolist() == [0, -1, 4, -1 - 4, 8]
    last = N_COLS - 1
    assert A.delta.dtype == "uint16" and A.delta.tolist() == [0, 3, 0, 0, 0, 65_534, 0, 0, 0, 1, 0, 0]
    assert A.col_idx.dtype == "int32" and A.col_idx.tolist() == [7, 65_542, last, last, 7, 100_007, last, last]
    got = A.to_scipy()
    np.testing.assert_array_equal(got.indices, S.indices)
    np.testing.assert_array_equal(got.data, S.data)


@jax.jit
def product(A, x):
    return A @ x


MIXED = slices_of_two(3, 65_535, 65_534, 100_000, 1)
SAME_AS_HLL = [
    (RAGGED, {"slice_size": 8}),
    (RAGGED, {"slice_size": 8, "sigma": 32}),
    (MIXED, {"slice_size": 2}),
    (jsf.gallery.power_law(400, mean=8), {"slice_size": 32}),
]


@pytest.mark.some(matrix=2)
@pytest.mark.parametrize(("matrix", "layout"), SAME_AS_HLL, ids=["ragged", "sorted", "mixed", "power law"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_hll_to_the_last_bit(matrix, layout, dtype, rng):
    """Where both run alike: on a CPU there is a kernel for "hll" only."""
    x = draw(rng, dtype, matrix.shape[1])
    A = jsf.from_scipy(matrix, "sell", dtype, max_width=matrix.shape[1], **layout)
    with jsf.use_backend("xla"):
        np.testing.assert_array_equal(product(A, x), product(jsf.from_scipy(matrix, "hll", dtype, **layout), x))


def test_each_column_of_a_slice_has_its_own_base():
    A = stored("sell", slice_size=8, max_width=40)
    chunks = np.asarray(stored("hll", slice_size=8).col_idx).reshape(-1, 8)
    live = chunks < 120
    np.testing.assert_array_equal(A.col_base, chunks.min(axis=1))
    np.testing.assert_array_equal(A.delta, np.where(live, chunks - chunks.min(axis=1)[:, None], 65_535).reshape(-1))


# --------------------------------------------------------------------------------------------------------- the cut


def with_a_long_row(n: int) -> sp.csr_array:
    dense = 3 * np.eye(n)
    dense[n // 2] = np.arange(1, n + 1)
    return sp.csr_array(dense)


def test_a_row_too_long_for_its_slice_is_cut():
    S = with_a_long_row(1500)
    A = jsf.from_scipy(S, "sell")
    assert A.max_width < 1500 and A.max_width & (A.max_width - 1) == 0
    assert A.tail_rows.tolist() == [750]
    assert A.n_stored < 2 * S.nnz < jsf.from_scipy(S, "sell", max_width=1500).n_stored / 20
    np.testing.assert_array_equal(product(A, np.ones(1500)), S @ np.ones(1500))
    np.testing.assert_array_equal(A.to_scipy().toarray(), S.toarray())


def test_the_cut_is_the_power_of_two_that_stores_the_fewest_places():
    """A place in the tail counts twice, for its longer index and the second pass."""
    S = jsf.gallery.power_law(3000, mean=12, exponent=2.1)
    lengths = np.diff(S.indptr)

    def places(cut: int) -> int:
        longest = [min(lengths[s : s + 32].max(), cut) for s in range(0, 3000, 32)]
        return 32 * sum(longest) + 2 * np.maximum(lengths - cut, 0).sum()

    cuts = [2**k for k in range(5, 12) if 2**k < lengths.max()]  # none below twice the mean
    assert jsf.from_scipy(S, "sell", slice_size=32).max_width == min(cuts, key=places)


@pytest.mark.parametrize("lengths", [[20] * 64, [18, 20] * 32], ids=["equal", "a tenth of padding"])
def test_rows_of_like_length_are_not_cut(lengths):
    matrix = sp.csr_array(np.arange(40) < np.array(lengths)[:, None], dtype=float)
    A = jsf.from_scipy(matrix, "sell", slice_size=32)
    assert A.max_width == 20 and A.tail_col is None


@pytest.mark.some(max_width=2)
@pytest.mark.parametrize("max_width", [1, 7, 39, 40, 41])
def test_a_given_width_cuts_there(max_width):
    A = stored("sell", slice_size=8, max_width=max_width)
    rest = np.maximum(LENGTHS - max_width, 0)
    assert (0 if A.tail_col is None else A.tail_col.size) == rest.sum()
    longest = [min(LENGTHS[s : s + 8].max(), max_width) for s in range(0, 99, 8)]
    assert A.n_stored == 8 * sum(longest) + rest.sum()
    np.testing.assert_array_equal(A.data, RAGGED.data)


# -------------------------------------------------------------------------------------------------- narrow values


@pytest.mark.parametrize(
    ("stored_as", "vector", "tiny"), [("float32", "float64", 2.0**-40), ("bfloat16", "float32", 2.0**-15)]
)
@pytest.mark.parametrize("max_width", [40, 5], ids=["whole", "cut"])
def test_narrow_values_sum_in_the_type_of_the_vector(stored_as, vector, tiny, max_width):
    ones = sp.csr_array((np.ones(RAGGED.nnz), RAGGED.indices, RAGGED.indptr), RAGGED.shape)
    A = jsf.from_scipy(ones, "sell", jnp.dtype(stored_as), slice_size=8, max_width=max_width)
    y = product(A, jnp.full(120, 1 + tiny, vector))
    assert A.dtype == stored_as and y.dtype == vector
    np.testing.assert_array_equal(y, LENGTHS * (1 + tiny))


@pytest.mark.parametrize("dialect", SIGNATURES)
@pytest.mark.parametrize("options", [{"slice_size": 128}, {"slice_size": 32, "sigma": 64}], ids=str)
def test_narrow_and_wide_slices_side_by_side_lower_for_cuda(options, dialect):
    row = np.repeat(np.arange(300), 2)
    col = np.where(np.arange(600) % 2, np.where(row < 150, 70_000, 200), row)
    S = sp.coo_array((np.ones(600), (row, col)), shape=(300, 70_001))
    A = jsf.from_scipy(S, "sell", backend=dialect, **options)
    assert A.index_start is not None and A.delta.size and A.col_idx.size
    assert SIGNATURES[dialect] in lowered(lambda A, x: A @ x, A, np.ones(70_001))
