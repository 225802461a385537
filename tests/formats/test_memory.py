"""The memory guard: what would take memory out of proportion is refused before any of it is allocated."""

from functools import partial

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.formats import building, memory
from tests.process import allocating_at_most
from tests.zoo import Layout


def arrow(n: int) -> sp.csr_array:
    """A diagonal and one full row."""
    row = np.concatenate([np.zeros(n, int), np.arange(1, n)])
    return sp.csr_array((np.ones(2 * n - 1), (row, np.concatenate([np.arange(n), np.arange(1, n)]))), (n, n))


def test_max_bytes_insists_on_what_the_message_names():
    matrix = arrow(3000)
    stored = jsf.from_scipy(matrix, "csr"), jsf.from_scipy(sp.csr_array(matrix.T), "csr").T
    for convert in (partial(jsf.from_scipy, matrix), *(A.asformat for A in stored)):
        with pytest.raises(ValueError, match="pass max_bytes=108000000 to insist"):
            convert("ell")
        assert convert("ell", max_bytes=108_000_000).n_stored == 9_000_000


@pytest.mark.parametrize(
    "layout",
    [Layout("ell"), Layout("ellr"), Layout("ellrt"), Layout("pellr"), Layout("hll", (("slice_size", 2**17),))],
    ids=str,
)
def test_32_bit_jax_refuses_offsets_of_64_bits(layout, monkeypatch):
    def allocate(*_):
        raise AssertionError("4.3 billion places would be allocated")

    monkeypatch.setattr(building, "fill", allocate)
    wide = sp.csr_array(
        (np.ones(1, np.float32), np.zeros(1, np.int32), np.array([0] + [1] * 2**16, np.int32)), (2**16, 2**16)
    )
    wide = sp.vstack([wide, sp.csr_array(np.ones((1, 2**16), np.float32))]).tocsr()
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"would store .* places, which needs 64-bit offsets"):
        layout.of(wide, max_bytes=2**40)


HUGE = 3 * 10**8


@pytest.mark.parametrize("format", [*jsf.FORMATS, "auto"])
@pytest.mark.parametrize("shape", [(HUGE, 1), (1, HUGE), (3, 2**31 - 1)], ids=["rows", "columns", "most columns"])
def test_is_a_huge_shape_of_few_entries_stored_or_refused_without_passing_over_it(shape, format, monkeypatch):
    """What NumPy allocates on the way is a small part of a byte a row or column, let alone of a pointer to each.

    "auto" counts two vectors too, 34 GB at most, which this machine need not have.
    """
    monkeypatch.setattr(memory, "free", lambda: 10**11)
    ends = [[0, n - 1] for n in shape]
    with allocating_at_most(10**7):
        try:
            A = jsf.from_coo(*ends, [2.0, 3.0], shape, format)
        except ValueError as refusal:
            assert shape[0] == HUGE or format == "csc"
            what, n = ("columns", shape[1]) if shape[0] < HUGE else ("rows", HUGE)
            assert f"pointers to {n} {what} would take" in str(refusal) and f"leave out {what}" in str(refusal)
        else:
            assert shape[0] < HUGE and A.nbytes < 10**6
            np.testing.assert_array_equal(A.to_scipy().data, [2.0, 3.0])


def test_is_the_transpose_of_a_wide_matrix_refused_before_it_is_made():
    with pytest.raises(ValueError, match=f"pointers to {HUGE} columns would take 1.2 GB"):
        jsf.from_coo([0], [HUGE - 1], [1.0], (1, HUGE), "csr", transpose=True)


def test_pointers_to_rows_without_entries_can_be_insisted_on():
    n = 17_000_000
    with pytest.raises(ValueError, match=r"leave out rows .* or pass max_bytes=68000004 to insist"):
        jsf.from_coo([n - 1], [0], [1.0], (n, 1), "csr")
    assert jsf.from_coo([n - 1], [0], [1.0], (n, 1), "csr", max_bytes=68_000_004).nbytes == 68_000_004 + 12


@pytest.mark.parametrize("format", ["ell", "auto"])
@pytest.mark.parametrize("bad", [np.nan, -1, -np.inf, True, np.True_, 1j, "1GB"], ids=str)
def test_is_a_limit_that_is_no_number_of_bytes_refused_at_the_door(format, bad):
    with pytest.raises((ValueError, TypeError), match=r"max_bytes must be a number of bytes.* 10\*\*9; got"):
        jsf.from_scipy(arrow(9), format, max_bytes=bad)


@pytest.mark.parametrize("limit", [np.inf, 10**30, np.float32(1e30)], ids=str)
def test_is_what_the_memory_cannot_hold_refused_in_our_words_whatever_the_limit(limit):
    matrix = arrow(400_000)
    with pytest.raises(ValueError, match=r"format 'ell' would take 1.92 TB, where .* of memory are free"):
        jsf.from_scipy(matrix, "ell", max_bytes=limit)
    assert jsf.from_scipy(matrix, "csr", max_bytes=limit).nnz == matrix.nnz


def test_a_dense_array_of_a_huge_matrix_is_refused_where_xla_would_abort():
    A = jsf.from_scipy(sp.eye_array(1_000_000, dtype=np.float32))
    for make in (A.todense, A.toarray, A.T.todense, jax.jit(lambda: A.todense())):
        with pytest.raises(
            ValueError, match=r"a dense 1000000 × 1000000 matrix takes 4 TB; pass todense\(max_bytes="
        ) as e:
            make()
        assert "use A @ x" in str(e.value)
