"""The way from a public function into its compiled program, the same for every solver.

The entry turns a user's functions into programs, for which jit finds compiled code by their equations. It makes
explicit mesh axes auto ones, and makes the arrays vary over the same axes inside a user's shard_map.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers.core import arguments, program


class Entry:
    """A solver's body, jitted: `entry(static, maps, basis, v, *others)`.

    Attributes:
      compiled: the jitted body, for maps that contain no function.
    """

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
        self.compiled = jax.jit(self._on_any_axes, static_argnums=0)

    def __call__(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, *others: Any) -> Any:
        """The result.

        Args:
          static: hashable; the body is compiled for each.
          maps: matrices, user's functions, or None.
          v: the vector of the problem, or None; programs take vectors that are sharded and vary like it.
          others: pytrees of arrays.
        """
        traced = self._traced(static, maps, v)
        if not any(isinstance(f, program.Function) for f in traced):
            return self.compiled(static, traced, basis, v, others)
        varied = mesh_axes.varying(v, (traced, others))
        if varied is not v:
            v, traced = varied, self._traced(static, maps, varied)
        programs = [f.program for f in traced if isinstance(f, program.Function)]
        return program.jit(self._on_any_axes, (0,), *programs)(static, traced, basis, v, others)

    def _traced(self, static: Any, maps: tuple[Any, ...], v: Any) -> tuple[Any, ...]:
        if not any(map(arguments.is_function, maps)):
            return maps
        examples = zip(maps, self.examples(static, v), strict=True)
        return tuple(program.traced(f, like) if arguments.is_function(f) else f for f, like in examples)

    def _on_any_axes(self, static: Any, maps: tuple[Any, ...], basis: Basis, v: Any, others: tuple[Any, ...]) -> Any:
        own: list[Any] = [None] * len(maps)
        if any(map(arguments.is_function, maps)):
            examples = zip(maps, self.examples(static, v), strict=True)
            own = [mesh_axes.outside(f, like) if arguments.is_function(f) else None for f, like in examples]
        programs = tuple(f if arguments.is_function(f) else None for f in maps)

        def on_auto_axes(*operands: Any) -> Any:
            matrices, basis, v, others = mesh_axes.varying(operands, programs)
            with basis.scope():
                return self.body(static, tuple(f or a for f, a in zip(own, matrices, strict=True)), basis, v, *others)

        matrices = tuple(None if f else a for f, a in zip(own, maps, strict=True))
        # Under vmap the type of v does not name the axis of the batch, but all programs traced here must use one mesh.
        axes = mesh_axes.explicit_axes(jax.sharding.get_abstract_mesh())
        return mesh_axes.by_xla(on_auto_axes, (matrices, basis, v, others), self.out(static, v), axes=axes)


def entered(M: Any, basis: Basis) -> Callable[[Array], Array]:
    """M between vectors that have entered the basis; permutes twice unless M has `entered`. None: the identity."""
    if M is None:
        return lambda r: r
    if hasattr(M, "entered"):
        own = M.entered(basis)
        return lambda r: arguments.apply(own, r).astype(r.dtype)
    return lambda r: basis.enter(arguments.apply(M, basis.leave(r))).astype(r.dtype)
