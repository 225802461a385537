"""Checks of users' arguments, which name the value and the cure."""

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._dtypes import STORABLE, floating_dtype
from jaxsparse_fmt._text import did_you_mean, readable_bytes

MAX_DENSE_BYTES = 2 * 2**30  # of a dense array made from a matrix
_FLOATING = frozenset(map(jnp.dtype, STORABLE))


def owned(a: Any, dtype: Any = None) -> jax.Array:
    """`a` as a JAX array that shares no memory with NumPy. TypeError: a sparse matrix of JAX's.

    `jnp.asarray` may keep reading NumPy's memory, which the caller may overwrite; `jnp.array` copies a large array only
    after it has returned.
    """
    refuse_bcoo(a)
    if isinstance(a, np.ndarray):
        a = np.array(a, dtype or a.dtype.newbyteorder("="))  # JAX requires the byte order of this machine
    return jnp.asarray(a, dtype)


def is_sparse(a: Any) -> bool:
    """Whether `a` is a sparse matrix of this library or of SciPy."""
    return hasattr(a, "to_scipy") or scipy.sparse.issparse(a)


def of_jax_sparse(a: Any) -> bool:
    """Whether `a` is a matrix of `jax.experimental.sparse`, seen without importing that module."""
    return type(a).__module__.startswith("jax.experimental.sparse")


def refuse_bcoo(a: Any) -> None:
    """Raises TypeError for a sparse matrix of JAX's, over which `jnp.asarray` would iterate for minutes."""
    if of_jax_sparse(a):
        raise TypeError(
            f"got a sparse matrix of jax.experimental.sparse, {type(a).__name__}, where an array is asked for; "
            "from_bcoo makes a matrix of it, and its todense() an array"
        )


def check_dense(shape: tuple[int, int], dtype: Any, cure: str, max_bytes: float = MAX_DENSE_BYTES) -> None:
    """Raises ValueError, which ends with `cure`, for a dense array so large that XLA would abort the process."""
    rows, cols = shape
    nbytes = rows * cols * np.dtype(dtype).itemsize
    if nbytes > max_bytes:
        raise ValueError(f"a dense {rows} × {cols} matrix takes {readable_bytes(nbytes)}; {cure}")


def as_floating(x: Any, what: str, dtype: Any = None) -> jax.Array:
    """x as an array of floats or complex numbers; integers become `dtype` or a float. TypeError: not numeric."""
    if isinstance(x, jax.Array) and x.dtype in _FLOATING and jax.dtypes.canonicalize_dtype(x.dtype) == x.dtype:
        return x
    refuse_bcoo(x)
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        given, x = x, np.asarray(x)  # before JAX, so that the error can name the fault
        if x.dtype == object and x.ndim == 0:
            raise TypeError(f"{what} must be an array of numbers; got {type(given).__name__}")
    elif not isinstance(x, jax.Array):
        if not isinstance(x, list | tuple) and not hasattr(x, "__jax_array__"):
            cure = "; use its x" if hasattr(x, "x") else ", and a product of operators is A @ (M @ x)"
            raise TypeError(f"{what} must be an array of numbers; got {type(x).__name__}{cure}")
        x = jnp.asarray(x)
    floating = floating_dtype(x.dtype, what)
    return owned(x, floating if dtype is None or jnp.issubdtype(x.dtype, jnp.inexact) else dtype)


def number(a: Any) -> Any:
    """A factor as JAX takes it: an int of Python, which may exceed 64 bits, as the nearest float."""
    if not isinstance(a, int):
        return a
    try:
        return float(a)
    except OverflowError:
        return math.inf if a > 0 else -math.inf


def is_number(a: Any) -> bool:
    """Whether `a` is a number of Python, NumPy or JAX, or an array without dimensions."""
    return np.ndim(a) == 0 and isinstance(a, (numbers.Number, np.generic, np.ndarray, jax.Array))


def whole_number(name: str, value: Any, least: int | None = 0) -> int:
    """The argument `name` as an int, from an integer of Python, NumPy or JAX, or an array without dimensions.

    TypeError: another value, such as 125.0 or True. ValueError: below `least`.
    """
    try:
        if _is_bool(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number; got {value!r}; pass an int") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def check_max_bytes(max_bytes: Any) -> None:
    """Raises TypeError if `max_bytes` is no number, ValueError if it is NaN or negative; infinity is allowed."""
    if isinstance(max_bytes, bool | np.bool_) or not isinstance(max_bytes, numbers.Real | None):
        raise TypeError(f"max_bytes must be a number of bytes, say 10**9; got {max_bytes!r}")
    if max_bytes is not None and (math.isnan(max_bytes) or max_bytes < 0):
        raise ValueError(f"max_bytes must be a number of bytes from 0 up, say 10**9; got {max_bytes}")


def real_number(name: str, value: Any) -> float:
    """The argument `name` as a float, from a real number of Python, NumPy or JAX, or an array without dimensions.

    TypeError: another value, such as None, "1e-6", True, 1j or [1e-6].
    """
    try:
        if _is_bool(value) or isinstance(value, (str, bytes)) or np.ndim(value) != 0 or np.iscomplexobj(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be one real number; got {value!r}") from None


def _is_bool(value: Any) -> bool:
    if isinstance(value, jax.Array | np.ndarray):
        return value.dtype == np.bool_
    return isinstance(value, bool | np.bool_)


def as_vector(x: Any, A: Any, axis: int, what: str = "") -> jax.Array:
    """x as an array that the matrix A, or with axis 0 its transpose, can multiply.

    ValueError, which begins with `what` or names the product: another shape. TypeError: not a numeric array.
    """
    if not isinstance(x, jax.Array) and (is_sparse(x) or of_jax_sparse(x)):
        raise TypeError(
            f"@ takes an array or a matrix of this library; got {type(x).__name__}; convert SciPy's by "
            "from_scipy, JAX's by from_bcoo, and write a product with another operator as M @ (A @ x)"
        )
    x, n = as_floating(x, "the vector", A.dtype), A.shape[axis]
    if x.ndim not in (1, 2) or x.shape[0] != n:
        hint = "; map over further axes with jax.vmap" if x.ndim > 2 else ""
        product = f"A @ x with A of shape {A.shape} takes x", f"A.T @ y, or yᵀ @ A, with A of shape {A.shape} takes y"
        what = what or product[1 - axis]
        raise ValueError(f"{what} of shape ({n},) or ({n}, p); got {x.shape}{hint}")
    return x


def check_choice(name: str, value: Any, choices: Iterable[str], more: str = "") -> None:
    """ValueError if `value` is none of the choices; it lists them and the one that is spelt most like `value`.

    Args:
      more: what else the argument takes, for the text.
    """
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}{more}; got {value!r}{did_you_mean(value, known)}")
