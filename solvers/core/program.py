"""A user's function as a traced program, with the arrays that it closes over as leaves.

jit compares functions by identity, and keeps the arrays that a function closed over at its first call. A `Function` is
traced at each call instead, which costs about a millisecond. Programs are compared equation by equation, so that a new
lambda with the same body uses the solver compiled for the last one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from jaxsparse_fmt._types import pytree

PROGRAMS = 64  # of which compiled solvers are kept; the least recently used is dropped


class Program:
    """A jaxpr, equal to another that has the same equations.

    A parameter that cannot be compared, such as the rule of a `custom_jvp`, equals only itself: a function with one
    is compiled at each call.
    """

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr

    @functools.cached_property
    def structure(self) -> tuple[Any, int]:
        structure = _structure(self.jaxpr)
        return structure, hash(structure)

    def __hash__(self) -> int:
        return self.structure[1]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Program) and self.structure == other.structure)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A function of one vector, traced: its program, and every array that it closed over as a leaf."""

    consts: list[Any]
    program: Program = dataclasses.field(metadata={"static": True})
    result: Any = dataclasses.field(metadata={"static": True})  # its tree

    def __call__(self, v: Array) -> Any:
        return jax.tree.unflatten(self.result, jaxpr_as_fun(ClosedJaxpr(self.program.jaxpr, self.consts))(v))


def traced(f: Callable[[Array], Any], example: Any) -> Function:
    """f traced anew. JAX caches traces by the identity of a function, hence the new lambda."""
    closed, shape = jax.make_jaxpr(lambda v: f(v), return_shape=True)(example)
    return Function(closed.consts, Program(closed.jaxpr), jax.tree.structure(shape))


@functools.lru_cache(maxsize=PROGRAMS)
def jit(f: Callable[..., Any], static: tuple[int, ...], *programs: Program) -> Callable[..., Any]:
    """f compiled, in a cache of its own for these programs among its arguments."""
    del programs
    return jax.jit(functools.partial(f), static_argnums=static)


@dataclasses.dataclass(frozen=True)
class Same:
    """An object that is equal to itself only."""

    of: Any

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of


def _structure(jaxpr: Jaxpr) -> tuple[Any, ...]:
    numbers = {v: i for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    avals = tuple(v.aval for v in numbers)

    def atom(a: Any) -> Any:
        if not isinstance(a, Literal):
            return numbers[a]
        return a.aval, np.asarray(a.val).tobytes() if np.ndim(a.val) == 0 else Same(a.val)

    equations = []
    for e in jaxpr.eqns:
        operands = tuple(map(atom, e.invars))
        numbers |= {v: len(numbers) + i for i, v in enumerate(e.outvars)}
        context = e.ctx.compute_type, e.ctx.threefry_partitionable, Same(e.ctx.cur_abstract_mesh)
        results = tuple(v.aval for v in e.outvars)
        equations.append((e.primitive, operands, results, _comparable(e.params), context))
    return avals, tuple(equations), tuple(map(atom, jaxpr.outvars))


def _comparable(value: Any) -> Any:
    match value:
        case Jaxpr():
            return _structure(value)
        case ClosedJaxpr():
            return _structure(value.jaxpr), tuple(map(Same, value.consts))
        case dict():
            return tuple((name, _comparable(value[name])) for name in sorted(value, key=str))
        case tuple() | list():
            return type(value), tuple(map(_comparable, value))
        case np.ndarray():
            return value.dtype, value.shape, value.tobytes()
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value
