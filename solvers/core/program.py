"""The way from a public function into its compiled program, and a user's function as a traced program.

jit keeps the arrays that a function closed over at its first call. A `Function` is traced at each call instead, which
costs about a millisecond. The same function with the same equations reuses the solver compiled for it.

An `Entry` also makes explicit mesh axes auto ones, and arrays vary over the same axes inside a user's shard_map.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.kernels.backends import jax_versions
from solvers.core import arguments, interrupts

PROGRAMS = 64  # of which compiled solvers are kept; the least recently used is dropped


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A function of one vector, traced: its program, and every array that it closed over as a leaf."""

    consts: list[Any]
    program: Jaxpr = dataclasses.field(metadata={"static": True})  # compared by identity
    result: Any = dataclasses.field(metadata={"static": True})  # its tree

    def __call__(self, v: Array) -> Any:
        of_one: Any = self.program.invars[-1].aval
        if v.ndim > of_one.ndim:
            return jax.vmap(self, 1, 1)(v)  # columns
        return jax.tree.unflatten(self.result, jaxpr_as_fun(ClosedJaxpr(self.program, self.consts))(v))


def traced(f: Callable[[Any], Any], example: Any) -> Function:
    """f traced anew. JAX caches traces by the identity of a function, hence the new lambda."""
    closed, shape = jax.make_jaxpr(lambda v: f(v), return_shape=True)(example)
    return Function(closed.consts, closed.jaxpr, jax.tree.structure(shape))


_programs: weakref.WeakKeyDictionary[Any, dict[Any, Jaxpr]] = weakref.WeakKeyDictionary()  # by the user's function


def _traced_by_user(f: Any, example: Any) -> Function:
    """As `traced`, with the program that the same function had before if both have the same text and arrays inside."""
    found, user = traced(f, example), getattr(f, "user", f)
    spread = mesh_axes.varying_axes(*jax.tree.leaves(example)) | mesh_axes.untyped_axes()
    if spread and (over := sorted(spread & _axes_of_collectives(found.program))):
        raise ValueError(
            f"inside shard_map a solve takes its inner products over one device's piece, and the function communicates "
            f"over {over}, over which its vectors are spread, or may be without check_vma; call the solver outside, on "
            "the sharded matrix"
        )
    avals = tuple(v.aval for v in (*found.program.constvars, *found.program.invars))
    try:
        known = _programs.setdefault(getattr(user, "__func__", user), {})
    except TypeError:  # not hashable, or without weak references
        return found
    text = str(found.program), avals
    # The text leaves out the arrays of a program inside, such as that of a jitted function.
    if text not in known or _arrays_inside(known[text]) != _arrays_inside(found.program):
        known[text] = found.program
    return dataclasses.replace(found, program=known[text])


def _inside(e: Any) -> list[Any]:
    """The programs inside an equation."""
    parts = jax.tree.leaves(list(e.params.values()), is_leaf=lambda p: hasattr(p, "eqns"))
    return [part for part in parts if hasattr(part, "eqns")]


def _arrays_inside(program: Jaxpr) -> list[int]:
    """The identities of the arrays that the programs inside this one hold."""
    inside = [part for e in program.eqns for part in _inside(e)]
    found = [[*map(id, getattr(part, "consts", ())), *_arrays_inside(getattr(part, "jaxpr", part))] for part in inside]
    return [number for of_one in found for number in of_one]


def _axes_of_collectives(program: Jaxpr) -> set[Any]:
    """The mesh axes over which a program, or one inside it, communicates."""
    axes: set[Any] = set()
    for e in program.eqns:
        if e.primitive.name not in ("pvary", "pcast"):  # which only change types
            names = e.params.get("axes", e.params.get("axis_name", ()))
            axes |= {name for name in (names if isinstance(names, tuple) else (names,)) if isinstance(name, str)}
        for part in _inside(e):
            axes |= _axes_of_collectives(getattr(part, "jaxpr", part))
    return axes


def pytree_of(A: Any, example: Any) -> Any:
    """A itself if it is a matrix, else the function A traced."""
    return traced(A, example) if arguments.is_function(A) else A


def compiled(f: Callable[..., Any], quick: bool) -> Callable[..., Any]:
    """f compiled, its first argument static.

    Args:
      quick: take the options of `jax_versions.QUICK_TO_COMPILE`, which only an outermost jit may have.
    """
    plain = jax.jit(functools.partial(f), static_argnums=0)
    if not quick:
        return plain
    chosen = jax.jit(functools.partial(f), static_argnums=0, compiler_options=jax_versions.QUICK_TO_COMPILE)

    def call(*args: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*args)
        except jax.errors.JaxRuntimeError as error:
            if not jax_versions.is_unknown_option(error):
                raise
            chosen = plain
        return chosen(*args)

    return call


@functools.lru_cache(maxsize=PROGRAMS)
def jit(f: Callable[..., Any], quick: bool, *programs: Jaxpr) -> Callable[..., Any]:
    """`compiled(f, quick)`, in a cache of its own for these programs among its arguments."""
    return compiled(f, quick)


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
        self.plain, self.quick = (compiled(self._on_any_axes, quick) for quick in (False, True))  # without functions

    def __call__(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, *others: Any) -> Any:
        """The result.

        Args:
          static: hashable; the body is compiled for each.
          maps: matrices, user's functions, or None.
          v: the vector of the problem, or None; programs take vectors that are sharded and vary like it.
          others: pytrees of arrays.
        """
        quick = not jax_versions.is_traced_here() and arguments.memory.device(v, maps).platform == "cpu"
        solve = self.quick if quick else self.plain
        if any(map(arguments.is_function, maps)):
            own = self._mapped(_traced_by_user, static, maps, v)
            varied = mesh_axes.varying(v, (own, others))
            if varied is not v:
                v, own = varied, self._mapped(_traced_by_user, static, maps, varied)
            solve, maps = jit(self._on_any_axes, quick, *(f.program for f in own if isinstance(f, Function))), own
        return interrupts.run(solve, static, maps, basis, v, others)

    def _mapped(self, make: Callable[[Any, Any], Any], static: Any, maps: tuple[Any, ...], v: Any) -> tuple[Any, ...]:
        """The maps, with make(function, vector like those that it takes) in place of each function."""
        if not any(map(arguments.is_function, maps)):
            return maps
        examples = zip(maps, self.examples(static, v), strict=True)
        return tuple(make(f, like) if arguments.is_function(f) else f for f, like in examples)

    def _on_any_axes(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, others: tuple[Any, ...]) -> Any:
        own = self._mapped(mesh_axes.outside, static, maps, v)
        programs = tuple(a if arguments.is_function(a) else None for a in maps)
        matrices = tuple(None if f else a for f, a in zip(programs, maps, strict=True))

        def on_auto_axes(*operands: Any) -> Any:
            matrices, basis, v, others = mesh_axes.varying(operands, programs)
            inside = (f if a is None else a for f, a in zip(own, matrices, strict=True))
            return self.body(static, tuple(inside), basis, v, *others)

        # Under vmap the type of v does not name the axis of the batch, but all programs traced here must use one mesh.
        axes = mesh_axes.explicit_axes(jax.sharding.get_abstract_mesh())
        operands = matrices, basis, v, others
        return mesh_axes.partitioned(on_auto_axes, operands, self.out(static, v), axes=axes)(*operands)
