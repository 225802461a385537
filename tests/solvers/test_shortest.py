"""Singular systems: the shortest solution, whichever systems were solved before."""

import sys

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, solve
from tests.solvers.test_conditioning import laplacian, markov, units

GRID = laplacian(jsf.gallery.poisson(8))
MADE = {
    "Neumann": (GRID, Status.LEAST_SQUARES),
    "Markov": (markov(GRID.shape[0]), Status.LEAST_SQUARES),
    "parts": (sp.block_diag([laplacian(jsf.gallery.poisson(n, dim=2)) for n in (14, 12, 16)], "csr"), None),
}


@pytest.mark.parametrize("name", MADE)
def test_is_x_the_shortest_whatever_was_solved_before(name, monkeypatch):
    S, status = MADE[name]
    A, rng, inverse = jsf.from_scipy(S, "csr"), np.random.default_rng(0), np.linalg.pinv(S.toarray(), rcond=1e-12)
    good, bad = S @ rng.standard_normal(S.shape[0]), rng.standard_normal(S.shape[0])
    first = solve(A, good, rtol=1e-8)
    assert first.status is Status.CONVERGED and first.method == "direct"
    np.testing.assert_allclose(first.x, inverse @ good, atol=1e-10)
    monkeypatch.setattr(sys.modules["solvers.ways"], "prepared", None)  # the factors serve all that follow
    if status is not None:
        least = solve(A, bad, rtol=1e-10)
        assert least.status is status
        np.testing.assert_allclose(least.x, inverse @ bad, rtol=1e-6, atol=1e-6)
    again, other, columns = solve(A, good, rtol=1e-8), solve(A, -3 * good, rtol=1e-8), np.stack([good, 2 * good], 1)
    assert again.tried[0].startswith("direct (factors of an earlier solve)" if status is None else "direct")
    np.testing.assert_array_equal(again.x, first.x)
    np.testing.assert_allclose(other.x, -3 * first.x, atol=1e-10)
    np.testing.assert_allclose(solve(A, columns, rtol=1e-8).x, np.outer(first.x, [1, 2]), atol=1e-10)
    np.testing.assert_allclose(again.residual_norm, np.linalg.norm(good - S @ again.x), rtol=0.01, atol=1e-13)


def test_needs_the_shortest_x_of_a_laplacian_its_factors(monkeypatch):
    monkeypatch.setattr(sys.modules["solvers.ways"], "prepared", None)
    S = laplacian(jsf.gallery.poisson(20))
    b = S @ np.random.default_rng(0).standard_normal(S.shape[0])
    A = jsf.from_scipy(S)
    sol = solve(A, b)
    assert sol.success and sol.method == "cg with jacobi"
    assert abs(np.mean(sol.x)) <= 1e-14 * np.linalg.norm(sol.x)
    sol, tangent = jax.jvp(lambda b: solve(A, b).x, (b,), (b,))
    assert abs(np.mean(sol)) <= 1e-14 * np.linalg.norm(sol)
    np.testing.assert_allclose(S @ tangent, b, atol=1e-4)


def test_does_a_b_without_solution_displace_what_solves_others():
    """Of a regular matrix in mixed units, whose rounding hides the solution."""
    n = 125
    S = sp.csr_array(sp.diags_array(units(n)) @ jsf.gallery.convection_diffusion(5) @ sp.diags_array(units(n)))
    b, bad = S @ np.ones(n), np.random.default_rng(0).standard_normal(n)
    first, A, B = solve(jsf.from_scipy(S, "csr"), b), *(jsf.from_scipy(S, "csr") for _ in range(2))
    for matrix, right in ((A, b), (A, bad), (A, b), (B, bad), (B, b)):
        sol = solve(matrix, right)
        assert right is bad or sol.method == "direct"
        assert right is bad or np.array_equal(sol.x, first.x)


def test_do_regular_values_on_the_pattern_of_singular_ones_begin_with_least_squares():
    singular = jsf.from_dense(np.triu(np.ones((40, 40))) - np.eye(40) * (np.arange(40) == 3), "csr")
    b = np.ones(40)
    assert solve(singular, b).method == "singular values"
    values = np.asarray(singular.data) + (np.asarray(singular.data) == 0)
    sol = solve(singular.with_data(values), b)
    assert sol.success and sol.tried[0].startswith("direct")


@pytest.mark.parametrize("size", [1e-6, 1.0])
@pytest.mark.parametrize("n", [12, 26], ids=["small", "large"])
def test_least_squares_of_a_laplacian_need_no_method_of_their_own(n, size, monkeypatch):
    monkeypatch.setattr(sys.modules["solvers.trials"], "AT_LAST", ())
    S = sp.block_diag([laplacian(jsf.gallery.poisson(n, dim=2)), laplacian(jsf.gallery.poisson(9, dim=2))], "csr")
    part = np.where(np.arange(S.shape[0]) < n * n, 1.0, -0.5)  # constant on each of two
    good = S @ np.random.default_rng(0).standard_normal(S.shape[0])
    x = np.linalg.lstsq(S.toarray(), good, rcond=1e-12)[0]
    b = good + size * part * np.linalg.norm(good) / np.linalg.norm(part)
    A = jsf.from_scipy(S, "csr")
    for _ in range(2):
        sol = solve(A, b, rtol=1e-8)
        assert sol.status is Status.LEAST_SQUARES
        np.testing.assert_allclose(sol.x, x, atol=1e-6 * np.linalg.norm(x))
        np.testing.assert_allclose(sol.residual_norm, size * np.linalg.norm(good), rtol=1e-4)
        r = b - S @ sol.x
        assert np.linalg.norm(S @ r) <= 1e-3 * np.linalg.norm(r)
    both = solve(A, np.stack([good, b], 1), rtol=1e-8)
    assert [Status(int(code)) for code in both.code] == [Status.CONVERGED, Status.LEAST_SQUARES]
    np.testing.assert_allclose(both.x, np.stack([x, x], 1), atol=1e-6 * np.linalg.norm(x))


def test_the_report_names_the_vectors_that_a_singular_matrix_takes_to_0():
    rng, free = np.random.default_rng(0), np.zeros(40)
    a = rng.standard_normal((40, 40))
    free[5:8] = 1
    A = jsf.from_dense(a - np.outer(a @ free, free) / 3, "csr")
    for _ in range(2):  # by factors, and by those of the first solve
        assert (
            "it takes a vector to 0, largest at the unknowns 5, 6, 7" in solve(A, A @ rng.standard_normal(40)).tried[-1]
        )
    assert "A looks singular: it takes constant vectors to 0" in repr(
        solve(jsf.from_scipy(GRID), np.ones(GRID.shape[0]))
    )
    hole = jsf.from_dense(np.diag(np.r_[np.arange(1.0, 30), 0]), "csr")
    assert solve(hole, np.ones(30)).tried[-1] == "A looks singular: nullspace(A) finds the vectors that it takes to 0"
    assert "singular" not in repr(solve(jsf.from_dense(a, "csr"), free))
