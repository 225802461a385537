"""Transposed and reordered products in a benchmark: what is compared with what, and what a run writes."""

import json
import math

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from benchmarks import cusparse, standard, suite, transposed

CASES = {case.name: case for case in suite.SUITES["standard"]}
RUN = standard.Run("cpu", ["float64"], "auto", 0, 1e9, standard.QUICK)


def test_every_matrix_is_one_of_the_suite():
    assert {*transposed.TRANSPOSED, *transposed.SHUFFLED} <= {*CASES}


@pytest.fixture(scope="module")
def rows():
    case = CASES["R-MAT"]
    return [*transposed.transposed(RUN, case, case.make(1 / 4000))]


@pytest.mark.deep
def test_all_ways_give_the_same_product_and_compare_with_the_fastest_rival(rows):
    assert all(row["error"] < 1e-12 and row["repeats"] and row["us"] > 0 and row["share"] > 0 for row in rows)
    us = {row["method"]: row["us"] for row in rows}
    ratio = {row["method"]: row["ratio"] for row in rows}
    assert ratio["A @ x"] == pytest.approx(us["SciPy A @ x"] / us["A @ x"])
    rival = min(us["SciPy A.T @ y"], us["SciPy, stored Aᵀ"])
    for method in ("A.T @ y", "A.T @ y, transpose=True"):
        assert ratio[method] == pytest.approx(rival / us[method])


def test_a_stencil_needs_no_second_storage():
    case = CASES["7-point"]
    rows = [*transposed.transposed(RUN, case, case.make(1 / 4000))]
    ours = [(row["format"], row["method"]) for row in rows if row["format"]]
    assert ours == [(name, method) for name in ("dia", "sdia") for method in ("A @ x", "A.T @ y")]


def test_a_result_that_varies_is_told():
    rng = np.random.default_rng(0)
    problem = standard.Problem(None, [], np.zeros(4), 0)
    for once, repeats in ((lambda: rng.random(4), False), (lambda: np.full(4, np.nan), True)):
        row = transposed.Timed("a", lambda: 1e-6, once, problem, 10, "forth").row(1e9)
        assert row["repeats"] == repeats and row["share"] == pytest.approx(0.01)


def test_a_method_that_fails_is_told_and_does_not_stop_the_run(monkeypatch):
    def absent():
        raise cusparse.Absent("no cuSPARSE")

    monkeypatch.setattr(cusparse, "library", absent)
    S = CASES["R-MAT"].make(1 / 4000)
    opponent, turned = cusparse.Opponent(S), cusparse.Opponent(S.T.tocsr())
    gpu = standard.Run("gpu", ["float64"], "auto", 0, 1e9, standard.QUICK)
    problem = standard.Problem.of(S, "gpu")
    timed = [*transposed.theirs(gpu, opponent, turned, problem, problem, "float64")]
    methods = [f"cuSPARSE CSR ALG{k}, {what}" for what in ("A @ x", "A.T @ y", "stored Aᵀ") for k in (1, 2)]
    assert [t.method for t in timed] == methods
    for row in (t.row(1e9) for t in timed):
        assert row["failed"] == "Absent: no cuSPARSE" and math.isnan(row["us"])


def test_a_chain_runs_transposed_too():
    S = jsf.gallery.convection_diffusion(3)
    S /= abs(S).max() * 4
    problem = standard.Problem(S, [], np.zeros(0), chained=2)
    y = problem.run(jsf.from_scipy(S, "ell", transpose=True).T, np.ones(27))
    np.testing.assert_allclose(y, np.linalg.matrix_power(S.toarray().T, problem.products) @ np.ones(27), rtol=1e-10)


def test_a_shuffled_matrix_is_timed_in_three_orders(monkeypatch):
    solved = []
    monkeypatch.setattr(transposed.measure, "seconds_per_step", lambda cg, A, b, steps: solved.append(A) or 1e-6)
    case = CASES["27-point × 3 dof"]
    rows = [*transposed.reordered(RUN, case, case.make(1 / 8000))]
    assert [row["order"] for row in rows] == ["as made", "shuffled", "rcm"]
    assert all(row["error"] < 1e-12 and row["us"] > 0 and row["inside us"] > 0 for row in rows)
    made, shuffled, rcm = (A.to_scipy() for A in solved)
    assert abs(made - shuffled).max() > 0 < abs(shuffled - rcm).max()
    assert rcm.nnz == shuffled.nnz == made.nnz


@pytest.mark.deep
def test_a_run_writes_figures_and_tables(tmp_path):
    path = tmp_path / "out.json"
    arguments = ["--small", "--only", "reordered", "--dtypes", "float32", "--limit", "1e9", "--json", str(path)]
    assert transposed.main(arguments) == 0
    content = json.loads(path.read_text())
    assert len(content["rows"]) == 6 and {"date", "device", "jax", "copy", "took"} <= content["header"].keys()
    assert all(row["cg us"] > 0 and row["section"] == "reordered" for row in content["rows"])
    text = path.with_suffix(".md").read_text()
    assert "## Reordered" in text and "## Transposed products" not in text and text.count("| rcm |") == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "out.md"]


def test_beyond_the_limit_no_matrix_is_begun(tmp_path):
    path = tmp_path / "out.json"
    assert transposed.main(["--small", "--limit", "-1", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert content["rows"] == [] and content["header"]["left out"].endswith("7-point (reordered)")
