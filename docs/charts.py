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
    "light": {"ink": "#303030", "faint": "#8A8A8A", "bars": ("#0072B2", "#E69F00", "#009E73")},
    "dark": {"ink": "#E0E0E0", "faint": "#808080", "bars": ("#56B4E9", "#E69F00", "#2BC194")},
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
    for line in _wrapped(panel.title, 62):
        top += LINE
        shapes.append(_text(0, top, line, look["ink"], "bold"))
    if len(panel.series) > 1:
        top += LINE
        left = 0.0
        for name, color in zip(panel.series, look["bars"], strict=False):
            shapes.append(_box(left, top - 11, 12, 12, color))
            shapes.append(_text(left + 17, top, name, look["ink"]))
            left += 32 + 7.6 * len(name)
    longest = max(len(panel.text(v)) for v in values)
    room, at = WIDTH - 14 - 8 * longest, 0.0
    low = min(values) / 2
    high = max([*values, panel.reference[0]] if panel.reference else values)

    def place(value: float) -> float:
        return room * (math.log(value / low) / math.log(high / low) if panel.log else value / high)

    if panel.reference:
        top += LINE
        at = place(panel.reference[0])
        anchor = "end" if at > WIDTH / 2 else "start"
        shapes.append(_text(at, top, panel.reference[1], look["faint"], anchor=anchor))
    for label, group in panel.groups:
        top += LINE
        shapes.append(_text(0, top, label, look["ink"]))
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
            shapes.append(f'<line x1="{at:.1f}" y1="{begin:.1f}" x2="{at:.1f}" y2="{top:.1f}" {dashes}/>')
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
    """Speeds of "auto" by class of matrix, the fastest first behind the mean of all."""
    rows = figures.rows_of(what)
    means = {name: figures.speeds(rows, figures.CLASSES[name]) for name in names}
    known = sorted(
        (name for name in means if means[name]),
        key=lambda name: (figures.CLASSES[name] != figures.ALL, -means[name]["float32"]),
    )
    groups = [(name, [means[name][dtype] for dtype in figures.DTYPES]) for name in known]
    return Panel(title, figures.DTYPES, groups, "{:.2f} ×".format, (1.0, f"{opponent} = 1"))


def products() -> Iterator[Panel]:
    on_gpu, on_cpu = (figures.read(figures.newest(what))["header"] for what in ("suite_h100", "suite_cpu"))
    gpu, cpu = on_gpu["device"].removesuffix(" 80GB HBM3"), on_cpu["device"]
    yield by_class("suite_h100", f"Speed of A @ x on one {gpu}", "best of cuSPARSE", figures.SHORT)
    yield by_class("suite_cpu", f"Speed of A @ x on a CPU ({cpu})", "SciPy", figures.SHORT)


CHARTS: dict[str, tuple[str, Callable[[], Iterable[Panel]]]] = {
    "products": ("speed of products by kind of matrix, as multiples of cuSPARSE's and SciPy's", products),
}
OF_README = ("products",)


def main(folder: Path, names: Iterable[str]) -> None:
    """Writes charts into a folder."""
    for name in names:
        for look in LOOKS:
            (folder / f"chart_{name}_{look}.svg").write_text(drawn(CHARTS[name][1](), look), encoding="utf-8")


if __name__ == "__main__":
    import outputs

    main(STATIC, OF_README)
    outputs.copy_pictures(outputs.of_example(ROOT / "examples/coefficient_inversion.py"), STATIC, "inversion")
