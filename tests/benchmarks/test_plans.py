"""The plan of one process from its own rows and its neighbours' requests, against the plan from all rows."""

import json

import numpy as np
import pytest

from benchmarks import plans
from jaxsparse_fmt.distributed import halo
from tests.distributed.problems import MESH


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("kind", "rounds"), [("permute", 5), ("permute", 17), ("forward", 5), ("all_to_all", 1)])
def test_a_share_needs_only_its_own_rows_and_its_neighbours_requests(kind, rounds, shuffled):
    boxes = plans.Boxes((4, 3, 2), (3, 2, 4), shuffled, corners=rounds == 17 or kind == "forward")
    starts, parts = np.arange(25) * boxes.size, range(24)
    needs = {k: halo.needed(boxes.rows(k).indices, starts[k], starts[k + 1]) for k in parts}
    whole = halo.plan(lambda: needs, starts, MESH, kind=kind)
    # Of 2 boxes on an axis none has two neighbours; the random numbers here have no grid of 5 rounds.
    assert len(whole.how.sizes) == rounds or (kind == "forward" and shuffled)
    between = halo.neighbours(boxes.told())
    for k in parts:
        asked = boxes.requests(k)
        share = halo.planned({k: needs[k]}, starts, between, lambda make, k=k, asked=asked: {k: asked}, kind=kind)
        assert vars(share.how) == vars(whole.how)
        np.testing.assert_array_equal(share.slots[k], whole.slots[k])
        assert share.lists.keys() == whole.lists.keys()
        for name, lists in share.lists.items():
            np.testing.assert_array_equal(lists[k], whole.lists[name][k])


@pytest.mark.deep
def test_a_run_writes_a_row_for_each_case_and_number_of_parts(tmp_path):
    assert plans.main(["--small", "--json", str(tmp_path / "plans.json")]) == 0
    rows = json.loads((tmp_path / "plans.json").read_text())["rows"]
    assert [row["parts"] for row in rows] == [64, 256] * len(plans.CASES)
    assert all(row["halo"] > 0 and row["neighbours"] in (6, 26) for row in rows)
    assert {row["kind"] for row in rows} == {"permute", "forward"}
    assert all(0 < row["held"] <= row["most"] for row in rows)
