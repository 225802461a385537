"""Rounds of messages: as few as can be, and nobody sends or receives twice in one."""

import numpy as np
import pytest

from jaxsparse_fmt.distributed.rounds import in_rounds


@pytest.mark.parametrize("seed", range(3))
def test_no_more_rounds_than_a_device_has_neighbours_whatever_their_numbers(seed):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, 100, (600, 2)), axis=0)
    source, target = pairs[pairs[:, 0] != pairs[:, 1]].T
    number = in_rounds(source, target, rng.integers(1, 1000, len(source)))
    assert number.max() + 1 == max(np.bincount(source).max(), np.bincount(target).max())
    for ends in (source, target):  # in a round nobody sends or receives twice
        assert len(np.unique(np.stack([number, ends]), axis=1).T) == len(ends)
