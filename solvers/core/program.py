"""The way from a public function into its compiled program.

An `Entry` traces users' functions, makes explicit mesh axes auto ones, and makes arrays vary over the same axes inside
a user's shard_map.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.formats import memory
from jaxsparse_fmt.kernels.backends import jax_versions
from solvers.core import interrupts
from solvers.core.operators import Function, UserFunction, traced

PROGRAMS = 64  # combinations of users' functions for which a compiled solver is kept; the least recently used goes


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
    """`compiled(f, quick)`, kept for these programs of users' functions among its arguments."""
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
          examples: (static, v) -> for each map a vector like those that it takes, with which a function is traced.
          out: (static, v) -> how the result is sharded over explicit mesh axes, a prefix of PartitionSpecs.
        """
        self.body, self.examples, self.out = body, examples, out
        self.plain, self.quick = (compiled(self._on_any_axes, quick) for quick in (False, True))  # without functions

    def __call__(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, *others: Any) -> Any:
        """The result.

        Args:
          static: hashable; the body is compiled for each.
          maps: operators, or None.
          v: the vector of the problem, or None; programs take vectors that are sharded and vary like it.
          others: pytrees of arrays.
        """
        quick = not jax_versions.is_traced_here() and memory.device(v, maps).platform == "cpu"
        call = self.quick if quick else self.plain
        if UserFunction in map(type, maps):
            given, maps = maps, self._traced(static, maps, v)
            varied = mesh_axes.varying(v, (maps, others))
            if varied is not v:
                v, maps = varied, self._traced(static, given, varied)
            call = jit(self._on_any_axes, quick, *(f.program for f in maps if isinstance(f, Function)))
        return interrupts.run(call, static, maps, basis, v, others)

    def _traced(self, static: Any, maps: tuple[Any, ...], v: Any) -> tuple[Any, ...]:
        examples = zip(maps, self.examples(static, v), strict=True)
        return tuple([None if a is None else a._traced(like) for a, like in examples])

    def _on_any_axes(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, others: tuple[Any, ...]) -> Any:
        if not mesh_axes.has_mesh(maps, basis, v, others):
            return self.body(static, maps, basis, v, *others)
        # Auto axes for all but users' functions, which run on the axes of their own arrays.
        functions = {i: f for i, f in enumerate(maps) if isinstance(f, Function)}
        matrices = tuple(None if i in functions else a for i, a in enumerate(maps))
        outside = {i: mesh_axes.outside(f, self.examples(static, v)[i]) for i, f in functions.items()}

        def on_auto_axes(*operands: Any) -> Any:
            matrices, basis, v, others = mesh_axes.varying(operands, functions)
            examples = self.examples(static, v)
            inside = [traced(outside[i], examples[i]) if i in functions else a for i, a in enumerate(matrices)]
            return self.body(static, tuple(inside), basis, v, *others)

        # Under vmap the type of v does not name the axis of the batch, but all programs traced here must use one mesh.
        axes = mesh_axes.explicit_axes(jax.sharding.get_abstract_mesh())
        operands = matrices, basis, v, others
        return mesh_axes.partitioned(on_auto_axes, operands, self.out(static, v), axes=axes)(*operands)
