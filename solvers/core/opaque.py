"""A function with derivatives of its own that every transformation keeps.

`jax.custom_jvp` loses its rule under partial evaluation, for instance in the body of a scan under reverse mode: JAX
then differentiates the operations inside. For a Krylov loop the result is a wrong derivative in forward mode (0 for a
solve that took no step) and an error in reverse mode. A primitive keeps its rule and has a transpose of its own, which
`jax.custom_jvp` lacks.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt._types import standard_promotion

Leaves = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque:
    """A program over leaves, and its rules. Hashed by identity: it is a parameter of a primitive.

    Attributes:
      jvp: (primals, tangents) -> (leaves, tangents); None stands for a zero tangent and for the tangent of any integer.
      transpose: (leaves, cotangent of the first output) -> cotangent of leaf `linear`, in which that output is linear;
        it reads no other number of that leaf. None: linear in nothing.
      linear: the number of that leaf. The first output may depend on the leaves before it, but not on those after it.
    """

    program: ClosedJaxpr
    jvp: Callable[[Leaves, Leaves], tuple[Leaves, Leaves]]
    transpose: Callable[[Leaves, Any], Any] | None
    linear: int


def apply(
    f: Callable[..., Any],
    jvp: Callable[[Any, Any], tuple[Any, Any]],
    *args: Any,
    transpose: Callable[..., Array] | None = None,
) -> Any:
    """f(*args) for pytrees. f, `jvp` and `transpose` must not close over arrays that JAX transforms.

    Args:
      jvp: (args, tangents) -> (result, its tangent), None for a leaf whose tangent is zero or has no meaning.
      transpose: (args, cotangent) -> cotangent of args[1], an array, where the first leaf of the result is an array
        linear in args[1], which it does not read, and independent of what follows.
    """
    leaves, inside = jax.tree.flatten(args)
    # JAX keys a trace by f, the types of the arguments and the ambient mesh, which its rules set; without this it would
    # trace f twice.
    with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
        traced = jax.jit(f).trace(*args)
    of_leaves = lambda leaves: jax.tree.unflatten(inside, leaves)  # noqa: E731
    out_leaves = lambda tree: tuple(jax.tree.leaves(tree, is_leaf=lambda a: a is None))  # noqa: E731

    def jvp_of_leaves(primals: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        out, tangent = jvp(of_leaves(primals), of_leaves(tangents))
        return out_leaves(out), out_leaves(tangent)

    transposed = None if transpose is None else lambda leaves, ct: transpose(of_leaves(leaves), ct)
    call = Opaque(traced.jaxpr, jvp_of_leaves, transposed, len(jax.tree.leaves(args[:1])))
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), opaque_p.bind(*leaves, call=call))


def _is_none(tangent: Any) -> bool:
    """Whether the tangent is zero, or that of an integer."""
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _compute(*leaves: Any, call: Opaque) -> list[Any]:
    return jaxpr_as_fun(call.program)(*leaves)


def _jvp(primals: Leaves, tangents: Leaves, *, call: Opaque) -> tuple[Leaves, Leaves]:
    out, tangents = call.jvp(primals, tuple(None if _is_none(t) else t for t in tangents))
    zero = lambda a: ad.Zero(jax.typeof(a).to_tangent_aval())  # noqa: E731
    return out, tuple(zero(a) if t is None else t for a, t in zip(out, tangents, strict=True))


def _transpose(cotangents: Leaves, *leaves: Any, call: Opaque) -> list[Any]:
    unknown = [ad.is_undefined_primal(leaf) for leaf in leaves]
    if call.transpose is None or any(unknown[: call.linear]):
        raise TypeError(
            "jax.linear_transpose of a solve needs a function of b alone that returns x, such as lambda b: cg(A, b).x, "
            "because x is linear in b and not in A, M or x0"
        )
    first, *others = (None if _is_none(ct) else ct for ct in cotangents)
    result: list[Any] = [None] * len(leaves)
    if unknown[call.linear] and not (first is None and all(ct is None for ct in others)):
        known = [jnp.zeros(a.aval.shape, a.aval.dtype) if u else a for a, u in zip(leaves, unknown, strict=True)]
        at = known[call.linear]
        ct = jnp.zeros_like(at) if first is None else call.transpose(tuple(known), first)
        result[call.linear] = ct + undefined(at, others)
    return result


def _batch(axis: Any, leaves: Leaves, dims: tuple[Any, ...], *, call: Opaque) -> tuple[list[Any], tuple[Any, ...]]:
    if all(dim is None for dim in dims):
        out = opaque_p.bind(*leaves, call=call)
        return out, (None,) * len(out)
    vmap = functools.partial(jax.vmap, spmd_axis_name=axis.spmd_name)
    f = vmap(jaxpr_as_fun(call.program), tuple(dims), 0)
    jvp = vmap(call.jvp, (tuple(dims), tuple(dims)), 0)
    transpose = None
    if call.transpose is not None:
        of_one, dim = vmap(call.transpose, (tuple(dims), 0), 0), dims[call.linear]

        def transpose_each(leaves: Leaves, cotangent: Any) -> Any:
            every = of_one(leaves, cotangent)
            return jnp.sum(every, 0) if dim is None else jnp.moveaxis(every, 0, dim)

        transpose = transpose_each
    out = opaque_p.bind(*leaves, call=Opaque(jax.make_jaxpr(f)(*leaves), jvp, transpose, call.linear))
    return out, (0,) * len(out)


def jvp(f: Callable[[Any], Any], primals: Any, tangents: Any) -> Any:
    """The tangent of f(primals) for tangents of which None stands for zero; None if all are None."""
    leaves, inside = jax.tree.flatten(primals)
    given = jax.tree.leaves(tangents, is_leaf=lambda a: a is None)
    move = [i for i, t in enumerate(given) if t is not None]

    def of_moving(*moving: Any) -> Any:
        now = dict(zip(move, moving, strict=True))
        return f(jax.tree.unflatten(inside, [now.get(i, leaf) for i, leaf in enumerate(leaves)]))

    return jax.jvp(of_moving, [leaves[i] for i in move], [given[i] for i in move])[1] if move else None


def undefined(results: Any, tangents: Any) -> Any:
    """Tangents of results that have no derivative: NaN unless all `tangents` are zero; None for integers.

    In reverse mode a zero cotangent of such a result stays zero, and any other becomes NaN in all of them. So a loop
    may carry such a result along if the loss does not read it.
    """

    def tangent(result: Array) -> Array | None:
        if not jnp.issubdtype(result.dtype, jnp.inexact):
            return None
        each = (jnp.sum(undefined_p.bind(t)).real.astype(result.dtype) for t in jax.tree.leaves(tangents))
        return jnp.broadcast_to(sum(each, jnp.zeros((), result.dtype)), result.shape)

    return jax.tree.map(tangent, results)


def _undefined(tangent: Array) -> Array:
    # Under jax_debug_nans a NaN in a tangent that the caller does not use would stop the program.
    nothing = jnp.inf if jax.config.jax_debug_nans else jnp.nan  # pyright: ignore[reportAttributeAccessIssue]
    return jnp.where(tangent == 0, 0, nothing).astype(tangent.dtype)


opaque_p = Primitive("opaque")
opaque_p.multiple_results = True
opaque_p.def_impl(_compute)
opaque_p.def_effectful_abstract_eval(lambda *avals, call: (call.program.out_avals, call.program.effects))
ad.primitive_jvps[opaque_p] = standard_promotion(_jvp)
ad.primitive_transposes[opaque_p] = standard_promotion(_transpose)
batching.fancy_primitive_batchers[opaque_p] = standard_promotion(_batch)
mlir.register_lowering(opaque_p, mlir.lower_fun(_compute, multiple_results=True))

undefined_p = Primitive("undefined_derivative")
undefined_p.def_impl(_undefined)
undefined_p.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(undefined_p, lambda cotangent, _: [undefined_p.bind(cotangent)])
batching.defvectorized(undefined_p)
mlir.register_lowering(undefined_p, mlir.lower_fun(_undefined, multiple_results=False))
