"""The inner side of a refinement: a matrix and a preconditioner in a narrower type."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._types import pytree
from solvers.core import arguments
from solvers.core.diagonal import rows_scaled


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


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class RowScaled:
    """diag(scale)·A: values of little range under vectors of a large one."""

    A: Any
    scale: Array  # [n], powers of two

    @property
    def T(self) -> "ColumnScaled":
        return ColumnScaled(self.A.T, self.scale)

    def __matmul__(self, x: Array) -> Array:
        return rows_scaled(self.scale, self.A @ x)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ColumnScaled:
    """A·diag(scale)."""

    A: Any
    scale: Array

    def __matmul__(self, x: Array) -> Array:
        return self.A @ rows_scaled(self.scale, x)


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
    """A with values in a narrow type, to be multiplied with `vectors`."""
    if not hasattr(A, "with_data") and hasattr(getattr(A, "T", None), "with_data"):  # the transposed view of a format
        return narrowed(A.T, values, vectors).T
    if values != jnp.float16:
        return A.astype(vectors if values == jnp.float32 else values)
    if not hasattr(A, "with_data"):
        rows = jnp.sum(jnp.abs(A), axis=1)
        scale = _power_of_two(rows)
        return RowScaled((A / scale[:, None]).astype(values), scale.astype(vectors))
    ones = jnp.ones(A.shape[1], A.dtype)
    scale = _power_of_two(A.with_data(jnp.abs(A.data)) @ ones)
    # The sampled outer product with ones puts a row's number at each of its entries.
    per_entry = jax.vjp(lambda data: A.with_data(data) @ ones, A.data)[1](1 / scale)[0]
    return RowScaled(A.with_data(A.data * per_entry).astype(values), scale.astype(vectors))


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
