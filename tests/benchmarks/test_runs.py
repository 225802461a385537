"""Every benchmark runs small, writes its figures, and prints a table with them."""

import functools
import json

import jax
import pytest

from benchmarks import algebra, choices, device, first_calls, peers, report, scaling
from jaxsparse_fmt.choose import ranking

POISSON = scaling.stencil((16, 16, 16), 7)


@pytest.mark.deep
def test_algebra_has_a_row_for_each_way_of_each_operation(tmp_path, capsys):
    assert algebra.main(["--small", "--json", str(tmp_path / "out.json")]) == 0
    rows, table = json.loads((tmp_path / "out.json").read_text())["rows"], capsys.readouterr().out
    assert {"SciPy", "eager", "new values", "pattern"} <= {row["side"].split(",")[0] for row in rows}
    assert all(row["wall"] > 0 and row["cpu"] >= 0 and row["case"] in table for row in rows)


@pytest.mark.deep
def test_processes_time_their_first_calls_and_one_that_fails_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_calls, "SOLVES", (("cg", "grad"),))
    monkeypatch.setattr(first_calls, "SIDES", ("ours", "jax.scipy"))
    assert first_calls.main(["--json", str(tmp_path / "out.json"), "--small"]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows[0]["call"] == "grad of cg" and rows[0]["ratio"] == rows[0]["ours"] / rows[0]["jax.scipy"] > 0
    assert {"import jax", "first cg, n = 1000, wall", "A @ x, warm"} <= {row.get("what") for row in rows}
    assert "| grad of cg |" in capsys.readouterr().out and (tmp_path / "out.md").exists()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        first_calls.child("1 / 0")


@pytest.mark.deep
def test_every_library_solves_the_same_system_cold_and_warm(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "platform_here", lambda: "cpu")
    assert peers.main(["--small", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["side"] for row in rows] == ["jaxsparse", "jaxsparse, multigrid", "jax.scipy", "SciPy"]
    assert all(row["residual"] <= 1.01 * peers.RTOL and 0 < row["warm s"] < row["cold s"] for row in rows)


@pytest.mark.parametrize(("is_weak", "efficiency"), [(True, 1.0), (False, 0.5)], ids=["weak", "strong"])
def test_efficiencies_are_against_one_device_which_has_what_auto_takes(is_weak, efficiency, monkeypatch):
    monkeypatch.setattr(scaling, "seconds_per_step", lambda *args: (1e-3, 0.25))
    monkeypatch.setattr(ranking, "rank", functools.partial(ranking.rank, platform="gpu"))
    rows = list(scaling.Bench([1, 2], ["overlap"], small=True).steps(lambda count: POISSON, is_weak))
    assert [(row["devices"], row["efficiency"]) for row in rows] == [(1, 1.0), (2, efficiency)]
    assert [row["format"].partition(" ")[0] for row in rows] == ["dia"] * 2


@pytest.mark.deep
def test_unscaled_systems_run_on_several_devices(capsys):
    sections = "products", "refinement", "multigrid"
    assert len(jax.devices()) > 1 and scaling.main(["--small", "--only", *sections, "--devices", "1,2"]) == 0
    assert capsys.readouterr().out.count("CONVERGED") == 4


@pytest.mark.deep
def test_every_stage_has_a_first_and_a_later_time(tmp_path):
    assert device.main(["--small", "--only", "conversions", "algebra", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 9 and all(row["first s"] > 0 and row["again ms"] > 0 for row in rows)


def test_constants_are_fitted_to_one_half_of_the_matrices_and_judged_on_the_other():
    """The second matrix is faster in csr5, whose hops then count less than they do, and the first does not mind."""
    counts = {"layout": {}, "nbytes": 10**8, "places": 10**7, "trips": 6}
    csr = counts | {"format": "csr", "rate": "csr long"}

    def row(matrix, hops, us):
        sides = (csr, us), (counts | {"format": "csr5", "hops": hops}, 100.0)
        of = {"matrix": matrix, "dtype": "float32", "rows": 10**5, "cols": 10**5, "nnz": 10**7, "device": "NVIDIA H200"}
        return of | {"ours": [{"storage": storage, "us": took} for storage, took in sides]}

    own = choices.ranking.HOP
    found = list(choices.table([row("a", 10**6, 90.0), row("b", 15_000, 125.0)]))
    mean = {(row["half"], row["constants"]): row["mean"] for row in found}
    assert mean["B", "as they are"] == mean["B", "fitted to the other half"] == pytest.approx(0.8)
    assert mean["B", "fitted to it"] == mean["A", "fitted to the other half"] == 1
    assert own == choices.ranking.HOP
