"""The results of `standard.py`: a table of every matrix, means by class, and pictures."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.report import Row, geometric_mean

COLUMNS = [("matrix", "matrix"), ("class", "class"), ("dtype", "dtype"), ("rows", "rows:d"), ("nnz", "nnz:d")]
COLUMNS += [("opponent", "opponent"), ("µs", "opponent us:.1f"), ("auto", "auto"), ("µs", "auto us:.1f")]
COLUMNS += [("model", "model us:.1f"), ("best of ours", "other best"), ("µs", "best us:.1f")]
COLUMNS += [("× opponent", "ratio:.2f"), ("auto vs best", "auto vs best:.2f"), ("tune vs best", "tune vs best:.2f")]
COLUMNS += [("spread", "spread:.2f"), ("share of copy", "share:.2f"), ("conversion", "conversion:.0f")]
COLUMNS += [("error", "error:.0e")]
SUSTAINED = [("after seconds of load", "matrix"), ("dtype", "dtype"), ("opponent µs", "opponent sustained us:.1f")]
SUSTAINED += [("MHz", "opponent sustained MHz:.0f"), ("auto µs", "auto sustained us:.1f")]
SUSTAINED += [("MHz", "auto sustained MHz:.0f"), ("× opponent", "sustained ratio:.2f"), ("at rest before", "ratio:.2f")]


def summary(rows: list[Row]) -> list[str]:
    """Geometric mean and worst case over all matrices, and means by class, as Markdown."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    lines = ["", "| × opponent | " + " | ".join(f"auto, {d} | best of ours, {d}" for d in dtypes) + " |"]
    lines += ["|---|" + "---:|---:|" * len(dtypes)]

    def line(name: str, of: Any, chosen: list[Row]) -> str:
        cells = []
        for dtype in dtypes:
            of_dtype = [r for r in chosen if r["dtype"] == dtype]
            cells += [f" {of([r[key] for r in of_dtype]):.2f} |" for key in ("ratio", "best ratio")]
        return f"| {name} |" + "".join(cells)

    least = lambda values: min((v for v in values if not math.isnan(v)), default=math.nan)  # noqa: E731
    lines += [line("geometric mean", geometric_mean, rows), line("worst case", least, rows)]
    for kind in dict.fromkeys(r["class"] for r in rows):
        lines.append(line(kind, geometric_mean, [r for r in rows if r["class"] == kind]))
    compared = [r for r in rows if not math.isnan(r["ratio"])]
    if compared:
        worst = min(compared, key=lambda r: r["ratio"])
        lines += ["", f"Worst: {worst['matrix']}, {worst['dtype']}, {worst['ratio']:.2f} × {worst['opponent']}."]
    for chooser in ("auto", "tune"):
        chosen = [r[f"{chooser} vs best"] for r in rows if not math.isnan(r[f"{chooser} vs best"])]
        if chosen:
            near, worst = sum(v > 0.95 for v in chosen), min(chosen)
            lines += ["", f"{chooser} is within 5% of our best in {near} of {len(chosen)}, at worst {worst:.2f} of it."]
    return lines


def table(rows: list[Row], header: dict[str, str]) -> str:
    """All tables, as Markdown, which reads as plain text too."""
    shown = [r | {"other best": "" if r["best"] == r["auto"] else r["best"]} for r in rows]
    return "\n".join([report.line(header), "", *report.markdown(shown, COLUMNS), *summary(rows), *under_load(rows)])


def under_load(rows: list[Row]) -> list[str]:
    """The times after seconds of load, as Markdown."""
    rows = [r for r in rows if "auto sustained us" in r]
    ratios = ({"sustained ratio": r["opponent sustained us"] / r["auto sustained us"]} for r in rows)
    shown = [r | ratio for r, ratio in zip(rows, ratios, strict=True)]
    return ["", *report.markdown(shown, SUSTAINED)] if rows else []


def sentence(r: Row) -> str:
    failed = [f"; {o['label']} FAILED: {o['failed']}" for o in r["ours"] if "failed" in o]
    return (
        f"{r['opponent']} {r['opponent us']:.1f} µs, auto {r['auto']} {r['auto us']:.1f} µs ({r['ratio']:.2f} ×), "
        f"best {r['best']} {r['best us']:.1f} µs{''.join(failed)}"
    )


def draw(path: Path, rows: list[Row], title: str, copy: float) -> None:
    """Draws a dot for every matrix: its ratio by class, and its Gflop/s under the roof of `copy` bytes a second."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxsparse_fmt import plot

    kinds = list(dict.fromkeys(r["class"] for r in rows))
    with matplotlib.rc_context(plot.STYLE):
        figure = Figure(figsize=(13, 5), layout="constrained")
        ratios, roof = figure.subplots(1, 2, width_ratios=(3, 2))
        measured = {}
        for k, dtype in enumerate(dict.fromkeys(r["dtype"] for r in rows)):
            look = {"s": 28, "color": plot.COLORS[k % 2], "label": dtype, "alpha": 0.85}
            chosen = [r for r in rows if r["dtype"] == dtype and not math.isnan(r["ratio"])]
            x = [kinds.index(r["class"]) + 0.24 * (k - 0.5) for r in chosen]
            ratios.scatter(x, [r["ratio"] for r in chosen], **look)
            timed = [(r, r["ours"][0]) for r in rows if r["dtype"] == dtype and "moved" in r["ours"][0]]
            figures = [(2 * r["nnz"], auto["moved"], auto["us"] * 1e-6) for r, auto in timed]
            measured[dtype] = tuple(np.array(figures).reshape(-1, 3).T)
        ratios.axhline(1, color=plot.STYLE["text.color"], linewidth=1)
        ratios.set_yscale("log", base=2)
        ratios.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ratios.set_xticks(range(len(kinds)), kinds, rotation=35, ha="right")
        ratios.set_ylabel("times the opponent's speed")
        ratios.set_title(title)
        ratios.grid(axis="y")
        ratios.legend(frameon=False)
        plot.roofline(measured, copy, roof)
        roof.set_xlabel("operations a byte that auto's format moves")
        roof.set_title("Under the roof of the copy")
        figure.savefig(path, dpi=150)
