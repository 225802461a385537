"""The pictures of the command line: a matrix with its convergence curves, times of formats, efficiency of scaling.

Every `draw` function writes its file whole or not at all, to a path that ends in one of `SUFFIXES`, and raises as
`check` does. matplotlib (`pip install 'jaxsparse[plot]'`) is imported inside functions, draws without a display, and
leaves pyplot's state alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")

# Two colours of Okabe and Ito's palette, distinct for every kind of colour vision and in print.
COLORS = ("#0072B2", "#D55E00")
INK, FAINT = "#303030", "#8A8A8A"
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "grid.color": "#E4E4E4",
    "svg.fonttype": "none",
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """The convergence of one solver.

    Attributes:
      residuals: [k] ‖b − A·x‖ / ‖b‖ after each of the iterations [k].
    """

    label: str
    iterations: np.ndarray
    residuals: np.ndarray


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check(path: str | os.PathLike[str]) -> None:
    """Refuses a path to which no picture can be written; for use before any long work.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: the file name does not end in one of `SUFFIXES`.
      FileNotFoundError: the folder does not exist. IsADirectoryError: `path` is a folder itself.
    """
    if not available():
        raise ImportError("pictures need matplotlib: pip install 'jaxsparse[plot]'")
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot draw to {path}: it is a folder; name a file in it")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot draw to {path}: its name must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot draw to {path}: there is no folder {path.parent}")


def draw(
    path: str | os.PathLike[str],
    S: scipy.sparse.csr_array,
    name: str,
    curves: Sequence[Curve] = (),
    rtol: float | None = None,
) -> None:
    """Draws a matrix, and the convergence of solvers.

    Args:
      S: canonical.
      name: of the matrix, for the title.
      curves: at most two; without any, only the matrix is drawn.
      rtol: the relative residual that the user wants, drawn as a line.
    """
    check(path)
    _write(Path(path), figure(S, name, curves, rtol))


def draw_times(path: str | os.PathLike[str], times: dict[str, tuple[float, float | None]], title: str) -> None:
    """Draws a bar a name: its first time, measured, in seconds, with a mark at the second, predicted, if any."""
    with _axes(path, (9, 1.2 + 0.45 * len(times)), title) as axes:
        from matplotlib.ticker import EngFormatter

        names = list(times)
        axes.barh(names, [measured for measured, _ in times.values()], height=0.6, color=COLORS[0], label="measured")
        marks = [(predicted, name) for name, (_, predicted) in times.items() if predicted is not None]
        axes.scatter(*zip(*marks, strict=True), marker="|", s=300, lw=2.5, color=COLORS[1], label="predicted")
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(EngFormatter("s"))
        axes.set_xlim(left=0)
        axes.grid(axis="x")
        axes.legend(frameon=False)


def draw_scaling(
    path: str | os.PathLike[str],
    title: str,
    devices: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[float | None] = (),
) -> None:
    """Draws parallel efficiency, 1 at best, over the number of devices; None: not measured."""
    with _axes(path, (8, 5), title) as axes:
        from matplotlib.ticker import NullLocator, StrMethodFormatter

        order = np.argsort(devices)
        at = np.asarray(devices)[order]
        axes.plot(at, np.asarray(predicted)[order], color=COLORS[0], lw=2, marker=".", label="the model")
        real = [(n, e) for n, e in zip(devices, measured, strict=False) if e is not None]
        if real:
            axes.plot(*zip(*real, strict=True), "o", color=COLORS[1], mfc="white", mew=1.5, ms=7, label="measured")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(at)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, max(1.05, *(1.05 * e for e in predicted), *(1.05 * e for _, e in real)))
        axes.set_xlabel("devices")
        axes.set_ylabel("efficiency  T(1) / (N·T(N))")
        axes.grid(True)
        axes.legend(frameon=False)


@contextlib.contextmanager
def _axes(path: str | os.PathLike[str], size: tuple[float, float], title: str) -> Iterator[Axes]:
    """The axes of a picture of `size` inches; leaving the context writes the picture."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=size, layout="constrained")
        yield fig.add_subplot(title=title)
        _write(Path(path), fig)


