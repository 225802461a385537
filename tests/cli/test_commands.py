"""`info`, `bench` and `demo` as a user meets them, and the console script."""

import pathlib
import subprocess
import sys

import numpy as np

import jaxsparse_fmt as jsf
from jaxsparse_fmt import plot
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


def test_a_small_demo_agrees_with_scipy(tmp_path, capsys):
    picture = tmp_path / "demo.png"
    assert main.main(["demo", "--n", "12", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "1,728 unknowns" in out and "The answers agree" in out and str(picture) in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_demo_that_disagrees_with_scipy_fails(tmp_path, monkeypatch, capsys):
    honest = demo.scipy_cg

    def perturbed(S, b, rtol, **options):
        x, info = honest(S, b, rtol, **options)
        return x * (1 + 1e-3), info

    monkeypatch.setattr(demo, "scipy_cg", perturbed)
    assert main.main(["demo", "--n", "6", "--plot", str(tmp_path / "a.png")]) == 1
    captured = capsys.readouterr()
    assert "do not agree" in captured.out
    assert "jaxsparse: SciPy left" in captured.err and "the answers differ by" in captured.err


def test_a_demo_without_matplotlib_goes_without_the_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plot, "available", lambda: False)
    assert main.main(["demo", "--n", "4"]) == 0
    assert list(tmp_path.iterdir()) == []


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
