"""Draws the charts of README.md and docs/ from benchmarks/results: python docs/charts.py writes those of README.md.

A chart is a list of bars in SVG, for light and for dark pages. Labels stand above their bars, so that a telephone shows
them in a readable size. A test asks that the files are as this script would write them.
"""

import html
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from docs import figures  # noqa: E402

STATIC = ROOT / "docs/static"
WIDTH, BAR, GAP, LINE = 480, 13, 9, 18  # pixels; a line of text is 14 pixels high
LOOKS = {
    "light": {
        **{"ink": "#303030", "faint": "#8A8A8A"},
        "bars": ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8A8A8A"),
    },
    "dark": {"ink": "#E0E0E0", "faint": "#808080", "bars": ("#56B4E9", "#E69F00", "#2BC194", "#E39CC4", "#A0A0A0")},
}


class Panel(NamedTuple):
    """Bars with one axis.

    Attributes:
      title: what is drawn, where and when it was measured.
      series: names of the bars of a group.
      groups: label and values of each group; None where a value was not measured.
      text: how a value is written.
      reference: where the opponent stands, and its name.
      log: the axis is logarithmic.
    """

    title: str
    series: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float | None]]]
    text: Callable[[float], str] = "{:.2f}".format
    reference: tuple[float, str] | None = None
    log: bool = False


def drawn(panels: Iterable[Panel], look: str) -> str:
    """The panels below one another, as SVG."""
    top, parts = 4.0, []
    for panel in panels:
        shapes, top = _panel(panel, top, LOOKS[look])
        parts += shapes
    height = math.ceil(top)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join([f'{head} font-family="system-ui, sans-serif" font-size="14">', *parts, "</svg>", ""])


def _panel(panel: Panel, top: float, look: dict) -> tuple[list[str], float]:
    """The shapes of a panel that begins at `top`, and where it ends."""
    values = [v for _, vs in panel.groups for v in vs if v is not None]
    shapes = []
    for line in _wrapped(panel.title, 56):
        top += LINE
        shapes.append(_text(0, top, line, look["ink"], "bold"))
    if len(panel.series) > 1:
        top += LINE
        left = 0.0
        for name, color in zip(panel.series, look["bars"], strict=False):
            if left + 17 + 7.6 * len(name) > WIDTH:
                left, top = 0.0, top + LINE
            shapes.append(_box(left, top - 11, 12, 12, color))
            shapes.append(_text(left + 17, top, name, look["ink"]))
            left += 32 + 7.6 * len(name)
        top += 4
    longest = max(len(panel.text(v)) for v in values)
    room = WIDTH - 14 - 8 * longest
    low = min(values) / 2
    high = max([*values, panel.reference[0]] if panel.reference else values)

    def place(value: float) -> float:
        return room * (math.log(value / low) / math.log(high / low) if panel.log else value / high)

    reference = place(panel.reference[0]) if panel.reference else 0.0
    if panel.reference:
        top += LINE
        anchor = "end" if reference > WIDTH / 2 else "start"
        shapes.append(_text(reference, top, panel.reference[1], look["faint"], anchor=anchor))
    for label, group in panel.groups:
        top += LINE
        shapes.append(_text(0, top, label.replace("`", ""), look["ink"]))
        top += 5
        begin = top
        for value, color in zip(group, look["bars"], strict=False):
            if value is None:
                continue
            shapes.append(_box(0, top, place(value), BAR, color))
            shapes.append(_text(place(value) + 5, top + BAR - 1, panel.text(value), look["ink"]))
            top += BAR + 3
        if panel.reference:
            dashes = f'stroke="{look["ink"]}" stroke-dasharray="3 3"'
            shapes.append(f'<line x1="{reference:.1f}" y1="{begin:.1f}" x2="{reference:.1f}" y2="{top:.1f}" {dashes}/>')
        top += GAP - 3
    return shapes, top + GAP


def _text(x: float, y: float, text: str, color: str, weight: str = "normal", anchor: str = "start") -> str:
    style = f'fill="{color}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def seconds(s: float) -> str:
    return f"{s:.2g} s" if s >= 1 else f"{s * 1e3:.2g} ms" if s < 0.01 else f"{s * 1e3:.0f} ms"


