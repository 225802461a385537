"""The systems that `solve_costs` solves: model problems of a scale, and the files of two folders."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.io
import scipy.ndimage
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.factors import circuit

LARGE = 60_000  # unknowns of the files, at most
SYSTEMS: dict[str, Callable[[float], Any]] = {
    "poisson 2D": lambda s: jsf.gallery.poisson(int(200 * s), dim=2),
    "poisson 3D": lambda s: jsf.gallery.poisson(int(32 * s)),
    "convection 3D": lambda s: jsf.gallery.convection_diffusion(int(24 * s)),
    "elasticity": lambda s: jsf.gallery.elasticity(int(14 * s)),
    "biharmonic": lambda s: jsf.gallery.poisson(int(100 * s), dim=2) @ jsf.gallery.poisson(int(100 * s), dim=2),
    "Helmholtz, complex": lambda s: helmholtz(int(80 * s)),
    "power law": lambda s: laplacian(abs(jsf.gallery.power_law(int(5_000 * s)))),
    "Neumann": lambda s: neumann(int(30 * s)),
    "anisotropic": lambda s: sp.kronsum(line(int(200 * s)), 1e-3 * line(int(200 * s))),
    "weak convection 2D": lambda s: convection(int(200 * s)),
    "mixed Poisson": lambda s: mixed(int(60 * s)),
    "shifted Poisson": lambda s: jsf.gallery.poisson(int(150 * s), dim=2) - 0.003 * sp.eye_array(int(150 * s) ** 2),
    "circuit": lambda s: circuit(int(8_000 * s)),
}
LARGE_SYSTEMS: dict[str, Callable[[float], Any]] = {
    "lognormal": lambda s: diffusion([int(60 * s)] * 3, lambda rng, x: np.exp(2 * rng.standard_normal(x[0].shape))),
    "layers and channels": lambda s: diffusion([int(60 * s), int(220 * s), int(20 * s)], channels),
    "jumps": lambda s: diffusion([int(48 * s)] * 3, lambda rng, x: np.where(np.sum(x // 12, 0) % 2, 1e6, 1.0)),
    "slender elasticity": lambda s: jsf.gallery.elasticity((int(200 * s), int(12 * s), int(12 * s))),
    "nearly incompressible": lambda s: jsf.gallery.elasticity(int(22 * s), 0.499),
    "Oseen": lambda s: oseen(int(250 * s)),
    "Helmholtz with an absorbing layer": lambda s: absorbing(int(500 * s)),
    "Maxwell": lambda s: maxwell(int(40 * s)),
    "biharmonic": lambda s: SYSTEMS["biharmonic"](5 * s),
    "Neumann": lambda s: neumann(int(60 * s)),
    "power law": lambda s: SYSTEMS["power law"](50 * s),
    "circuit": lambda s: circuit(int(250_000 * s)),
    "strong convection 3D": lambda s: convection(int(60 * s), 3, 10.0),
    "weak convection 2D": lambda s: convection(int(500 * s)),
    "five dimensions, complex": lambda s: sum_of_lines(int(11 * s), 5) + (3 - 0.5j) * sp.eye_array(int(11 * s) ** 5),
    "bundle adjustment": lambda s: bundles(int(60_000 * s), int(200 * s)),
    "permuted triangle": lambda s: triangle(int(80_000 * s)),
}


def helmholtz(n: int) -> Any:
    return jsf.gallery.poisson(n, dim=2) - (0.05 + 0.005j) * sp.eye_array(n * n)


def laplacian(W: Any) -> Any:
    W = sp.csr_array(W + W.T)
    return sp.diags_array(np.asarray(W.sum(axis=1)).ravel() + 1e-3) - W


def line(n: int) -> Any:
    return sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))


def neumann(n: int) -> Any:
    """Singular: the constant vector is in the kernel."""
    A = jsf.gallery.poisson(n)
    return A - sp.diags_array(np.asarray(A.sum(axis=1)).ravel())


def sum_of_lines(n: int, dim: int) -> Any:
    return functools.reduce(sp.kronsum, [line(n)] * dim)


def convection(n: int, dim: int = 2, speed: float = 0.02) -> Any:
    """Upwind, the flow along one axis."""
    flow = line(n) + speed * sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n))
    return sp.kronsum(sum_of_lines(n, dim - 1), flow)


def mixed(n: int) -> Any:
    """Mixed Poisson, fluxes on faces and pressures in cells: a saddle point."""
    D = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n, n + 1))
    B = sp.hstack([sp.kron(sp.eye_array(n), D), sp.kron(D, sp.eye_array(n))])
    return sp.block_array([[sp.eye_array(B.shape[1]), B.T], [B, None]])


def diffusion(shape: list[int], coefficient: Callable[[Any, Any], Any]) -> Any:
    """Finite volumes, with harmonic means of coefficients of cells, or of cells and axes; u = 0 outside."""
    cells = np.indices(shape)
    k = np.broadcast_to(coefficient(np.random.default_rng(0), cells), (len(shape), *shape))
    number, parts = np.arange(cells[0].size).reshape(shape), []
    D = np.zeros(shape)
    for axis in range(len(shape)):
        low, high = (np.delete(number, where, axis).ravel() for where in (-1, 0))
        of_axis = k[axis].ravel()
        w = 2 / (1 / of_axis[low] + 1 / of_axis[high])
        parts.append(sp.coo_array((w, (low, high)), shape=(number.size, number.size)))
        ends = np.zeros(shape)
        for where in (0, -1):
            np.moveaxis(ends, axis, 0)[where] += 2 * np.moveaxis(k[axis], axis, 0)[where]
        D += ends
    W = sp.csr_array(sum(parts, start=sp.coo_array((number.size, number.size))))
    W = W + W.T
    return sp.diags_array(D.ravel() + np.asarray(W.sum(axis=1)).ravel()) - W


def channels(rng: Any, cells: Any) -> Any:
    """Permeable channels in layers, with little flow from one layer to the next, after the second model of SPE10."""
    smooth = scipy.ndimage.gaussian_filter(rng.standard_normal(cells[0].shape), (3, 8, 0.5))
    k = 10 ** (2 * smooth / np.std(smooth))
    return np.stack([k, k, 1e-3 * k])


def oseen(n: int) -> Any:
    """Stokes' equations on staggered cells, with upwind convection by a vortex; a pressure is pinned by 1e-8."""
    one, D = sp.eye_array(n), sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n - 1))
    B = sp.hstack([sp.kron(one, D), sp.kron(D, one)])
    y, x = np.mgrid[:n, : n - 1] / n
    speeds = 30 * np.concatenate([(np.sin(2 * np.pi * y) * np.sin(np.pi * x) ** 2).ravel()] * 2) / n
    flows = []
    for shape in ((n, n - 1), (n - 1, n)):
        m = shape[1]
        gap = sp.kron(sp.eye_array(shape[0]), sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(m, m)))
        c = sp.diags_array(np.abs(speeds[: shape[0] * m]))
        flows.append(sp.kronsum(line(m), line(shape[0])) + c @ gap)
    return sp.block_array([[sp.block_diag(flows), B.T], [B, -1e-8 * sp.eye_array(n * n)]])


