"""Pictures of matrices and of solves: each function draws on an axes of matplotlib.

    import jaxsparse as js
    js.plot.spy(js.gallery.power_law(1000))

Every function takes `ax`, the axes to draw on, and returns it; without one it makes a figure in the style of this
library. Ink has the colour of `matplotlib.rcParams["text.color"]`, so pictures suit dark styles too. matplotlib
(`pip install 'jaxsparse[plot]'`) is imported at the first call, and every function raises an ImportError without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._arguments import is_sparse
from jaxsparse_fmt._html import density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["STYLE", "convergence", "row_lengths", "spy"]

# Colours of Okabe and Ito's palette, distinct for every kind of colour vision and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
FAINT = "#8A8A8A"
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": "#303030",
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": "#303030",
    "ytick.color": "#303030",
    "text.color": "#303030",
    "grid.color": "#E4E4E4",
    "svg.fonttype": "none",
}


def check_available() -> None:
    """Raises an ImportError that names the cure if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("pictures need matplotlib: pip install 'jaxsparse[plot]'")


def spy(A: Any, ax: Axes | None = None) -> Axes:
    """Draws where the entries lie: the fraction of places that hold one, cell by cell of a coarse grid.

    Args:
      A: a matrix of this library or of SciPy, of any size.

    Examples:
      >>> js.plot.spy(A).get_title()
      'Where the entries lie'
    """
    ax, S = _axes(ax), _canonical(A)
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.ticker import EngFormatter

    ax.set(title="Where the entries lie", xlabel="column", ylabel="row")
    ax.spines[:].set_visible(True)
    ax.locator_params(nbins=5, integer=True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
    filled = density(S)
    if not S.nnz:
        ax.text(0.5, 0.5, "no entries", transform=ax.transAxes, ha="center", color=FAINT)
        return ax
    colors = LinearSegmentedColormap.from_list("ink", ["#A9D3EE", COLORS[0], "#06283D"])
    low, high = filled[filled > 0].min(), filled.max()
    image = ax.imshow(
        np.ma.masked_equal(filled, 0),
        cmap=colors,
        norm=LogNorm(low, high) if high > 20 * low else Normalize(0, high),
        extent=(0, S.shape[1], S.shape[0], 0),
        aspect="equal" if 0.25 < S.shape[0] / S.shape[1] < 4 else "auto",
        interpolation="nearest",
    )
    ax.set_anchor("NW")
    if low < high:
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.9, pad=0.02, format=lambda share, _: f"{100 * share:.3g}%")
        bar.outline.set_visible(False)
        bar.set_label("fraction of places that hold an entry")
    return ax


def row_lengths(A: Any, ax: Axes | None = None) -> Axes:
    """Draws a histogram of the entries per row. A: as in `spy`.

    Examples:
      >>> js.plot.row_lengths(A).get_title()
      'Row lengths'
    """
    ax, lengths = _axes(ax), np.diff(_canonical(A).indptr)
    ax.set(title="Row lengths", xlabel="entries in a row", ylabel="rows")
    ax.grid(True, axis="y")
    if not lengths.size:
        return ax
    low, high, mean = int(lengths.min()), int(lengths.max()), lengths.mean()
    edges = _bins(low, high, mean)
    count, _ = np.histogram(lengths, edges)
    ax.bar(edges[:-1], count, np.diff(edges), align="edge", color=COLORS[0], ec="white", lw=0.8)
    if count.max() > 100 * count[count > 0].min():  # few long rows stay visible on a logarithmic scale
        ax.set_yscale("log")
        ax.set_ylim(0.5, 3 * count.max())
    if edges[-1] > 40 * edges[0] > 0 and len(edges) < high - low:
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", integer=True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    ax.axvline(mean, color=COLORS[1], lw=1.8, label=f"mean {mean:.3g}")
    ax.plot([], [], " ", label=f"longest {high:,}")
    if low == 0:
        ax.plot([], [], " ", label=f"empty {np.count_nonzero(lengths == 0):,}")
    ax.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=10, handlelength=1.2)
    return ax


def convergence(curves: Mapping[str, Any] | Any, ax: Axes | None = None, *, rtol: float | None = None) -> Axes:
    """Draws residual norms over iterations, each curve relative to its first norm.

    Args:
      curves: by name; or a single one. A result of a solver called with `history=True`, or residual norms [k + 1].
      rtol: drawn as the line to reach.

    Raises:
      ValueError: a result has no history.

    Examples:
      >>> js.plot.convergence(js.cg(A, b, history=True)).get_title()
      'Convergence'
    """
    ax, single = _axes(ax), not isinstance(curves, Mapping)
    for number, (name, curve) in enumerate({"": curves}.items() if single else curves.items()):
        if hasattr(curve, "status") and (curve := curve.history) is None:
            raise ValueError(f"the result {name!r} has no history: call the solver with history=True")
        norms = np.asarray(curve, float)
        ax.semilogy(norms / (norms[0] or 1), color=COLORS[number % len(COLORS)], label=name or None, lw=2)
    if rtol:
        from matplotlib import rcParams

        line = {"color": rcParams["text.color"], "lw": 1, "ls": (0, (5, 4)), "zorder": 1}
        ax.axhline(rtol, label=f"asked for: {rtol:.0e}", **line)
    ax.set(title="Convergence", xlabel="iteration", ylabel="relative residual  ‖b − A·x‖ / ‖b‖")
    ax.locator_params(axis="x", integer=True)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.margins(x=0.01)
    ax.grid(True)
    if not single or rtol:
        ax.legend(frameon=False, loc="best")
    return ax


def _bins(low: int, high: int, mean: float) -> np.ndarray:
    """Edges between whole numbers: one bin per length if they are few, else about 40 wider bins."""
    if high - low < 40:
        return np.arange(low, high + 2) - 0.5
    edges = np.geomspace(max(low, 1), high + 1, 40) if high > 20 * mean else np.linspace(low, high + 1, 40)
    return np.unique(np.rint(edges)) - 0.5


def _axes(ax: Axes | None) -> Axes:
    """`ax`, or the axes of a new figure."""
    check_available()
    if ax is not None:
        return ax
    import matplotlib
    from matplotlib import pyplot

    pyplot.draw_if_interactive()  # loads the backend, whose settings the context below would undo
    unset = {k: v for k, v in STYLE.items() if matplotlib.rcParams[k] == matplotlib.rcParamsDefault[k]}
    with matplotlib.rc_context(unset):  # what the user has set stays
        return pyplot.subplots(layout="constrained")[1]


def _canonical(A: Any) -> scipy.sparse.csr_array:
    if not is_sparse(A):
        raise TypeError(f"a picture needs a matrix of this library or of SciPy, got {type(A).__name__}")
    S = scipy.sparse.csr_array(A if scipy.sparse.issparse(A) else A.to_scipy(), copy=True)
    S.sum_duplicates()
    return S
