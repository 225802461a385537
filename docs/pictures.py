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

import jaxsparse_fmt as jsf
from jaxsparse_fmt import plot
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


def layouts() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    S = small_matrix()
    for name in jsf.FORMATS:
        A = jsf.from_scipy(S, name, "float32", **SMALL.get(name, {}))
        yield f"layout_{name}", lambda ax, A=A: plot.layout(A, ax)


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