def absorbing(n: int) -> Any:
    """Helmholtz' equation, 20 waves across, in a complex layer of a tenth of the width."""
    h, k = 1 / (n + 1), 2 * np.pi * 20
    depth = np.maximum(0, 0.1 - np.minimum(np.arange(1, n + 1) * h, 1 - np.arange(1, n + 1) * h)) / 0.1
    stretch = 1 / (1 + 1j * 2 * depth**2)
    L = sp.diags_array(stretch) @ line(n) @ sp.diags_array(stretch)
    return sp.kronsum(L, L) - (h * k) ** 2 * sp.eye_array(n * n)


def maxwell(n: int) -> Any:
    """curl curl + 0.01 on the edges of n³ cells."""
    D, one = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n, n + 1)), sp.eye_array(n)
    wide = sp.eye_array(n + 1)

    def three(a: Any, b: Any, c: Any) -> Any:
        return sp.kron(sp.kron(a, b), c)

    curl = sp.block_array(
        [
            [None, -three(wide, one, D), three(wide, D, one)],
            [three(one, wide, D), None, -three(D, wide, one)],
            [-three(one, D, wide), three(D, one, wide), None],
        ]
    )
    return curl.T @ curl + 0.01 * sp.eye_array(curl.shape[1])


def bundles(points: int, cameras: int) -> Any:
    """Normal equations of a bundle adjustment: each point is seen by four near cameras."""
    rng = np.random.default_rng(0)
    first = np.arange(points) * (cameras - 8) // points
    camera = first[:, None] + np.argsort(rng.random((points, 8)))[:, :4]
    rows = np.arange(8 * points).reshape(points, 4, 2, 1)
    of_points = np.broadcast_to(3 * np.arange(points)[:, None, None, None] + np.arange(3), (points, 4, 2, 3))
    of_cameras = np.broadcast_to(3 * points + 9 * camera[:, :, None, None] + np.arange(9), (points, 4, 2, 9))
    cols = np.concatenate([of_points, of_cameras], -1)
    J = sp.csr_array((rng.standard_normal(cols.size), (np.broadcast_to(rows, cols.shape).ravel(), cols.ravel())))
    return J.T @ J + 1e-3 * sp.eye_array(J.shape[1])


def triangle(n: int) -> Any:
    rng, i = np.random.default_rng(0), np.repeat(np.arange(n), 4)
    j = (rng.random(i.size) * i).astype(int)
    T = sp.coo_array((rng.uniform(-0.3, 0.3, i.size), (i, j)), shape=(n, n)).tocsr()
    T = sp.tril(T, -1, "csr") + sp.diags_array(rng.uniform(1, 2, n))
    return T.tocsr()[rng.permutation(n)][:, rng.permutation(n)]


def systems(scale: float) -> Iterator[tuple[str, Any]]:
    for name, make in SYSTEMS.items():
        yield name, sp.csr_array(make(scale))
    for path in report.matrix_files():
        if scipy.io.mminfo(path)[4] == "pattern":  # without values, and no system
            continue
        S = sp.csr_array(scipy.io.mmread(path, spmatrix=False))
        if S.shape[0] == S.shape[1] <= LARGE * scale:
            yield path.name.partition(".")[0], S.astype(np.result_type(S.dtype, float))
