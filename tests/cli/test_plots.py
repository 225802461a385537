"""Files with pictures are whole or not there, and name what they show; `plot` draws a matrix."""

import pathlib
import warnings

import numpy as np
import pytest

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import main, plots
from jaxsparse_fmt.formats.canonical import canonical
from tests import zoo
from tests.marks import few

CURVES = {name: np.exp(-np.arange(0.0, 30, k)) for name, k in (("one", 1), ("two", 10))}


@pytest.mark.parametrize("case", few(zoo.CASES.values(), 5), ids=str)
def test_every_shape_is_drawn_without_a_warning(case: zoo.Case, tmp_path: pathlib.Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw(tmp_path / "matrix.svg", canonical(case.scipy()), case.name)
    assert "entries" in (tmp_path / "matrix.svg").read_text()


def test_both_curves_and_the_tolerance_are_named(tmp_path: pathlib.Path):
    plots.draw(tmp_path / "a.svg", gallery.poisson(4), "Poisson", CURVES, rtol=1e-8)
    drawn = (tmp_path / "a.svg").read_text()
    for text in ("Poisson  ·  64 × 64", "one", "two", "asked for: 1e-08", "iteration", "entries in a row", "column"):
        assert f"{text}" in drawn


def test_plot_draws_a_matrix(poisson: str, tmp_path, capsys):
    assert main.main(["plot", poisson, str(tmp_path / "a.svg")]) == 0
    assert "poisson.mtx  ·  216 × 216  ·  1,296 entries" in (tmp_path / "a.svg").read_text()
    assert str(tmp_path / "a.svg") in capsys.readouterr().out