def by_class(what: str, title: str, opponent: str, names: Iterable[str]) -> Panel:
    """Speeds of "auto" by class of matrix, the mean of all first and then the fastest."""
    rows = figures.rows_of(what)
    means = {name: figures.speeds(rows, figures.CLASSES[name]) for name in names}
    known = sorted(
        (name for name in means if means[name]),
        key=lambda name: (figures.CLASSES[name] != figures.ALL, -means[name]["float32"]),
    )
    groups = [(name, [means[name][dtype] for dtype in figures.DTYPES]) for name in known]
    return Panel(title, figures.DTYPES, groups, "{:.2f} ×".format, (1.0, f"{opponent} = 1"))


def device(what: str) -> str:
    return figures.read(figures.newest(what))["header"]["device"].removesuffix(" 80GB HBM3")


def on_gpu() -> Panel:
    title = f"Speed of A @ x on one {device('suite_h200')}"
    return by_class("suite_h200", title, "best of cuSPARSE", figures.SHORT)


def on_cpu() -> Panel:
    title = f"Speed of A @ x on a CPU ({device('suite_cpu')})"
    return by_class("suite_cpu", title, "SciPy", figures.SHORT)


def formats() -> Panel:
    """The better of the two dialects, in float64."""
    matrices = ("7-point 200³", "27-point × 3 dof 64³")

    def ratio(label: str, matrix: str) -> float:
        return max(row["ratio"] for row in figures.rows_of("spmv_h200", matrix=matrix, dtype="float64", method=label))

    shown = [name for name in figures.OF_FORMATS if "half" not in name and "one thread" not in name]
    groups = [(name.replace("`", ""), [ratio(figures.OF_FORMATS[name][1], m) for m in matrices]) for name in shown]
    title = f"Speed of A @ x by format, float64, {device('spmv_h200')}"
    return Panel(title, matrices, groups, "{:.2f} ×".format, (1.0, "cuSPARSE CSR = 1"))


def columns() -> Panel:
    counts = (8, 32)
    rows = figures.rows_of("columns_h200", dtype="float64")
    throughput = {(row["matrix"], row["columns"]): row["throughput"] for row in rows}
    groups = [(matrix, [throughput[matrix, k] for k in counts]) for matrix in dict.fromkeys(m for m, _ in throughput)]
    title = f"Columns a second, in float64, {device('columns_h200')}"
    return Panel(title, [f"{k} columns" for k in counts], groups, "{:.1f} ×".format, (1.0, "one column = 1"))


def steps() -> Panel:
    rows = [row for row in figures.rows_of("solvers_h200", section="steps") if row["unknowns"] > 500_000]
    groups = [(f"{row['problem']}, {row['dtype']}, in {row['format']}", [row["own share"]]) for row in rows]
    title = f"Part of copy bandwidth that a step of cg reaches, {device('solvers_h200')}"
    return Panel(title, [""], groups, reference=(1.0, "a copy = 1"))


def several_gpus() -> Panel:
    kept: dict[str, list[float | None]] = {}
    for row in figures.rows_of("scaling_4xh200"):
        if row["devices"] == 1:
            kept[figures.OF_SECTIONS[row["section"]].format_map(row)] = values = []
        else:
            values.append(row["of one device's" if row["section"] == "refinement" else "efficiency"])
    title = f"What several GPUs keep of the speed of one, {device('scaling_4xh200')}"
    return Panel(title, ("two", "four"), list(kept.items()), reference=(1.0, "nothing lost = 1"))


def algebra() -> Panel:
    times = figures.algebra_times("algebra_cpu", "cpu")
    groups = [(case, [sides.get(side) for side in figures.ON_A_CPU]) for case, sides in times.items()]
    return Panel(f"CPU time, {device('algebra_cpu')}", figures.ON_A_CPU, groups, seconds)


