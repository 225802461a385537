"""Inner products and norms of vectors [n], or of the columns of [n, k]; blocks of vectors; what a flag decides."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

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


@jax.jit
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
