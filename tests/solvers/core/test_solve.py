"""The door: pytrees and grids as unknowns, settings, and what a Solution unpacks to."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import Adjoint, bicgstab, cg, fcg, gmres, minres, refine, solve
from solvers.core import solve as intake
from solvers.core.solve import Keywords, Settings
from tests.marks import few

METHODS = [cg, fcg, minres, gmres, bicgstab]
RNG = np.random.default_rng(0)
U, V = RNG.standard_normal((2, 3)), RNG.standard_normal(4)


def coupled(t):
    """Symmetric positive definite over {"u": [2, 3], "v": [4]}."""
    total = jnp.sum(t["u"]) + jnp.sum(t["v"])
    return {"u": 3 * t["u"] + 0.1 * total, "v": 5 * t["v"] + 0.1 * total}


MATRIX = np.diag([3.0] * 6 + [5.0] * 4) + 0.1
FLAT = np.linalg.solve(MATRIX, np.concatenate([U.ravel(), V]))


@pytest.mark.parametrize("solver", few(METHODS, 2), ids=lambda s: s.__name__)
def test_does_every_solver_take_a_dictionary_of_arrays(solver):
    b = {"u": U, "v": V}
    sol = solver(coupled, b, {"u": 0 * U, "v": 0 * V}, M=lambda t: jax.tree.map(lambda a: a / 4, t), rtol=1e-9)
    assert sol.success and sol.x["u"].shape == (2, 3)
    np.testing.assert_allclose(np.concatenate([sol.x["u"].ravel(), sol.x["v"]]), FLAT, rtol=1e-7)


def test_are_pytrees_differentiated_and_shown_to_a_callback():
    seen = []
    cg(coupled, {"u": U, "v": V}, callback=lambda x: seen.append(x["u"].shape))
    jax.effects_barrier()
    assert set(seen) == {(2, 3)}
    gradient = jax.jit(jax.grad(lambda b: jnp.sum(cg(coupled, b, rtol=1e-12).x["v"])))({"u": U, "v": V})
    exact = np.linalg.solve(MATRIX, [0.0] * 6 + [1.0] * 4)
    np.testing.assert_allclose(np.concatenate([gradient["u"].ravel(), gradient["v"]]), exact, rtol=1e-9)


@pytest.mark.parametrize("b", few([[U], ((U, V),), U, np.ones((2, 2, 2)), 3.0, [1.0, 2.0]], 1), ids=str)
def test_has_x_the_structure_of_b(b):
    sol = cg(lambda t: jax.tree.map(lambda a: 2 * a, t), b)
    as_array = isinstance(b, list) and isinstance(b[0], float)
    expected = np.array(b) / 2 if as_array else jax.tree.map(lambda a: np.asarray(a) / 2, b)
    assert as_array or jax.tree.structure(sol.x) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y), sol.x, expected)


@pytest.mark.parametrize("solver", few(METHODS, 2), ids=lambda s: s.__name__)
def test_is_an_array_of_two_axes_one_unknown_to_a_function(solver):
    """X·Mᵀ = B with a square B: k systems of columns would have the matrix M itself."""
    left = np.diag([3.0, 4.0, 5.0]) + 0.2
    right = left if solver not in (gmres, bicgstab) else left + np.triu(np.ones((3, 3)), 1)
    B, A = np.arange(9.0).reshape(3, 3), lambda X: X @ jnp.asarray(right).T
    sol = solver(A, B, M=lambda R: R / 4, rtol=1e-10)
    assert sol.code.shape == () and sol.success
    np.testing.assert_allclose(sol.x, np.linalg.solve(right, B.T).T, rtol=1e-8)
    with pytest.raises(ValueError, match=r"M has shape \(3, 3\); a system with b of length 9"):
        solver(A, B, M=np.eye(3))


@pytest.mark.parametrize("M", few([None, np.full(8, 0.5, np.float32)], 1))
def test_a_solve_that_converges_computes_no_product_to_examine_a_failure(M):
    calls, d = [], np.arange(1, 9, dtype=np.float32)

    def times(v):
        calls.append(1)
        return np.asarray(v) * d

    A = lambda v: jax.pure_callback(times, jax.ShapeDtypeStruct(v.shape, v.dtype), v)  # noqa: E731
    solution = cg(A, jnp.ones(8), M=M)
    assert solution.success
    jax.block_until_ready(solution.x)
    assert len(calls) == 1 + solution.iterations + 1  # for the scale of A, in the steps, for the true residual


# ------------------------------------------------------- the settings: checked once, and what a loop takes of them


def test_have_type_checkers_and_the_signature_of_a_method_the_fields_of_settings():
    fields = {f.name: f.default for f in dataclasses.fields(Settings)}
    assert inspect.get_annotations(Keywords).keys() == fields.keys() - {"budget"}
    shown = {name: p.default for name, p in inspect.signature(cg).parameters.items() if name in fields}
    assert shown == {name: fields[name] for name in Keywords.__annotations__}
    assert inspect.signature(solve).parameters["M"].default == "auto"
    assert inspect.signature(refine).parameters["rtol"].default is None


def test_is_each_value_checked_once_and_a_default_never(monkeypatch):
    checked = []
    watched = {name: lambda value, name=name: checked.append(name) or value for name in intake.CHECKS}
    monkeypatch.setattr(intake, "CHECKS", watched)
    Settings(rtol=intake.RTOL, adjoint=Settings.adjoint)
    assert checked == []
    Settings(rtol=1e-3, callback=print).limits(5)
    assert checked == ["rtol", "callback"]


@pytest.mark.parametrize(
    "wrong", [{"rtol": -1}, {"maxiter": 1.5}, {"history": -1}, {"adjoint": "exact"}, {"progress": 1}]
)
def test_is_a_wrong_value_refused_where_it_is_given(wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        dataclasses.replace(Settings(), **wrong)


def test_are_the_numbers_those_of_the_settings_in_the_types_that_programs_take():
    limits = Settings(rtol=1e-3, atol=2, maxiter=7, adjoint=Adjoint(rtol=1e-9), budget=4).limits(100, 0.5)
    assert [float(a) for a in limits] == [1e-3, 2, 7, 0.5, 1e-9, 100, 4]
    assert [a.dtype for a in limits] == [jnp.ones(()).dtype] * 2 + [np.int32] + [jnp.ones(()).dtype] * 2 + [
        np.int32,
        np.float32,
    ]
    assert Settings().limits(2**40).maxiter == 2**31 - 1
    traced = jax.jit(lambda rtol, n: Settings(rtol=rtol, maxiter=n).limits(10)[:3])(1e-2, 5)
    assert [float(a) for a in traced] == [pytest.approx(1e-2), 0, 5]


def test_are_options_static_and_equal_for_equal_settings():
    given = {"history": 4, "adjoint": Adjoint(rtol=1e-4, truncated=True)}
    (options, adjoint, _), again = (Settings(**given).of_loop([jnp.ones(3)], 3, 30) for _ in range(2))
    assert hash((options, adjoint)) == hash(again[:2]) and (options, adjoint) == again[:2]
    assert options.history_length == 5 and adjoint == Adjoint(truncated=True)  # its numbers are limits
    assert Settings(history=True, maxiter=2).of_loop([jnp.ones(3)], 3, 30)[0].history_length == 3
