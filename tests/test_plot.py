"""Pictures: what they show is counted against dense arithmetic."""

import os
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery, plot
from jaxsparse_fmt.formats.canonical import canonical
from solvers import cg
from tests import zoo
from tests.oracle import assert_refused
from tests.process import printed

pytest.importorskip("matplotlib")


def empty_axes():
    return pytest.importorskip("matplotlib.figure").Figure().add_subplot()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_density_counts_every_entry_in_its_own_cell(rows: int, cols: int, cells: int, seed: int):
    stored = np.random.default_rng(seed).random((rows, cols)) < 0.3
    share = plot.density(scipy.sparse.csr_array(stored), cells)
    assert share.shape == (min(rows, cells), min(cols, cells))
    of_row, of_col = (np.arange(n) * n_cells // n for n, n_cells in zip(stored.shape, share.shape, strict=True))
    for i, j in np.ndindex(*share.shape):
        assert share[i, j] == pytest.approx(stored[np.ix_(of_row == i, of_col == j)].mean())


@pytest.mark.parametrize("case", zoo.CASES.values(), ids=str)
def test_the_histogram_loses_no_row(case: zoo.Case):
    S = canonical(case.scipy())
    axes = plot.row_lengths(S, empty_axes())
    legend = [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []
    empty = int(np.count_nonzero(np.diff(S.indptr) == 0))
    drawn = sum(bar.get_height() for bar in axes.patches)
    assert drawn == S.shape[0] or (drawn == S.shape[0] - empty and f"empty {empty:,}" in legend)


def test_convergence_draws_the_history_of_a_solve_relative_to_its_start():
    A = jsf.from_scipy(gallery.poisson(4), "csr")
    sol = cg(A, np.ones(64), history=True, rtol=1e-6)
    axes = plot.convergence({"cg": sol}, empty_axes(), rtol=1e-6)
    x, y = axes.lines[0].get_data()
    assert x.tolist() == list(range(sol.iterations + 1))
    np.testing.assert_allclose(y, np.asarray(sol.history) / 8)  # ‖b‖
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cg", "asked for: 1e-06"]
    silent = {"cg": cg(A, np.ones(64))}
    words = "'cg' has no history: call the solver with history=True"
    assert_refused(lambda: plot.convergence(silent, empty_axes()), ValueError, words)
    assert_refused(lambda: plot.spy(np.eye(3)), TypeError, "a picture needs a matrix.*got ndarray")


@pytest.mark.parametrize("draw", [plot.spy, plot.row_lengths])
def test_a_picture_without_axes_makes_its_own(draw):
    pytest.importorskip("matplotlib").use("agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = draw(jsf.from_scipy(gallery.poisson(3, dim=2), "csr"))
    assert axes is pyplot.gca() and axes.get_title()
    pyplot.close(axes.figure)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert_refused(lambda: plot.spy(gallery.poisson(2)), ImportError, r"pip install 'jaxsparse\[plot\]'")


# As the backend of notebooks, which makes matplotlib interactive when it is imported.
INLINE = """
import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
matplotlib.rcParams["interactive"] = True
"""
TWICE = """
import jaxsparse_fmt as jsf, matplotlib
for _ in range(2):
    jsf.plot.spy(jsf.gallery.poisson(3))
    print(matplotlib.is_interactive())
"""


def test_the_settings_of_a_notebooks_backend_outlive_the_first_picture(tmp_path):
    (tmp_path / "of_notebooks.py").write_text(INLINE)
    here = {"MPLBACKEND": "module://of_notebooks", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert printed("-W", "ignore", "-c", TWICE, **here).split() == ["True", "True"]
