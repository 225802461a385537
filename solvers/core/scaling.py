"""Powers of two: products with one are exact. A solve divides b by one, so that tiny and huge right-hand sides work."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import vector_passes

Map = Callable[[Array], Array]


@pytree
@dataclasses.dataclass(frozen=True)
class Product:
    """v -> A·v, with sums over it from the same pass; `apply` is the product alone.

    A call takes the product from the pass of the steps, `what` over A·v and `count` vectors: one kernel to compile.
    """

    apply: Map
    with_sums: Callable[..., tuple[Array, tuple[vector_passes.Number, ...]]]  # (v, what, *beside)
    what: vector_passes.Pass
    count: int

    def __call__(self, v: Array) -> Array:
        return self.with_sums(v, self.what, *[v] * self.count)[0]


@jax.jit  # here and elsewhere in `solvers`: JAX traces such a function once, and a solve calls it many times
def exponent_of(size: Array) -> Array:
    """e with 2ᵉ about the number `size` ≥ 0, as far as the dtype can scale. 0 for zeros and infinities."""
    places, bias, integers = _layout(size.dtype)
    limit = jnp.finfo(size.dtype).maxexp - 8
    biased = lax.bitcast_convert_type(size, integers) >> places  # sizes have no sign; 0 of zero, and of denormals
    known = (biased > 0) & (biased <= 2 * bias)
    return jnp.where(known, jnp.clip(biased - (bias - 1), -limit, limit), 0).astype(jnp.int32)


@jax.jit
def scaled(a: Array, exponent: Array) -> Array:
    """2ᵉ·a, in two steps, since 2ᵉ may lie beyond the dtype where 2ᵉ·a does not."""
    half = exponent >> 1
    return a * power_of_two(half, a.dtype) * power_of_two(exponent - half, a.dtype)


def power_of_two(exponent: Array, dtype: Any) -> Array:
    """2ᵉ in the real dtype of `dtype`, for an e in its range. Made from bits: ldexp takes XLA dozens of operations.

    Operations of `lax` are traced in a third of the time of those of jnp.
    """
    real = jnp.finfo(dtype).dtype
    places, bias, integers = _layout(real)
    biased = lax.add(lax.convert_element_type(exponent, integers), integers(bias))
    return lax.bitcast_convert_type(lax.shift_left(biased, integers(places)), real)


def _layout(dtype: Any) -> tuple[int, int, Any]:
    """Places of the fraction, bias of the exponent, and the integer of as many bits."""
    info = jnp.finfo(dtype)
    return info.nmant, info.maxexp - 1, jnp.int64 if info.bits == 64 else jnp.int32
