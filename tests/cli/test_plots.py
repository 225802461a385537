"""Pictures: what they show is counted against dense arithmetic, and files are whole or not there."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import plots
from tests import zoo

CURVE = plots.Curve("one", np.arange(30), np.exp(-np.arange(30.0)))
SECOND = plots.Curve("two", np.arange(0, 30, 10), np.exp(-np.arange(0, 30, 10.0)))


def canonical(case: zoo.Case) -> scipy.sparse.csr_array:
    S = scipy.sparse.csr_array(case.scipy())
    S.sum_duplicates()
    return S


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_density_counts_every_entry_in_its_own_cell(rows: int, cols: int, cells: int, seed: int):
    stored = np.random.default_rng(seed).random((rows, cols)) < 0.3
    share = plots.density(scipy.sparse.csr_array(stored), cells)
    assert share.shape == (min(rows, cells), min(cols, cells))
    of_row = np.arange(rows) * share.shape[0] // rows
    of_col = np.arange(cols) * share.shape[1] // cols
    for i, j in np.ndindex(*share.shape):
        cell = stored[np.ix_(of_row == i, of_col == j)]
        assert share[i, j] == pytest.approx(cell.mean())


@pytest.mark.parametrize("case", zoo.CASES.values(), ids=str)
def test_every_shape_is_drawn_without_a_warning(case: zoo.Case, tmp_path: pathlib.Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw(tmp_path / "matrix.svg", canonical(case), case.name)
    assert "entries" in (tmp_path / "matrix.svg").read_text()


@pytest.mark.parametrize("case", zoo.CASES.values(), ids=str)
def test_the_histogram_loses_no_row(case: zoo.Case):
    S = canonical(case)
    axes = plots.figure(S, case.name).axes[0]
    legend = [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []
    empty = int(np.count_nonzero(np.diff(S.indptr) == 0))
    drawn = sum(bar.get_height() for bar in axes.patches)
    assert drawn == S.shape[0] or (drawn == S.shape[0] - empty and f"empty {empty:,}" in legend)


def test_uneven_rows_are_all_in_the_histogram():
    S = gallery.power_law(3000, mean=4)
    axes = plots.figure(S, "power law").axes[0]
    lengths = np.diff(S.indptr)
    empty = np.count_nonzero(lengths == 0)
    assert axes.get_xscale() == axes.get_yscale() == "log" and empty > 0
    assert sum(bar.get_height() for bar in axes.patches) == lengths.size - empty
    assert f"empty {empty:,}" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_both_curves_and_the_tolerance_are_named():
    fig = plots.figure(gallery.poisson(4), "Poisson", [CURVE, SECOND], rtol=1e-8)
    labels = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert labels == ["one", "two", "asked for: 1e-08"]
    assert fig.axes[0].get_yscale() == "log"
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in fig.axes[:3])


def test_a_png_is_written(tmp_path: pathlib.Path):
    plots.draw(tmp_path / "a.png", gallery.poisson(4), "Poisson", [CURVE], 1e-8)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_a_failure_leaves_the_old_picture_and_nothing_else(tmp_path: pathlib.Path, monkeypatch):
    from matplotlib.figure import Figure

    def half(self, path, **options):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError("disk full")

    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        plots.draw(path, gallery.poisson(2), "Poisson")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_an_unknown_suffix_names_the_known(tmp_path: pathlib.Path):
    with pytest.raises(ValueError, match=r"a\.bmp.*\.png, \.pdf, \.svg"):
        plots.check(tmp_path / "a.bmp")


def test_a_missing_folder_is_named(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        plots.check(tmp_path / "nowhere" / "a.png")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'jaxsparse\[plot\]'"):
        plots.check("a.png")
