"""Address rules: every entry has one place, and kernels walk to exactly those."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import THREADS
from jaxsparse_fmt.kernels.layout.address import Slices
from tests.kernels.host import Host, visits
from tests.marks import few
from tests.zoo import CASES, LAYOUTS, by_rule


def stored_by_rule(case) -> list:
    """Layouts that are one storage by rules, with a place for each entry: not `coo`, not `csc`, none with a tail."""
    stored = {layout: layout.of(case.scipy()) for layout in LAYOUTS}
    return [layout for layout, A in stored.items() if by_rule(A) and layout.format != "dia"]


# Rows of lengths up to 21, where no trip of a kernel ends, in two tiles of 128 lanes.
TWO_TILES = sp.block_diag([CASES["irregular"].scipy(), CASES["tall"].scipy(), np.ones((1, 21))])

every_rule = pytest.mark.parametrize("layout", few(stored_by_rule(CASES["irregular"]), 8), ids=str)


@every_rule
def test_lanes_meet_every_entry_once_with_its_column_and_keep_its_row_in_one_sum(layout):
    A = layout.of(TWO_TILES)
    row, _ = A.address.slots(np, {k: np.asarray(a) for k, a in A._arrays.items()}, A.n_stored)
    column = np.minimum(A._rule.col_idx(A._arrays), A.shape[1])  # any column from n_cols on means padding
    live = (row < A.shape[0]) & (column < A.shape[1])
    perm = A._arrays.get("perm")
    row = row if perm is None else np.asarray(perm)[np.minimum(row, A.shape[0] - 1)]
    for lanes in (32, 128):
        met = visits(A, lanes)
        assert len(np.unique(met["address"])) == len(met["address"])
        assert set(np.flatnonzero(live)) <= set(met["address"])
        np.testing.assert_array_equal(met["row"], row[met["address"]])
        np.testing.assert_array_equal(met["column"], column[met["address"]])
        np.testing.assert_array_equal(met["sums"], 1)


@pytest.mark.parametrize("threads", [2, 32])
def test_the_last_lanes_that_are_let_in_are_numbered_right(threads):
    n = building.MAX_LANES // threads - 1
    checked = building.threads(*THREADS)
    assert checked(threads, n) == threads
    with pytest.raises(ValueError, match="2³¹ threads or more"):
        checked(threads, n + 1)
    rule, d = Slices(n, 1, threads), Host(128)
    tile = jnp.int32(-(-rule.width // 128) - 1)
    (walk,) = rule.walks(d, {"slice_ptr": lambda row: row.astype(jnp.int64) * threads}, tile, threads * n, jnp.int64)
    lane = np.arange(128) + int(tile) * 128
    np.testing.assert_array_equal(walk.row, lane // threads)
    np.testing.assert_array_equal(np.asarray(walk.base)[lane < rule.width], lane[lane < rule.width])
