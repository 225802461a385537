"""What is made of other files is as they make it: figures, charts and notebooks."""

import html
import re

import pytest

from docs import charts, figures, notebooks

TEXTS = {name: (figures.ROOT / name).read_text(encoding="utf-8") for name in figures.FILES}
PAGES = "README.md", *TEXTS, "docs/formats.md"
WORDS = {name: " ".join((figures.ROOT / name).read_text(encoding="utf-8").split()) for name in PAGES}
REFINED = ("refine", "refine, coarse space")


@pytest.mark.parametrize("name", figures.FILES)
def test_the_tables_are_those_of_the_results(name):
    assert len(figures.BLOCK.findall(TEXTS[name])) == TEXTS[name].count("<!-- figures:") > 0
    assert figures.written_anew(TEXTS[name]) == TEXTS[name], "run python docs/figures.py"


def test_every_table_of_figures_is_shown_and_every_table_shown_is_of_figures():
    shown = {match[2] for text in TEXTS.values() for match in figures.BLOCK.finditer(text)}
    assert shown == set(figures.TABLES)
    for text in TEXTS.values():
        assert "|---" not in figures.BLOCK.sub("", text), "a table by hand"


def test_a_table_tells_date_hardware_versions_and_command():
    gpu, cpu = ("\n".join(figures.TABLES[name]()) for name in ("formats", "algebra"))
    assert re.match(r"1 × NVIDIA H200, 20\d\d-\d\d-\d\d, JAX [\d.]+, Python [\d.]+\.\nAll rows: \[", gpu)
    assert re.match(r"AMD EPYC, 2 cores, 20\d\d-", cpu) and "`python -m benchmarks stages --only algebra`" in cpu


def by_older_products(row):
    """The speed of "auto" as a multiple of the best of cuSPARSE but sorted sliced ELL."""
    told = {k: us for k, us in row["opponents"].items() if not isinstance(us, str)}
    return min(us for k, us in told.items() if "sorted" not in k) / row["auto us"]


