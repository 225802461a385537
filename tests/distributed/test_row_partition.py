"""Cuts of the rows."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import row_partition
from tests.distributed.problems import MESH, boxes, irregular


def test_no_cut_by_entries_could_move_a_row_and_come_closer():
    S = irregular(200)
    starts = row_partition.cuts("nnz", np.diff(S.indptr), 7)
    goal = S.nnz * np.arange(8) / 7
    at = S.indptr[starts]
    for moved in (-1, 1):
        near = S.indptr[np.clip(starts + moved, 0, 200)]
        assert np.all(np.abs(at - goal) <= np.abs(near - goal))


def test_empty_rows_are_shared_out_evenly():
    lengths = np.r_[np.ones(10, int), np.zeros(90, int), np.ones(10, int)]
    np.testing.assert_array_equal(row_partition.equal_nnz(lengths, 2), [0, 55, 110])
    np.testing.assert_array_equal(row_partition.equal_nnz(np.zeros(12, int), 3), [0, 4, 8, 12])


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("by", ["nnz", "rows"])
def test_more_pieces_than_rows_leave_some_empty(n, by):
    starts = row_partition.cuts(by, np.ones(n, int), 8)
    assert starts[0] == 0 and starts[-1] == n and np.all(np.diff(starts) >= 0)
    assert np.diff(starts).max(initial=0) <= 1


def test_boxes_of_a_grid_have_a_smaller_halo_than_strips():
    S, perm = sp.csr_array(jsf.gallery.poisson((24, 24))), boxes((24, 24), (2, 4))
    halo = lambda S: jsf.shard(S, MESH, format="csr", by="rows").record.imbalance.halo.max()  # noqa: E731
    assert halo(S[perm][:, perm]) == 6 + 12 + 12 and halo(S) == 48  # boxes of 12 × 6 points
