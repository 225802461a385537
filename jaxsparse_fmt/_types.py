"""What the layers agree on: CSR on a device, dtypes, vectors, and how a count of bytes or a time is said."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

# A canonical CSR matrix: rows sorted, no duplicates, indices in range. A scipy.sparse.csr_array (SciPy ships no types)
# or `CsrArrays`.
Csr: TypeAlias = Any

STORABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@dataclasses.dataclass(frozen=True)
class CsrArrays:
    """A canonical CSR matrix whose arrays are on a device; the attributes are SciPy's."""

    data: jax.Array
    indices: jax.Array
    indptr: jax.Array
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        return self.data.shape[0]


def floating_dtype(dtype: Any, what: str) -> np.dtype:
    """The dtype in which numbers of `dtype` are stored: floats and complex as they are, the rest as floats.

    Integers and booleans become JAX's default float. Without `jax_enable_x64` JAX holds 32 bits, so
    64-bit input is narrowed, as `jnp.asarray` does.

    Raises:
      TypeError: `dtype` is not numeric; `what` names whose dtype it is.
    """
    dtype = np.dtype(dtype)
    if dtype.char in "gG" and dtype not in (np.float64, np.complex128):
        raise TypeError(f"{what} has dtype {dtype}, which JAX cannot hold; convert it to float64 or complex128 first")
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    raise TypeError(
        f"{what} has dtype {dtype}, which is not numeric; convert it to float32, float64, complex64 or complex128 first"
    )


def requested_dtype(dtype: Any) -> np.dtype:
    """A dtype the user asked for by name, which must be one that JAX can hold at present.

    Raises:
      TypeError: not a floating or complex dtype.
      ValueError: 64 bits asked for while `jax_enable_x64` is off.
    """
    dtype = np.dtype(dtype)
    if dtype.name not in STORABLE:
        raise TypeError(f"dtype {dtype} cannot hold matrix values; ask for one of {', '.join(STORABLE)}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype {dtype} needs 64-bit JAX; call jax.config.update('jax_enable_x64', True) first, "
            f"or ask for {jax.dtypes.canonicalize_dtype(dtype)}"
        )
    return dtype


def owned(a: Any, dtype: Any = None) -> jax.Array:
    """`a` as an array of JAX's own. JAX goes on reading NumPy's memory, for a while or for good, and a caller may write
    there; `jnp.array` copies too, but a large array only after it has returned.
    """
    return jnp.asarray(np.array(a, dtype) if isinstance(a, np.ndarray) else a, dtype)


def as_floating(x: Any, what: str, dtype: Any = None) -> jax.Array:
    """x as an array of floats or complex numbers; integers become `dtype`, or JAX's default float.

    Raises:
      TypeError: x is not numeric.
    """
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        x = np.asarray(x)  # before JAX sees it, so that what is wrong can be named
    elif not isinstance(x, jax.Array):
        x = jnp.asarray(x)
    floating = floating_dtype(x.dtype, what)
    return owned(x, floating if dtype is None or jnp.issubdtype(x.dtype, jnp.inexact) else dtype)


def check_keeps_imaginary(given: Any, dtype: Any) -> None:
    """Refuses to store numbers of the dtype `given` as `dtype` if that drops imaginary parts.

    Raises:
      TypeError: it does.
    """
    if jnp.issubdtype(given, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"dtype {dtype} would drop the imaginary parts of a {given} matrix; take its real part, or a complex dtype"
        )


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """The argument `name` as an int.

    Raises:
      TypeError: it is no integer, 125.0 say. ValueError: it is less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number; got {value!r}; pass an int") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def index_dtype(size: int) -> Any:
    """int32 where it counts to `size`, else int64."""
    return np.int32 if size < 2**31 else np.int64


def x64_enabled() -> bool:
    """Whether JAX holds 64-bit numbers at present."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def as_vector(x: Any, A: Any, axis: int, what: str) -> jax.Array:
    """x as an array that the matrix A, or with axis 0 its transpose, can multiply.

    Raises:
      ValueError: another shape; `what` says what would be right. TypeError: not a numeric array.
    """
    if hasattr(x, "to_scipy") or scipy.sparse.issparse(x):
        raise TypeError(
            "the product of two sparse matrices is not offered here; multiply with SciPy and convert the result, "
            "or apply them in turn: A @ (B @ x)"
        )
    x, n = as_floating(x, "the vector", A.dtype), A.shape[axis]
    if x.ndim not in (1, 2) or x.shape[0] != n:
        hint = "; map over further axes with jax.vmap" if x.ndim > 2 else ""
        raise ValueError(f"{what} of shape ({n},) or ({n}, p); got {x.shape}{hint}")
    return x


def readable_bytes(n: float) -> str:
    """A count of bytes for people, in powers of ten: `87.6 MB`."""
    if abs(n) < 999.5:
        return f"{n:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(n) < 999.5 * scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n / 1e12:.3g} TB"


def readable_seconds(seconds: float) -> str:
    """A time for people: `830 µs`, `12.3 ms`, `4.56 s`."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
