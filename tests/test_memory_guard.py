"""The memory guard: what would take memory out of proportion is refused before any of it is allocated."""

from __future__ import annotations

import tracemalloc

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import storing
from tests.zoo import Layout


def arrow(n: int) -> sp.csr_array:
    """A diagonal and one full row."""
    row = np.concatenate([np.zeros(n, int), np.arange(1, n)])
    return sp.csr_array((np.ones(2 * n - 1), (row, np.concatenate([np.arange(n), np.arange(1, n)]))), (n, n))


@pytest.mark.parametrize("layout", [Layout("ell"), Layout("ellr"), Layout("hll", (("slice_size", 2**20),))], ids=str)
def test_one_full_row_is_refused_before_anything_is_allocated(layout):
    n = 200_000
    matrix = arrow(n)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            layout.of(matrix)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 12 * matrix.nnz
    text = str(caught.value)
    assert f"format {layout.format!r} would take" in text and "5.6 MB in CSR" in text
    assert "longest row has 200000 entries where the mean is 2.0" in text
    assert (
        "use format='csr', or format='auto' of from_scipy" in text
        or "use format='hll', or format='auto' of from_scipy" in text
    )


def test_the_guard_recommends_a_format_that_it_then_accepts():
    matrix = arrow(20_000)
    with pytest.raises(ValueError, match=r"format='(csr|hll)'") as caught:
        jsf.from_scipy(matrix, "ell")
    better = str(caught.value).split("use format='")[1].split("'")[0]
    assert jsf.from_scipy(matrix, better).nnz == matrix.nnz
    assert jsf.from_scipy(matrix).nnz == matrix.nnz


def test_max_bytes_insists_on_what_the_message_names():
    matrix = arrow(3000)
    with pytest.raises(ValueError, match="pass max_bytes=108000000 to insist"):
        jsf.from_scipy(matrix, "ell")
    assert jsf.from_scipy(matrix, "ell", max_bytes=108_000_000).n_stored == 9_000_000


def test_small_matrices_may_pad_as_they_like():
    assert jsf.from_scipy(arrow(500), "ell").fill < 0.01


@pytest.mark.parametrize(
    "layout",
    [Layout("ell"), Layout("ellr"), Layout("ellrt"), Layout("pellr"), Layout("hll", (("slice_size", 2**17),))],
    ids=str,
)
def test_32_bit_jax_refuses_offsets_of_64_bits(layout, monkeypatch):
    def allocate(*_):
        raise AssertionError("4.3 billion places would be allocated")

    monkeypatch.setattr(storing, "fill", allocate)
    wide = sp.csr_array(
        (np.ones(1, np.float32), np.zeros(1, np.int32), np.array([0] + [1] * 2**16, np.int32)), (2**16, 2**16)
    )
    wide = sp.vstack([wide, sp.csr_array(np.ones((1, 2**16), np.float32))]).tocsr()
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"would store .* places, which needs 64-bit offsets"):
        layout.of(wide, max_bytes=2**40)


def test_auto_under_a_limit_takes_the_best_that_fits():
    matrix = jsf.gallery.poisson(4)
    in_csr, ranked = jsf.from_scipy(matrix, "csr").nbytes, jsf.choose.rank(matrix)
    best_that_fits = next(c for c in ranked if c.nbytes <= in_csr)
    assert best_that_fits is not ranked[0]
    assert jsf.from_scipy(matrix, max_bytes=in_csr).name == best_that_fits.format
    with pytest.raises(
        ValueError, match=r"at least [\d.]+ kB, in 'dia'; max_bytes=10 allows none, max_bytes=\d+ would"
    ):
        jsf.from_scipy(matrix, max_bytes=10)
