"""`jaxsparse plot`, and the pictures of convergence of other commands.

`jaxsparse_fmt.plot` draws them. Every `draw` function writes its file whole or not at all. It draws without a display
and leaves pyplot's state alone.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scipy.sparse

from jaxsparse_fmt import plot
from jaxsparse_fmt._types import replacing
from jaxsparse_fmt.cli import arguments, tables
from jaxsparse_fmt.cli.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELP = "draw a matrix"
ABOUT = "Draws the pattern and the row lengths of a matrix."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_file(parser)
    parser.add_argument("out", metavar="OUT", help=f"the picture, {' or '.join(arguments.PICTURES)}")


def run(args: argparse.Namespace) -> int:
    arguments.check_picture(args.out, args.file)
    with Progress() as progress:
        with progress.stage("read", args.file):
            S = arguments.read_matrix(args)
        with progress.stage("draw", args.out), arguments.blaming(args.out):
            draw(args.out, S, Path(args.file).name)
    record = {"file": args.file, "out": args.out, "rows": S.shape[0], "columns": S.shape[1], "nnz": S.nnz}
    tables.report(args.json, record, f"The picture is in {args.out}.")
    return 0


def draw(
    path: str | os.PathLike[str],
    S: scipy.sparse.csr_array,
    name: str,
    curves: Mapping[str, Any] | None = None,
    rtol: float | None = None,
) -> None:
    """Draws a canonical matrix, and the convergence of solvers.

    Args:
      name: of the matrix, for the title.
      curves: as of `plot.convergence`; without any, only the matrix is drawn.
      rtol: the relative residual that the user wants, drawn as a line.
    """
    with _figure(path, (12, 7.6) if curves else (12, 5.4)) as fig:
        title = f"{name}  ·  {S.shape[0]:,} × {S.shape[1]:,}  ·  {S.nnz:,} entries"
        fig.suptitle(title, fontsize=14, x=0.012, ha="left")
        if curves:
            panels = fig.subplot_mosaic("ccs;ccl", height_ratios=(1.26, 1))
            plot.convergence(curves, panels["c"], rtol=rtol)
        else:
            panels = fig.subplot_mosaic("ls", width_ratios=(1.15, 1))
        plot.row_lengths(S, panels["l"])
        plot.spy(S, panels["s"])


@contextlib.contextmanager
def _figure(path: str | os.PathLike[str], size: tuple[float, float]) -> Iterator["Figure"]:
    """A figure of `size` inches, which is written when the context is left."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(plot.STYLE):
        fig = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.04))
        yield fig
        with replacing(path) as file:
            fig.savefig(file, format=Path(path).suffix[1:].lower(), dpi=150)
