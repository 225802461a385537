"""Matrices of irregular meshes: faces counted on the finest grid, and the row lengths of the paper's Fig. 3."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt.gallery import adaptive_poisson, cfd, meshes, poisson


def row_lengths(matrix: sp.csr_array) -> np.ndarray:
    return np.diff(matrix.indptr)


def painted(n: int, levels: int, bodies: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which cube of `adaptive_poisson` fills each place of the finest grid, and the cubes' edges."""
    rng = np.random.default_rng(seed)
    centre, radius = n * rng.random((bodies, 3)), np.exp(rng.uniform(np.log(0.5), np.log(max(0.5, n / 3)), bodies))
    corner, edge = meshes._octree(n, levels, centre, radius)
    # Morton's order: by the highest bits of x, y and z first.
    order = sorted(range(len(edge)), key=lambda k: [int(x) >> bit & 1 for bit in range(9, -1, -1) for x in corner[k]])
    edge = edge[order]
    grid = np.zeros((n << levels,) * 3, int)
    for cube, (at, size) in enumerate(zip(corner[order], edge, strict=True)):
        grid[tuple(slice(a, a + size) for a in at)] += cube + 1
    return grid - 1, edge


@pytest.mark.parametrize("seed", range(2))
def test_entries_are_the_areas_of_the_faces_over_their_distances(seed):
    grid, edge = painted(3, 2, 3, seed)
    area, outside = np.zeros((len(edge), len(edge))), np.zeros(len(edge))
    for axis in range(3):
        np.add.at(area, (np.delete(grid, -1, axis), np.delete(grid, 0, axis)), 1)
        for end in (0, -1):
            np.add.at(outside, np.take(grid, end, axis), 1)
    area += area.T
    np.fill_diagonal(area, 0)
    expected = -area / np.add.outer(edge / 2, edge / 2)
    np.fill_diagonal(expected, outside / edge - expected.sum(axis=1))
    np.testing.assert_allclose(adaptive_poisson(3, 2, 3, seed).toarray(), expected, atol=1e-12)


def test_without_levels_it_is_the_regular_grid_renumbered():
    np.testing.assert_array_equal(adaptive_poisson(2, levels=0).toarray(), poisson(2).toarray())
    found, expected = (np.linalg.eigvalsh(m.toarray()) for m in (adaptive_poisson(5, levels=0), poisson(5)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_adaptive_mesh_has_the_row_lengths_of_samg():
    lengths = row_lengths(adaptive_poisson(10))
    assert len(lengths) == 105832  # as the docstring says
    assert lengths.mean() == pytest.approx(7, abs=0.5)
    assert 4 * lengths.min() < lengths.max() <= 25
    assert np.mean(lengths <= 7) > 0.8


@given(st.integers(1, 5), st.integers(1, 6), st.floats(0, 1), st.floats(0, 0.25), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_cfd_has_exactly_the_blocks_asked_for_and_rows_that_sum_to_one(n, block, share, spread, seed):
    neighbours = share * (n**3 - 1)
    matrix = cfd(n, block, neighbours, spread, seed)
    assert matrix.nnz == block**2 * (n**3 + 2 * round(n**3 * neighbours / 2))
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-11)
    outside = matrix - sp.diags_array(matrix.diagonal())
    assert outside.nnz == 0 or outside.max() <= 0


def test_cfd_has_the_row_lengths_of_dlr1_and_dlr2():
    lengths = row_lengths(cfd(16))
    assert lengths.mean() == 315  # §I-C
    assert np.mean(lengths <= 0.8 * lengths.max()) > 0.9  # few long ones: Fig. 3
    lengths = row_lengths(cfd(20, 6, 23, spread=0))
    assert lengths.mean() == 144
    assert np.mean(lengths >= 0.8 * lengths.max()) == pytest.approx(0.8, abs=0.1)
