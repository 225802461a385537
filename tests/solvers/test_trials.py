"""How `solve` searches: what it remembers, when it leaves a method, and how it goes on."""

import dataclasses
import functools
import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import Status, direct, estimates, solve, trials
from solvers.cg import METHOD as CG
from solvers.core.solve import Settings, by_method
from solvers.gmres import method as gmres
from solvers.minres import METHOD as MINRES
from tests.solvers.test_solve import N, residual, tridiagonal


@pytest.mark.parametrize("devices", [1, 2])
def test_new_values_of_a_pattern_begin_with_the_way_that_succeeded_by_factors_of_their_own(devices, monkeypatch):
    A, b = jsf.from_scipy(tridiagonal(400, low=-0.3), "csr"), np.ones(400)
    if devices > 1:
        A = jsf.shard(A.to_scipy(), jax.make_mesh((devices,), ("rows",)), format="csr")
    first = solve(A, b, rtol=1e-10)
    monkeypatch.setattr(trials, "estimate", None)
    new = A.with_data(3 * A.data)
    np.testing.assert_allclose(solve(new, b, rtol=1e-10).x, first.x / 3, rtol=1e-8)
    np.testing.assert_allclose(solve(A, b, rtol=1e-10).x, first.x, rtol=1e-8)


def test_a_second_solve_takes_factors_if_they_cost_less_than_the_steps_of_the_first(monkeypatch):
    monkeypatch.setattr(trials, "estimate", lambda way, *_: estimates.Trial(way, 0.3 * way.has_set_up, 1e-3))
    S = jsf.gallery.poisson(100, dim=2)
    A, b = jsf.from_scipy(S), np.random.default_rng(0).standard_normal(S.shape[0])
    first, second = solve(A, b, rtol=1e-8), solve(A, b, rtol=1e-8)
    assert first.method == "cg with jacobi" and first.iterations > 301
    assert second.method == "direct" and len(second.tried) == 1


def test_a_singular_symmetric_system_takes_no_factors_if_steps_can_end_it(monkeypatch):
    monkeypatch.setattr(sys.modules["solvers.ways"], "prepared", None)
    S = jsf.gallery.poisson(20)
    S = sp.csr_array(S - sp.diags_array(np.asarray(S.sum(axis=1)).ravel()))
    b = np.random.default_rng(1).standard_normal(S.shape[0])
    sol = solve(jsf.from_scipy(S), b)
    assert sol.status is Status.LEAST_SQUARES and sol.method == "cg with jacobi", sol.tried
    assert float(sol.residual_norm) == pytest.approx(abs(b.sum()) / np.sqrt(b.size), rel=1e-6)
    assert abs(float(np.sum(sol.x))) <= 1e-6 * np.linalg.norm(sol.x)  # the shortest


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
    monkeypatch.setattr(trials, "estimate", lambda way, *_: estimates.Trial(way, 0.2 * way.has_set_up, 1e-3))
    S = jsf.gallery.poisson(100, dim=2)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-8)
    assert sol.success and sol.method == "cg with jacobi" and residual(S, b, sol.x) <= 1e-8
    assert "left after" in sol.tried[0] and sol.tried[-1].endswith("CONVERGED")


def fails(*_):
    raise ValueError("fails")


def test_a_sharded_matrix_gets_multigrid_where_the_estimate_says_so(monkeypatch):
    found, kept = {}, trials.estimate

    def dear_steps(way, facts):
        found[way.name] = kept(way, facts)
        return estimates.Trial(way, 0.1 * way.has_set_up, 1e-2)

    monkeypatch.setattr(trials, "estimate", dear_steps)
    S, mesh = jsf.gallery.poisson(60, dim=2), jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    sol = solve(jsf.shard(S, mesh, format="csr"), b)
    assert sol.success and sol.method == "cg with multigrid" and residual(S, b, sol.x) <= 1e-6, sol.tried
    assert found["cg with block_jacobi"].step < found["cg with multigrid"].step
    assert 0 < found["cg with block_jacobi"].set_up < found["cg with multigrid"].set_up


@pytest.mark.parametrize("method", [CG, MINRES, gmres(30)], ids=["cg", "minres", "gmres"])
def test_a_solve_goes_on_while_its_rate_predicts_an_end_within_the_budget(method):
    A = jsf.from_scipy(jsf.gallery.poisson(20, dim=2))
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    run = lambda budget, b: by_method(method, A, b, None, Settings(rtol=1e-8, budget=budget))  # noqa: E731
    whole = run(np.inf, b)
    assert whole.success
    assert run(whole.iterations, b).iterations == whole.iterations
    early = run(20, b)
    assert early.status is Status.MAXITER and 10 <= early.iterations <= 12
    assert float(early.residual_norm) < np.linalg.norm(b)


