"""The runs between even blocks and pieces: how many rounds they take, and what each moves."""

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


@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_devices_need_no_more_rounds_than_a_device_has_runs(seed):
    random = np.random.default_rng(seed)
    counts = tuple((1000 * random.pareto(1.2, 1000)).astype(int).tolist())
    rounds = even_blocks._rounds(counts, back=False)
    m = -(-sum(counts) // 1000)
    starts = np.cumsum(counts) - counts
    runs_of_piece = [(s + c - 1) // m - s // m + 1 if c else 0 for s, c in zip(starts, counts, strict=True)]
    pieces_of_block = np.bincount(np.concatenate([r.pairs for r in rounds])[:, 0], minlength=1000)
    assert len(rounds) <= 1 + max(max(runs_of_piece), pieces_of_block.max())  # one more for those that stay
    moved = 0
    for r in rounds:
        for side in zip(*r.pairs, strict=True):
            assert len(set(side)) == len(side)  # each device sends one run and receives one
        moved += r.count.sum()
    assert moved == sum(counts)
