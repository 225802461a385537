"""The demonstration must be able to fail: each fault it can find is put in its way."""

import numpy as np
import pytest
import scipy.sparse.linalg

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import demo
from jaxsparse_fmt.cli.progress import Progress
from solvers import cg

N = 6


def run(solver=cg, rtol: float = 1e-8) -> demo.Outcome:
    with Progress() as progress:
        return demo.compare(solver, N, rtol, progress)


@pytest.fixture(scope="module")
def outcome() -> demo.Outcome:
    return run()


def test_both_sides_solve_the_system(outcome: demo.Outcome):
    b = np.random.default_rng(0).standard_normal(N**3)
    exact = scipy.sparse.linalg.spsolve(gallery.poisson(N).tocsc(), b)
    assert outcome.faults == []
    for side in (outcome.ours, outcome.theirs):
        assert side.residual == pytest.approx(np.linalg.norm(b - outcome.S @ side.x) / np.linalg.norm(b))
        np.testing.assert_allclose(side.x, exact, atol=1e-7)


def test_both_curves_start_at_one_and_end_at_the_true_residual(outcome: demo.Outcome):
    for side in (outcome.ours, outcome.theirs):
        iterations, residuals = side.trace
        assert iterations[0] == 0 and residuals[0] == pytest.approx(1)
        assert residuals[-1] == pytest.approx(side.residual, rel=1e-3)
        assert np.all(np.diff(iterations) > 0) and iterations[-1] == side.iterations


def test_the_bound_holds_the_difference_of_any_two_answers_that_meet_rtol(outcome: demo.Outcome):
    smallest = np.linalg.eigvalsh(outcome.S.toarray())[0]
    b_norm = np.linalg.norm(np.random.default_rng(0).standard_normal(N**3))
    assert outcome.bound == pytest.approx(2e-8 * b_norm / smallest / np.linalg.norm(outcome.theirs.x))


def test_a_solver_that_gives_up_is_found():
    faults = run(lambda A, b, **options: cg(A, b, maxiter=2, **options)).faults
    assert "jaxsparse did not converge: maxiter reached" in faults[0]


def test_scipy_giving_up_is_found(monkeypatch):
    honest = demo.scipy_cg
    monkeypatch.setattr(demo, "scipy_cg", lambda S, b, rtol, **options: honest(S, b, rtol, maxiter=2, **options))
    assert "SciPy did not converge: info = 2" in run().faults
