"""Powers of two that keep a solve within the range of its dtype: products with one are exact.

A·x = b is solved as (D·A)·y = b / 2ᵉ with 2ᵉ about the largest number of b, so that x = 2ᵉ·D·y. D is 1 unless products
with A are far from 1. Then D² is about 1 / ‖A‖, which puts y and A's products midway between the largest and the
smallest numbers; and M, whose products a method adds to y, is scaled to make D·A·M about 1.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._types import pytree
from jaxsparse_fmt.core import vector_passes

Map = Callable[[Array], Array]

ORDINARY = 1 / 8  # of the dtype's exponents: products with A between 2⁻¹⁶ and 2¹⁶ in float32 are left alone


@pytree
@dataclasses.dataclass(frozen=True)
class Product:
    """v -> A·v, with vᴴ·A·v from the same pass."""

    apply: Map
    with_dot: Callable[[Array], tuple[Array, vector_passes.Number]]

    def __call__(self, v: Array) -> Array:
        return self.apply(v)


@dataclasses.dataclass(frozen=True)
class Scaled:
    """v -> 2ᵉ·A·v. A method whose passes take scalars calls `unscaled` instead, and multiplies by 2ᵉ in a pass."""

    map: Map
    exponent: Array

    def __call__(self, v: Array) -> Array:
        return self.map(v) * power_of_two(self.exponent, v.dtype)


def balanced(A: Map, M: Map, b: Array) -> tuple[Scaled, Scaled, Array]:
    """A and M scaled for the method, and whether A·b, which determines the scale of A, is finite, by column.

    This takes one product. Where A is far from 1 and there is an M, it also takes one use of M and a second product:
    D·A·M must be about 1, and the sizes of A and M do not determine that: large numbers of A may meet small ones of M.

    Args:
      b: [n] or [n, k], about 1.
    """
    sizes = largest(A(b))
    size, finite = _of_finite(sizes), jnp.isfinite(sizes)
    far = jnp.abs(size) > ORDINARY * jnp.finfo(b.dtype).maxexp
    half = jnp.where(far, -(size >> 1), 0)
    if is_identity(M, b):
        return Scaled(A, half), Scaled(M, half), finite
    # A loop of one trip or none: vmap would turn a condition into both of its branches.
    both = lambda trip, _: of_all(A(M(in_trip(trip, b))))  # noqa: E731
    measured = lax.fori_loop(0, far.astype(jnp.int32), both, jnp.zeros_like(size))
    most = jnp.finfo(b.dtype).maxexp - 8
    return Scaled(A, half), Scaled(M, jnp.clip(-half - measured, -most, most)), finite


def in_trip(trip: Array, a: Array) -> Array:
    """`a` in the only trip, number 0, of a loop of one trip or none.

    What does not depend on the trip's number XLA computes before the loop, and so also where there is no trip.
    """
    return jnp.where(trip == 0, a, 0)


def unscaled(A: Map, dtype: Any) -> tuple[Map, Array]:
    """A without its power of two, and the power."""
    exponent = A.exponent if isinstance(A, Scaled) else jnp.int32(0)
    return A.map if isinstance(A, Scaled) else A, power_of_two(exponent, dtype)


def product_dot(A: Map, v: Array) -> tuple[Array, vector_passes.Number]:
    """A·v and vᴴ·A·v, of an A that is not `Scaled`."""
    if isinstance(A, Product):
        return A.with_dot(v)
    q = A(v)
    return q, vector_passes.dot(v, q)


def is_identity(M: Map, like: Array) -> bool:
    """Whether M returns its argument, as without a preconditioner."""
    return not jax.make_jaxpr(M)(like).eqns


def largest(v: Array) -> Array:
    return jnp.max(jnp.abs(v), axis=0)


def exponent(v: Array) -> Array:
    """e with 2ᵉ about the largest number of v, by column; as far as the dtype can scale. 0 for zeros and infinities."""
    return _exponent_of(largest(v))


def of_all(v: Array) -> Array:
    """As `exponent`, but of all finite columns together."""
    return _of_finite(largest(v))


def _of_finite(sizes: Array) -> Array:
    return _exponent_of(jnp.max(jnp.where(jnp.isfinite(sizes), sizes, 0)))


@jax.jit  # here and elsewhere in `solvers`: JAX traces such a function once, and a solve calls it many times
def _exponent_of(size: Array) -> Array:
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
