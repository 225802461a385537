"""The inner side of a refinement: a matrix and a preconditioner in a narrower type."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from solvers.core import arguments
from solvers.core.diagonal import rows_scaled
from solvers.core.vectors import times


class Narrow(NamedTuple):
    """The inner side of a refinement.

    Attributes:
      dtype: of the inner matrix.
      inner: the inner matrix if the user gave it.
      drop: the factor by which the residual falls until the true one is computed.
    """

    dtype: Any
    inner: Any = None
    drop: float = 0.0


ROOM = 8  # float16 holds 2¹⁶: rows are scaled so that the magnitudes in each add up to about 2⁸


def inner_dtype(values: Any, wide: Any) -> Any:
    """The dtype of the vectors over narrow values: float32, or complex64. ValueError: not narrower than `wide`."""
    is_complex = jnp.issubdtype(wide, jnp.complexfloating)
    if jnp.finfo(values).bits >= jnp.finfo(wide).bits:
        raise ValueError(
            f"an inner {jnp.dtype(values).name} is not narrower than A and b, which are {jnp.dtype(wide).name}; take a "
            "narrower one, or float64 for A and b (with jax_enable_x64)"
        )
    if is_complex and jnp.finfo(values).bits < 32:
        raise ValueError(
            f"dtype={jnp.dtype(values).name!r} is for real A and b, since no complex dtype is that narrow; use "
            "dtype='float32', which stores complex64"
        )
    return jnp.dtype(jnp.complex64 if is_complex else jnp.float32)


def given(A: Any, inner: Any, n: int) -> Any:
    """The inner matrix of the user, if any. TypeError: there is none, and A is a function, without values."""
    if inner is not None:
        return arguments.linear_map(inner, n, "inner")
    if arguments.is_function(A) or not hasattr(A, "astype"):
        raise TypeError("A is a function, which has no narrower values; pass inner=, the same operator in float32")
    return None


def narrowed(A: Any, values: Any, vectors: Any) -> Any:
    """A with values in a narrow type, to be multiplied with `vectors`; a function where its rows are scaled."""
    is_view = not hasattr(A, "with_data") and hasattr(getattr(A, "T", None), "with_data")  # the transpose of a format
    own = A.T if is_view else A
    if values != jnp.float16:
        own = own.astype(vectors if values == jnp.float32 else values)
        return own.T if is_view else own
    if hasattr(own, "with_data"):
        ones = jnp.ones(own.shape[1], own.dtype)
        scale = _power_of_two(own.with_data(jnp.abs(own.data)) @ ones)
        # The sampled outer product with ones puts a row's number at each of its entries.
        per_entry = jax.vjp(lambda data: own.with_data(data) @ ones, own.data)[1](1 / scale)[0]
        own = own.with_data(own.data * per_entry).astype(values)
    else:
        scale = _power_of_two(jnp.sum(jnp.abs(own), axis=1))
        own = (own / scale[:, None]).astype(values)
    scale = scale.astype(vectors)
    if is_view:
        return lambda v: times(own.T, rows_scaled(scale, v))
    return lambda v: rows_scaled(scale, times(own, v))


def cast(M: Any, dtype: Any) -> Any:
    """A preconditioner with its arrays in a narrow type; a function is returned unchanged."""
    if M is None or arguments.is_function(M):
        return M
    wide = lambda a: hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.inexact)  # noqa: E731
    to = lambda a: a.astype(dtype if jnp.iscomplexobj(a) else jnp.finfo(dtype).dtype) if wide(a) else a  # noqa: E731
    return jax.tree.map(to, M)


def _power_of_two(rows: Array) -> Array:
    """About rows / 2⁸; 1 for a row of zeros."""
    _, exponent = jnp.frexp(rows)
    return jnp.where(rows > 0, jnp.ldexp(jnp.ones_like(rows), exponent - ROOM), 1)
