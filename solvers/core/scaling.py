"""Powers of two: products with one are exact. A solve divides b by one, so that tiny and huge right-hand sides work."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core import vector_passes

Map = Callable[[Array], Array]


@pytree
@dataclasses.dataclass(frozen=True)
class Product:
    """v -> A·v, with sums over it from the same pass; `apply` is the product alone.

    On a GPU a call uses the kernel of the steps, the pass `what` over A·v and `count` vectors, so that XLA compiles one
    kernel.
    """

    apply: Map
    with_sums: Callable[..., tuple[Array, tuple[vector_passes.Number, ...]]]  # (v, what, *beside)
    what: vector_passes.Pass
    count: int

    def __call__(self, v: Array) -> Array:
        if not vector_passes.by_kernel(v):
            return self.apply(v)
        return self.with_sums(v, self.what, *[v] * self.count)[0]


@jax.jit  # here and elsewhere in `solvers`: JAX traces such a function once, and a solve calls it many times
def exponent_of(magnitude: Array) -> Array:
    """e with 2ᵉ about the number `magnitude` ≥ 0, as far as the dtype can scale. 0 for zeros and infinities."""
    places, bias, integers = _layout(magnitude.dtype)
    limit = jnp.finfo(magnitude.dtype).maxexp - 8
    biased = lax.bitcast_convert_type(magnitude, integers) >> places  # which has no sign; 0 of zero, and of denormals
    known = (biased > 0) & (biased <= 2 * bias)
    return jnp.where(known, jnp.clip(biased - (bias - 1), -limit, limit), 0).astype(jnp.int32)


@jax.jit
def scaled(a: Array, exponent: Array) -> Array:
    """2ᵉ·a, in two steps, since 2ᵉ may lie beyond the dtype where 2ᵉ·a does not."""
    half = exponent >> 1
    return a * power_of_two(half, a.dtype) * power_of_two(exponent - half, a.dtype)


def scaled_by(f: Map, exponent: Array) -> Map:
    """v -> 2⁻ᵉ·f(v), with factors that a loop computes once."""
    half = -exponent >> 1
    return lambda v: (w := f(v)) * power_of_two(half, w.dtype) * power_of_two(-exponent - half, w.dtype)


def power_of_two(exponent: Array, dtype: Any) -> Array:
    """2ᵉ in the real dtype of `dtype`, for an e in its range. Made from bits: ldexp takes XLA dozens of operations.

    Operations of `lax` are traced in a third of the time of those of jnp.
    """
    real = jnp.finfo(dtype).dtype
    places, bias, integers = _layout(real)
    biased = lax.add(lax.convert_element_type(exponent, integers), integers(bias))
    return lax.bitcast_convert_type(lax.shift_left(biased, integers(places)), real)


def unit_of(space: Any, v: Array) -> Array:
    """The power of two below the largest magnitude of v, by column, as far as the dtype can scale."""
    return _power_below(space.largest(v))


@one_kernel
def _power_below(magnitude: Array) -> Array:
    info = jnp.finfo(magnitude.dtype)
    places, bias, integers = _layout(info.dtype)
    bits = lax.bitcast_convert_type(magnitude, integers) & integers(2 * bias + 1 << places)
    least, most = (jnp.full_like(magnitude, 2.0**e) for e in (8 - info.maxexp, info.maxexp - 8))
    return lax.clamp(least, lax.bitcast_convert_type(bits, info.dtype), most)


def _layout(dtype: Any) -> tuple[int, int, Any]:
    """Places of the fraction, bias of the exponent, and the integer of as many bits."""
    info = jnp.finfo(dtype)
    return info.nmant, info.maxexp - 1, jnp.int64 if info.bits == 64 else jnp.int32
