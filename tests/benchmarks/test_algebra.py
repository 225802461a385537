"""The benchmark of sums, products and assembly runs, and its table has a line for each way of each operation."""

import json

import pytest

from benchmarks import algebra


@pytest.mark.deep
def test_a_run_writes_figures_and_a_table(tmp_path, capsys):
    assert algebra.main(["--small", "--repeats", "1", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {"SciPy", "eager", "new values", "pattern"} <= {row["side"].split(",")[0] for row in rows}
    for row in rows:
        assert row["wall"] > 0 and row["cpu"] >= 0
    table = capsys.readouterr().out
    assert all(row["case"] in table for row in rows)