def sentences() -> list[tuple[str, str]]:
    """The figures in sentences: the file, and the words with what the results have."""
    rows = figures.rows_of("suite_h200")
    met = sum(row["ratio"] >= figures.NO_SLOWER for row in rows)
    least = min(row["ratio"] for row in rows)
    before = [figures.geometric_mean(by_older_products(r) for r in rows if r["dtype"] == d) for d in figures.DTYPES]
    steps = {r["problem"]: r for r in figures.rows_of("solvers_h200", section="steps", dtype="float64")}
    little = steps["7-point 16³"]
    start = (little["µs a step of 500"] - little["µs a step"]) / 2
    shares = [steps[problem]["own share"] for problem in ("7-point 200³", "27-point × 3 dof 64³")]
    unseen = figures.rows_of("suite_held_out_h200")
    plain, coarse = (figures.row_of("solvers_h200", problem="27-point × 3 dof 64³", method=m) for m in REFINED)
    worst = min(row["ratio"] for row in unseen)
    held_out = figures.speeds(unseen)
    on_several = figures.rows_of("scaling_4xh200", section="multigrid")
    counts = [str(row["iterations"]) for row in on_several]
    graph, judged = figures.speeds(rows, "power law"), figures.rows_of("choices_h200")
    unknown = figures.speeds(figures.rows_of("suite_held_out_cpu"))
    timed = figures.read(figures.RESULTS / "2026-11-25_suite_h200.json")["rows"]  # with conversions
    quick = sum(row["conversion"] <= 50 for row in timed)
    means = figures.speeds(rows)
    of_both = figures.geometric_mean(row["ratio"] for row in rows)
    dialects = {(r["matrix"], r["dtype"]): r["ratio"] for r in figures.rows_of("dialects_h200")}
    circuit, web, grid = (
        " and ".join(f"{dialects[name, d]:.2f}" for d in figures.DTYPES)
        for name in ("circuit", "like webbase-1M", "like G3_circuit")
    )
    products = f"multiply by a sparse matrix {of_both:.1f} times as fast as cuSPARSE at its best"
    of_a_step = f"takes {start:.1f} ms to start, and a step of `cg` at least {little['µs a step']:.1f} µs"
    of_auto = f"{means['float32']:.3f} in float32 and {means['float64']:.3f} in float64"
    refined = f"{coarse['iterations']} steps instead of {plain['iterations']}, in {coarse['ms']:.0f} ms"
    in_cg = f"instead of {plain['ms']:.0f}, where `cg` in float64 takes {coarse['cg ms']:.0f} ms"
    words = {
        "README.md": (
            *(products, f"at least as fast as cuSPARSE in {met} of {len(rows)} cases", of_auto, of_a_step),
            f"other matrices the means are {held_out['float32']:.3f} and {held_out['float64']:.3f}",
            *(f"the least {worst:.3f}", f"at least {least:.3f} in the others"),
            f"a step reaches {min(shares):.0%} of copy bandwidth".replace("%", " %"),
        ),
        "docs/formats.md": (f"at most 50 in {quick} of {len(timed)} cases",),
        "docs/measurements.md": (
            f"{circuit} times the speed of Triton without on the circuit, at {web} on `webbase-1M`, at {grid} on `G3",
            f"the worst choice, for `like af_shell10` in float32, runs at {min(r['worst'] for r in judged):.3f}",
            f"In float32 the mean is {held_out['float32']:.2f}.",
            f"(performance.md#products-on-a-gpu) has {graph['float32']:.2f} and {graph['float64']:.2f}",
        ),
        "docs/performance.md": (
            *(refined, in_cg),
            f"with the same M and {plain['cg ms']:.0f} without",
            f"runs at {unknown['float32']:.2f} (f32) and {unknown['float64']:.2f} (f64)",
            f"the mean is {held_out['float32']:.2f} in float32 and {held_out['float64']:.2f} in float64",
            *(f"the least case {worst:.3f}", f"the means would be {before[0]:.2f} and {before[1]:.2f}"),
            "`cg` with multigrid takes {}, {} and {} steps".format(*counts),
        ),
    }
    return [(name, sentence) for name, of_page in words.items() for sentence in of_page]


@pytest.mark.parametrize(("name", "words"), sentences())
def test_a_sentence_has_the_figures_of_the_results(name, words):
    assert words in WORDS[name]


@pytest.mark.parametrize("name", charts.OF_README)
@pytest.mark.parametrize("look", charts.LOOKS)
def test_the_charts_of_the_readme_are_those_of_the_results(name, look):
    stored = (charts.STATIC / f"chart_{name}_{look}.svg").read_text(encoding="utf-8")
    assert stored == charts.drawn(charts.CHARTS[name][1](), look), "run python docs/charts.py"


@pytest.mark.parametrize("name", charts.CHARTS)
def test_a_chart_has_every_label_and_nothing_beyond_its_edges(name):
    panels = list(charts.CHARTS[name][1]())
    drawn = charts.drawn(panels, "dark")
    labels = (html.escape(label.replace("`", "")) for panel in panels for label, _ in panel.groups)
    assert all(f">{label}</text>" in drawn for label in labels)
    for x, width in re.findall(r'<rect x="([\d.]+)" .*?width="([-\d.]+)"', drawn):
        assert float(width) >= 0 and float(x) + float(width) <= charts.WIDTH


def test_the_dates_of_the_readme_are_those_of_its_charts():
    text = (figures.ROOT / "README.md").read_text(encoding="utf-8")
    for what in ("suite_h200", "suite_cpu", "peers_gpu", "peers_cpu"):
        path = figures.newest(what)
        date = figures.read(path)["header"]["date"]
        assert f"benchmarks/results/{path.stem}.md" in text and text.count(date) >= 2


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_stored_notebook_is_that_of_its_example_with_all_its_code_and_no_outputs(name):
    stored = (notebooks.EXAMPLES / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert stored == notebooks.notebook(name), "run python docs/notebooks.py"
