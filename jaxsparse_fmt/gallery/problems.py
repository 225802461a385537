"""Matrices of grids, and random matrices.

Grid points are numbered in C order (the last axis runs fastest), and the unknowns of a point are consecutive.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt._arguments import whole_number
from jaxsparse_fmt._dtypes import index_dtype


def poisson(n: int | Sequence[int], dim: int = 3) -> sp.csr_array:
    """The negative Laplacian on a grid of n**dim points: 2·dim + 1 entries in an interior row.

    2·dim on the diagonal and -1 for each neighbour, that is -h²Δ by centred differences with
    u = 0 outside the grid. Symmetric positive definite. `poisson(100)` is the papers' pde100
    (Barbieri et al. 2015, Table 2) without its convection.

    Args:
        n: points along each axis, or one number for each axis (then `dim` is ignored).
        dim: 1, 2 or 3 axes.

    Raises:
        ValueError: an extent below 1, or a number of axes other than 1, 2 or 3.

    Examples:
      >>> js.gallery.poisson(4, dim=2).shape
      (16, 16)
    """
    extents = _extents(n, dim)
    return _cross(extents, [(-1.0, -1.0)] * len(extents))


def hpcg(n: int | Sequence[int]) -> sp.csr_array:
    """The matrix of the HPCG benchmark: 26 on the diagonal, -1 for each of the 26 neighbours of a point on a grid.

    27 entries in an interior row (Dongarra, Heroux and Luszczek, Int. J. High Performance Computing Applications 30,
    2016). Symmetric positive definite.

    Args:
        n: points along each of three axes, or three numbers.

    Raises:
        ValueError: an extent below 1, or not three axes.

    Examples:
      >>> js.gallery.hpcg(2).shape
      (8, 8)
    """
    extents = _extents(n, 3)
    if len(extents) != 3:
        raise ValueError(f"hpcg has 3 axes, got {extents}")
    offsets = np.array(list(itertools.product((-1, 0, 1), repeat=3)))
    return _stencil(extents, offsets, np.where(np.any(offsets, axis=1), -1.0, 26.0)[:, None])


def convection_diffusion(
    n: int, diffusion: float = 1 / 80, velocity: float | Sequence[float] = 1 / math.sqrt(3)
) -> sp.csr_array:
    """The papers' pdeN: -diffusion·Δu + velocity·∇u on the unit cube, 7 entries in a row.

    Centred differences on n³ interior points with Dirichlet boundaries (Barbieri et al. 2015, §4 and Table 2), with the
    coefficients of its authors' generator, PSBLAS `ppde3d.f90`. Rows are scaled by h²/diffusion, h = 1/(n + 1): 6 on
    the diagonal, -1 ∓ velocity·h/(2·diffusion) for the two neighbours along an axis. Not symmetric.

    Args:
        n: interior points along each axis.
        velocity: one number for all three axes, or three.

    Raises:
        ValueError: n below 1, a diffusion that is not above 0, or a velocity not of 1 or 3 numbers.

    Examples:
      >>> js.gallery.convection_diffusion(3).shape
      (27, 27)
    """
    extents = _extents(whole_number("n", n, None), 3)
    if not (diffusion > 0 and math.isfinite(diffusion)):
        raise ValueError(f"diffusion must be finite and above 0, got {diffusion}")
    if np.shape(velocity) not in ((), (3,)) or not np.all(np.isfinite(velocity)):
        raise ValueError(f"velocity must be one finite number or three, got {velocity!r}")
    drift = np.broadcast_to(np.asarray(velocity) / (2 * diffusion * (extents[0] + 1)), 3)
    return _cross(extents, [(-1 - d, -1 + d) for d in drift])


def elasticity(n: int | Sequence[int], poisson_ratio: float = 0.3, clamped: bool = True) -> sp.csr_array:
    """Linear elasticity of a block of trilinear bricks: 27 neighbours × 3 displacements, 81 a row.

    The stiffness matrix of 8-node unit cubes with Young's modulus 1 on n³ free nodes: 3n³ rows in 3×3 blocks, each
    stored whole with its zeros. One more layer of nodes, before the first along axis 0, is held fixed and eliminated,
    which makes it symmetric positive definite; with `clamped=False` its six rigid motions span the null space.

    Args:
        n: free nodes along each axis, or three numbers; at least 2 along each axis that is not clamped.
        poisson_ratio: above -1 and below 0.5, where the material would be incompressible.

    Raises:
        ValueError: too few nodes, not three axes, or a Poisson ratio outside its range.

    Examples:
      >>> js.gallery.elasticity(2).shape
      (24, 24)
    """
    extents = _extents(n, 3)
    if len(extents) != 3 or min(extents[1:] if clamped else extents) < 2:
        raise ValueError(f"elasticity needs 3 axes with at least 2 free nodes each, got {extents}")
    if not -1 < poisson_ratio < 0.5:
        raise ValueError(f"poisson_ratio must be above -1 and below 0.5, got {poisson_ratio}")
    corners = np.array(list(itertools.product((0, 1), repeat=3)))
    offsets = np.array(list(itertools.product((-1, 0, 1), repeat=3)))
    stiffness = _brick_stiffness(corners, poisson_ratio)

    # Along an axis a node is corner 0 of the next brick and corner 1 of the previous one. Its rows depend on which of
    # the two exist, so there are four kinds of node along an axis.
    touches = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])  # [kind, corner]
    by_kind = np.zeros((4, 4, 4, 3, 27, 3))  # [kind, kind, kind, unknown, offset, its unknown]
    for (a, here), (b, there) in itertools.product(enumerate(corners), repeat=2):
        offset = (there - here + 1) @ (9, 3, 1)
        x, y, z = touches[:, here].T
        by_kind[..., offset, :] += np.einsum("x,y,z,ij->xyzij", x, y, z, stiffness[a, :, b])
    kinds = [(np.arange(e) < e - 1) + 2 * (np.arange(e) > 0) for e in extents]
    if clamped:
        kinds[0][0] |= 2
    return _stencil(extents, offsets, by_kind[np.ix_(*kinds)])


def _brick_stiffness(
    corners: np.ndarray,  # [corner, axis], 0 or 1
    poisson_ratio: float,
) -> np.ndarray:  # [corner, axis, corner, axis]
    """∫ λ·div u·div v + 2μ·ε(u):ε(v) over the unit cube, exact by 2×2×2 Gauss points.

    Trilinear shape functions and quadrature: Hughes, The Finite Element Method, §3.5 and §3.8.
    """
    gauss = 0.5 + (corners - 0.5) / math.sqrt(3)
    x, y, z = np.moveaxis(np.where(corners, gauss[:, None], 1 - gauss[:, None]), -1, 0)
    grad = np.stack([y * z, x * z, x * y], axis=-1) * (2 * corners - 1)  # [point, corner, axis]
    outer = np.einsum("pai,pbj->aibj", grad, grad) / len(gauss)
    inner = np.einsum("akbk,ij->aibj", outer, np.eye(3))
    mu = 0.5 / (1 + poisson_ratio)
    lame = 2 * mu * poisson_ratio / (1 - 2 * poisson_ratio)
    return lame * outer + mu * (inner + np.swapaxes(outer, 1, 3))


def rigid_body_modes(points: Any) -> np.ndarray:
    """The motions without strain, the near-null space of elasticity: translations, and rotations about the centre.

    Args:
        points: [k, d] coordinates, d = 2 or 3; the unit of length does not matter.

    Returns:
        [k·d, 3] or [k·d, 6], for displacements numbered point by point.

    Raises:
        ValueError: another shape, or numbers that are not finite.

    Examples:
      >>> js.gallery.rigid_body_modes(np.zeros((4, 3))).shape
      (12, 6)
    """
    x = np.asarray(points, np.float64)
    if x.ndim != 2 or x.shape[1] not in (2, 3) or not np.all(np.isfinite(x)) or x.shape[0] == 0:
        raise ValueError(f"points must be finite, of shape (k, 2) or (k, 3), got {x.shape}")
    k, d = x.shape
    x = x - x.mean(axis=0)
    x = x / (np.max(np.abs(x)) or 1)  # as large as the translations
    planes = [(i, j) for i in range(d) for j in range(i)]
    modes = np.zeros((k, d, d + len(planes)))
    modes[:, range(d), range(d)] = 1
    for m, (i, j) in enumerate(planes, d):
        modes[:, i, m], modes[:, j, m] = x[:, j], -x[:, i]
    return modes.reshape(k * d, -1)


def power_law(n: int, mean: float = 16.0, exponent: float = 2.5, seed: int = 0) -> sp.csr_array:
    """A random n × n graph whose row and column lengths follow a power law, like the web's.

    Row i and column j are drawn in proportion to w_i·w_j, w the weights i**(-1/(exponent - 1)) of Chung and Lu (Annals
    of Combinatorics 6, 2002) in random order, until round(n·mean) different places are found. Values are uniform in
    (0, 1].

    Args:
        n: rows and columns.
        mean: entries per row, above 0 and at most n/4.
        exponent: of the distribution of lengths, above 2; smaller is more uneven.
        seed: of NumPy's default generator.

    Raises:
        ValueError: an argument outside these ranges, or an exponent so close to 2 that a large graph is not found.

    Examples:
      >>> js.gallery.power_law(64).shape
      (64, 64)
    """
    (n,) = _extents(whole_number("n", n, None), 1)
    if not 0 < mean <= max(1, n / 4):
        raise ValueError(f"mean must be above 0 and at most n/4 = {n / 4:g}, got {mean}")
    if not (exponent > 2 and math.isfinite(exponent)):
        raise ValueError(f"exponent must be finite and above 2, got {exponent}")
    rng = np.random.default_rng(seed)
    names = rng.permutation(n)
    power = (exponent - 1) / (exponent - 2)
    nnz = round(n * mean)
    places, drawn = np.empty(0, np.int64), 0
    while places.size < nnz:
        missing = nnz - places.size
        if drawn > 50 * (nnz + 100):
            if n > 4096:
                raise ValueError(f"{drawn} draws with exponent={exponent} found {places.size} places; use a larger one")
            # What such draws would find in the end: the largest of random keys (Gumbel's distribution).
            weight = np.log(np.diff((np.arange(n + 1) / n) ** (1 / power)))[np.argsort(names)]
            keys = (weight[:, None] + weight + rng.gumbel(size=(n, n))).ravel()
            places = np.sort(np.argpartition(-keys, nnz - 1)[:nnz])
            break
        drawn += missing + missing // 4 + 100
        rank = n * rng.random((2, missing + missing // 4 + 100)) ** power
        row, col = names[rank.astype(np.int64)]
        places = np.sort(np.concatenate([places, row * n + col]))
        places = places[np.diff(places, prepend=-1) > 0]
    surplus = rng.choice(places.size, places.size - nnz, replace=False, shuffle=False)
    row, col = np.divmod(np.delete(places, surplus), n)
    return _canonical(1 - rng.random(nnz), col, np.bincount(row, minlength=n), n)


def irregular(n: int, mean: float = 14.0, spread: int = 50_000, sigma: float = 0.6, seed: int = 0) -> sp.csr_array:
    """A random n × n matrix with lognormal row lengths near the diagonal, like an adaptive mesh.

    The window [row - spread, row + spread] of a row has as many equal parts as the row has entries,
    and each part gives one column, drawn at random: none occurs twice. Values are uniform in (0, 1].

    Args:
        n: rows and columns.
        mean: of the lognormal; the row lengths are rounded, at least 1 and at most the window.
        spread: columns on either side of the diagonal that a row can reach.
        sigma: standard deviation of the logarithm of the row lengths.
        seed: of NumPy's default generator.

    Raises:
        ValueError: n, mean, spread or sigma below their smallest sensible value (1, 1, 0, 0).

    Examples:
      >>> js.gallery.irregular(64, spread=8).shape
      (64, 64)
    """
    (n,) = _extents(whole_number("n", n, None), 1)
    spread = whole_number("spread", spread, None)
    if not (1 <= mean < math.inf and spread >= 0 and 0 <= sigma < math.inf):
        raise ValueError(
            f"irregular needs mean >= 1, spread >= 0 and sigma >= 0, got mean={mean}, spread={spread}, sigma={sigma}"
        )
    rng = np.random.default_rng(seed)
    row = np.arange(n)
    first, end = np.maximum(row - spread, 0), np.minimum(row + spread, n - 1) + 1
    drawn = np.rint(rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n))
    length = np.clip(drawn, 1, end - first).astype(np.int64)
    row_end = np.cumsum(length)
    part = np.arange(row_end[-1]) - np.repeat(row_end - length, length)
    low = part * np.repeat(end - first, length) // np.repeat(length, length)
    low += np.repeat(first, length)
    high = np.append(low[1:], 0)
    high[row_end - 1] = end
    col = low + (rng.random(low.size) * (high - low)).astype(np.int64)
    return _canonical(1 - rng.random(low.size), col, length, n)


def _extents(n: int | Sequence[int], dim: int) -> tuple[int, ...]:
    if isinstance(n, Sequence):
        extents = tuple(whole_number("n", e, None) for e in n)
    elif whole_number("dim", dim, None) in (1, 2, 3):
        extents = (whole_number("n", n, None),) * int(dim)
    else:
        raise ValueError(f"dim must be 1, 2 or 3, got {dim}")
    if len(extents) not in (1, 2, 3) or min(extents) < 1:
        raise ValueError(f"a grid has 1 to 3 axes of at least 1 point each, got {n}")
    return extents


def _cross(extents: tuple[int, ...], neighbours: list[tuple[float, float]]) -> sp.csr_array:
    """The stencil of a point and the two neighbours along each axis; 2·dim on the diagonal."""
    one = np.eye(len(extents), dtype=int)
    before, after = np.array(neighbours).T
    offsets = np.concatenate([-one, 0 * one[:1], one[::-1]])
    values = np.concatenate([before, [2.0 * len(extents)], after[::-1]])
    return _stencil(extents, offsets, values[:, None])


def _stencil(
    extents: tuple[int, ...],
    offsets: np.ndarray,  # [k, axis], each -1, 0 or 1, in lexicographic order
    blocks: np.ndarray,  # [*extents, b, k, b], or [k, b] for all rows
) -> sp.csr_array:
    """Each grid point coupled to those at `offsets` from it, by dense b × b blocks.

    Lexicographic offsets give sorted columns, so the CSR arrays need no sorting.
    """
    points, width = math.prod(extents), blocks.shape[-1]
    inside = np.ones((*extents, len(offsets)), bool)
    for axis, extent in enumerate(extents):
        target = np.arange(extent)[:, None] + offsets[:, axis]
        reached = (target >= 0) & (target < extent)
        inside &= reached.reshape(extent, *(1,) * (len(extents) - 1 - axis), len(offsets))
    length = np.repeat(width * inside.sum(axis=-1, dtype=np.int32).ravel(), width)

    strides = np.cumprod((1, *extents[:0:-1]))[::-1]
    step = (offsets @ strides)[:, None] * width + np.arange(width)
    index = index_dtype(max(points * width, int(length.sum())))
    col = width * np.arange(points, dtype=index)[:, None] + step.ravel().astype(index)
    shape = (points, width, len(offsets) * width)
    kept = np.broadcast_to(inside.reshape(points, 1, -1).repeat(width, axis=-1), shape)
    data = np.broadcast_to(blocks.reshape(-1, width, shape[-1]), shape)[kept]
    return _canonical(data, np.broadcast_to(col[:, None], shape)[kept], length, points * width)


def _canonical(
    data: np.ndarray,  # [nnz]
    col: np.ndarray,  # [nnz], sorted and unique within a row
    length: np.ndarray,  # [n] entries per row
    n: int,
) -> sp.csr_array:
    index = index_dtype(max(n, data.size))
    row_ptr = np.zeros(n + 1, index)
    np.cumsum(length, out=row_ptr[1:])
    matrix = sp.csr_array((data, col.astype(index, copy=False), row_ptr), shape=(n, n))
    matrix.has_canonical_format = True
    return matrix
