"""Models of bytes and places, against counting by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsparse_fmt.models import traffic

row_lengths = st.lists(st.integers(0, 40), max_size=150).map(lambda lengths: np.array(lengths, np.int32))
sizes = st.integers(1, 40)


@given(row_lengths, sizes)
def test_places_are_those_of_the_padded_rectangles(lengths, size):
    slices = [lengths[i : i + size].tolist() for i in range(0, len(lengths), size)]
    assert traffic.sliced_places(lengths, size) == sum(max(rows) * size for rows in slices)


@pytest.mark.parametrize(
    ("lengths", "width"), [([], 0), ([0, 0], 0), ([7, 6, 7], 7), ([1, 1, 1, 50], 13), ([3, 4, 4, 1], 3)]
)
def test_hyb_can_be_as_wide_as_the_mean_row(lengths, width):
    assert traffic.hyb_width(np.array(lengths, int), "mean") == width


def test_counts_beyond_32_bits_are_right():
    assert traffic.sliced_places(np.full(3, 2**30, np.int32), 1) == 3 * 2**30
