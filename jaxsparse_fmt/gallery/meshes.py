"""Matrices of irregular meshes: cubes refined towards surfaces, and points scattered in space."""

import itertools
import math

import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt._arguments import whole_number


def adaptive_poisson(n: int, levels: int = 3, bodies: int = 10, seed: int = 0) -> sp.csr_array:
    """The negative Laplacian on cubes that shrink towards the surfaces of random balls: 4 to 25 entries in a row.

    n³ cubes fill a cube with u = 0 outside. A cube whose centre is nearer to a surface than 5/3 of its edge is split
    into eight, `levels` times. Two cubes that share a face have the entry -area / (distance of their centres), in units
    of the smallest edge, and the diagonal holds the sums. Cubes are numbered along Morton's curve. Shaped after sAMG,
    an adaptive mesh around a car (Kreutzer et al. 2012, §I-C and Fig. 3). `adaptive_poisson(10)` has 105832 rows.

    Args:
        n: of the largest cubes, along each axis.
        bodies: balls. Their centres are uniform, their radii log-uniform from half a cube to n/3 cubes.
        seed: of NumPy's default generator.

    Raises:
        ValueError: n below 1, levels or bodies below 0, or 2²⁰ of the smallest cubes along an axis.

    Examples:
      >>> js.gallery.adaptive_poisson(1).shape[0] > 0
      True
    """
    given = {"n": n, "levels": levels, "bodies": bodies}
    n, levels, bodies = (whole_number(name, value, None) for name, value in given.items())
    if n < 1 or levels < 0 or bodies < 0 or n << levels >= 2**20:
        raise ValueError(
            f"adaptive_poisson needs n >= 1, levels >= 0, bodies >= 0 and n·2**levels < 2**20, "
            f"got n={n}, levels={levels}, bodies={bodies}"
        )
    rng = np.random.default_rng(seed)
    balls = rng.random((bodies, 3)) * n, np.exp(rng.uniform(math.log(0.5), math.log(max(0.5, n / 3)), bodies))
    corner, edge = _octree(n, levels, *balls)
    code = _morton(corner, n << levels)
    order = np.argsort(code)
    corner, edge, code = corner[order], edge[order], code[order]

    diagonal = np.zeros(len(edge))
    places, weights = [], []
    for axis, ahead in itertools.product(range(3), (False, True)):
        beyond = corner.copy()
        beyond[:, axis] += np.where(ahead, edge, -1)
        inside = (beyond[:, axis] >= 0) & (beyond[:, axis] < n << levels)
        diagonal += ~inside * edge
        here = np.flatnonzero(inside)
        there = np.searchsorted(code, _morton(beyond[here], n << levels), side="right") - 1
        # Count a face once: from the smaller of two cubes, and from the first of two equal ones.
        whole = edge[here] < edge[there] + ahead
        here, there = here[whole], there[whole]
        weight = 2 * edge[here] ** 2 / (edge[here] + edge[there])
        for cube in here, there:
            diagonal += np.bincount(cube, weight, minlength=len(edge))
        places += [(here, there), (there, here)]
        weights += [weight, weight]
    every = np.arange(len(edge))
    row, col = np.concatenate([*places, (every, every)], axis=1).astype(np.int32)
    return sp.coo_array((np.concatenate([*(-w for w in weights), diagonal]), (row, col))).tocsr()


def _octree(
    n: int,
    levels: int,
    centre: np.ndarray,  # [ball, axis], in edges of the largest cubes
    radius: np.ndarray,  # [ball]
) -> tuple[np.ndarray, np.ndarray]:
    """Lowest corner [cube, axis] and edge [cube] of every cube, in smallest edges.

    Cubes that share a face differ by at most one level. Proof: if a cube of edge h/2 was split, its
    neighbour of edge h has a centre 0.83h away, so at most (5/6 + 0.83)h < 5/3·h from the surface, and
    was split too.
    """
    children = np.array(list(itertools.product((0, 1), repeat=3)))
    cubes = np.indices((n, n, n)).reshape(3, -1).T
    corners, edges = [], []
    for level in range(levels + 1):
        size = 0.5**level
        near = np.zeros(len(cubes), bool)
        if level < levels:
            for c, r in zip(centre, radius, strict=True):
                near |= abs(np.linalg.norm((cubes + 0.5) * size - c, axis=1) - r) <= 5 / 3 * size
        edge = 1 << (levels - level)
        corners.append(cubes[~near] * edge)
        edges.append(np.full(len(corners[-1]), edge))
        cubes = (2 * cubes[near, None] + children).reshape(-1, 3)
    return np.concatenate(corners), np.concatenate(edges)


