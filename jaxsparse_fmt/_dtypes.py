"""The dtypes of values and indices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STORABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def scipy_dtype(dtype: Any) -> np.dtype:
    """The dtype in which SciPy holds such numbers: float32 for 16-bit floats, which it lacks."""
    return np.promote_types(dtype, np.float32) if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)


def floating_dtype(dtype: Any, what: str) -> np.dtype:
    """The dtype that stores numbers of `dtype`: floats and complex unchanged, integers and booleans as default floats.

    Without `jax_enable_x64` 64-bit input is narrowed to 32 bits, as in `jnp.asarray`. TypeError: not numeric.
    """
    dtype = np.dtype(dtype).newbyteorder("=")
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
    """The dtype that the user names. TypeError: not float or complex. ValueError: 64 bits while JAX has 32."""
    dtype = np.dtype(dtype)
    if dtype.name not in STORABLE:
        raise TypeError(f"dtype {dtype} cannot hold matrix values; ask for one of {', '.join(STORABLE)}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype {dtype} needs 64-bit JAX; call jax.config.update('jax_enable_x64', True) first, "
            f"or ask for {jax.dtypes.canonicalize_dtype(dtype)}"
        )
    return dtype


def check_keeps_imaginary(given: Any, dtype: Any) -> None:
    """Raises TypeError if numbers of the dtype `given`, stored as `dtype`, would lose their imaginary parts."""
    if jnp.issubdtype(given, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"dtype {dtype} would drop the imaginary parts of a {given} matrix; use its real part, or a complex dtype"
        )


def index_dtype(size: int) -> Any:
    """int32 if it can count to `size`, else int64."""
    return np.int32 if size < 2**31 else np.int64


def x64_enabled() -> bool:
    """Whether JAX holds 64-bit numbers at present."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64
