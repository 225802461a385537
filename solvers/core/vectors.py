"""Inner products of vectors [n], or of the columns of [n, k]; blocks of vectors; what a flag decides; powers of two.

Products with a power of two are exact. A solve divides b by one, so that tiny and huge right-hand sides work.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt.core.vector_passes import inner_product

# TF32, a GPU's default for float32, would leave vectors orthogonal to 3 digits only.
EXACT = lax.Precision.HIGHEST


def dot(x: Array, y: Array) -> Array:
    """Re xᴴ·y."""
    return inner_product(x, y).real


def adjoint_product(A: Any, v: Array) -> Array:
    """Aᴴ·v."""
    return jnp.conj(times(A.T, jnp.conj(v)))


def times(A: Any, v: Array) -> Array:
    """A·v, of a dense A in full precision."""
    return jnp.matmul(A, v, precision=EXACT) if isinstance(A, (jax.Array, np.ndarray)) else A @ v


@jax.jit  # here and elsewhere in `solvers`: JAX traces such a function once, and a solve calls it many times
def ratio(a: Array, b: Array) -> Array:
    """a / b, or 0 if b is 0."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def matmul(a: Array, b: Array) -> Array:
    """a·b in full precision."""
    return jnp.matmul(a, b, precision=EXACT)


# A block of vectors is [m, n], or [k, m, n] for k systems: with the columns last, products would copy it.


def linear_combination(V: Array, c: Array) -> Array:
    """Σᵢ c[i]·V[i], with c [m] or [m, k]: [n] or [n, k]."""
    return jnp.einsum("...in,...i->...n", V, c.T, precision=EXACT).T


def products(V: Array, w: Array) -> Array:
    """V[i]·w for every i, with w [n] or [n, k]: [m] or [m, k]."""
    return jnp.einsum("...in,...n->...i", V, w.T, precision=EXACT).T


def root(a: Array) -> Array:
    """The square root of a ≥ 0, and a itself if that is denormal. Mosaic GPU has jnp.sqrt since JAX 0.11."""
    return jnp.where(a >= jnp.finfo(a.dtype).tiny, a * lax.rsqrt(a), a)


def anyone(flags: Array) -> Array:
    """Whether any column's flag is set."""
    return flags if flags.ndim == 0 else jnp.any(flags)


def once_if(flags: Array, f: Callable[..., Any], carried: Any, *operands: Array) -> Any:
    """f(carried, *operands) if any flag is set, else `carried`: by a loop of one trip or none.

    vmap would copy the operands of a condition, A among them, once for each system. What does not depend on the trip's
    number XLA computes before the loop, even if there is no trip.
    """

    def trip(number: Array, carried: Any) -> Any:
        return f(carried, *[jnp.where(number == 0, a, 0) for a in operands])

    return lax.fori_loop(0, anyone(flags).astype(jnp.int32), trip, carried)


@jax.jit
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


def scaled_by(f: Callable[[Array], Array], exponent: Array) -> Callable[[Array], Array]:
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


@one_kernel
def power_below(magnitude: Array) -> Array:
    info = jnp.finfo(magnitude.dtype)
    places, bias, integers = _layout(info.dtype)
    bits = lax.bitcast_convert_type(magnitude, integers) & integers(2 * bias + 1 << places)
    least, most = (jnp.full_like(magnitude, 2.0**e) for e in (8 - info.maxexp, info.maxexp - 8))
    return lax.clamp(least, lax.bitcast_convert_type(bits, info.dtype), most)


def _layout(dtype: Any) -> tuple[int, int, Any]:
    """Places of the fraction, bias of the exponent, and the integer of as many bits."""
    info = jnp.finfo(dtype)
    return info.nmant, info.maxexp - 1, jnp.int64 if info.bits == 64 else jnp.int32
