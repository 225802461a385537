"""From CSR into storages: rows in order, sizes, the places filled, and layouts refused by name."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.core import conversions
from jaxsparse_fmt.formats import building
from tests.formats.pictures import LENGTHS, LONGER, RAGGED
from tests.process import allocating_at_most

ON_DEVICE = CsrArrays(*(jnp.asarray(a) for a in (RAGGED.data, RAGGED.indices, RAGGED.indptr)), RAGGED.shape)
both_places = pytest.mark.parametrize("csr", [RAGGED, ON_DEVICE], ids=["host", "device"])

# ----------------------------------------------------------------------------------------------------- rows and sizes


@both_places
@pytest.mark.parametrize("sigma", [1, 2, 10, 98, 99, 10**12, None])
def test_rows_are_sorted_stably_inside_windows(csr, sigma):
    rows = building.rows_of(csr, sigma)
    window = min(sigma or 99, 99)
    order = sorted(range(99), key=lambda r: (r // window, -LENGTHS[r])) if sigma != 1 else list(range(99))
    assert (rows.perm is None) == (sigma == 1)
    np.testing.assert_array_equal(rows.lengths, LENGTHS[order])
    if rows.perm is not None:
        assert rows.perm.dtype == np.int32
        np.testing.assert_array_equal(rows.perm, order)
    assert rows.longest == 40


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_windows_are_sorted_where_one_key_would_overflow_32_bits(xp):
    lengths = [3, 2**30, 1, 2**30 + 1, 5, 6]
    csr = CsrArrays(xp.zeros(0), xp.zeros(0), xp.asarray(np.append(0, np.cumsum(lengths))), (6, 2**31 - 1))
    assert building.rows_of(csr, sigma=2).perm.tolist() == [1, 0, 3, 2, 5, 4]


@both_places
def test_sizes_are_counted_alike_on_host_and_device(csr):
    rows = building.rows_of(csr, None)
    ordered = sorted(LENGTHS, reverse=True)
    np.testing.assert_array_equal(building.longer_than(rows), LONGER)
    for slice_size in (1, 7, 32, 99, 200):
        longest = [ordered[s] for s in range(0, 99, slice_size)]
        counted = building.longest_by_slice(rows.lengths, slice_size)
        assert isinstance(counted, np.ndarray) and counted.dtype == np.int64
        np.testing.assert_array_equal(counted, longest)


# ----------------------------------------------------------------------------------------------------- what is refused

REFUSED = [
    ("hll", {"slice_size": 0}, ValueError, "slice_size must be at least 1 row; got 0"),
    ("hll", {"slice_size": 2.5}, TypeError, "slice_size must be an integer, a number of rows; got 2.5"),
    ("hll", {"sigma": 0}, ValueError, "sigma must be at least 1 row; got 0"),
    ("hll", {"slice_size": 8, "sigma": 7}, ValueError, "sigma=7 sorts inside windows smaller than a slice of 8 rows"),
    ("pjds", {"block_size": 0}, ValueError, "block_size must be at least 1 row; got 0"),
    ("bsr", {"block_shape": (0, 3)}, ValueError, "block_shape[0] must be at least 1 row; got 0"),
    ("bsr", {"block_shape": 3}, TypeError, "block_shape must be two integers, (rows, columns); got 3"),
    ("csr", {"threads_per_row": 3}, ValueError, "threads_per_row must be one of 1, 2, 4, 8, 16, 32; got 3"),
    ("csr5", {"tile_shape": (100, 8)}, ValueError, "lanes one of 128, 256, 512, 1024 and entries"),
    ("csr5", {"tile_shape": (128, 7)}, ValueError, "entries one of 8, 16, 32, 64, 128; got (128, 7)"),
    ("csr5", {"tile_shape": (128,)}, ValueError, "tile_shape must be (lanes, entries), lanes one of"),
    ("csr5", {"slice_size": 8}, ValueError, "format 'csr5' has no layout option 'slice_size'; it has: tile_shape, hot"),
    ("csr5", {"hot": -1}, ValueError, "hot must be at least 0 columns; got -1"),
    ("csr5", {"keep_sums": 1}, TypeError, "keep_sums must be True or False; got 1"),
    ("ellrt", {"threads_per_row": "2"}, ValueError, "threads_per_row must be one of 1, 2, 4, 8, 16, 32; got '2'"),
    ("pellr", {"lengths_per": "block"}, ValueError, "lengths_per must be 'row' or 'warp'; got 'block'"),
    ("hyb", {"width": "half"}, ValueError, "width must be a number of columns, 'third' or 'mean'; got 'half'"),
    ("hyb", {"width": -1}, ValueError, "width must be at least 0 columns; got -1"),
    ("coo", {"slice_size": 8}, ValueError, "format 'coo' has no layout option 'slice_size'; it has: none"),
]


@pytest.mark.parametrize(
    ("format", "layout", "error", "words"), REFUSED, ids=lambda v: str(v) if isinstance(v, (str, dict)) else ""
)
def test_layouts_that_make_no_sense_are_refused_by_name(format, layout, error, words):
    with pytest.raises(error) as caught:
        jsf.from_scipy(RAGGED, format, **layout)
    assert words in str(caught.value)


N = 200_000
ARROW = sp.csr_array(sp.vstack([np.ones((1, N)), sp.diags_array(np.ones(N)).tocsr()[1:]]))


@pytest.mark.parametrize(
    ("format", "layout", "nbytes"),
    [
        ("ell", {}, "480 GB"),
        ("ellr", {}, "480 GB"),
        ("dia", {}, "320 GB"),
        ("hll", {"slice_size": N}, "480 GB"),
        ("hdia", {"slice_size": N}, "320 GB"),
        ("sell", {"slice_size": N}, "400 GB"),
        ("pjds", {"block_size": N}, "480 GB"),
        ("hyb", {"width": N}, "480 GB"),
    ],
)
def test_one_full_row_is_refused_without_memory(format, layout, nbytes):
    with allocating_at_most(40e6), pytest.raises(ValueError) as caught:
        jsf.from_scipy(ARROW, format, **layout)
    text = str(caught.value)
    assert f"format {format!r} would take {nbytes} for a matrix of 5.6 MB in CSR" in text
    assert "use format='csr', or format='auto' of from_scipy" in text


@pytest.mark.parametrize(("free", "there"), [(10**9, True), (None, True), (1000, False)])
def test_many_entries_are_converted_where_they_lie_if_there_is_room(free, there, monkeypatch):
    monkeypatch.setattr(conversions, "FEW", 100)
    monkeypatch.setattr(building.memory, "free", lambda: free)
    target = Target(np.dtype(np.float64))
    many, some = (CsrArrays(*building.csr_arrays(S, np.float64), shape=S.shape) for S in (RAGGED, RAGGED[:9]))
    assert (building.where_it_converts(many, target) is many) == there
    assert building.where_it_converts(RAGGED, target) is RAGGED
    assert not isinstance(building.where_it_converts(some, target), CsrArrays)


# -------------------------------------------------------------------------------------------------- what is compiled


CONVERSIONS = [(format, {}) for format in (*jsf.FORMATS, "auto")]
CONVERSIONS += [
    ("hll", {"sigma": 512}),
    ("csr5", {"hot": 8}),
    ("csr", {"transpose": True}),
    ("hll", {"transpose": True}),
]


@pytest.mark.parametrize(("format", "options"), CONVERSIONS, ids=str)
def test_a_matrix_of_a_new_size_compiles_nothing(format, options, compiled):
    """But with its transpose one program. Nothing else in this process has arrays of these sizes."""
    sizes = 3067 + 2 * np.arange(2) + 4 * CONVERSIONS.index((format, options))
    matrices = [sp.csr_array(sp.diags_array([np.ones(n)] * 3, offsets=[-1, 0, 2], shape=(n, n))) for n in sizes]
    matrices[1][5, :600] = 2.0  # a row that is cut, or goes on in a tail
    for S in matrices:
        before = compiled()
        jsf.from_scipy(S, format, max_bytes=np.inf, **options)
        assert compiled() - before <= int("transpose" in options)
