"""Functions of a few numbers as one kernel on a CPU: a first `cg` or `gmres` in jit takes 0.7 of the CPU time.

XLA for a CPU makes a kernel of each scalar result, in some 10 ms, or computes it again in each kernel that reads it.
Kernels over vectors then differ by what they compute of scalars, whereas XLA compiles equal kernels only once. Results
that are stacked into one array gain a third as much: XLA moves what computes them into the kernels that read a part.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# XLA marks calls of small loops so. In a later JAX such calls might mean something else: then a test fails, which says
# what to try, and until that nothing is marked.
LAST_TRIED = 0, 12
ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"} if jax.__version_info__[:2] <= LAST_TRIED else {}


def one_kernel(f: Callable[..., Any], statics: int = 0) -> Callable[..., Any]:
    """f, a function of a few numbers after `statics` static arguments; other platforms compile it as any function."""

    def both(*args: Any) -> Any:
        return f(*args), args[statics:]

    compiled = jax.jit(both, static_argnums=tuple(range(statics)))

    def call(*args: Any) -> Any:
        # XLA aborts at an argument that nothing reads: so all are results too, and no constant moves into the call.
        given, tree = jax.tree.flatten(args[statics:])
        results, out = jax.tree.flatten(compiled(*args[:statics], *jax.tree.unflatten(tree, fenced_p.bind(*given))))
        return jax.tree.unflatten(out, marked_p.bind(*results))[0]

    return functools.wraps(f)(call)


def _mark(ctx: Any, *results: Any) -> tuple[Any, ...]:
    """Gives the call whose results these are the attributes; a result that JAX has kept belongs to a block."""
    del ctx
    named: Any = dict(zip(ATTRIBUTES, map(mlir.ir.StringAttr.get, ATTRIBUTES.values()), strict=True))
    attributes = mlir.ir.DictAttr.get(named)
    for result in results:
        if ATTRIBUTES and getattr(result.owner, "name", "") == "func.call":
            result.owner.attributes["mhlo.frontend_attributes"] = attributes
    return results


def _identity(name: str, on_cpu: Callable[..., Any]) -> Primitive:
    """A primitive that returns its arguments, lowered by `on_cpu` in programs for a CPU that XLA does not partition."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *values: values)
    primitive.def_abstract_eval(lambda *values: values)
    ad.primitive_jvps[primitive] = lambda primals, tangents: (primitive.bind(*primals), tangents)
    batching.primitive_batchers[primitive] = lambda values, dims: (primitive.bind(*values), dims)

    def lowered(ctx: Any, *values: Any) -> Any:
        context = ctx.module_context.axis_context
        # Where XLA spreads arrays, a call may have to wait for another device, as no kernel can.
        if (mesh := getattr(context, "mesh", None)) is None:
            is_partitioned = getattr(context, "num_devices", 2) > 1
        else:
            is_partitioned = mesh.size > 1 and set(context.manual_axes) != set(mesh.axis_names)
        is_for_cpu = tuple(ctx.module_context.platforms) == ("cpu",)
        return on_cpu(ctx, *values) if is_for_cpu and not is_partitioned else values

    mlir.register_lowering(primitive, lowered, cacheable=False)  # a kept lowering would hide the call from `_mark`
    return primitive


fenced_p = _identity("fenced", mlir.lower_fun(lambda *values: lax.optimization_barrier(values), multiple_results=True))
marked_p = _identity("one_kernel", _mark)
