"""The inner side of a refinement: a matrix and a preconditioner in a narrower type."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core.basis import Operator
from solvers.core.diagonal import rows_scaled
from solvers.core.operators import Function, UserFunction, Wrapped, operator


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


def users_inner(A: Operator, inner: Any, n: int) -> Operator | None:
    """The inner matrix of the user, if any. TypeError: there is none, and A has no values to narrow."""
    if inner is not None:
        return operator(inner, n, "inner")
    if isinstance(A, UserFunction) or not hasattr(A.A if isinstance(A, Wrapped) else A, "astype"):
        raise TypeError("A is a function, which has no narrower values; pass inner=, the same operator in float32")
    return None


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Operator):
    """diag(scale)·A."""

    A: Any
    scale: Array

    @property
    def dtype(self) -> Any:
        return self.scale.dtype

    def __matmul__(self, v: Array) -> Array:
        return rows_scaled(self.scale, self.A @ v)


def narrowed(A: Any, values: Any, vectors: Any) -> Operator:
    """A with values in a narrow type, to be multiplied with `vectors`."""
    if values != jnp.float16:
        dtype = vectors if values == jnp.float32 else values
        return Wrapped(A.A.astype(dtype)) if isinstance(A, Wrapped) else A.astype(dtype)
    if isinstance(A, Wrapped):
        scale = _power_of_two(jnp.sum(jnp.abs(A.A), axis=1))
        inner = Wrapped((A.A / scale[:, None]).astype(values))
    else:
        ones = jnp.ones(A.shape[1], A.dtype)
        scale = _power_of_two(A.with_data(jnp.abs(A.data)) @ ones)
        # The sampled outer product with ones puts a row's number at each of its entries.
        per_entry = jax.vjp(lambda data: A.with_data(data) @ ones, A.data)[1](1 / scale)[0]
        inner = A.with_data(A.data * per_entry).astype(values)
    return Scaled(inner, scale.astype(vectors))


def cast(M: Any, dtype: Any) -> Any:
    """A preconditioner with its arrays in a narrow type; a function is returned unchanged."""
    if M is None or isinstance(M, Function | UserFunction):
        return M

    def narrow(a: Any) -> Any:
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return a
        return a.astype(dtype if jnp.iscomplexobj(a) else jnp.finfo(dtype).dtype)

    return jax.tree.map(narrow, M)


def _power_of_two(rows: Array) -> Array:
    """About rows / 2⁸; 1 for a row of zeros."""
    _, exponent = jnp.frexp(rows)
    return jnp.where(rows > 0, jnp.ldexp(jnp.ones_like(rows), exponent - ROOM), 1)
