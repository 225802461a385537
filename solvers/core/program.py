"""The way from a public function into its compiled program, and a user's function as a traced program.

jit compares functions by identity, and keeps the arrays that a function closed over at its first call. A `Function` is
traced at each call instead, which costs about a millisecond. Programs are compared equation by equation, so that a new
lambda with the same body uses the solver compiled for the last one.

An `Entry` also makes explicit mesh axes auto ones, and arrays vary over the same axes inside a user's shard_map.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import PartitionSpec

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers.core import arguments
from solvers.core.interrupts import heeding

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
def jit(f: Callable[..., Any], *programs: Program) -> Callable[..., Any]:
    """f compiled, in a cache of its own for these programs among its arguments; the first one is static."""
    return jax.jit(functools.partial(f), static_argnums=0)


class Entry:
    """A solver's body, jitted: `entry(static, maps, basis, v, *others)`."""

    def __init__(
        self,
        body: Callable[..., Any],
        examples: Callable[[Any, Any], tuple[Any, ...]],
        out: Callable[[Any, Any], Any] = lambda static, v: PartitionSpec(),
    ):
        """Makes the jitted function.

        Args:
          body: (static, maps, basis, v, *others) -> result, for auto mesh axes; it works in the basis.
          examples: (static, v) -> for each map that is a function, a vector like those that it takes.
          out: (static, v) -> how the result is sharded over explicit mesh axes, a prefix of PartitionSpecs.
        """
        self.body, self.examples, self.out = body, examples, out
        self.compiled = jax.jit(self._on_any_axes, static_argnums=0)  # for maps that contain no function

    def __call__(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, *others: Any) -> Any:
        """The result.

        Args:
          static: hashable; the body is compiled for each.
          maps: matrices, user's functions, or None.
          v: the vector of the problem, or None; programs take vectors that are sharded and vary like it.
          others: pytrees of arrays.
        """
        if not any(map(arguments.is_function, maps)):
            return heeding(self.compiled, static, maps, basis, v, others)
        own = self._traced(static, maps, v)
        varied = mesh_axes.varying(v, (own, others))
        if varied is not v:
            v, own = varied, self._traced(static, maps, varied)
        programs = [f.program for f in own if isinstance(f, Function)]
        return heeding(jit(self._on_any_axes, *programs), static, own, basis, v, others)

    def _traced(self, static: Any, maps: tuple[Any, ...], v: Any) -> tuple[Any, ...]:
        return tuple(f or a for f, a in zip(self._functions(traced, static, maps, v), maps, strict=True))

    def _functions(self, make: Callable[[Any, Any], Any], static: Any, maps: tuple[Any, ...], v: Any) -> list[Any]:
        """make(function, vector like those that it takes) for each map that is a function, None for the others."""
        if not any(map(arguments.is_function, maps)):
            return [None] * len(maps)
        examples = zip(maps, self.examples(static, v), strict=True)
        return [make(f, like) if arguments.is_function(f) else None for f, like in examples]

    def _on_any_axes(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, others: tuple[Any, ...]) -> Any:
        own = self._functions(mesh_axes.outside, static, maps, v)
        programs = tuple(a if f else None for f, a in zip(own, maps, strict=True))
        matrices = tuple(None if f else a for f, a in zip(own, maps, strict=True))

        def on_auto_axes(*operands: Any) -> Any:
            matrices, basis, v, others = mesh_axes.varying(operands, programs)
            with basis.scope():
                return self.body(static, tuple(f or a for f, a in zip(own, matrices, strict=True)), basis, v, *others)

        # Under vmap the type of v does not name the axis of the batch, but all programs traced here must use one mesh.
        axes = mesh_axes.explicit_axes(jax.sharding.get_abstract_mesh())
        return mesh_axes.by_xla(on_auto_axes, (matrices, basis, v, others), self.out(static, v), axes=axes)


# ----------------------------------------------------------------------------------------------- programs compared


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