@pytest.mark.parametrize("kind", [np.float64, np.complex128])
def test_a_repeated_solve_calls_the_factors_at_once_and_judges_its_own_x(monkeypatch, kind):
    S = tridiagonal(400, low=-0.3)
    A, b = jsf.from_scipy(S, "csr"), np.arange(1.0, 401).astype(kind)
    first = solve(A, b, rtol=1e-10)
    monkeypatch.setattr(sys.modules["solvers.solve"], "Facts", None)  # nothing else is asked of the matrix
    again = solve(A, 1j * b if kind is np.complex128 else 2 * b, rtol=1e-10)
    assert (
        again.success and again.x.dtype == kind and again.tried == ("direct (factors of an earlier solve): CONVERGED",)
    )
    np.testing.assert_allclose(again.x, (1j if kind is np.complex128 else 2) * first.x, rtol=1e-8)
    assert float(again.residual_norm) <= 1e-10 * np.linalg.norm(again.x)
    inside = jax.jit(lambda c: c * solve(A, b, rtol=1e-10).x)(2.0)
    np.testing.assert_allclose(inside, 2 * first.x, rtol=1e-12)
    for changed in (dict(rtol=1e-9), dict(history=True), dict(maxiter=0), dict(remember=False)):
        with pytest.raises(TypeError):
            solve(A, b, **({"rtol": 1e-10} | changed))


def test_what_a_repeated_solve_cannot_take_is_refused_as_at_first():
    A, b = jsf.from_scipy(tridiagonal(400, low=-0.3), "csr"), np.ones(400)
    assert solve(A, b).success and solve(A, b).success
    with pytest.raises(ValueError, match="b has length 3"):
        solve(A, b[:3])
    with pytest.raises(TypeError, match="here it is 'rtol'"):
        solve(A, b, tol=1e-3)
    with pytest.raises(ValueError, match="rtol must be a number"):
        solve(A, b, rtol=-1)
    assert solve(A, b * np.nan).status is Status.NON_FINITE
    assert solve(A, np.ones(400, int)).success and solve(A, np.ones((400, 2))).x.shape == (400, 2)


@pytest.mark.parametrize("which", ["all arrays", "values"])
def test_are_values_of_numpy_that_changed_in_place_solved_anew(which):
    A, b = jsf.from_scipy(tridiagonal(400, low=-0.3), "csr"), np.ones(400)
    first = np.asarray(solve(A, b, rtol=1e-10).x)
    A = jax.tree.map(np.array, A) if which == "all arrays" else dataclasses.replace(A, values=np.array(A.values))
    for scale in (1.0, 2.0, 3.0):
        sol = solve(A, scale * b, rtol=1e-10)
        np.testing.assert_allclose(sol.x, first, rtol=1e-8)
        assert float(sol.residual_norm) <= 1e-10 * scale * 20
        A.values[...] *= (scale + 1) / scale


@pytest.mark.parametrize("name", ["values", "col_idx"])
def test_is_a_deleted_matrix_solved_by_what_is_remembered_of_it(name):
    A, b = jsf.from_scipy(tridiagonal(400, low=-0.3), "csr"), np.ones(400)
    assert solve(A, b).success and solve(A, b).success
    getattr(A, name).delete()
    for again in (solve, direct):
        with pytest.raises(RuntimeError, match="deleted"):
            again(A, b)


def test_is_what_was_remembered_of_real_values_taken_for_complex_ones_of_the_pattern():
    A, b = jsf.from_scipy(jsf.gallery.poisson(20)), np.ones(8000)
    assert solve(A, b).method == "cg with jacobi"
    turned = A.with_data((1 + 0.1j) * A.data)
    for _ in range(2):
        sol = solve(turned, b)
        assert sol.success and residual(turned.to_scipy(), b, sol.x) <= 1e-5, sol.tried


