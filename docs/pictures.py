"""Draws the pictures of the site into a folder, each for light and for dark pages: python docs/pictures.py FOLDER."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
import scipy.sparse
from matplotlib import pyplot
from matplotlib.patches import Rectangle

import jaxsparse_fmt as jsf
from jaxsparse_fmt import plot
from jaxsparse_fmt.formats.base import ByRule
from jaxsparse_fmt.formats.csr5 import CSR5
from jaxsparse_fmt.formats.hyb import HYB
from jaxsparse_fmt.kernels.layout.address import GROUPS, WARP, Bisected, Slices, Starts, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal
from solvers import bicgstab, cg, gmres, idrs, precond

matplotlib.use("agg")
jax.config.update("jax_enable_x64", True)

CONVERGENCE = {
    "positive_definite": "Diffusion, conductivities from 0.1 to 10 (positive definite): cg with four preconditioners",
    "nonsymmetric": "Convection and diffusion (nonsymmetric): three methods, and gmres with a preconditioner",
}
LIGHT = plot.STYLE
LIGHT_INK = "#E0E0E0"
DARK = plot.STYLE | dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), LIGHT_INK)
DARK |= {"axes.facecolor": "#131416", "grid.color": "#3A3A3A", "axes.edgecolor": "#808080"}

# The layouts of the pictures: slices and blocks of 4 rows, where the defaults of 32 and 128 would hold all 12.
SMALL = {
    "csr": {"threads_per_row": 2},
    "hll": {"slice_size": 4},
    "sell": {"slice_size": 4},
    "hdia": {"slice_size": 4},
    "pjds": {"block_size": 4},
    "bsr": {"block_shape": (2, 2)},
    "hyb": {"width": 4},
    "csr5": {"tile_shape": (128, 8)},
}


def small_matrix() -> scipy.sparse.csr_array:
    """The 5-point stencil on 4 × 3 points, with a hub: point 5 is joined to points 0 to 9. Symmetric, 12 × 12.

    Each pair of mirrored entries has a number of its own, 1, 2, …, as its value.
    """
    joined = jsf.gallery.poisson(4, dim=2).toarray()[:12, :12] != 0
    joined[5, :10] = joined[:10, 5] = True
    row, col = np.nonzero(np.triu(joined))
    upper = scipy.sparse.coo_array((np.arange(1.0, row.size + 1), (row, col)), shape=(12, 12)).toarray()
    return scipy.sparse.csr_array(upper + np.triu(upper, 1).T)


def layout(A: jsf.SparseMatrix, ax: Any = None) -> Any:
    """Draws how a format stores a small matrix: every stored place, at the thread and the step that reads it.

    A place shows its value and below it its column, if the format stores columns. Its colour shows the row of the
    matrix; hatched places are padding, and pale ones are stored but not read by a product. The thin line goes through
    the places in the order of memory: where it runs down a step, neighbouring threads read neighbouring places.
    Threads behind the last entry are left out. `coo` is drawn as its product runs, a thread for each row, and `csc`
    with a thread for each column.
    """
    row, col, _, values = (np.asarray(a) for a in A.entries())
    live = col < A.shape[1]
    thread, step = _walk(A, row, col)
    shown = thread <= thread[live].max(initial=0)
    numbers, line = np.unique(thread[shown], return_inverse=True)  # the line of the picture for each thread
    row, col, values, live, step = (a[shown] for a in (row, col, values, live, step))
    start = getattr(A, "start", None)
    read = np.ones(A.n_stored, bool)
    if start is not None:
        read = np.isin(np.arange(A.n_stored), np.asarray(start)[:, None] + np.arange(A.shape[0]))
    tall, wide = len(numbers), int(step.max(initial=0)) + 1
    size = max(3.3, 0.9 + 0.32 * wide), 1.4 + 0.32 * tall
    ax = ax or pyplot.subplots(figsize=size, layout="constrained")[1]
    shades = matplotlib.colormaps["viridis"]
    has_columns = not (isinstance(A, ByRule) and isinstance(A.column, Blocked | Diagonal))
    ax.plot(step, line, color=plot.FAINT, lw=0.6, alpha=0.8, zorder=3)
    for i, j, r, c, value, is_live, is_read in zip(line, step, row, col, values, live, read[shown], strict=True):
        corner = (j - 0.44, i - 0.44)
        side = 0.88
        if not is_live:
            ax.add_patch(Rectangle(corner, side, side, fc="none", ec=plot.FAINT, lw=0.5, hatch="////", alpha=0.6))
            continue
        color = shades(0.35 + 0.6 * r / max(A.shape[0] - 1, 1))
        ax.add_patch(Rectangle(corner, side, side, fc=color, ec="none", alpha=0.9 if is_read else 0.3, zorder=2))
        dark = "#101010" if is_read else matplotlib.rcParams["text.color"]
        ink: dict[str, Any] = {"color": dark, "ha": "center", "zorder": 4}
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


def _walk(A: jsf.SparseMatrix, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The thread that reads each stored place, and at which of its steps: [n_stored] each."""
    place = np.arange(A.n_stored)
    if isinstance(A, CSR5):
        lanes, entries = A.tile_shape
        return place // (lanes * entries) * lanes + place % lanes, place // lanes % entries
    if getattr(A, "start", None) is not None:  # whole diagonals, which may share places
        return place % A.shape[0], place // A.shape[0]
    if not isinstance(A, ByRule):
        owner = col if A.name == "csc" else row
        return owner, _rank(owner)
    address, main = A._rule.address, A._rule.n_stored
    if isinstance(address, Starts):  # with every entry in its own place
        address = Slices(address.n_rows, address.lanes)
    arrays = {name: np.asarray(a) for name, a in A._arrays.items()}
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
    if isinstance(A, HYB):  # by COO's product, each of whose rows has threads of its own
        rest = np.asarray(A.tail_row)
        thread, step = np.append(thread, thread.max(initial=-1) + 1 + rest), np.append(step, _rank(rest))
    return thread, step


