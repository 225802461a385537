"""Pictures of matrices, of how formats store them, and of solves: each function draws on an axes of matplotlib.

    import jaxsparse_fmt as jsf
    jsf.plot.layout(jsf.from_scipy(jsf.gallery.poisson(4, dim=2), "hll", slice_size=4))

Every function takes `ax`, the axes to draw on, and returns it; without one it makes a figure in the style of this
library. Ink has the colour of `matplotlib.rcParams["text.color"]`, so pictures suit dark styles too. matplotlib
(`pip install 'jaxsparse[plot]'`) is imported at the first call, and every function raises an ImportError without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats.base import ByRule
from jaxsparse_fmt.formats.csr5 import CSR5
from jaxsparse_fmt.formats.long_rows import Split
from jaxsparse_fmt.kernels.layout.address import GROUPS, WARP, Bisected, Slices, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["STYLE", "convergence", "layout", "roofline", "row_lengths", "scaling", "spy"]

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
MOST_PLACES = 3000  # of a picture in which every place has a number


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_available() -> None:
    """Raises an ImportError that names the cure if matplotlib is not installed."""
    if not available():
        raise ImportError("pictures need matplotlib: pip install 'jaxsparse[plot]'")


def spy(A: Any, ax: Axes | None = None) -> Axes:
    """Draws where the entries lie: the fraction of places that hold one, cell by cell of a coarse grid.

    Args:
      A: a matrix of this library or of SciPy, of any size.
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
    """Draws a histogram of the entries a row. A: as in `spy`."""
    ax, lengths = _axes(ax), np.diff(_canonical(A).indptr)
    ax.set(title="Row lengths", xlabel="entries in a row", ylabel="rows")
    ax.grid(True, axis="y")
    if not lengths.size:
        return ax
    low, high, mean = int(lengths.min()), int(lengths.max()), lengths.mean()
    edges = _bins(low, high, mean)
    count, _ = np.histogram(lengths, edges)
    ax.bar(edges[:-1], count, np.diff(edges), align="edge", color=COLORS[0], ec="white", lw=0.8)
    if count.max() > 100 * count[count > 0].min():
        ax.set_yscale("log")  # so that a few long rows stay visible
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


