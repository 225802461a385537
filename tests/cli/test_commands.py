"""`info`, `bench` and `demo` as a user meets them, and the console script."""

import functools
import pathlib
import subprocess
import sys

import numpy as np

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt.cli import demo, main
from tests.cli.conftest import POISSON
from tests.cli.test_main import fact


def test_info_describes_and_ranks(poisson: str, capsys):
    assert main.main(["info", poisson]) == 0
    out = capsys.readouterr().out
    assert fact(out, "rows × columns") == "216 × 216"
    assert fact(out, "symmetry") == "symmetric"
    assert fact(out, "diagonals") == "7 of 431 hold entries"
    assert fact(out, "bandwidth") == "36 below the main diagonal, 36 above"
    positions = [out.index(f"\n {choice.format} ") for choice in jsf.choose.rank(POISSON)]
    assert positions == sorted(positions)


def test_bench_times_the_formats(poisson: str, capsys):
    assert main.main(["bench", poisson, "--formats", "3", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    few = jsf.choose.best_layouts(jsf.choose.rank(POISSON, np.float32))[:3]
    assert all(f"\n {c.format} " in out for c in few) and "A·x in float32" in out
    listed = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert len(set(listed) & set(jsf.FORMATS)) == len(few)


def test_a_small_demo_agrees_with_scipy(capsys):
    assert main.main(["demo", "--n", "12"]) == 0
    out = capsys.readouterr().out
    assert "1,728 unknowns" in out and "Both answers leave at most 1e-08 of ‖b‖" in out


def test_a_demo_whose_answers_do_not_meet_rtol_fails(monkeypatch, capsys):
    honest = demo.scipy_cg
    monkeypatch.setattr(solvers, "cg", functools.partial(solvers.cg, maxiter=2))
    monkeypatch.setattr(demo, "scipy_cg", lambda S, b, rtol: (honest(S, b, rtol)[0] * (1 + 1e-3), 2, 3))
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
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        "read",
        "convert",
        "solve",
        "measure",
    ]
