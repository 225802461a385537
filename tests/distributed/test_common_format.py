"""Which format the shards get when it is not named: one for all, that none of them suffers from."""

import functools

import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.choose import ranking
from tests.distributed.problems import MESH, irregular
from tests.oracle import assert_refused

ROWS = 120  # of a device


def chain_with_a_long_row() -> sp.csr_array:
    """Tridiagonal, but for one row of the last device, whose rows are otherwise single entries: it has the fewest."""
    n = 8 * ROWS
    S = sp.lil_array(sp.diags_array([1.0, 2.0, 3.0], offsets=[-1, 0, 1], shape=(n, n)))
    S[7 * ROWS :] = sp.eye_array(n).tolil()[7 * ROWS :]
    S[n - 5, n - ROWS : n - 4] = 1.0
    return sp.csr_array(S)


def test_all_take_what_is_fastest_for_the_slowest_though_it_is_not_the_largest(plain_xla):
    S = chain_with_a_long_row()
    block = S[-ROWS:, -ROWS:]
    assert jsf.choose.rank(S[:ROWS, :ROWS])[0].format == "ell" and block.nnz < S[:ROWS, :ROWS].nnz
    B = jsf.shard(S, MESH, by="rows")
    local, _ = B.shards.blocks
    assert local.name == jsf.choose.rank(block)[0].format != "ell"
    assert f"in {local.name}, ranked first" in B.report() and "for the slowest shard" in B.report()
    assert abs(B.to_scipy() - S).max() == 0


def test_a_format_that_one_shard_cannot_take_is_not_taken():
    """Seven devices have diagonals, and the eighth has far too many of them."""
    S = sp.block_diag([sp.diags_array([1.0, 2.0], offsets=[-1, 0], shape=(70, 70)), irregular(600, 600)])
    S = sp.csr_array(S)
    ranked = {c.format for c in jsf.choose.rank(S[:70, :70])}
    assert "dia" in ranked and "dia" not in {c.format for c in jsf.choose.rank(S[70:, 70:])}
    B = jsf.shard(S, MESH, mode="vector")
    assert B.shards.blocks[0].name != "dia"


def test_a_symmetric_stencil_is_half_read_in_its_local_blocks(monkeypatch):
    """As on one device; the halo's blocks are not square."""
    monkeypatch.setattr(ranking, "rank", functools.partial(ranking.rank, platform="gpu"))
    S = jsf.gallery.poisson(16)
    B = jsf.shard(S, MESH)
    assert ranking.rank(S)[0].format == B.shards.blocks[0].name == "dia" != B.shards.blocks[1].name
    assert "in dia, ranked first" in B.report() and "mirrored" in B.report()


def test_under_a_limit_all_take_the_best_that_fits(plain_xla):
    S = jsf.gallery.poisson(64, dim=1)
    best = jsf.shard(S, MESH, mode="vector", by="rows")
    size = 8 * 3 * 12  # of a shard in "ell": 8 rows of 3 entries
    assert best.shards.blocks[0].name == "ell"
    tight = jsf.shard(S, MESH, mode="vector", by="rows", max_bytes=size - 1)
    assert tight.shards.blocks[0].name != "ell" and tight.shards.blocks[0].nbytes <= 8 * size
    assert_refused(lambda: jsf.shard(S, MESH, max_bytes=10), ValueError, "max_bytes=10 allows none")
