"""Files with pictures are whole or not there, and name what they show."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import pytest
import scipy.sparse

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import plots
from tests import zoo

CURVE = plots.Curve("one", np.arange(30), np.exp(-np.arange(30.0)))
SECOND = plots.Curve("two", np.arange(0, 30, 10), np.exp(-np.arange(0, 30, 10.0)))


def canonical(case: zoo.Case) -> scipy.sparse.csr_array:
    S = scipy.sparse.csr_array(case.scipy())
    S.sum_duplicates()
    return S


@pytest.mark.some(case=5)
@pytest.mark.parametrize("case", zoo.CASES.values(), ids=str)
def test_every_shape_is_drawn_without_a_warning(case: zoo.Case, tmp_path: pathlib.Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw(tmp_path / "matrix.svg", canonical(case), case.name)
    assert "entries" in (tmp_path / "matrix.svg").read_text()


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
