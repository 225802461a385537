"""Passes over vectors that fuse: for a solver's updates and inner products.

On a GPU a pass over real vectors of [n] is one kernel (`kernels/sweep.py`), and a sum stays in parts until something
asks for it, which may be the next pass. Elsewhere, and for complex numbers and [n, k] columns, it is plain jnp.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxsparse_fmt._types import x64_enabled
from jaxsparse_fmt.kernels import dialect
from jaxsparse_fmt.kernels.sweep import Pass, inner_product, parts, sweep_reference
from jaxsparse_fmt.kernels.sweep import sweep as sweep_by_kernel

__all__ = ["Number", "Parts", "Pass", "by_kernel", "dot", "inner_product", "platform_primitive", "sweep", "total"]

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """A sum not yet summed: [m] numbers."""

    of: Array

    @property
    def dtype(self) -> Any:
        return self.of.dtype


Number = Array | Parts


def total(a: Number) -> Array:
    return jnp.sum(a.of) if isinstance(a, Parts) else a


def sweep(what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """One pass: new vectors, scalars and sums.

    Args:
      what: the functions of the pass. It must be the same object at every call, or each compiles anew.
      numbers: scalars or sums; [k] beside vectors of [n, k].
      vectors: [n] or [n, k], all alike.

    Returns:
      What `what.each` gives as new vectors, what `what.prepare` gives, and its sums.
    """
    if not by_kernel(*vectors):
        return sweep_reference(tuple(map(total, numbers)), vectors, what)
    flat = [a.of if isinstance(a, Parts) else jnp.asarray(a) for a in numbers]
    shapes = jax.eval_shape(functools.partial(_sweep, counts=len(flat), what=what, backend="xla"), *flat, *vectors)
    counts = len(shapes[0]), len(shapes[1])
    out = sweep_p.bind(*flat, *vectors, counts=len(flat), what=what, backend=dialect.active_backend("auto"))
    new, scalars, sums = out[: counts[0]], out[counts[0] : sum(counts)], out[sum(counts) :]
    return tuple(new), tuple(scalars), tuple(map(Parts, sums))


def dot(x: Array, y: Array) -> Number:
    """Re xᴴ·y, column by column."""
    return sweep(DOT, (), (x, y))[2][0]


DOT = Pass(lambda: (), lambda _, x, y: ((), ((x, y),)))


def by_kernel(*vectors: Array) -> bool:
    """Whether a pass over these is a kernel, should it run where JAX runs by default."""
    backend = dialect.active_backend("auto")
    runs = backend == "interpret" or (backend != "xla" and jax.default_backend() == "gpu")
    same = all(v.ndim == 1 and v.dtype == vectors[0].dtype for v in vectors)
    real = all(v.dtype in (jnp.float32, jnp.float64) for v in vectors)
    return runs and same and real and (vectors[0].shape[0] < 2**31 or x64_enabled()) and vectors[0].shape[0] > 0


def _sweep(*operands: Array, counts: int, what: Pass, backend: str):
    numbers, vectors = operands[:counts], operands[counts:]
    if backend != "xla":
        return sweep_by_kernel(numbers, vectors, what, backend)
    summed = tuple(jnp.sum(a) if a.ndim else a for a in numbers)
    new, scalars, sums = sweep_reference(summed, vectors, what)
    count = parts(vectors[0].shape[0])
    return new, scalars, tuple(jnp.zeros(count, s.dtype).at[0].set(s) for s in sums)


def platform_primitive(name: str, compute: Callable[..., Any], mapped: Callable[..., Any] | None = None) -> Primitive:
    """A primitive without derivatives whose compute(*operands, backend=…, **parameters) is told what runs.

    Under vmap it is `mapped`, of the same arguments, mapped over; None: its plain form.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def leaves(*operands, platform, backend, **parameters):
        return jax.tree.leaves(compute(*operands, backend=dialect.resolve(backend, platform), **parameters))

    def plain(*operands, backend, **parameters):
        del backend
        return jax.tree.leaves(compute(*operands, backend="xla", **parameters))

    def abstract(*avals, **parameters):
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        return [ShapedArray(o.shape, o.dtype) for o in jax.eval_shape(functools.partial(plain, **parameters), *shapes)]

    def batch(operands, dims, **parameters):
        of_one = plain if mapped is None else mapped
        alone = lambda *operands: jax.tree.leaves(of_one(*operands, **parameters))  # noqa: E731
        out = jax.vmap(alone, tuple(dims))(*operands)
        return out, (0,) * len(out)

    def lower(platform, ctx, *operands, **parameters):
        with dialect.without_deprecation():
            f = functools.partial(leaves, platform=platform)
            return mlir.lower_fun(f, multiple_results=True)(ctx, *operands, **parameters)

    @functools.partial(jax.jit, static_argnames="parameters")
    def impl(*operands, parameters):
        return primitive.bind(*operands, **dict(parameters))

    primitive.def_impl(lambda *operands, **parameters: impl(*operands, parameters=tuple(parameters.items())))
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, functools.partial(lower, None))
    mlir.register_lowering(primitive, functools.partial(lower, "cuda"), platform="cuda")
    return primitive


sweep_p = platform_primitive("vector_sweep", _sweep)
