"""`jaxsparse plot`, and the pictures of convergence of other commands.

`jaxsparse_fmt.plot` draws them. `draw` writes its file whole or not at all, needs no display, and leaves pyplot's state
alone.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse

from jaxsparse_fmt import plot
from jaxsparse_fmt._files import replacing
from jaxsparse_fmt.cli import arguments, tables
from jaxsparse_fmt.cli.progress import Progress


def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    arguments.check_picture(args.out, args.file)
    S = arguments.read_matrix(args, progress)
    with progress.stage("draw", args.out), arguments.blaming(args.out):
        draw(args.out, S, Path(args.file).name)
    record = {"file": args.file, "out": args.out, "rows": S.shape[0], "columns": S.shape[1], "nnz": S.nnz}
    return tables.Done(record, [f"The picture is in {args.out}."])


def draw(
    path: str | os.PathLike[str],
    S: scipy.sparse.csr_array,
    name: str,
    curves: Mapping[str, Any] | None = None,
    rtol: float | None = None,
) -> None:
    """Draws a canonical matrix, and the convergence of solvers if there are curves, as for `plot.convergence`."""
    with _saved(path, 7.6 if curves else 5.4) as fig:
        fig.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.04)
        title = f"{name}  ·  {S.shape[0]:,} × {S.shape[1]:,}  ·  {S.nnz:,} entries"
        fig.suptitle(title, fontsize=14, x=0.012, ha="left")
        if curves:
            panels = fig.subplot_mosaic("ccs;ccl", height_ratios=(1.26, 1))
            plot.convergence(curves, panels["c"], rtol=rtol)
        else:
            panels = fig.subplot_mosaic("ls", width_ratios=(1.15, 1))
        plot.row_lengths(S, panels["l"])
        plot.spy(S, panels["s"])


def draw_comparison(
    path: str | os.PathLike[str], curves: Mapping[str, Any], times: Mapping[str, Sequence[float]], rtol: float
) -> None:
    """Draws the convergence of two sides, and how much faster the first is by the seconds of what was timed."""
    with _saved(path, 4.8) as fig:
        left, right = fig.subplots(1, 2)
        plot.convergence(curves, left, rtol=rtol)
        left.lines[1].set_linestyle((0, (3, 3)))  # so that the first curve is seen even if both fall alike
        left.legend()
        other = [*curves][1]
        bars = right.barh([*times], [theirs / ours for ours, theirs in times.values()], 0.5, color=plot.COLORS[0])
        seconds = [[tables.duration(s) for s in pair] for pair in times.values()]
        right.bar_label(bars, [f" {ours}, {other} {theirs}" for ours, theirs in seconds])
        right.axvline(1.0, color=plot.COLORS[1], linestyle="--")
        right.invert_yaxis()
        right.set_xlim(0.0, 1.6 * max(1.0, *(theirs / ours for ours, theirs in times.values())))  # room for the seconds
        right.set(title=f"Speed, as a multiple of {other}'s", xlabel=f"dashed: as fast as {other}")


@contextlib.contextmanager
def _saved(path: str | os.PathLike[str], height: float) -> Iterator[Any]:
    """A figure in the style of this library, written when the code inside has drawn it."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(plot.STYLE):
        fig = Figure(figsize=(12, height), layout="constrained")
        yield fig
        with replacing(path) as file:
            fig.savefig(file, format=Path(path).suffix[1:].lower(), dpi=150)