@pytest.mark.parametrize("b_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [True, False], ids=["64 bits first", "32 bits first"])
def test_is_what_was_remembered_in_one_precision_taken_in_the_other(first, b_dtype):
    S, b = tridiagonal(400, low=-0.3), np.random.default_rng(0).standard_normal(400).astype(b_dtype)
    A = jsf.from_scipy(S, "csr")
    for wide in (first, not first, first, not first):
        with jax.enable_x64(wide):
            sol, want = solve(A, b), solve(A, b, remember=False)
            assert sol.success and sol.x.dtype == want.x.dtype == (np.float64 if wide else np.float32)
        x = np.asarray(sol.x, np.float64)
        true = np.linalg.norm(S @ x - b.astype(sol.x.dtype))
        np.testing.assert_allclose(sol.residual_norm, true, rtol=0.01, atol=1e-14)


@pytest.mark.parametrize("maxiter", [0, 30])
def test_maxiter_bounds_the_iterations_of_all_ways_together(maxiter):
    """So a limit that a user sets is followed neither by other methods nor by a factorization."""
    S = jsf.gallery.poisson(20)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    sol = solve(jsf.from_scipy(S), b, rtol=1e-12, maxiter=maxiter)
    assert sol.status is Status.MAXITER and sol.iterations == maxiter and len(sol.tried) == 1


def test_a_long_set_up_is_announced_with_its_estimate(monkeypatch):
    monkeypatch.setitem(estimates.DEVICES["host"], "work", 1.0)
    monkeypatch.setattr(sys.modules["solvers.ways"], "HOURS", np.inf)
    with pytest.warns(RuntimeWarning, match=r"solve: after 0 s comes direct \(asked for; about .* s\); interrupt it"):
        assert solve(jsf.from_scipy(tridiagonal(400)), np.ones(400), method="direct").success


def test_a_named_method_does_not_order_the_matrix_for_an_estimate(monkeypatch):
    monkeypatch.setattr(sys.modules["solvers.host"].Host, "_cost", property(fails))
    assert solve(jsf.from_scipy(jsf.gallery.convection_diffusion(8)), np.ones(512), method="gmres").success


def test_a_b_on_a_mesh_takes_the_factors_of_an_earlier_solve_and_singular_values():
    A, singular = jsf.from_scipy(tridiagonal()), jsf.from_scipy(sp.csr_array(np.diag(np.append(np.ones(N - 1), 0))))
    on_mesh = jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), jax.sharding.PartitionSpec("x"))
    for B in (np.ones(N), np.ones((N, 2))):
        assert jnp.all(solve(A, B).success)  # keeps the factors
        b = jax.device_put(B, on_mesh)
        for sol in (solve(A, b), solve(singular, b)):
            assert sol.x.shape == B.shape and sol.code.shape == B.shape[1:]
        assert solve(A, b).tried[0].startswith("direct (factors of an earlier solve)")


@pytest.mark.parametrize("format", ["csr", "dia"])  # of which only A mirrors diagonals
def test_new_values_are_factored_in_the_order_of_the_first_ones(format, monkeypatch):
    S = jsf.gallery.poisson(30, dim=2)
    A, orders, splu = jsf.from_scipy(S, format), [], spla.splu
    monkeypatch.setattr(spla, "splu", lambda C, **how: orders.append(how["permc_spec"]) or splu(C, **how))
    x = np.random.default_rng(0).standard_normal(S.shape[0])
    for k in (1.0, 2.0, 3.0):
        sol = solve(A if k == 1 else A.with_data(k * A.data), k * (S @ x), rtol=1e-12)
        assert sol.method == "direct"
        np.testing.assert_allclose(sol.x, x, rtol=1e-9)
    assert orders == ["MMD_AT_PLUS_A", "NATURAL", "NATURAL"]


def test_a_repeated_solve_goes_back_to_no_guess(monkeypatch):
    """A guess counts three times as much as steps that are known; and one that was wrong is not taken again."""
    costs = {"factors": 9.0, "ilu": 9.0}
    monkeypatch.setattr(trials, "estimate", lambda way, *_: estimates.Trial(way, costs.get(way.M, 0.0), 1e-3))
    S = jsf.gallery.poisson(200, dim=2)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    monkeypatch.setattr(trials, "run", functools.partial(without_budget, trials.run))
    for guess, methods in ((0.3, ("cg with jacobi",) * 3), (0.16, ("cg with jacobi", *("cg with multigrid",) * 2))):
        costs["multigrid"], A = guess, jsf.from_scipy(S)
        assert tuple(solve(A, b, rtol=1e-8).method for _ in range(3)) == methods


def without_budget(run, trial, queue, *rest):
    return run(trial, [], *rest)


def test_factors_that_stay_are_told_and_larger_ones_do_not(monkeypatch):
    monkeypatch.setattr(trials, "TOLD", 0)
    S = tridiagonal(400, low=-0.3)
    A, b = jsf.from_scipy(S), np.ones(400)
    assert solve(A, b).tried[-1].endswith("GB of factors are kept (remember=False keeps none)")
    monkeypatch.setattr(sys.modules["solvers.facts"], "LARGEST", 100)
    A = jsf.from_scipy(S)
    for _ in range(2):
        assert solve(A, b).tried[-1].endswith("CONVERGED") and solve(A, b).method == "direct"