def _morton(points: np.ndarray, extent: int) -> np.ndarray:
    """The bits of x, y and z in turn: the codes of the points in a cube of an octree are one interval."""
    code = np.zeros(len(points), np.int64)
    for bit in range(extent.bit_length()):
        code |= (points >> bit & 1) @ np.array([4, 2, 1]) << 3 * bit
    return code


def cfd(n: int, block_size: int = 5, neighbours: float = 62.0, spread: float = 0.1, seed: int = 0) -> sp.csr_array:
    """A flow Jacobian on scattered points: dense blocks, one for each point and each of its neighbours.

    n³ points lie near those of a lattice, off by 5% of its spacing (standard deviation). Each has a reach, lognormal
    with deviation `spread`; the round(n³·neighbours/2) pairs that are closest in units of their mean reach are
    neighbours. Values off the diagonal are uniform in [-1, 0), and every row sums to 1: an unsymmetric M-matrix.

    Shaped after the blocks and row lengths of the DLR matrices (Kreutzer et al. 2012, §I-C and Fig. 3), not after their
    equations. The defaults are for DLR2: dense 5 × 5 blocks, 63 to a row on average, and a `spread` with which pJDS
    saves 44% to 57% of ELLPACK's places (48.0% in the paper). `cfd(20, 6, 23, spread=0)` is for DLR1: 6 × 6 blocks,
    24 to a row, and 17% saved (17.5%).

    Args:
        n: points along each axis of the lattice.
        block_size: unknowns of a point.
        neighbours: of a point on average; at most all the others.
        spread: standard deviation of the logarithm of the reach, 0 to 0.25.
        seed: of NumPy's default generator.

    Raises:
        ValueError: an argument outside these ranges.

    Examples:
      >>> js.gallery.cfd(2, neighbours=3).shape
      (40, 40)
    """
    n, block_size = whole_number("n", n, None), whole_number("block_size", block_size, None)
    if n < 1 or block_size < 1 or not 0 <= spread <= 0.25:
        raise ValueError(
            f"cfd needs n >= 1, block_size >= 1 and 0 <= spread <= 0.25, "
            f"got n={n}, block_size={block_size}, spread={spread}"
        )
    if not 0 <= neighbours <= n**3 - 1:
        raise ValueError(f"a point has 0 to n³ - 1 = {n**3 - 1} neighbours, got {neighbours}")
    rng = np.random.default_rng(seed)
    first, second = _closest_pairs(n, neighbours, spread, rng)
    point = np.arange(n**3)
    row, col = np.concatenate([(first, second), (second, first), (point, point)], axis=1)
    order = np.argsort(row * n**3 + col)
    row, col = row[order], col[order].astype(np.int32)
    row_ptr = np.append(0, np.cumsum(np.bincount(row))).astype(np.int32)

    blocks = rng.random((len(row), block_size, block_size)) - 1
    unknown = np.arange(block_size)
    diagonal = np.flatnonzero(row == col)[:, None], unknown, unknown
    blocks[diagonal] = 0
    blocks[diagonal] = 1 - np.add.reduceat(blocks.sum(axis=2), row_ptr[:-1])
    return sp.bsr_array((blocks, col, row_ptr), shape=(n**3 * block_size,) * 2).tocsr()


def _closest_pairs(
    n: int, neighbours: float, spread: float, rng: np.random.Generator
) -> np.ndarray:  # [2, pair], each pair once
    from scipy.spatial import KDTree  # slow to import, and nothing else needs it

    points = np.indices((n, n, n)).reshape(3, -1).T + 0.05 * rng.standard_normal((n**3, 3))
    reach = np.exp(spread * rng.standard_normal(n**3))
    tree, wanted = KDTree(points), round(n**3 * neighbours / 2)
    limit = (3 * neighbours / (4 * math.pi)) ** (1 / 3)  # the radius of a ball of `neighbours` points
    while True:
        pairs = tree.query_pairs(limit * reach.max(), output_type="ndarray").T
        apart = np.linalg.norm(points[pairs[0]] - points[pairs[1]], axis=1) / reach[pairs].mean(axis=0)
        # `pairs` holds all pairs up to the limit, and only some beyond it.
        if np.count_nonzero(apart <= limit) >= wanted:
            return pairs[:, np.argsort(apart)[:wanted]]
        limit *= 1.1
