"""The benchmark of first calls: processes that time themselves, and the tables of their figures."""

import json

import pytest

from benchmarks import first_calls


@pytest.mark.deep
def test_a_run_writes_figures_and_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_calls, "SOLVES", (("cg", "grad"),))
    monkeypatch.setattr(first_calls, "SIDES", ("ours", "jax.scipy"))
    assert first_calls.main(["--json", str(tmp_path / "out.json"), "--rounds", "1"]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows[0]["call"] == "grad of cg" and rows[0]["ratio"] == rows[0]["ours"] / rows[0]["jax.scipy"] > 0
    assert {"import jax", "first cg, n = 1000, wall", "A @ x, warm"} <= {row.get("what") for row in rows}
    assert "| grad of cg |" in capsys.readouterr().out and (tmp_path / "out.md").exists()


def test_a_process_that_fails_is_told_with_its_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        first_calls.child("1 / 0")
