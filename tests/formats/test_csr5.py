"""CSR5: entries dealt out to the lanes of tiles, rows that end anywhere in them, and rows too long for them."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._types import Target
from jaxsparse_fmt.core.matrix import build
from jaxsparse_fmt.formats import csr5_tiles
from tests.formats.pictures import assert_as_drawn, drawn_matrix
from tests.lowering import SIGNATURES, lowered, quick_jit
from tests.marks import few
from tests.oracle import assert_same_storage

TILE = (128, 8)
N_COLS = 100_000
NUMBERS = np.random.default_rng(5)


def of_lengths(lengths, columns=None) -> sp.csr_array:
    """Rows of the given lengths with whole numbers from 1 to 9, in the first columns or in the given ones."""
    lengths = np.asarray(lengths)
    columns = np.concatenate([np.arange(n) for n in lengths]) if columns is None else columns
    data = NUMBERS.integers(1, 10, columns.size).astype(np.float64)
    return sp.csr_array((data, columns, np.append(0, np.cumsum(lengths))), (lengths.size, N_COLS))


# Rows of 0 to 32 entries, three of them cut, the first and the last empty; in columns that lie close by, in 17
# windows, or first close by and then far apart.
UNEVEN = NUMBERS.integers(0, 33, 200)
UNEVEN[[0, 77, 78, 199]], UNEVEN[[3, 90, 150]] = 0, (65, 129, 33)
SLOTS = np.concatenate([np.sort(NUMBERS.choice(130, n, replace=False)) for n in UNEVEN])
NEAR, MESHED, FAR = SLOTS, SLOTS // 8 * 3000 + SLOTS % 8, 10_000 + 690 * SLOTS
EARLY = np.repeat(np.arange(200), UNEVEN) < 100
KINDS = {
    "narrow": of_lengths(UNEVEN, NEAR),
    "meshed": of_lengths(UNEVEN, MESHED),
    "wide": of_lengths(UNEVEN, np.where(EARLY, NEAR, FAR)),
}
EDGE = "the last row begins in one share and ends in the next"
MATRICES = {
    **KINDS,
    "long": of_lengths([0, 1, 31, 32, 33, 64, 0, 65, 1000, 96, 97, 5, 0]),
    "long, but not cut": of_lengths([3, 128, 0, 127, 1, 33, *[2] * 200, 41, 48, 57, 127, 128, 128, 1]),
    EDGE: of_lengths([32] + [10] * 97),
    "the last row fills its lanes": of_lengths([16] * 64),
    "a short last row": of_lengths([9] * 113 + [2]),
    "one tile to the last place": of_lengths([1] * 1024),
    "hardly any entries": of_lengths([0] * 3000 + [1]),
    "two rows in eight lanes, then one": of_lengths([3, 61, 64, 2]),
}


@pytest.fixture(autouse=True)
def few_spare_places(monkeypatch):
    """So few that the long rows of small matrices are cut, but for those of "long, but not cut"."""
    monkeypatch.setattr(csr5_tiles, "SPARE", 160)


@functools.cache
def made(name: str, **options):
    return jsf.from_scipy(MATRICES[name], "csr5", tile_shape=TILE, **options)


@quick_jit
def product(A, x):
    return A @ x


# ---------------------------------------------------------------------------------------------------------- storage


def test_the_arrays_are_those_of_the_picture(monkeypatch):
    for name, value in (("LANES", (2,)), ("ENTRIES", (4,)), ("CUT", 2), ("MOST_PART", 2)):
        monkeypatch.setattr(csr5_tiles, name, value)
    assert_as_drawn(jsf.from_scipy(drawn_matrix("csr5"), "csr5", tile_shape=(2, 4)))


@pytest.mark.parametrize("name", few(MATRICES, 4))
def test_products_and_entries_are_scipys_whatever_lanes_and_tiles_rows_end_in(name):
    S, x = MATRICES[name], np.arange(N_COLS) % 7 - 3.0
    for backend in ("xla", "interpret"):
        A = made(name, backend=backend)
        np.testing.assert_array_equal(product(A, x), S @ x)
    assert (A.to_scipy() != S).nnz == 0
    assert name not in KINDS or (A.marked_col is None, A.windows is None) == (name != "wide", name != "meshed")


@pytest.mark.parametrize("options", [{}, {"hot": 50}], ids=str)
@pytest.mark.parametrize("name", ["wide", "meshed"])
def test_host_and_device_convert_alike(name, options):
    there = jsf.from_scipy(MATRICES[name], "csr")
    csr = there.csr_arrays()
    got = build(csr, "csr5", Target(there.dtype), tile_shape=TILE, **options)
    assert_same_storage(got, made(name, **options))


def test_eight_lanes_that_hold_one_row_read_neighbours_of_x_together():
    col = np.asarray(made("two rows in eight lanes, then one").entries()[1]).reshape(8, 128)
    np.testing.assert_array_equal(col[:, 1], np.arange(5, 13))  # a lane the next eight entries, as everywhere else
    np.testing.assert_array_equal(col[:, 8:16], np.arange(64).reshape(8, 8))


@pytest.mark.parametrize(
    ("columns", "array"),
    [
        ([60_000], "col_base"),
        ([27_234, 60_000], "col_base"),
        ([27_233, 60_000], "windows"),  # 32767 means padding
        ([*range(0, 64 * 600, 600)], "windows"),
        ([*range(0, 64 * 600, 600), 63 * 600 + 510], "windows"),
        ([*range(0, 64 * 600, 600), 63 * 600 + 511], "marked_col"),
        ([*range(0, 65 * 600, 600)], "marked_col"),
    ],
)
def test_columns_take_16_bits_above_one_column_or_within_64_windows(columns, array):
    S = of_lengths([1, 0, len(columns) - 1], np.array(columns))
    A = jsf.from_scipy(S, "csr5", tile_shape=TILE)
    assert {name for name in ("col_base", "windows", "marked_col") if getattr(A, name) is not None} == {array}
    np.testing.assert_array_equal(A.to_scipy().toarray(), S.toarray())


@pytest.mark.parametrize(
    ("p", "keep", "dialect"), [(None, True, "mosaic"), (3, True, "triton"), (None, False, "triton")]
)
def test_one_vector_is_summed_in_shared_memory_where_sums_are_kept(p, keep, dialect):
    """Behind a second storage too; and not where a tile has too many rows."""
    A, x = made("wide", keep_sums=keep), np.ones(N_COLS if p is None else (N_COLS, p))
    assert kernels(A, x) == {dialect}
    S = sp.csr_array(np.eye(300) + np.eye(300, k=5))
    A, x = jsf.from_scipy(S, "csr5", transpose=True, tile_shape=TILE, keep_sums=keep), x[:300]
    assert kernels(A, x) == kernels(A.T, x) == {dialect}
    for n_rows in (3000, 5000):
        A = jsf.from_scipy(of_lengths([1] * n_rows), "csr5", tile_shape=(1024, 8), keep_sums=keep)
        assert A.layout["keep_sums"] == keep and (A.tiles.kept_rows > 0) == (keep and n_rows == 3000)


def kernels(A, x) -> set[str]:
    text = lowered(lambda A, x: A @ x, A, x)
    return {dialect for dialect, signature in SIGNATURES.items() if signature in text}


# ----------------------------------------------------------------------------------------- the `hot` columns come first

hot_columns = pytest.mark.parametrize("hot", [1, 50, N_COLS])


@hot_columns
def test_the_most_used_columns_come_first_and_all_others_in_their_order(hot):
    S, A, plain = MATRICES["wide"], made("wide", hot=hot), made("wide")
    used = dict.fromkeys(range(N_COLS), 0)
    for column in S.indices.tolist():
        used[column] += 1
    by_use = sorted(used, key=lambda column: -used[column])  # of columns used alike the first one first
    assert A.col_order.tolist() == by_use[:hot] + sorted(by_use[hot:]) and A.col_order.dtype == np.int32
    (col, last), (own, own_last) = (B.tiles.columns(B._arrays) for B in (A, plain))
    np.testing.assert_array_equal(np.append(A.col_order, N_COLS)[col], own)
    np.testing.assert_array_equal(last, own_last)
    np.testing.assert_array_equal(A.values, plain.values)
    assert plain.col_order is None


@pytest.mark.parametrize(
    ("columns", "narrow"),
    [([7, 90_000], (False, True)), ([50_000, 50_001], (True, False))],
    ids=["brought together", "torn apart"],
)
def test_how_far_columns_lie_apart_is_asked_of_those_in_the_new_order(columns, narrow):
    """Both are used more than any other column, and the first one most."""
    S = of_lengths([2, 2, 1], np.array([*columns, *columns, columns[0]]))
    hots = [0, 2 if narrow[1] else 1]
    both = [jsf.from_scipy(S, "csr5", tile_shape=TILE, hot=hot) for hot in hots]
    assert tuple(A.windows is None for A in both) == narrow
    for A in both:
        np.testing.assert_array_equal(A.to_scipy().indices, S.indices)


@pytest.mark.parametrize(("longest", "is_cut"), [(200, False), (300, True)])
def test_a_tile_grows_where_only_then_no_row_is_cut(longest, is_cut):
    S = of_lengths([longest, *[3] * 3000])
    A = jsf.from_scipy(S, "csr5")
    lanes, entries = A.tile_shape
    assert (A.long_rows is not None) == is_cut
    assert is_cut or jsf.from_scipy(S, "csr5", tile_shape=(lanes // 2, entries)).long_rows is not None
