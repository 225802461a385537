"""How `solve` searches: what it remembers, when it leaves a method, and how it goes on."""

import gc
import sys
import weakref

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from solvers import Status, solve
from solvers.cg import METHOD as CG
from solvers.core.settings import DEFAULTS
from solvers.core.solve import solve as of_method
from solvers.gmres import method as gmres
from solvers.minres import METHOD as MINRES
from tests.solvers.test_solve import residual, tridiagonal


def test_a_second_solve_begins_with_what_succeeded(monkeypatch):
    S = tridiagonal(400, low=-0.3)
    A, b = jsf.from_scipy(S, "csr"), np.ones(400)
    module = sys.modules["solvers.ways"]
    first = solve(A, b, rtol=1e-10)
    monkeypatch.setattr(module, "prepared", None)  # no other factors
    again = solve(A, 2 * b, rtol=1e-10)
    assert again.success and again.method == first.method == "direct"
    np.testing.assert_allclose(again.x, 2 * first.x, rtol=1e-8)
    with pytest.raises(TypeError):
        solve(A, b, remember=False)
    monkeypatch.undo()
    # New values of the same pattern begin with the same way, by factors of their own.
    monkeypatch.setattr(module, "cost", None)
    new = A.with_data(3 * A.data)
    np.testing.assert_allclose(solve(new, b, rtol=1e-10).x, first.x / 3, rtol=1e-8)
    np.testing.assert_allclose(solve(A, b, rtol=1e-10).x, first.x, rtol=1e-8)


def test_what_is_remembered_is_freed_with_the_matrix():
    A, b = jsf.from_scipy(tridiagonal(400), "csr"), np.ones(400)
    assert solve(A, b).success
    values = weakref.ref(A.values)
    del A
    gc.collect()
    assert values() is None


def test_a_way_that_was_left_goes_on_where_the_others_fail(monkeypatch):
    module = sys.modules["solvers.ways"]
    monkeypatch.setattr(module, "MAKERS", module.MAKERS | dict.fromkeys(("multigrid", "ilu"), fails))
    monkeypatch.setattr(module, "prepared", fails)
    monkeypatch.setattr(module, "cost", lambda way, *_: module.Cost(0.2 * way.has_set_up, 1e-3))
    S = jsf.gallery.poisson(100, dim=2)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-8)
    assert sol.success and sol.method == "cg with jacobi" and residual(S, b, sol.x) <= 1e-8
    assert "left after" in sol.tried[0] and sol.tried[-1].endswith("CONVERGED")


def fails(*_):
    raise ValueError("fails")


@pytest.mark.parametrize("method", [CG, MINRES, gmres(30)], ids=["cg", "minres", "gmres"])
def test_a_solve_goes_on_while_its_rate_predicts_an_end_within_the_budget(method):
    A = jsf.from_scipy(jsf.gallery.poisson(20, dim=2))
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    run = lambda budget, b: of_method(method, A, b, None, DEFAULTS | {"rtol": 1e-8, "budget": budget})  # noqa: E731
    whole = run(np.inf, b)
    assert whole.success
    assert run(whole.iterations, b).iterations == whole.iterations
    early = run(20, b)
    assert early.status is Status.MAXITER and 10 <= early.iterations <= 12
    assert float(early.residual_norm) < np.linalg.norm(b)