def _write(path: Path, fig: Figure) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fig.savefig(scratch, format=path.suffix[1:].lower(), dpi=150)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def figure(S: scipy.sparse.csr_array, name: str, curves: Sequence[Curve] = (), rtol: float | None = None) -> Figure:
    """The picture that `draw` writes, for a notebook or a report of one's own."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.04)
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(12, 7.6) if curves else (12, 5.4), layout=margins)
        title = f"{name}  ·  {S.shape[0]:,} × {S.shape[1]:,}  ·  {S.nnz:,} entries"
        fig.suptitle(title, fontsize=14, x=0.012, ha="left")
        if curves:
            panels = fig.subplot_mosaic("ccs;ccl", height_ratios=(1.26, 1))
            _convergence(panels["c"], curves, rtol)
        else:
            panels = fig.subplot_mosaic("ls", width_ratios=(1.15, 1))
        _row_lengths(panels["l"], np.diff(S.indptr))
        _places(panels["s"], S)
    return fig


def density(S: scipy.sparse.csr_array, cells: int = 400) -> np.ndarray:
    """The fraction of places that hold an entry, in each cell of a coarse grid over the matrix.

    Args:
      S: without duplicates.
      cells: the most cells along an axis; a shorter axis gets one cell a row or column.

    Returns:
      float64 [min(rows, cells), min(columns, cells)], from 0 to 1.
    """
    rows, cols = S.shape
    high, wide = min(rows, cells), min(cols, cells)
    height, width = _cell_sizes(rows, high), _cell_sizes(cols, wide)
    down = np.arange(rows) * high // max(rows, 1)
    cell = np.repeat(down * wide, np.diff(S.indptr)) + S.indices.astype(np.int64) * wide // max(cols, 1)
    entries = np.bincount(cell, minlength=len(height) * len(width))
    return entries.reshape(len(height), len(width)) / np.outer(height, width)


def _cell_sizes(n: int, cells: int) -> np.ndarray:
    """[cells] the count of numbers j in range(n) for which j·cells // n is that cell."""
    return np.diff(-(-np.arange(cells + 1) * n // max(cells, 1)))


def _convergence(axes: Axes, curves: Sequence[Curve], rtol: float | None) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_title("Convergence")
    first, *second = curves
    axes.semilogy(first.iterations, first.residuals, color=COLORS[0], lw=2, label=first.label)
    for curve in second:
        some = slice(None, None, max(1, len(curve.iterations) // 40))
        dots = {"ls": "none", "marker": "o", "ms": 5.5, "mfc": "white", "mew": 1.5}
        axes.semilogy(curve.iterations[some], curve.residuals[some], color=COLORS[1], label=curve.label, **dots)
    if rtol:
        axes.axhline(rtol, color=INK, lw=1, ls=(0, (5, 4)), label=f"asked for: {rtol:.0e}", zorder=1)
    axes.set_xlabel("iteration")
    axes.set_ylabel("relative residual  ‖b − A·x‖ / ‖b‖")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.margins(x=0.01)
    axes.grid(True)
    axes.legend(frameon=False, loc="best", fontsize=11)


def _row_lengths(axes: Axes, lengths: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_title("Row lengths")
    axes.set_xlabel("entries in a row")
    axes.set_ylabel("rows")
    axes.grid(True, axis="y")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if not lengths.size:
        return
    low, high, mean = int(lengths.min()), int(lengths.max()), lengths.mean()
    edges = _bins(low, high, mean)
    count, _ = np.histogram(lengths, edges)
    axes.bar(edges[:-1], count, np.diff(edges), align="edge", color=COLORS[0], ec="white", lw=0.8)
    if count.max() > 100 * count[count > 0].min():
        axes.set_yscale("log")  # so that a few long rows stay visible
        axes.set_ylim(0.5, 3 * count.max())
    if edges[-1] > 40 * edges[0] > 0 and len(edges) < high - low:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.axvline(mean, color=COLORS[1], lw=1.8, label=f"mean {mean:.3g}")
    axes.plot([], [], " ", label=f"longest {high:,}")
    if low == 0:
        axes.plot([], [], " ", label=f"empty {np.count_nonzero(lengths == 0):,}")
    axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=10, handlelength=1.2)


def _bins(low: int, high: int, mean: float) -> np.ndarray:
    """Edges between whole numbers: one bin a length where they are few, else about 40 wider bins."""
    if high - low < 40:
        return np.arange(low, high + 2) - 0.5
    edges = np.geomspace(max(low, 1), high + 1, 40) if high > 20 * mean else np.linspace(low, high + 1, 40)
    return np.unique(np.rint(edges)) - 0.5


def _places(axes: Axes, S: scipy.sparse.csr_array) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    axes.set_title("Where the entries lie")
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.spines[:].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
        axis.set_major_locator(MaxNLocator(5, integer=True))
    filled = density(S)
    if not S.nnz:
        axes.text(0.5, 0.5, "no entries", transform=axes.transAxes, ha="center", color=FAINT)
        return
    colors = LinearSegmentedColormap.from_list("ink", ["#A9D3EE", COLORS[0], "#06283D"])
    low, high = filled[filled > 0].min(), filled.max()
    norm = LogNorm(low, high) if high > 20 * low else Normalize(0, high)
    image = axes.imshow(
        np.ma.masked_equal(filled, 0),
        cmap=colors,
        norm=norm,
        extent=(0, S.shape[1], S.shape[0], 0),
        aspect="equal" if 0.25 < S.shape[0] / S.shape[1] < 4 else "auto",
        interpolation="nearest",
    )
    axes.set_anchor("NW")
    if low < high:
        percent = FuncFormatter(lambda fraction, _: f"{100 * fraction:.3g}%")
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02, format=percent)
        bar.outline.set_visible(False)
        bar.set_label("fraction of places that hold an entry")
