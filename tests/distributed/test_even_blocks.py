"""The runs between even blocks and pieces."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt.core.vector_passes import Distribution
from jaxsparse_fmt.distributed import even_blocks
from tests.distributed.problems import MESH

CUTS = {
    "uneven": (2, 3, 1, 0, 0, 7, 9, 2),
    "one has all": (24, 0, 0, 0, 0, 0, 0, 0),
    "not divisible": (1, 1, 1, 1, 1, 1, 1, 0),
    "nothing": (0,) * 8,
}


@pytest.mark.some(counts=2)
@pytest.mark.parametrize("counts", CUTS.values(), ids=CUTS)
def test_runs_take_every_unknown_to_its_piece_and_home(counts):
    over, n = Distribution(MESH, "rows", counts, max(*counts, 1)), sum(counts)
    piece, m = PartitionSpec("rows"), even_blocks.block_size(counts)

    @jax.jit
    def both_ways(x):
        y = over.mapped(lambda x: even_blocks.to_pieces(x, over), (piece,), piece)(x)
        return y, over.mapped(lambda y: even_blocks.to_blocks(y, over), (piece,), piece)(y)

    x = np.concatenate([1.0 + np.arange(n), np.zeros(8 * m - n)])
    y, home = both_ways(jax.device_put(x, NamedSharding(MESH, piece)))
    wanted = np.zeros((8, over.size))
    for own, values in zip(wanted, np.split(x[:n], np.cumsum(counts)[:-1]), strict=True):
        own[: len(values)] = values
    np.testing.assert_array_equal(y, wanted.ravel())
    np.testing.assert_array_equal(home, x)
