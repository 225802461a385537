"""Column rules: kernels and references name the same columns, and the right ones, however little of them is stored."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.layout.columns import PADDING, Diagonal, alive, pack_pattern, unpack_pattern
from tests.kernels.host import Host, visits
from tests.oracle import assert_close, magnitude
from tests.zoo import CASES


def assert_kernels_meet_the_columns_of_the_reference(A) -> None:
    reference = np.asarray(A._rule.col_idx(A._arrays))
    for rows in (32, 128):
        met = visits(A, rows)
        # Any column from n_cols on means padding.
        np.testing.assert_array_equal(met["column"], np.minimum(reference[met["address"]], A.shape[1]))


@pytest.mark.parametrize(("format", "layout"), [("dia", {}), ("sell", {"slice_size": 128})])
def test_kernels_and_references_meet_the_same_columns_where_no_trip_ends_with_the_last_chunk(format, layout):
    """In one slice, whose chunks all lanes share. Of the other rules `test_address.py` asks it."""
    A = jsf.from_scipy(CASES["full_row"].scipy(), format, **layout)  # 15 diagonals, a row of 15 entries
    assert_kernels_meet_the_columns_of_the_reference(A)


# ------------------------------------------------------------------------------------------------------------- deltas

FAR = 70_000  # columns, more than 16 bits reach


def spanning(*spans: tuple[int, int]) -> sp.csr_array:
    """One slice of four rows for each span: its first chunk holds the first and the last column of the span."""
    row, col = [], []
    for s, (first, last) in enumerate(spans):
        row += [4 * s, 4 * s, 4 * s + 1, 4 * s + 3]
        col += [first, first + 1, last, first]
    return sp.csr_array((np.arange(1.0, len(row) + 1), (row, col)), (4 * len(spans), FAR))


NARROW, NARROW_AT_THE_END, WIDE, JUST, JUST_NOT = (
    (5, 900),
    (FAR - 9, FAR - 1),
    (0, FAR - 1),
    (7, 7 + PADDING - 1),
    (7, 7 + PADDING),
)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
@pytest.mark.parametrize(
    ("spans", "wide"),
    [((NARROW, NARROW_AT_THE_END, JUST), False), ((NARROW, JUST_NOT), True), ((WIDE, NARROW), True)],
    ids=["narrow", "one beyond", "wide first"],
)
def test_columns_of_16_and_of_32_bits_give_the_bits_of_hll(spans, wide, backend, rng):
    S = spanning(*spans)
    sell, hll = (jsf.from_scipy(S, name, slice_size=4, backend=backend) for name in ("sell", "hll"))
    assert (sell.delta is None, sell.col_idx is None) == (wide, not wide)
    assert_kernels_meet_the_columns_of_the_reference(sell)
    x = rng.standard_normal(FAR)
    np.testing.assert_array_equal(sell @ x, hll @ x)
    assert_close(sell @ x, S @ x, magnitude(S.toarray(), x))
    assert (sell.to_scipy() != S).nnz == 0


# ---------------------------------------------------------------------------------------------------------- patterns


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), min_size=50, max_size=50), st.booleans())
def test_a_kernel_tells_entries_from_padding_as_the_reference_does(present, zeros_stored):
    present = np.array(present, bool)
    pattern, n_holes = pack_pattern(present)
    assert n_holes == np.count_nonzero(~present)
    if pattern is None:
        return
    values = present.astype(float) * ~(zeros_stored & (np.arange(present.size) == np.argmax(present)))
    at = jnp.arange(present.size, dtype=jnp.int32)
    got = alive(Host(present.size), Diagonal(zeros_stored), jnp.asarray(pattern), at, True, jnp.asarray(values))
    np.testing.assert_array_equal(got, unpack_pattern(jnp.asarray(pattern), present.size))


# ---------------------------------------------------------------------------------------------- diagonals and blocks
