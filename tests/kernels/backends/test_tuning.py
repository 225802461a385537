"""The shapes of blocks."""

import pytest

from jaxsparse_fmt.kernels.backends import tuning


def warpgroups(block: tuning.Block) -> float:
    return block.rows / (128 * block.lanes_per_thread)


@pytest.mark.parametrize("load", tuning.LAUNCH.loads)
def test_maxima_over_the_lanes_of_a_mosaic_block_are_those_of_one_warpgroup(load):
    """Each would have its own, of a part of the rows."""
    assert warpgroups(tuning.block("mosaic", load, 128)) == 1
    assert [warpgroups(tuning.columns_block("mosaic", load, n)) for n in (1, 2, 4, 8)] == [1] * 4
