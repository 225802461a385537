"""`--json` prints one line that scripts can read, and nothing else to standard output."""

import json
from typing import Any

import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.cli import main
from tests.cli.conftest import POISSON


@pytest.fixture
def record(poisson: str, capsys):
    def run(command: str, *options: str) -> dict[str, Any]:
        file = [] if command == "demo" else [poisson]
        assert main.main([command, *file, *options, "--json"]) == 0
        out = capsys.readouterr().out
        assert out.count("\n") == 1 and out.endswith("\n")
        return json.loads(out)

    return run


def test_info_has_the_numbers_of_its_table(record):
    found = record("info")
    assert (found["rows"], found["nnz"], found["symmetry"]) == (216, POISSON.nnz, "symmetric")
    assert found["row_lengths"]["mean"] == POISSON.nnz / 216
    assert [c["format"] for c in found["formats"]] == [c.format for c in jsf.choose.rank(POISSON)]


def test_solve_has_its_status_and_its_residual(record):
    found = record("solve", "--rtol", "1e-7")
    assert found["status"] == "CONVERGED" and found["method"] == "direct" and len(found["tried"]) == 1
    assert found["residual_norm"] <= 1e-7 * found["b_norm"] * (1 + 1e-6)
    assert found["seconds"]["solve"] > 0


def test_bench_has_a_time_for_each_format_and_for_scipy(record):
    found = record("bench", "--formats", "1")
    assert found["scipy"] > 0 and [c["measured"] > 0 for c in found["formats"]] == [True]


def test_demo_has_both_sides(record):
    found = record("demo", "--n", "6")
    assert found["rows"] == 216 and found["faults"] == []
    assert max(found["true residual / ‖b‖"]) <= 1e-8 and min(found["iterations"]) > 1


def test_convert_tells_what_it_wrote(record, tmp_path):
    assert record("convert", str(tmp_path / "a.mtx"))["nnz"] == POISSON.nnz
