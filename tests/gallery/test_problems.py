"""The model problems against Kronecker products, PyAMG, element assembly, and what mechanics says of them."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt import gallery

EVERY = {
    "poisson": lambda: gallery.poisson((3, 4, 5)),
    "convection_diffusion": lambda: gallery.convection_diffusion(4),
    "hpcg": lambda: gallery.hpcg((2, 3, 4)),
    "elasticity": lambda: gallery.elasticity((2, 3, 4)),
    "power_law": lambda: gallery.power_law(300, mean=9, seed=1),
    "irregular": lambda: gallery.irregular(300, mean=9, spread=20, seed=1),
    "holstein_hubbard": lambda: gallery.holstein_hubbard(3, 2, 3),
    "adaptive_poisson": lambda: gallery.adaptive_poisson(3, levels=2, bodies=2),
    "cfd": lambda: gallery.cfd(3, block_size=2, neighbours=7, seed=1),
}


def by_axes(tridiagonals: list[np.ndarray]) -> np.ndarray:
    """Σ I ⊗ … ⊗ T_axis ⊗ … ⊗ I, the dense oracle of every stencil with neighbours along the axes only."""
    n = math.prod(len(t) for t in tridiagonals)
    total = np.zeros((n, n))
    for axis in range(len(tridiagonals)):
        factors = [t if i == axis else np.eye(len(t)) for i, t in enumerate(tridiagonals)]
        product = np.ones((1, 1))
        for factor in factors:
            product = np.kron(product, factor)
        total += product
    return total


def tridiagonal(n: int, before: float = -1, here: float = 2, after: float = -1) -> np.ndarray:
    return before * np.eye(n, k=-1) + here * np.eye(n) + after * np.eye(n, k=1)


def assembled(nodes: tuple[int, int, int], nu: float) -> np.ndarray:
    """Stiffness of a floating block, brick by brick, from the 6 × 6 elastic matrix and strain rows (Voigt)."""
    shear = (1 - 2 * nu) / 2
    elastic = np.full((3, 3), nu) + (1 - 2 * nu) * np.eye(3)
    elastic = np.block([[elastic, np.zeros((3, 3))], [np.zeros((3, 3)), shear * np.eye(3)]])
    elastic /= (1 + nu) * (1 - 2 * nu)
    corners = list(itertools.product((0, 1), repeat=3))
    brick = np.zeros((24, 24))
    for point in itertools.product((0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5), repeat=3):
        strain = np.zeros((6, 24))
        for a, corner in enumerate(corners):
            shape = [p if c else 1 - p for p, c in zip(point, corner, strict=True)]
            slope = [1 if c else -1 for c in corner]
            dx, dy, dz = (slope[i] * math.prod(shape[j] for j in range(3) if j != i) for i in range(3))
            strain[:, 3 * a : 3 * a + 3] = [[dx, 0, 0], [0, dy, 0], [0, 0, dz], [dy, dx, 0], [0, dz, dy], [dz, 0, dx]]
        brick += strain.T @ elastic @ strain / 8
    stiffness = np.zeros((3 * math.prod(nodes),) * 2)
    for first in itertools.product(*(range(e - 1) for e in nodes)):
        node = np.array([np.ravel_multi_index(np.add(first, corner), nodes) for corner in corners])
        unknown = (3 * node[:, None] + np.arange(3)).ravel()
        stiffness[np.ix_(unknown, unknown)] += brick
    return stiffness


@pytest.mark.parametrize("name", EVERY)
def test_every_matrix_is_canonical_float64_with_int32_indices(name):
    matrix = EVERY[name]()
    assert type(matrix) is sp.csr_array
    assert (matrix.dtype, matrix.indices.dtype, matrix.indptr.dtype) == (np.float64, np.int32, np.int32)
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    place = row.astype(np.int64) * matrix.shape[1] + matrix.indices
    assert np.all(np.diff(place) > 0)
    assert matrix.indices.min() >= 0 and matrix.indices.max() < matrix.shape[1]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_poisson_is_the_sum_of_kronecker_products(extents):
    expected = by_axes([tridiagonal(e) for e in extents])
    np.testing.assert_array_equal(gallery.poisson(tuple(extents)).toarray(), expected)


@given(st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_hpcg_couples_all_neighbours_alike(extents):
    near = [tridiagonal(e, 1, 1, 1) for e in extents]
    expected = 27 * np.eye(math.prod(extents)) - np.kron(np.kron(near[0], near[1]), near[2])
    np.testing.assert_array_equal(gallery.hpcg(tuple(extents)).toarray(), expected)


@given(st.integers(1, 5), st.floats(0.01, 10), st.tuples(*[st.floats(-5, 5)] * 3))
@settings(deadline=None)
def test_convection_is_the_sum_of_kronecker_products(n, diffusion, velocity):
    drift = np.array(velocity) / (2 * diffusion * (n + 1))
    expected = by_axes([tridiagonal(n, -1 - d, 2, -1 + d) for d in drift])
    np.testing.assert_allclose(gallery.convection_diffusion(n, diffusion, velocity).toarray(), expected, rtol=1e-13)


@pytest.mark.parametrize(("nodes", "nu"), [((3, 4, 2), -0.4), ((2, 3, 5), 0.45)])
def test_elasticity_is_what_element_assembly_gives(nodes, nu):
    floating = gallery.elasticity(nodes, nu, clamped=False).toarray()
    np.testing.assert_allclose(floating, assembled(nodes, nu), atol=1e-13)


def test_clamping_removes_the_first_layer_of_nodes():
    floating = gallery.elasticity((4, 3, 2), clamped=False).toarray()
    np.testing.assert_array_equal(gallery.elasticity((3, 3, 2)).toarray(), floating[18:, 18:])


def test_is_a_graph_of_an_exponent_close_to_two_found_without_drawing_for_ever():
    """Most draws repeat the places of the heaviest row and column."""
    matrix = gallery.power_law(64, exponent=2 + 1e-9)
    matrix.check_format()
    assert matrix.nnz == 1024 and matrix.has_canonical_format
    assert np.count_nonzero(np.diff(matrix.indptr) == 64) == 1


@pytest.mark.parametrize("name", ["power_law", "irregular"])
def test_a_seed_says_everything_about_a_random_matrix(name):
    make = getattr(gallery, name)
    one, same, other = make(500, seed=7), make(500, seed=7), make(500, seed=8)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(one, part), getattr(same, part))
    assert not np.array_equal(one.indices[:500], other.indices[:500])
    assert one.data.min() > 0 and one.data.max() <= 1


@pytest.mark.parametrize(("exponent", "axis"), [(2.3, 0), (2.8, 1)])
def test_power_law_has_the_entries_asked_for_and_lengths_with_the_exponent(exponent, axis):
    matrix = gallery.power_law(100_000, 16, exponent)
    assert matrix.nnz == 1_600_000
    lengths = np.diff((matrix.tocsc() if axis == 0 else matrix).indptr)
    longest = np.sort(lengths)[-1001:].astype(float)
    hill = 1 / np.mean(np.log(longest[1:] / longest[0]))
    assert hill == pytest.approx(exponent - 1, rel=0.07)


def test_irregular_keeps_to_its_band_mean_and_spread():
    n, mean, spread, sigma = 50_000, 14, 1000, 0.6
    matrix = gallery.irregular(n, mean, spread, sigma)
    lengths = np.diff(matrix.indptr)
    away = matrix.indices - np.repeat(np.arange(n), lengths)
    assert away.min() >= -spread and away.max() <= spread
    assert np.abs(away).mean() == pytest.approx(spread / 2, rel=0.05)
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert np.log(lengths).std() == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gallery.poisson((3, -1)), "at least 1 point"),
        (lambda: gallery.poisson((2, 2, 2, 2)), "1 to 3 axes"),
        (lambda: gallery.poisson(3, dim=4), "dim must be 1, 2 or 3, got 4"),
        (lambda: gallery.hpcg((4, 4)), "hpcg has 3 axes"),
        (lambda: gallery.convection_diffusion(3, diffusion=math.nan), "diffusion must be finite and above 0, got nan"),
        (lambda: gallery.convection_diffusion(3, velocity=(1.0, 2.0)), "one finite number or three"),
        (lambda: gallery.elasticity(1), "at least 2 free nodes"),
        (lambda: gallery.elasticity(3, poisson_ratio=0.5), "below 0.5, got 0.5"),
        (lambda: gallery.power_law(100, mean=26), "at most n/4 = 25, got 26"),
        (lambda: gallery.power_law(100, exponent=2.0), "above 2, got 2.0"),
        (lambda: gallery.irregular(100, mean=0.5), "mean=0.5"),
        (lambda: gallery.adaptive_poisson(3, levels=20), "levels=20"),
        (lambda: gallery.cfd(3, spread=float("nan")), "spread=nan"),
        (lambda: gallery.cfd(3, neighbours=27), "26 neighbours, got 27"),
        (lambda: gallery.holstein_hubbard(63, 1, 0), "sites must be 1 to 62, got 63"),
        (lambda: gallery.holstein_hubbard(3, (1, -1), 1), "got 1 up and -1 down"),
        (lambda: gallery.holstein_hubbard(3, 2, -1), "phonons must be at least 0, got -1"),
        (lambda: gallery.rigid_body_modes(np.ones(7)), r"\(k, 2\) or \(k, 3\), got \(7,\)"),
    ],
)
def test_nonsense_is_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("d", [2, 3])
def test_rigid_body_modes_strain_nothing_and_are_independent(d):
    x = np.random.default_rng(0).standard_normal((7, d))
    B = gallery.rigid_body_modes(x)
    assert B.shape == (7 * d, d * (d + 1) // 2) and np.linalg.matrix_rank(B) == B.shape[1]
    for u in B.T.reshape(-1, 7, d):
        for i, j in itertools.combinations(range(7), 2):
            assert abs((x[i] - x[j]) @ (u[i] - u[j])) < 1e-12
