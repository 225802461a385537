"""`progress=True`: bars on standard error, in terminals by rich, as lines elsewhere."""

import re
import sys
import time

import jax
import numpy as np
import pytest

import jaxsparse as js
from jaxsparse_fmt import _progress
from tests.cli.conftest import Terminal

A = js.from_scipy(js.gallery.poisson(6), "csr")
TALL = js.vstack([A, A])
B = np.random.default_rng(0).standard_normal(2 * A.shape[0])


@pytest.fixture
def at_once(monkeypatch):
    """Every sign is shown."""
    monkeypatch.setattr(_progress, "PLAIN_PERIOD", 0)
    monkeypatch.setattr(_progress, "LIVE_PERIOD", 0)


def shown(text: str) -> list[tuple[int, float, float]]:
    """Iterations, compared quantity and target of each line of a solve."""
    found = re.findall(r"solve: iteration ([\d,]+), residual (\S+), target (\S+?),? ", text)
    return [(int(k), float(norm), float(target)) for k, norm, target in found]


def test_a_solve_shows_its_residual_and_its_target(at_once, capsys):
    b = B[: A.shape[0]]
    sol = js.cg(A, b, rtol=1e-9, progress=True)
    text = capsys.readouterr().err
    *middle, (k, norm, target) = shown(text)
    assert middle and k == sol.iterations and text.endswith(" s)\n") and "CONVERGED" in text.splitlines()[-1]
    assert target == pytest.approx(1e-9 * np.linalg.norm(b), rel=0.01)
    assert norm == pytest.approx(np.linalg.norm(b - A.to_scipy() @ np.asarray(sol.x)), rel=0.01)


def test_lsmr_shows_the_rule_that_ends_it(at_once, capsys):
    sol = js.lsmr(TALL, B, rtol=1e-7, progress=True)
    k, norm, target = shown(capsys.readouterr().err)[-1]
    assert k == sol.iterations and norm <= target
    assert norm == pytest.approx(float(sol.normal_residual_norm), rel=0.01) and sol.residual_norm > 1e3 * target


@pytest.mark.parametrize("find", [js.eigsh, js.lobpcg, js.svds])
def test_searches_for_eigenpairs_show_their_pairs(find, at_once, capsys):
    reports = []
    options = {"maxiter": 400, "tol": 1e-3}
    assert find(A, 2, progress=True, **options).success
    lines = shown(capsys.readouterr().err)
    find(A, 2, progress=lambda k, norm: reports.append((k, norm)), **options)
    assert [k for k, _ in reports] == [k for k, *_ in lines[:-1]] and lines[-1][1] <= lines[-1][2]
    # The bar has the pair that is farthest from its target, a function the largest norm.
    assert all(line[1] <= 1.01 * norm for line, (_, norm) in zip(lines, reports, strict=False))


def test_a_bar_inside_jit_ends_with_its_solve(at_once, capsys):
    jax.block_until_ready(jax.jit(lambda b: js.cg(A, b, rtol=1e-9, progress=True).x)(B[: A.shape[0]]))
    jax.effects_barrier()
    assert "CONVERGED" in capsys.readouterr().err and _progress.BAR.shown is None


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_terminal_has_a_bar_of_rich_or_lines(has_rich, at_once, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    js.cg(A, B[: A.shape[0]], rtol=1e-9, progress=True)
    text = terminal.getvalue()
    assert ("━" in text and "\x1b[2K" in text) if has_rich else ("\x1b" not in text and text.count("\n") > 1)


def test_is_a_set_up_shown_only_if_it_takes_long(monkeypatch, capsys):
    S = js.gallery.poisson(6)
    monkeypatch.setattr(_progress, "WORTH", 60.0)  # longer than a loaded machine takes
    assert js.precond.multigrid(js.from_scipy(S, progress=True), progress=True).shape == S.shape
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_progress, "WORTH", 0.001)
    with _progress.stage("set up", True):
        time.sleep(0.1)
    assert re.fullmatch(r"set up: done \(\d+\.\d s\)\n", capsys.readouterr().err)


def test_what_else_is_refused():
    with pytest.raises(TypeError, match="progress must be True, a function or None; got 1"):
        js.cg(A, B[: A.shape[0]], progress=1)
    with pytest.raises(TypeError, match="progress must be True or False; got <built-in"):
        js.from_scipy(js.gallery.poisson(4), progress=print)
