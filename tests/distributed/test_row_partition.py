"""Cuts of the rows."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.spatial

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import row_partition
from tests.distributed.problems import MESH, irregular
from tests.oracle import assert_refused


def test_no_cut_by_entries_could_move_a_row_and_come_closer():
    S = irregular(200)
    starts, _ = row_partition.partition(S, 7)
    goal = S.nnz * np.arange(8) / 7
    before = S.indptr[starts]
    for step in (-1, 1):
        other = S.indptr[np.clip(starts + step, 0, 200)]
        assert np.all(np.abs(before - goal) <= np.abs(other - goal))


def test_empty_rows_are_shared_out_evenly():
    lengths = np.r_[np.ones(10, int), np.zeros(90, int), np.ones(10, int)]
    np.testing.assert_array_equal(row_partition.equal_nnz(lengths, 2), [0, 55, 110])
    np.testing.assert_array_equal(row_partition.equal_nnz(np.zeros(12, int), 3), [0, 4, 8, 12])


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("by", ["nnz", "rows"])
def test_more_pieces_than_rows_leave_some_empty(n, by):
    starts, _ = row_partition.partition(sp.csr_array(sp.eye_array(n)), 8, by)
    assert starts[0] == 0 and starts[-1] == n and np.all(np.diff(starts) >= 0)
    assert np.diff(starts).max(initial=0) <= 1


@pytest.mark.parametrize(
    ("shape", "parts", "along"),
    [((8, 8), 4, (2, 2)), ((6, 100), 4, (1, 4)), ((5, 5, 5), 7, (7, 1, 1)), ((4, 9, 2), (2, 3, 1), (2, 3, 1))],
)
def test_boxes_are_cut_where_the_fewest_neighbours_part(shape, parts, along):
    part = row_partition.boxes(shape, parts).reshape(shape)
    assert part.dtype == np.int32 and part.max() == np.prod(along) - 1
    for box in range(part.max() + 1):
        inside = np.argwhere(part == box)
        assert inside.size == 0 or np.prod(np.ptp(inside, axis=0) + 1) == len(inside)  # all points between its corners
    for axis, p in enumerate(along):
        line = np.moveaxis(part, axis, 0).reshape(shape[axis], -1)[:, 0]
        assert np.count_nonzero(np.diff(line)) == min(p, shape[axis]) - 1


def test_boxes_of_a_grid_have_a_smaller_halo_than_strips():
    S = sp.csr_array(jsf.gallery.poisson((24, 24)))
    by_boxes, by_rows = (jsf.shard(S, MESH, format="csr", by=by) for by in (jsf.boxes((24, 24), 8), "rows"))
    assert by_boxes.record.imbalance.halo.max() == 6 + 12 + 12  # 2 × 4 boxes of 12 × 6 points
    assert by_rows.record.imbalance.halo.max() == 48


@pytest.mark.parametrize("parts", [1, 5, 8])
def test_points_are_cut_into_equal_parts_with_a_smaller_halo_than_strips(parts):
    points = np.random.default_rng(0).random((900, 3)) * [1.0, 2.0, 0.1]
    part = jsf.boxes(points, parts)
    sizes = np.bincount(part, minlength=parts)
    assert part.dtype == np.int32 and sizes.max() - sizes.min() <= 1
    near = scipy.spatial.KDTree(points).query_pairs(0.09, output_type="ndarray")
    apart, strips = (np.count_nonzero(p[near[:, 0]] != p[near[:, 1]]) for p in (part, np.arange(900) * parts // 900))
    assert apart < 0.35 * strips or parts == 1


def test_points_that_lie_together_or_are_fewer_than_parts_still_get_one():
    assert np.array_equal(np.bincount(jsf.boxes(np.zeros((6, 2)), 3)), [2, 2, 2])
    assert len(set(jsf.boxes(np.arange(3.0)[:, None], 8).tolist())) == 3
    assert jsf.boxes(np.zeros((0, 2)), 4).shape == (0,)


@pytest.mark.parametrize(
    ("grid", "parts", "error", "words"),
    [
        (np.array([[0.0, np.nan]]), 2, ValueError, "a coordinate of a point is not finite"),
        (np.zeros((2, 2), complex), 2, TypeError, "coordinates of points must be real numbers; got complex128"),
        ((4, 4, 4), (2, 2), ValueError, r"parts must be one number, or one for each of 3 axes; got \(2, 2\)"),
        *(((4, 0), 2, ValueError, "an extent of the grid must be at least 1; got 0"), ((), 1, ValueError, "no axis")),
    ],
)
def test_boxes_that_do_not_fit_are_refused(grid, parts, error, words):
    assert_refused(lambda: jsf.boxes(grid, parts), error, words)


def test_one_axis_may_be_a_number():
    assert jsf.boxes(5, 2).tolist() == jsf.boxes((5,), np.array([2])).tolist() == [0, 0, 1, 1, 1]