def _rank(owner: np.ndarray) -> np.ndarray:
    """How many earlier places have the same owner, [n]."""
    order = np.argsort(owner, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    return rank


def layouts() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    S = small_matrix()
    for name in jsf.FORMATS:
        A = jsf.from_scipy(S, name, "float32", **SMALL.get(name, {}))
        yield f"layout_{name}", lambda ax, A=A: layout(A, ax)


def matrix(ax: Any) -> Any:
    """The small matrix as it is, in the colours of the layouts."""
    S = small_matrix().tocoo()
    ax = ax or pyplot.subplots(figsize=(4.2, 4.2), layout="constrained")[1]
    ax.scatter(S.col, S.row, s=260, c=S.row, cmap="viridis", vmin=-6.5, vmax=12, marker="s")
    for r, c, value in zip(S.row, S.col, S.data, strict=True):
        ax.text(c, r, f"{value:g}", ha="center", va="center", fontsize=8, color="#101010")
    ax.set(xlim=(-0.6, 11.6), ylim=(11.6, -0.6), xticks=range(12), yticks=range(12), aspect="equal")
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def diffusion(n: int) -> scipy.sparse.csr_array:
    """−∇·k∇ on n³ points, with a conductivity k between 0.1 and 10 on every edge of the grid."""
    ends = scipy.sparse.diags_array([np.ones(n), -np.ones(n)], offsets=[0, -1], shape=(n + 1, n))
    one = scipy.sparse.eye_array(n)
    along = [(ends, one, one), (one, ends, one), (one, one, ends)]
    G = scipy.sparse.vstack([scipy.sparse.kron(scipy.sparse.kron(a, b), c) for a, b, c in along])
    k = 10 ** np.random.default_rng(0).uniform(-1, 1, G.shape[0])
    return scipy.sparse.csr_array(G.T @ scipy.sparse.diags_array(k) @ G)


def convergences() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    A = jsf.from_scipy(diffusion(16))
    b = np.ones(A.shape[0])
    common = {"rtol": 1e-8, "history": True}
    makers = {
        "none": None,
        "jacobi": precond.jacobi(A),
        "chebyshev": precond.chebyshev(A),
        "incomplete_cholesky": precond.incomplete_cholesky(A),
        "multigrid": precond.multigrid(A),
    }
    solved = {name: cg(A, b, M=M, **common) for name, M in makers.items()}
    yield "positive_definite", lambda ax: plot.convergence(solved, ax, rtol=1e-8)
    C = jsf.from_scipy(jsf.gallery.convection_diffusion(24))
    b = np.ones(C.shape[0])
    others = {f.__name__: f(C, b, **common) for f in (gmres, bicgstab, idrs)}
    others["gmres, incomplete_lu"] = gmres(C, b, M=precond.incomplete_lu(C), **common)
    yield "nonsymmetric", lambda ax: plot.convergence(others, ax, rtol=1e-8)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in [("matrix", matrix), *layouts(), *convergences()]:
        for look, style in (("light", LIGHT), ("dark", DARK)):
            with matplotlib.rc_context(style):
                ax = drawn(None)
                ax.figure.savefig(folder / f"{name}_{look}.svg", transparent=True)
                pyplot.close(ax.figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