def multigrid() -> Panel:
    rows = figures.rows_of("multigrid_cpu")
    total = {(row["case"], row["side"]): row.get("setup_cpu", 0) + row["solve_cpu"] for row in rows}
    cases = [case for case, side in total if side == "PyAMG"]
    groups = [(case, [total[case, side] for side in ("ours, warm", "PyAMG")]) for case in cases]
    return Panel(
        f"CPU time of multigrid, set-up and solve, {device('multigrid_cpu')}", ("here", "PyAMG"), groups, seconds
    )


def first_calls() -> Panel:
    rows = [row for row in figures.rows_of("first_calls_cpu") if "jax.scipy" in row]
    sides = {"here": "ours", "jax.scipy": "jax.scipy", "lineax": "lineax"}
    groups = [(row["call"], [row[side] for side in sides.values()]) for row in rows]
    return Panel(f"CPU time of a first call, {device('first_calls_cpu')}", list(sides), groups, seconds)


def solves(what: str, unit: str = "s") -> Panel:
    """A solve as users call it, cold and warm, in seconds, or with the unit "cpu s" in those of the processor."""
    rows = figures.rows_of(what)
    names = ("first solve", "first, programs kept", "later solves")
    groups = [(row["side"], [row.get(f"{name} {unit}") for name in ("cold", "kept", "warm")]) for row in rows]
    title = f"cg for {rows[0]['problem']}, a million unknowns, to 1e-8: "
    title += f"{'seconds' if unit == 's' else 'CPU seconds'} on {device(what)} (log scale)"
    return Panel(title, names, groups, seconds, log=True)


def ways(problem: str, what: str) -> Panel:
    """Each way to solve a problem, by its size."""
    rows = [row for row in figures.rows_of("solve_sizes_cpu", problem=problem) if "minres" not in row["way"]]
    times = {(row["n"], row["way"]): row["seconds"] for row in rows}
    names = list(dict.fromkeys(row["way"] for row in rows))
    sizes = dict.fromkeys(row["n"] for row in rows)
    groups = [(f"{n:,} unknowns", [times.get((n, way)) for way in names]) for n in sizes]
    title = f"{what}: CPU time by unknowns, set-up included, {device('solve_sizes_cpu')} (log scale)"
    return Panel(title, names, groups, seconds, log=True)


CHARTS: dict[str, tuple[str, Callable[[], Iterable[Panel]]]] = {
    "products": ("speed of products by kind of matrix, against cuSPARSE and SciPy", lambda: [on_gpu(), on_cpu()]),
    "solve": (
        "times of a first and of later solves, and those of CuPy, jax.scipy and SciPy",
        lambda: [solves("peers_gpu"), solves("peers_cpu", "cpu s")],
    ),
    "products_gpu": ("speed of products on a GPU by kind of matrix, against cuSPARSE", lambda: [on_gpu()]),
    "products_cpu": ("speed of products on a CPU by kind of matrix, against SciPy", lambda: [on_cpu()]),
    "formats": ("speed of products by format, against cuSPARSE", lambda: [formats()]),
    "columns": ("throughput of products with several columns", lambda: [columns()]),
    "steps": ("speed of steps of cg, against a copy", lambda: [steps()]),
    "several_gpus": ("what several GPUs keep of the speed of one", lambda: [several_gpus()]),
    "algebra": ("times of sums, products and assembly, and SciPy's", lambda: [algebra()]),
    "multigrid": ("times of multigrid, and PyAMG's", lambda: [multigrid()]),
    "ways": (
        "times of each way to solve a system, and of solve, by the number of unknowns",
        lambda: [
            ways("poisson 3D", "Diffusion in a cube"),
            ways("convection 3D", "Convection and diffusion in a cube"),
        ],
    ),
    "first_calls": ("times of first calls, and those of jax.scipy and lineax", lambda: [first_calls()]),
}
OF_README = ("products", "solve")


def main(folder: Path, names: Iterable[str]) -> None:
    """Writes charts into a folder."""
    for name in names:
        for look in LOOKS:
            (folder / f"chart_{name}_{look}.svg").write_text(drawn(CHARTS[name][1](), look), encoding="utf-8")


if __name__ == "__main__":
    import outputs

    main(STATIC, OF_README)
    outputs.copy_pictures(outputs.of_example(ROOT / "examples/coefficient_inversion.py"), STATIC, "inversion")
