"""The figures of README.md and docs/performance.md are those of the newest results."""

from __future__ import annotations

import re

import pytest

from docs import figures

README = (figures.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", figures.FILES)
def test_the_tables_are_those_of_the_results(name):
    text = (figures.ROOT / name).read_text(encoding="utf-8")
    assert len(figures.BLOCK.findall(text)) == text.count("<!-- figures:") > 0
    assert figures.written_anew(text) == text, "run python docs/figures.py"


def test_the_sentences_of_the_readme_have_the_figures_of_the_results():
    words = " ".join(README.split())
    ratios = [row["ratio"] for row in figures.newest("suite_h200")["rows"]]
    slower = [ratio for ratio in ratios if ratio < 1]
    assert f"In {len(ratios) - len(slower)} of the {len(ratios)} cases" in words
    assert f"in the other it runs at {slower[0]:.3f}" in words and len(slower) == 1
    means = figures.speeds(figures.newest("suite_cpu")["rows"])
    assert f"runs at {means['float32']:.2f} (f32) and {means['float64']:.2f} (f64) times the speed of SciPy" in words


def test_the_dates_of_the_readme_are_those_of_its_tables():
    for what in ("suite_h200", "suite_cpu"):
        date = figures.newest(what)["header"]["date"]
        assert re.search(rf"benchmarks/results/{date}_{what}\.md", README) and README.count(date) >= 2