def convergence(
    curves: Mapping[str, Any] | Any, ax: Axes | None = None, *, rtol: float | None = None, dots: Collection[str] = ()
) -> Axes:
    """Draws residual norms over iterations, each curve relative to its first norm.

    Args:
      curves: by name; or a single one. A result of a solver called with `history=True`, residual norms [k + 1] by
        iteration, or a pair (iterations, norms relative to ‖b‖), which is drawn as it is.
      rtol: drawn as the line to reach.
      dots: names of curves to draw as dots, which show where curves coincide.

    Raises:
      ValueError: a result has no history.
    """
    ax = _axes(ax)
    single = not isinstance(curves, Mapping)
    for number, (name, curve) in enumerate({"": curves}.items() if single else curves.items()):
        iterations, norms = _curve(name, curve)
        look = {"color": COLORS[number % len(COLORS)], "label": name or None, "lw": 2}
        if name in dots:
            some = slice(None, None, max(1, len(iterations) // 40))
            iterations, norms = iterations[some], norms[some]
            look |= {"ls": "none", "marker": "o", "ms": 5.5, "mfc": ax.get_facecolor(), "mew": 1.5}
        ax.semilogy(iterations, norms, **look)
    if rtol:
        ax.axhline(rtol, color=_ink(), lw=1, ls=(0, (5, 4)), label=f"asked for: {rtol:.0e}", zorder=1)
    ax.set(title="Convergence", xlabel="iteration", ylabel="relative residual  ‖b − A·x‖ / ‖b‖")
    ax.locator_params(axis="x", integer=True)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.margins(x=0.01)
    ax.grid(True)
    if not single or rtol:
        ax.legend(frameon=False, loc="best")
    return ax


def layout(A: SparseMatrix, ax: Axes | None = None) -> Axes:
    """Draws how a format stores a small matrix: every stored place, at the thread and the step that reads it.

    A place shows its value and below it its column, if the format stores columns. Its colour shows the row of the
    matrix; hatched places are padding, and pale ones are stored but not read by a product. The thin line goes through
    the places in the order of memory: where it runs down a step, neighbouring threads read neighbouring places.
    Threads behind the last entry are left out. `coo` is drawn as its product runs, a thread for each row, and `csc`
    with a thread for each column.

    Raises:
      ValueError: A has more than 3000 places.
    """
    if A.n_stored > MOST_PLACES:
        raise ValueError(
            f"layout draws every place, at most {MOST_PLACES:,}, and A has {A.n_stored:,}; take a part, as A[:20, :20]"
        )
    check_available()
    import matplotlib
    from matplotlib.patches import Rectangle

    stored = A.unshared
    row, col, _ = (np.asarray(a) for a in stored.coordinates())
    values, live = np.asarray(stored.values), col < A.shape[1]
    thread, step = _walk(stored, row, col)
    shown = thread <= thread[live].max(initial=0)
    numbers, line = np.unique(thread[shown], return_inverse=True)  # the line of the picture for each thread
    row, col, values, live, step = (a[shown] for a in (row, col, values, live, step))
    start = getattr(A, "start", None)
    read = np.ones(A.n_stored, bool)
    if start is not None:
        read = np.isin(np.arange(A.n_stored), np.asarray(start)[:, None] + np.arange(A.shape[0]))
    tall, wide = len(numbers), int(step.max(initial=0)) + 1
    ax = _axes(ax, (max(3.3, 0.9 + 0.32 * wide), 1.4 + 0.32 * tall))
    shades = matplotlib.colormaps["viridis"]
    has_columns = not (isinstance(stored, ByRule) and isinstance(stored.column, Blocked | Diagonal))
    ax.plot(step, line, color=FAINT, lw=0.6, alpha=0.8, zorder=3)
    for i, j, r, c, value, is_live, is_read in zip(line, step, row, col, values, live, read[shown], strict=True):
        at, side = (j - 0.44, i - 0.44), 0.88
        if not is_live:
            ax.add_patch(Rectangle(at, side, side, fc="none", ec=FAINT, lw=0.5, hatch="////", alpha=0.6))
            continue
        color = shades(0.35 + 0.6 * r / max(A.shape[0] - 1, 1))
        ax.add_patch(Rectangle(at, side, side, fc=color, ec="none", alpha=0.9 if is_read else 0.3, zorder=2))
        ink: dict[str, Any] = {"color": "#101010" if is_read else _ink(), "ha": "center", "zorder": 4}
        ax.text(j, i + (0.04 if has_columns else 0.15), f"{value:.3g}", fontsize=8, **ink)
        if has_columns:
            ax.text(j, i + 0.34, f"{c}", fontsize=5.5, **ink)
    ax.set(xlim=(-0.6, wide - 0.4), ylim=(tall - 0.4, -0.6), aspect="equal")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    across, down = (np.arange(0, n, 1 if n <= 16 else 4) for n in (wide, tall))
    ax.set_xticks(across)
    ax.set_yticks(down, [str(numbers[i]) for i in down])
    ax.set(xlabel="step", ylabel="column" if A.name == "csc" else "thread")
    ax.set_title(f"{A.name}\n{A.n_stored:,} places, {A.nbytes:,} bytes")
    return ax


def roofline(
    points: Mapping[str, tuple[Any, Any, Any]], bandwidth: float, ax: Axes | None = None, *, peak: float | None = None
) -> Axes:
    """Draws flop/s over flops a byte, under the roof of a memory of `bandwidth` bytes/s.

    Args:
      points: by name, the flops, the bytes moved and the seconds of a kernel; numbers, or arrays [k] of k kernels.
      peak: flop/s that the device computes at most.
    """
    ax = _axes(ax)
    from matplotlib.ticker import EngFormatter, LogLocator

    intensities = []
    for number, (name, (flops, moved, seconds)) in enumerate(points.items()):
        intensity = np.divide(flops, moved)
        intensities.append(np.ravel(intensity))
        ax.scatter(intensity, np.divide(flops, seconds), s=28, color=COLORS[number % len(COLORS)], label=name, zorder=3)
    all_of_them = np.concatenate(intensities) if intensities else np.ones(1)
    ends = np.geomspace(all_of_them.min() / 2, all_of_them.max() * 2, 64)
    ax.plot(ends, np.minimum(ends * bandwidth, np.inf if peak is None else peak), color=_ink(), lw=1)
    ax.set(xscale="log", yscale="log", xlabel="flops a byte")
    ax.minorticks_off()
    for axis, look in ((ax.xaxis, "{x:g}"), (ax.yaxis, EngFormatter("flop/s"))):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(look)
    ax.set_title(f"Under the roof of {EngFormatter('B/s')(bandwidth)}")
    ax.grid(True)
    ax.legend(frameon=False)
    return ax


def scaling(
    devices: Sequence[int], predicted: Sequence[float], measured: Sequence[float | None] = (), ax: Axes | None = None
) -> Axes:
    """Draws parallel efficiency, 1 at best, over the number of devices; None: not measured."""
    ax = _axes(ax)
    order = np.argsort(devices)
    at = np.asarray(devices)[order]
    ax.plot(at, np.asarray(predicted)[order], color=COLORS[0], lw=2, marker=".", label="the model")
    real = [(n, e) for n, e in zip(devices, measured, strict=False) if e is not None]
    if real:
        ax.plot(*zip(*real, strict=True), "o", color=COLORS[1], mfc=ax.get_facecolor(), mew=1.5, ms=7, label="measured")
    ax.set_xscale("log", base=2)
    ax.minorticks_off()
    ax.set_xticks(at)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    best = max(1.0, *predicted, *(e for _, e in real))
    ax.set(ylim=(0, 1.05 * best), xlabel="devices", ylabel="efficiency  T(1) / (N·T(N))")
    ax.grid(True)
    ax.legend(frameon=False)
    return ax


def density(S: scipy.sparse.csr_array, cells: int = 400) -> np.ndarray:
    """The fraction of places that hold an entry, in each cell of a coarse grid over the matrix.

    Args:
      S: without duplicates.
      cells: the most cells along an axis; a shorter axis gets one cell a row or column.

    Returns:
      float64 [min(rows, cells), min(columns, cells)], from 0 to 1.
    """
    high, wide = (min(n, cells) for n in S.shape)
    down, across = (np.arange(n) * min(n, cells) // max(n, 1) for n in S.shape)  # the cell of each row and column
    cell = np.repeat(down * wide, np.diff(S.indptr)) + across[S.indices]
    entries = np.bincount(cell, minlength=high * wide).reshape(high, wide)
    return entries / np.outer(np.bincount(down, minlength=high), np.bincount(across, minlength=wide))


def _bins(low: int, high: int, mean: float) -> np.ndarray:
    """Edges between whole numbers: one bin a length where they are few, else about 40 wider bins."""
    if high - low < 40:
        return np.arange(low, high + 2) - 0.5
    edges = np.geomspace(max(low, 1), high + 1, 40) if high > 20 * mean else np.linspace(low, high + 1, 40)
    return np.unique(np.rint(edges)) - 0.5


def _axes(ax: Axes | None, size: tuple[float, float] | None = None) -> Axes:
    """`ax`, or the axes of a new figure of `size` inches."""
    check_available()
    if ax is not None:
        return ax
    import matplotlib
    from matplotlib import pyplot

    unset = {k: v for k, v in STYLE.items() if matplotlib.rcParams[k] == matplotlib.rcParamsDefault[k]}
    with matplotlib.rc_context(unset):  # what the user has set stays
        return pyplot.subplots(figsize=size, layout="constrained")[1]


def _ink() -> str:
    import matplotlib

    return matplotlib.rcParams["text.color"]


def _canonical(A: Any) -> scipy.sparse.csr_array:
    S = scipy.sparse.csr_array(A if scipy.sparse.issparse(A) else A.to_scipy(), copy=True)
    S.sum_duplicates()
    return S


def _curve(name: str, curve: Any) -> tuple[np.ndarray, np.ndarray]:
    """Iterations and relative residual norms."""
    if isinstance(curve, tuple):
        return np.asarray(curve[0]), np.asarray(curve[1])
    if hasattr(curve, "status") and (curve := curve.history) is None:
        raise ValueError(f"the result {name!r} has no history: call the solver with history=True")
    norms = np.asarray(curve, float)
    return np.arange(len(norms)), norms / norms[0] if norms[0] > 0 else norms


def _walk(A: SparseMatrix, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The thread that reads each stored place, and at which of its steps: [n_stored] each."""
    place = np.arange(A.n_stored)
    if isinstance(A, CSR5):
        lanes, entries = A.tile_shape
        return place // (lanes * entries) * lanes + place % lanes, place // lanes % entries
    if not isinstance(A, ByRule):
        owner = col if A.name == "csc" else row
        return owner, _rank(owner)
    address, main = A.rule.address, A.rule.n_stored
    arrays = {name: np.asarray(a) for name, a in A.arrays.items()}
    if isinstance(address, Bisected):
        group, _ = address.owners(np, arrays, main)
        warp, chunk = group // GROUPS, np.arange(len(group))
        first = np.searchsorted(warp, warp)
        thread = warp[:, None] * WARP + np.arange(WARP)
        return thread.ravel(), np.repeat(chunk - first, WARP)
    if isinstance(address, Subwarp):
        return place % address.lanes, place // address.lanes
    thread, step = address.slots(np, arrays, main)
    if isinstance(address, Slices) and address.threads > 1:
        T = address.threads
        thread, step = thread * T + step % T, step // T
    if isinstance(A, Split) and A.tail_ptr is not None:  # a warp for each piece
        of_tail, tail_ptr = place[: A.n_stored - main], np.asarray(A.tail_ptr)
        piece = np.searchsorted(tail_ptr, of_tail, side="right") - 1
        e = of_tail - tail_ptr[piece]
        base = thread.max(initial=-1) + 1
        thread, step = np.append(thread, base + piece * WARP + e % WARP), np.append(step, e // WARP)
    return thread, step


def _rank(owner: np.ndarray) -> np.ndarray:
    """How many earlier places have the same owner, [n]."""
    order = np.argsort(owner, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    return rank
