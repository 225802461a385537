"""Fused passes over vectors, for a solver's updates and inner products.

On a GPU a pass over real vectors [n] is one kernel (`kernels/vector_pass.py`), and a sum stays in parts until it is
needed, perhaps by the next pass. Elsewhere, and for complex numbers and columns [n, k], a pass is plain jnp. XLA cannot
partition a kernel, so a pass over vectors that are spread over devices runs inside shard_map, on each device's piece.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt._dtypes import x64_enabled
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import by_size, standard_promotion
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.kernels.backends import jax_versions, selection
from jaxsparse_fmt.kernels.vector_pass import Pass, parts, sweep_reference
from jaxsparse_fmt.kernels.vector_pass import inner_product as inner_product  # for solvers
from jaxsparse_fmt.kernels.vector_pass import sweep as sweep_by_kernel


@pytree
class Parts:
    """A sum in parts: [m] numbers, [m, k] for k columns, that are still to be added."""

    summands: Array

    @property
    def dtype(self) -> Any:
        return self.summands.dtype


Number = Array | Parts


def total(a: Number) -> Array:
    return jnp.sum(a.summands, axis=0) if isinstance(a, Parts) else a


@functools.partial(by_size, static_argnums=(0, 1, 2))
def noise(n: int, dtype: Any, seed: int = 0, first: Array | int = 0) -> Array:
    """n pseudorandom numbers between −1 and 1, numbers `first` to `first` + n − 1 of the sequence of a seed.

    Each is a hash of its index, with the shifts and factors that C. Wellons' search found to mix 32 bits best
    (hash-prospector). XLA on a CPU would take 0.4 s to compile a generator of jax.random.
    """
    h = lax.iota(jnp.uint32, n) + jnp.uint32((1 + seed * 0x9E3779B9) % 2**32)  # 0 would stay 0
    h = h if isinstance(first, int) else h + first.astype(jnp.uint32)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h = (h ^ (h >> shift)) * jnp.uint32(factor)
    h = lax.bitcast_convert_type(h ^ (h >> 15), jnp.int32)
    wide = jnp.promote_types(dtype, jnp.float32)  # a dtype that can represent 2⁻³¹
    return (h.astype(wide) * 2.0**-31).astype(dtype)


def sweep(what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """One pass: new vectors, scalars and sums.

    Args:
      what: the functions of the pass. It must be the same object at every call, or each call compiles anew.
      numbers: scalars or sums; [k] for vectors of [n, k].
      vectors: [n] or [n, k], all alike.

    Returns:
      The new vectors of `what.each`, the scalars of `what.prepare`, and the sums of `what.each`.
    """
    if not by_kernel(*vectors):
        return plain_sweep(what, numbers, vectors)
    flat = [a.summands if isinstance(a, Parts) else jnp.asarray(a) for a in numbers]
    shapes = jax.eval_shape(functools.partial(_sweep, counts=len(flat), what=what, backend="xla"), *flat, *vectors)
    backend = selection.in_use.value
    out = sweep_p.bind(*mesh_axes.varying((*flat, *vectors)), counts=len(flat), what=what, backend=backend)
    new, scalars, sums = jax.tree.unflatten(jax.tree.structure(shapes), out)
    return new, scalars, tuple(map(Parts, sums))


def plain_sweep(what: Pass, numbers: tuple[Number, ...], vectors: tuple[Array, ...]):
    """As `sweep`, in jnp."""
    return sweep_reference(tuple([total(a) if isinstance(a, Parts) else a for a in numbers]), vectors, what)


DOT = Pass(lambda: (), lambda _, x, y: ((), ((x, y),)))  # Re xᴴ·y, column by column


def by_kernel(*vectors: Array) -> bool:
    """Whether a pass over these vectors is a kernel on JAX's default device."""
    backend = selection.in_use.value
    if backend != "interpret" and (jax.default_backend() != "gpu" or not selection.is_pallas(backend)):
        return False
    n, dtype = vectors[0].shape[0], vectors[0].dtype
    alike = all([v.ndim == 1 and v.dtype == dtype for v in vectors])
    return alike and dtype in (jnp.float32, jnp.float64) and n > 0 and (n < 2**31 or x64_enabled())


def _sweep(*operands: Array, counts: int, what: Pass, backend: str):
    numbers, vectors = operands[:counts], operands[counts:]
    if selection.is_pallas(backend):
        return sweep_by_kernel(numbers, vectors, what, backend)
    summed = tuple(jnp.sum(a) if jnp.ndim(a) else a for a in numbers)
    new, scalars, sums = sweep_reference(summed, vectors, what)
    count = parts(vectors[0].shape[0])
    return new, scalars, tuple(jnp.zeros(count, s.dtype).at[0].set(s) for s in sums)


def platform_primitive(name: str, compute: Callable[..., Any], mapped: Callable[..., Any] | None = None) -> Primitive:
    """A primitive without derivatives, lowered as compute(*operands, backend=the resolved one, **parameters).

    Shapes, and what vmap maps over, are those of `mapped`; None: of `compute` on the backend "xla".
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def leaves(*operands, platform, backend, **parameters):
        return jax.tree.leaves(compute(*operands, backend=selection.resolve(backend, platform), **parameters))

    @standard_promotion
    def plain(*operands, backend, **parameters):
        if mapped is not None:
            return jax.tree.leaves(mapped(*operands, backend=backend, **parameters))
        return jax.tree.leaves(compute(*operands, backend="xla", **parameters))

    def abstract(*avals, **parameters):
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        out = jax.eval_shape(functools.partial(plain, **parameters), *shapes)
        return [jax_versions.abstract_like(avals, o.shape, o.dtype) for o in out]

    @standard_promotion
    def batch(operands, dims, **parameters):
        out = jax.vmap(functools.partial(plain, **parameters), tuple(dims))(*operands)
        return out, (0,) * len(out)

    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    lower_by_platform(primitive, leaves)
    return primitive


def lower_by_platform(primitive: Primitive, compute: Callable[..., Any]) -> None:
    """Lowers a primitive as compute(*operands, platform="cuda", "cpu" or None, **parameters); outside jit, too."""

    def lower(platform, ctx, *operands, **parameters):
        f = standard_promotion(functools.partial(compute, platform=jax_versions.lowering_platform(platform, ctx)))
        with jax_versions.without_deprecation():
            lowered = mlir.lower_fun(f, multiple_results=primitive.multiple_results)
            return lowered(jax_versions.bare(ctx), *operands, **parameters)

    @functools.partial(jax.jit, static_argnames="parameters")
    def compiled(*operands, parameters):
        return primitive.bind(*operands, **dict(parameters))

    def impl(*operands, **parameters):
        with jax.disable_jit(False):  # else `compiled` would bind the primitive, which would call `impl` again
            return compiled(*operands, parameters=tuple(parameters.items()))

    primitive.def_impl(impl)
    for platform in (None, "cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)


sweep_p = platform_primitive("vector_sweep", _sweep)


def _sweep_jvp(primals, tangents, *, counts, what, backend):
    """The derivative of the plain form, for a solver's unrolled steps."""
    del backend

    def plain(*operands):
        return jax.tree.leaves(_sweep(*operands, counts=counts, what=what, backend="xla"))

    return jax.jvp(plain, primals, tuple(map(ad.instantiate_zeros, tangents)))


ad.primitive_jvps[sweep_p] = _sweep_jvp
