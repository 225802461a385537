"""Pictures: what they show is counted against dense arithmetic."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery, plot
from jaxsparse_fmt.convert import canonical
from solvers import cg
from tests import zoo
from tests.process import printed

pytest.importorskip("matplotlib")


def empty_axes():
    from matplotlib.figure import Figure

    return Figure().add_subplot()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_density_counts_every_entry_in_its_own_cell(rows: int, cols: int, cells: int, seed: int):
    stored = np.random.default_rng(seed).random((rows, cols)) < 0.3
    share = plot.density(scipy.sparse.csr_array(stored), cells)
    assert share.shape == (min(rows, cells), min(cols, cells))
    of_row = np.arange(rows) * share.shape[0] // rows
    of_col = np.arange(cols) * share.shape[1] // cols
    for i, j in np.ndindex(*share.shape):
        cell = stored[np.ix_(of_row == i, of_col == j)]
        assert share[i, j] == pytest.approx(cell.mean())


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
    with pytest.raises(ValueError, match="'cg' has no history: call the solver with history=True"):
        plot.convergence({"cg": cg(A, np.ones(64))}, empty_axes())


@pytest.mark.parametrize("draw", [plot.spy, plot.row_lengths])
def test_a_picture_without_axes_makes_its_own(draw):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    axes = draw(jsf.from_scipy(gallery.poisson(3, dim=2), "csr"))
    assert axes is pyplot.gca() and axes.get_title()
    pyplot.close(axes.figure)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'jaxsparse\[plot\]'"):
        plot.spy(gallery.poisson(2))


NOTEBOOK = """
import sys, types, matplotlib
backend = types.ModuleType("inline")

class Loader:  # as the backend of notebooks, which makes matplotlib interactive when it is imported
    def create_module(self, spec): return None
    def exec_module(self, module):
        from matplotlib.backends import backend_agg
        module.FigureCanvas = backend_agg.FigureCanvasAgg
        matplotlib.rcParams["interactive"] = True

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "inline":
            from importlib.machinery import ModuleSpec
            return ModuleSpec(name, Loader())

sys.meta_path.insert(0, Finder())
import jaxsparse_fmt as jsf
for _ in range(2):
    jsf.plot.spy(jsf.gallery.poisson(3))
    print(matplotlib.is_interactive())
"""


def test_the_settings_of_a_notebooks_backend_outlive_the_first_picture():
    assert printed("-W", "ignore", "-c", NOTEBOOK, MPLBACKEND="module://inline").split() == ["True", "True"]
