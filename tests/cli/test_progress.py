"""Progress: lines in a pipe, one line that changes on a terminal, a fraction for any residual."""

import math
import sys
import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import main, measure, progress
from solvers import cg
from tests.cli.conftest import Terminal


def test_progress_in_a_pipe_is_one_line_a_stage(capsys):
    with progress.Progress() as stages:
        for name in ("read", "solve"):
            with stages.stage(name, "something"):
                for i in range(1000):
                    stages.show(f"iteration {i}", 0.5)
    captured = capsys.readouterr()
    assert captured.err == "read: something\nsolve: something\n"
    assert captured.out == ""
    assert list(stages.seconds) == ["read", "solve"]


def test_progress_on_a_terminal_is_live_and_goes_away(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(progress, "LIVE_PERIOD", 0.0)
    with progress.Progress() as stages, stages.stage("solve", "something"):
        stages.show("iteration 7", 0.5)
    text = terminal.getvalue()
    assert "iteration 7" in text and "\n" not in text
    assert text.endswith("\x1b[2K")  # the line is erased


@given(st.floats(), st.floats(), st.floats())
def test_any_residual_can_be_shown(start: float, target: float, norm: float):
    shown = []
    watcher = progress.Residuals(lambda detail, share: shown.append((detail, share)))
    watcher(0, start, start, target)
    watcher(12345, norm, norm, target)
    detail, share = shown[1]
    assert "iteration 12,345" in detail and "target" in detail
    assert 0 <= share < 1 and not math.isnan(share)


def test_all_progress_is_in_when_solve_returns():
    told, b = [], np.random.default_rng(0).standard_normal(1000)
    A = measure.store(gallery.poisson(10), np.dtype(np.float64))
    solve = measure.prepare(cg, A, b, progress=lambda k, norm: told.append(k), rtol=1e-10)
    for _ in range(3):
        told.clear()
        iterations = solve().iterations
        assert told and max(told) <= iterations


def test_is_a_warning_one_line_in_the_words_of_the_command(capsys):
    with main._warnings_as_lines(progress.Progress()):
        warnings.simplefilter("always")
        warnings.warn("use M=precond.jacobi(A)", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "jaxsparse: use --precond jacobi\n"
