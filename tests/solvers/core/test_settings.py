"""Settings: checked once, where they are given; what a loop takes of them."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers import Adjoint, cg, refine, solve
from solvers.core import solve as intake
from solvers.core.solve import Keywords, Settings

B = [jnp.ones(3)]


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
    (options, adjoint, _), again = (Settings(**given).of_loop(B, 3, 30) for _ in range(2))
    assert hash((options, adjoint)) == hash(again[:2]) and (options, adjoint) == again[:2]
    assert options.history_length == 5 and adjoint == Adjoint(truncated=True)  # its numbers are limits
    assert Settings(history=True, maxiter=2).of_loop(B, 3, 30)[0].history_length == 3
