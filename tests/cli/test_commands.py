"""`info`, `bench`, `demo` and `convert` as a user meets them, and the console script."""

import functools
import io
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt.cli import demo, main
from jaxsparse_fmt.io import files
from tests.cli.conftest import POISSON
from tests.cli.test_main import fact


@pytest.fixture
def record(poisson: str, capsys):
    """What a command prints with --json: one line, and nothing else."""

    def run(command: str, *options: str) -> dict[str, Any]:
        file = [] if command == "demo" else [poisson]
        assert main.main([command, *file, *options, "--json"]) == 0
        out = capsys.readouterr().out
        assert out.count("\n") == 1 and out.endswith("\n")
        return json.loads(out)

    return run


def test_info_describes_and_ranks(poisson: str, record, capsys):
    assert main.main(["info", poisson]) == 0
    out = capsys.readouterr().out
    assert fact(out, "rows × columns") == "216 × 216"
    positions = [out.index(f"\n {choice.format} ") for choice in jsf.choose.rank(POISSON)]
    assert positions == sorted(positions)
    found = record("info")
    assert (found["rows"], found["nnz"], found["symmetry"]) == (216, POISSON.nnz, "symmetric")
    assert found["row_lengths"]["mean"] == POISSON.nnz / 216
    assert [c["format"] for c in found["formats"]] == [c.format for c in jsf.choose.rank(POISSON)]


def test_solve_and_convert_have_their_figures_in_json(record, tmp_path):
    found = record("solve", "--rtol", "1e-7")
    assert found["status"] == "CONVERGED" and found["method"] == "direct" and len(found["tried"]) == 1
    assert found["residual_norm"] <= 1e-7 * found["b_norm"] * (1 + 1e-6)
    assert found["seconds"]["solve"] > 0
    assert record("convert", str(tmp_path / "a.mtx"))["nnz"] == POISSON.nnz


def test_bench_times_the_formats(poisson: str, record, capsys):
    assert main.main(["bench", poisson, "--formats", "3", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    few = jsf.choose.best_layouts(jsf.choose.rank(POISSON, np.float32))[:3]
    assert all(f"\n {c.format} " in out for c in few) and "A·x in float32" in out
    listed = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert len(set(listed) & set(jsf.FORMATS)) == len(few)
    found = record("bench", "--formats", "1")
    assert found["scipy"] > 0 and [c["measured"] > 0 for c in found["formats"]] == [True]


def test_a_small_demo_agrees_with_scipy(record, capsys):
    assert main.main(["demo", "--n", "12"]) == 0
    out = capsys.readouterr().out
    assert "1,728 unknowns" in out and "Both answers leave at most 1e-08 of ‖b‖" in out
    found = record("demo", "--n", "6")
    assert found["rows"] == 216 and found["faults"] == []
    assert max(found["true residual / ‖b‖"]) <= 1e-8 and min(found["iterations"]) > 1


def test_a_demo_draws_convergence_and_times_of_both(tmp_path, capsys):
    picture = tmp_path / "demo.svg"
    assert main.main(["demo", "--n", "12", "--plot", str(picture)]) == 0
    assert f"The picture is in {picture}" in " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    drawn = picture.read_text()
    for text in ("Convergence", "SciPy", "jaxsparse", "solve and set-up", "multiple of SciPy", "asked for: 1e-08"):
        assert text in drawn


def test_the_norms_of_scipys_residuals_fall_to_the_tolerance():
    norms = demo.scipy_cg(POISSON, np.ones(POISSON.shape[0]), 1e-8, history=True)[2]
    assert norms[-1] <= 1.01e-8 * np.sqrt(POISSON.shape[0]) < norms[-2]


def test_a_demo_whose_answers_do_not_meet_rtol_fails(monkeypatch, capsys):
    honest = demo.scipy_cg
    monkeypatch.setattr(solvers, "cg", functools.partial(solvers.cg, maxiter=2))
    monkeypatch.setattr(demo, "scipy_cg", lambda S, b, rtol: (honest(S, b, rtol)[0] * (1 + 1e-3), 2, [0.0]))
    assert main.main(["demo", "--n", "6"]) == 1
    captured = capsys.readouterr()
    assert "do not agree" in captured.out
    for fault in ("jaxsparse did not converge: maxiter reached", "SciPy did not converge: info = 2", "SciPy left"):
        assert f"jaxsparse: {fault}" in captured.err


def test_the_console_script_solves(poisson: str):
    command, root = [sys.executable, "-m", "jaxsparse"], pathlib.Path(__file__).parents[2]
    done = subprocess.run([*command, "solve", poisson], capture_output=True, text=True, timeout=120, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "CONVERGED" in done.stdout
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["read", "convert", "solve", "measure"]


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_does_each_command_take_whole_numbers_of_scipy(dtype, tmp_path, capsys):
    given, stored = str(tmp_path / "given.npz"), str(tmp_path / "stored.npz")
    scipy.sparse.save_npz(given, POISSON.astype(dtype))
    for command in (["info", given], ["bench", given, "--formats", "1"], ["convert", given, stored]):
        assert main.main(command) == 0, capsys.readouterr().err
    assert (jsf.load(stored).to_scipy() != POISSON.astype(dtype)).nnz == 0


class Piped(io.TextIOWrapper):
    """Standard output that keeps its bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)


def test_convert_there_and_back_keeps_every_entry(poisson: str, tmp_path, monkeypatch, capsys):
    stored, back = str(tmp_path / "a.npz"), str(tmp_path / "b.mtx.gz")
    assert main.main(["convert", poisson, stored, "--format", "sell", "--dtype", "float32"]) == 0
    assert "216 × 216" in capsys.readouterr().out
    A = jsf.load(stored)
    assert A.name == "sell" and A.dtype == np.float32
    assert main.main(["convert", stored, back]) == 0
    assert (files.read_scipy(back) != POISSON).nnz == 0
    out = Piped()
    monkeypatch.setattr(sys, "stdout", out)
    assert main.main(["convert", back, "-"]) == 0
    assert (files.read_scipy(io.BytesIO(out.buffer.getvalue())) != POISSON).nnz == 0
