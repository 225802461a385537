"""What factors show of a matrix that is singular, or nearly."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers.host import Host
from solvers.superlu import factored, scales
from tests.solvers.test_solve import tridiagonal

RNG = np.random.default_rng(0)


def laplacian(S: sp.csr_array) -> sp.csr_array:
    """Of the graph with S's entries off the diagonal."""
    off = abs(S - sp.diags_array(S.diagonal()))
    return sp.csr_array(sp.diags_array(np.asarray(off.sum(axis=1)).ravel()) - off)


def markov(n: int) -> sp.csr_array:
    """I − P for the transition probabilities P of a chain, column by column: its null vector is not constant."""
    P = sp.random_array((n, n), density=4 / n, rng=np.random.default_rng(1)) + sp.eye_array(n, k=1) + sp.eye_array(n)
    P = P @ sp.diags_array(1 / np.asarray(P.sum(axis=0)).ravel())
    return sp.csr_array(sp.eye_array(n) - P)


def units(n: int) -> np.ndarray:
    return 10.0 ** RNG.uniform(-8, 8, n)


SQUARE = jsf.gallery.poisson(12, dim=2)
ROWS = RNG.standard_normal((57, 60)) * (RNG.uniform(size=(57, 60)) < 0.2)
SINGULAR = {
    "a Laplacian": (laplacian(SQUARE), 1),
    "four of them": (sp.block_diag([laplacian(SQUARE)] * 4), 4),
    "a Markov chain": (markov(300), 1),
    "unsymmetric units": (sp.diags_array(units(144)) @ laplacian(SQUARE) @ sp.diags_array(units(144)), 1),
    "a product": (sp.csr_array(ROWS.T @ ROWS * (1 + 0j)), 3),
}
REGULAR = {
    "mixed units": sp.diags_array(units(144)) @ SQUARE @ sp.diags_array(units(144)),
    "a graded diagonal": sp.diags_array(10.0 ** -np.arange(40)),
    "ill-conditioned, without a gap": sp.linalg.matrix_power(tridiagonal(200, middle=2.0), 5),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_is_the_null_space_found_that_the_singular_values_show(name):
    S, dimension = SINGULAR[name]
    found = factored(Host(sp.csr_array(S)))
    Z, rows = found.null_space, np.asarray(abs(S).max(axis=1).todense()).ravel()
    assert Z is not None and Z.shape == (S.shape[0], dimension) and found.condition > 1e14
    np.testing.assert_allclose(Z.conj().T @ Z, np.eye(dimension), atol=1e-12)
    assert np.max(np.abs(S @ Z)[rows > 0] / rows[rows > 0, None]) <= 1e-10 * np.max(np.abs(Z))


@pytest.mark.parametrize("name", REGULAR)
def test_has_a_regular_matrix_a_null_space(name):
    found = factored(Host(sp.csr_array(REGULAR[name])))
    assert found.null_space is None and (found.condition < 1e13 or "gap" in name)


def test_the_condition_is_that_of_the_scaled_matrix():
    S = sp.csc_array(SINGULAR["unsymmetric units"][0] + 1e-3 * REGULAR["mixed units"])
    rows, cols, norm = scales(S)
    B = S.toarray() / rows[:, None] / cols
    assert np.max(np.abs(B)) <= 1 + 1e-12 and norm == pytest.approx(np.linalg.norm(B, np.inf))
    exact = norm * np.linalg.norm(np.linalg.inv(B), 1)
    assert exact / 3 <= factored(Host(S)).condition <= exact * (1 + 1e-6)
