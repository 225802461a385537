"""The suite's runner writes figures that agree with one another, and a table of them."""

import json

import pytest

from benchmarks.__main__ import main


@pytest.mark.deep
def test_a_run_writes_figures_and_a_table(tmp_path):
    path = tmp_path / "out.json"
    options = ["--cases", "14", "23", "--dtypes", "float32", "--workers", "2"]
    assert main(["spmv", "--small", *options, "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert [r["matrix"] for r in content["rows"]] == ["7-point, small", "like lung2"]
    for row in content["rows"]:
        assert row["ratio"] == pytest.approx(row["opponent us"] / row["auto us"])
        assert row["auto"] == row["ours"][0]["label"] and row["error"] < 1e-5
        assert row["share"] > 0
        assert set(row["opponents"]) == {"SciPy csr @ x"}
        assert [one["cost"] for one in row["ours"]] == sorted(one["cost"] for one in row["ours"])
    table = path.with_suffix(".md").read_text()
    assert "7-point, small" in table
    assert sorted(p.name for p in path.parent.iterdir()) == ["out.json", "out.md"]


def test_products_with_several_columns_are_timed_too(tmp_path):
    path = tmp_path / "out.json"
    assert main(["columns", "--small", "--cases", "3", "--dtypes", "float64", "--json", str(path)]) == 0
    one, *others = rows = json.loads(path.read_text())["rows"]
    assert all(row["µs"] > 0 and row["error"] < 1e-12 for row in rows)
    assert others[-1]["throughput"] == pytest.approx(32 * one["µs"] / others[-1]["µs"])
