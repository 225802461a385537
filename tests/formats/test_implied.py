"""Diagonals and blocks of a matrix on a device: the same storage as from the host, and without a way through it."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt._types import CsrArrays, Target
from jaxsparse_fmt.core.matrix import build
from jaxsparse_fmt.formats import bsr, building, implied, statistics
from tests.marks import few
from tests.oracle import assert_same_storage
from tests.zoo import CASES, Layout


def there(S, dtype=None) -> CsrArrays:
    A = jsf.from_scipy(S, "csr", dtype)
    return A.csr_arrays()


def made(S, layout: Layout, dtype=None, **options):
    csr = there(S, dtype)
    return build(csr, layout.format, Target(csr.data.dtype, **options), **dict(layout.options))


@pytest.fixture
def no_host(monkeypatch):
    """Nothing may come to the host as a whole."""

    def on_host(csr):
        assert isinstance(csr.data, np.ndarray), "the matrix came to the host"
        return csr

    monkeypatch.setattr(building, "on_host", on_host)


def holed() -> sp.csr_array:
    """A band of 12 diagonals, more than are merged at a time, with a few entries missing at places of every kind."""
    S = sp.csr_array(np.tril(np.triu(np.arange(1.0, 400 * 390 + 1).reshape(400, 390), -4), 7))
    S.data[[0, 5, 1000, 1001, S.nnz - 1]] = 0
    S.eliminate_zeros()
    return S


def with_zeros(S) -> sp.csr_array:
    S = sp.csr_array(S)
    S.data[::3] = 0
    return S


BAND, ZEROS = holed(), with_zeros(holed())
DIA, HDIA, SORTED = Layout("dia"), Layout("hdia"), Layout("hdia", (("slice_size", 5), ("sigma", 10)))
BLOCKS, PAIRS, LARGE = (Layout("bsr", (("block_shape", shape),)) for shape in ((1, 1), (2, 3), (40, 32)))


MATRICES = {
    "band": BAND,
    "zeros": ZEROS,
    "far corners": BAND + sp.csr_array(([5.0, 7], ([1, 398], [389, 0])), BAND.shape),  # whose diagonals no row shares
    "elasticity": jsf.gallery.elasticity((3, 2, 2)),
    **{name: case.scipy() for name, case in CASES.items()},
}


@pytest.mark.parametrize(
    ("name", "layout"),
    few(
        [("band", layout) for layout in (DIA, HDIA, SORTED, BLOCKS, PAIRS, LARGE)]
        + [("zeros", layout) for layout in (DIA, SORTED, PAIRS)]
        + [("far corners", DIA)]
        + [
            ("empty_rows", SORTED),
            ("tall", PAIRS),
            ("no_columns", DIA),
            ("wide", LARGE),
            ("elasticity", Layout("bsr")),
            ("band", Layout("csc")),
            ("no_columns", Layout("bsr")),
        ],
        3,
    ),
    ids=str,
)
def test_it_is_what_the_host_makes(name, layout, no_host):
    S = MATRICES[name]
    assert_same_storage(made(S, layout), layout.of(S))


@pytest.mark.parametrize("layout", [HDIA, BLOCKS], ids=str)
def test_what_takes_too_many_steps_goes_through_the_host(layout, monkeypatch):
    monkeypatch.setattr(implied, "MOST_STEPS", 1)
    came, on_host = [], building.on_host
    monkeypatch.setattr(building, "on_host", lambda csr: came.append(csr) or on_host(csr))
    assert_same_storage(made(BAND, layout), layout.of(BAND))
    assert any(isinstance(csr, CsrArrays) for csr in came)


@pytest.mark.parametrize("name", ["band", "zeros", "tall", "wide", "empty_rows", "elasticity"])
@pytest.mark.parametrize("layout", [PAIRS, LARGE], ids=str)
def test_are_blocks_by_scipy_those_that_numpy_sorts(name, layout, monkeypatch):
    by_scipy = layout.of(MATRICES[name])
    monkeypatch.setattr(implied.Groups, "_are_blocks_small", lambda self, target: False)
    assert_same_storage(by_scipy, layout.of(MATRICES[name]))


@pytest.mark.parametrize("S", [jsf.gallery.elasticity(3), jsf.gallery.cfd(4), BAND], ids=["3", "5", "none"])
def test_the_best_block_is_the_same_and_only_a_sample_is_looked_at(S, no_host, monkeypatch):
    monkeypatch.setattr(statistics, "ENTRIES", 1)  # so one window is looked at
    monkeypatch.setattr(statistics, "LEAST_WINDOWS", 1)
    assert bsr.best_block(there(S), 8) == bsr.best_block(S, 8)
    for got, expected in zip(*(statistics.entries_of(csr, np.array([0, 5, 7])) for csr in (there(S), S)), strict=True):
        np.testing.assert_array_equal(got, expected)
