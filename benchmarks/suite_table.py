"""What the suite of `standard.py` tells: a table of every matrix, means by class, and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import timing

Row = dict[str, Any]


def geometric_mean(values: Iterable[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return statistics.geometric_mean(known) if known else math.nan


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
    """A Markdown table, which reads as plain text too."""
    lines = [timing.line(header), ""]
    lines += [
        "| matrix | class | dtype | rows | nnz | opponent | µs | auto | µs | model | best of ours | µs | × opponent |"
    ]
    lines[-1] += " auto vs best | tune vs best | spread | share of copy | conversion | error |"
    lines += ["|---|---|---|---:|---:|---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        best = "" if r["best"] == r["auto"] else r["best"]
        lines.append(
            f"| {r['matrix']} | {r['class']} | {r['dtype']} | {r['rows']} | "
            f"{r['nnz']} | {r['opponent']} | {r['opponent us']:.1f} | {r['auto']} | {r['auto us']:.1f} | "
            f"{r['model us']:.1f} | {best} | {r['best us']:.1f} | {r['ratio']:.2f} | {r['auto vs best']:.2f} | "
            f"{r['tune vs best']:.2f} | {r['spread']:.2f} | {r['share']:.2f} | "
            f"{r['conversion']:.0f} | {r['error']:.0e} |"
        )
    return "\n".join(lines + summary(rows) + under_load(rows))


def under_load(rows: list[Row]) -> list[str]:
    """What was timed after seconds of load, as Markdown."""
    rows = [r for r in rows if "auto sustained us" in r]
    if not rows:
        return []
    lines = ["", "| after seconds of load | dtype | opponent µs | MHz | auto µs | MHz | × opponent | at rest before |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        theirs, ours = ([r[f"{name} sustained {unit}"] for unit in ("us", "MHz")] for name in ("opponent", "auto"))
        lines.append(
            f"| {r['matrix']} | {r['dtype']} | {theirs[0]:.1f} | {theirs[1]:.0f} | {ours[0]:.1f} | {ours[1]:.0f} | "
            f"{theirs[0] / ours[0]:.2f} | {r['ratio']:.2f} |"
        )
    return lines


def sentence(r: Row) -> str:
    failed = [f"; {o['label']} FAILED: {o['failed']}" for o in r["ours"] if "failed" in o]
    return (
        f"{r['opponent']} {r['opponent us']:.1f} µs, auto {r['auto']} {r['auto us']:.1f} µs ({r['ratio']:.2f} ×), "
        f"best {r['best']} {r['best us']:.1f} µs{''.join(failed)}"
    )


def draw(path: Path, rows: list[Row], title: str, copy: float) -> None:
    """Every matrix a dot, by class: times the opponent's speed; and under the roof of `copy` bytes a second."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxsparse_fmt import plot

    kinds = list(dict.fromkeys(r["class"] for r in rows))
    with matplotlib.rc_context(plot.STYLE):
        figure = Figure(figsize=(13, 5), layout="constrained")
        ratios, roof = figure.subplots(1, 2, width_ratios=(3, 2))
        for k, dtype in enumerate(dict.fromkeys(r["dtype"] for r in rows)):
            look = {"s": 28, "color": plot.COLORS[k % 2], "label": dtype, "alpha": 0.85}
            chosen = [r for r in rows if r["dtype"] == dtype and not math.isnan(r["ratio"])]
            x = [kinds.index(r["class"]) + 0.24 * (k - 0.5) for r in chosen]
            ratios.scatter(x, [r["ratio"] for r in chosen], **look)
            timed = [(r, r["ours"][0]) for r in rows if r["dtype"] == dtype and "moved" in r["ours"][0]]
            flops_a_byte = [2 * r["nnz"] / auto["moved"] for r, auto in timed]
            roof.scatter(flops_a_byte, [2e-3 * r["nnz"] / auto["us"] for r, auto in timed], **look)
        ratios.axhline(1, color=plot.INK, linewidth=1)
        ratios.set_yscale("log", base=2)
        ratios.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ratios.set_xticks(range(len(kinds)), kinds, rotation=35, ha="right")
        ratios.set_ylabel("times the opponent's speed")
        ratios.set_title(title)
        ratios.grid(axis="y")
        ratios.legend(frameon=False)
        ends = np.array([0.05, 1.0])
        roof.plot(ends, ends * copy / 1e9, color=plot.INK, linewidth=1)
        roof.set_xscale("log")
        roof.set_yscale("log")
        roof.set_xticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
        roof.set_xticks([], minor=True)
        roof.set_yticks([200, 500, 1000, 2000], ["200", "500", "1,000", "2,000"])
        roof.set_yticks([], minor=True)
        roof.set_xlabel("operations a byte that auto's format moves")
        roof.set_ylabel("Gflop/s")
        roof.set_title("Under the roof of the copy")
        roof.grid()
        figure.savefig(path, dpi=150)
