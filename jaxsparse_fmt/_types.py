"""What the layers agree on: the linear-operator protocol, dtypes, and how a count of bytes is said."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

# A canonical CSR matrix: rows sorted, no duplicates, indices in range. A scipy.sparse.csr_array (SciPy ships no types)
# or `CsrArrays`.
Csr: TypeAlias = Any


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


STORABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@runtime_checkable
class LinearOperator(Protocol):
    """Anything a solver can work with: a square or rectangular map with a shape and `@`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __matmul__(self, x: Any, /) -> Any: ...


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


def x64_enabled() -> bool:
    """Whether JAX holds 64-bit numbers at present."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def readable_bytes(n: float) -> str:
    """A count of bytes for people, in powers of ten: `87.6 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 1000 or unit == "TB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError("unreachable")
