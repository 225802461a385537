"""A function with a derivative of its own that no transformation takes apart.

`jax.custom_jvp` promises that too, but partial evaluation drops its rule, as happens to the body of a scan under
reverse mode: the derivative of that is then the derivative of the function's insides. A Krylov loop differentiated so
is wrong in forward mode (a solve that took no step has derivative 0) and an error in reverse. A primitive stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

Leaves = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque:
    """A program over leaves, and its rule jvp(primals, tangents) -> (leaves, tangents), None for integers' tangents.

    Hashed by identity: it is a parameter of a primitive.
    """

    program: ClosedJaxpr
    jvp: Callable[[Leaves, Leaves], tuple[Leaves, Leaves]]


def apply(f: Callable[..., Any], jvp: Callable[[Any, Any], tuple[Any, Any]], *args: Any) -> Any:
    """f(*args) for pytrees; jvp(args, tangents) gives the result and its tangent, float0 for integers.

    Neither may close over arrays that are transformed: what they depend on are the arguments.
    """
    leaves, inside = jax.tree.flatten(args)
    program, shape = jax.make_jaxpr(lambda *leaves: f(*jax.tree.unflatten(inside, leaves)), return_shape=True)(*leaves)

    def of_leaves(primals: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        filled = [
            np.zeros(p.shape, jax.dtypes.float0) if t is None else t for p, t in zip(primals, tangents, strict=True)
        ]
        out, tangent = jvp(jax.tree.unflatten(inside, primals), jax.tree.unflatten(inside, filled))
        return tuple(jax.tree.leaves(out)), tuple(_of_floats(t) for t in jax.tree.leaves(tangent))

    out = opaque_p.bind(*leaves, call=Opaque(program, of_leaves))
    return jax.tree.unflatten(jax.tree.structure(shape), out)


def _of_floats(tangent: Any) -> Any:
    return None if tangent.dtype == jax.dtypes.float0 else tangent


def _compute(*leaves: Any, call: Opaque) -> list[Any]:
    return jaxpr_as_fun(call.program)(*leaves)


def _jvp(primals: Leaves, tangents: Leaves, *, call: Opaque) -> tuple[Leaves, Leaves]:
    is_float = [jnp.issubdtype(p.dtype, jnp.inexact) for p in primals]
    given = tuple(ad.instantiate_zeros(t) if ok else None for t, ok in zip(tangents, is_float, strict=True))
    out, tangents = call.jvp(primals, given)
    zero = lambda a: ad.Zero(jax.typeof(a).to_tangent_aval())  # noqa: E731
    return out, tuple(zero(a) if t is None else t for a, t in zip(out, tangents, strict=True))


def _batch(leaves: Leaves, dims: tuple[Any, ...], *, call: Opaque) -> tuple[list[Any], tuple[int, ...]]:
    f = jax.vmap(jaxpr_as_fun(call.program), tuple(dims), 0)
    jvp = jax.vmap(call.jvp, (tuple(dims), tuple(dims)), 0)
    out = opaque_p.bind(*leaves, call=Opaque(jax.make_jaxpr(f)(*leaves), jvp))
    return out, (0,) * len(out)


opaque_p = Primitive("opaque")
opaque_p.multiple_results = True
opaque_p.def_impl(_compute)
opaque_p.def_effectful_abstract_eval(lambda *avals, call: (call.program.out_avals, call.program.effects))
ad.primitive_jvps[opaque_p] = _jvp
batching.primitive_batchers[opaque_p] = _batch
mlir.register_lowering(opaque_p, mlir.lower_fun(_compute, multiple_results=True))
