"""The suite's runner: sides compared rightly, files after every matrix, and nothing that an opponent lacks stops it."""

import dataclasses
import json

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from benchmarks import spmv

S = jsf.gallery.elasticity((2, 3, 4))


RUN = spmv.Run("gpu", ["float64"], "auto", 0, 1e9, spmv.QUICK)
ONES = np.ones(S.shape[1], np.float32)
PROBLEM = spmv.Problem(S, [ONES] * 3, S @ ONES.astype(float), chained=0)


def ours(*us: float) -> list[dict]:
    return [{"label": f"f{i}", "us": t, "tune us": 10 - t, "model us": 1.0} for i, t in enumerate(us)]


def test_the_fastest_opponent_counts_and_the_absent_do_not():
    row = spmv.compared({"a": 30.0, "b": 20.0, "c": "absent: no"}, ours(10.0, 5.0), ["f0", "f1"])
    assert (row["opponent"], row["ratio"], row["best"], row["best ratio"]) == ("b", 2.0, "f1", 4.0)
    assert row["auto vs best"] == 0.5


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    path = folder / "out.json"
    assert spmv.main(["--small", "--cases", "14", "23", "--dtypes", "float32", "--json", str(path)]) == 0
    return path


@pytest.mark.deep
def test_a_run_writes_figures_and_a_table(written):
    path = written
    content = json.loads(path.read_text())
    assert [r["matrix"] for r in content["rows"]] == ["7-point, small", "like lung2"]
    for row in content["rows"]:
        assert row["ratio"] == pytest.approx(row["opponent us"] / row["auto us"])
        assert row["auto"] == row["ours"][0]["label"] and row["error"] < 1e-5
        assert row["model us"] > 0 and row["share"] > 0
        assert set(row["opponents"]) == {"SciPy csr @ x", "JAX BCSR"}
        assert row["predicted"][0]["label"] == row["auto"]
        assert {o["label"]: o["model us"] for o in row["ours"]}.items() <= {
            p["label"]: p["model us"] for p in row["predicted"]
        }.items()
    table = path.with_suffix(".md").read_text()
    assert "7-point, small" in table
    assert sorted(p.name for p in path.parent.iterdir()) == ["out.json", "out.md"]


def test_the_fastest_opponent_and_ours_are_timed_in_turn_and_medians_count():
    order: list[str] = []
    seconds = {"slow": [9.0], "fast": [5.0, 2.0, 8.0, 3.0], "f0": [1.0, 7.0, 4.0]}

    def timer(name: str) -> spmv.Timer:
        return lambda **_: order.append(name) or seconds[name].pop(0)

    ours = [{"label": "f0", "moved": 4e6}, {"label": "f1", "failed": "no"}]
    rivals = {"slow": timer("slow"), "gone": "absent: no", "fast": timer("fast")}
    told = dataclasses.replace(RUN, passes=3).in_turn(rivals, ours, {"f0": timer("f0")})
    assert told == {"slow": 9e6, "gone": "absent: no", "fast": 3e6}
    assert order == ["slow", "fast", "f0", "fast", "f0", "fast", "f0", "fast"]
    assert ours[0]["us"] == 4e6 and ours[0]["spread"] == 1.5
    assert ours[0]["share"] == pytest.approx(4e6 / 4.0 / RUN.copy) and ours[1] == {"label": "f1", "failed": "no"}


@pytest.mark.parametrize("what", ["columns", "transposed"])
def test_other_products_are_timed_too(what, tmp_path):
    path = tmp_path / "out.json"
    assert spmv.main(["--small", "--what", what, "--cases", "3", "--dtypes", "float64", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    us, error = ("µs", "error") if what == "columns" else ("us", "error")
    assert all(row[us] > 0 and row.get(error, 0) < 1e-12 for row in rows)
    if what == "columns":
        one, *_, last = rows
        assert last["throughput"] == pytest.approx(32 * one["µs"] / last["µs"])
    else:
        of = {row["method"]: row for row in rows}
        rival = min(of["SciPy, A.T @ y"]["us"], of["SciPy, stored Aᵀ"]["us"])
        assert of["A.T @ y, transpose=True"]["ratio"] == pytest.approx(rival / of["A.T @ y, transpose=True"]["us"])
