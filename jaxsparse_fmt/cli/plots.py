"""The pictures of the command line: a matrix with convergence curves, times of formats, efficiency of scaling.

`jaxsparse_fmt.plot` draws them. Every `draw` function writes its file whole or not at all, to a path that ends in one
of `SUFFIXES`, and raises as `check` does. It draws without a display and leaves pyplot's state alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse

from jaxsparse_fmt import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The convergence of one solver.

    Attributes:
      residuals: [k] ‖b − A·x‖ / ‖b‖ after each of the iterations [k].
    """

    label: str
    iterations: np.ndarray
    residuals: np.ndarray


def check(path: str | os.PathLike[str]) -> None:
    """Refuses a path to which no picture can be written; for use before any long work.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: the file name does not end in one of `SUFFIXES`.
      FileNotFoundError: the folder does not exist. IsADirectoryError: `path` is a folder itself.
    """
    plot.check_available()
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
        axes.barh(
            names, [measured for measured, _ in times.values()], height=0.6, color=plot.COLORS[0], label="measured"
        )
        marks = [(predicted, name) for name, (_, predicted) in times.items() if predicted is not None]
        axes.scatter(*zip(*marks, strict=True), marker="|", s=300, lw=2.5, color=plot.COLORS[1], label="predicted")
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
        plot.scaling(devices, predicted, measured, axes)


@contextlib.contextmanager
def _axes(path: str | os.PathLike[str], size: tuple[float, float], title: str) -> Iterator[Axes]:
    """The axes of a picture of `size` inches; leaving the context writes the picture."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(plot.STYLE):
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
    with matplotlib.rc_context(plot.STYLE):
        fig = Figure(figsize=(12, 7.6) if curves else (12, 5.4), layout=margins)
        title = f"{name}  ·  {S.shape[0]:,} × {S.shape[1]:,}  ·  {S.nnz:,} entries"
        fig.suptitle(title, fontsize=14, x=0.012, ha="left")
        if curves:
            panels = fig.subplot_mosaic("ccs;ccl", height_ratios=(1.26, 1))
            shown = {curve.label: (curve.iterations, curve.residuals) for curve in curves}
            plot.convergence(shown, panels["c"], rtol=rtol, dots=list(shown)[1:])
        else:
            panels = fig.subplot_mosaic("ls", width_ratios=(1.15, 1))
        plot.row_lengths(S, panels["l"])
        plot.spy(S, panels["s"])
    return fig
