"""What a user may hand to a solver, checked at the door and made into pytrees that jit can take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxsparse_fmt._types import floating_dtype, owned, whole_number

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A function of one vector, traced: its program, and every array that it closed over as a leaf.

    jit would know a function by its identity and keep what it closed over at the first call.
    """

    consts: list[Any]
    program: Any = dataclasses.field(metadata={"static": True})
    result: Any = dataclasses.field(metadata={"static": True})  # its tree

    def __call__(self, v: Array) -> Any:
        return jax.tree.unflatten(self.result, jaxpr_as_fun(ClosedJaxpr(self.program, self.consts))(v))


def traced(f: Callable[[Array], Any], example: Any) -> Function:
    """f as it is now. JAX remembers a trace by the function's identity; the lambda is a new one."""
    closed, shape = jax.make_jaxpr(lambda v: f(v), return_shape=True)(example)
    return Function(closed.consts, closed.jaxpr, jax.tree.structure(shape))


def transposed(f: Callable[[Array], Array], example: Any) -> Callable[[Array], Array]:
    """v -> fᵀ·v of a linear f from and to vectors like `example`."""
    return lambda v: jax.linear_transpose(f, example)(v)[0]


def vectors(a: Any, name: str) -> Array:
    """`a` as a vector, or several as columns, of floats or complex numbers.

    Raises:
      ValueError: neither one- nor two-dimensional. TypeError: not numeric.
    """
    a = owned(a)
    if a.ndim not in (1, 2):
        raise ValueError(f"{name} must be a vector of shape (n,), or several as columns (n, k); got {a.shape}")
    return a if jnp.issubdtype(a.dtype, jnp.inexact) else a.astype(floating_dtype(a.dtype, name))


def vector(a: Any, name: str) -> Array:
    """`a` as one vector of floats or complex numbers.

    Raises:
      ValueError: not one-dimensional. TypeError: not numeric.
    """
    if jnp.ndim(a) != 1:
        raise ValueError(f"{name} must be one vector of shape (n,); got {jnp.shape(a)}")
    return vectors(a, name)


def linear_map(A: Any, n: int, name: str) -> Any:
    """A itself where it is a pytree with a shape and `@`; otherwise a function v -> A·v.

    Raises:
      TypeError: neither a function nor something with a shape and `@`. ValueError: not square, or not of b's size.
    """
    shape = getattr(A, "shape", None)
    if shape is None:
        if not callable(A):
            raise TypeError(
                f"{name} must be a matrix with a shape and @, or a function v -> {name}·v; got {type(A).__name__}"
            )
        return A
    if tuple(shape) != (n, n):
        hint = f"; for a diagonal {name} pass lambda r: d * r" if tuple(shape) == (n,) else ""
        raise ValueError(f"{name} has shape {tuple(shape)}; a system with b of length {n} needs ({n}, {n}){hint}")
    if type(A).__module__.partition(".")[0] == "scipy":
        raise TypeError(
            f"{name} is SciPy's; convert a sparse matrix once with jaxsparse_fmt.from_scipy, and write a "
            "LinearOperator as a function of jax.numpy"
        )
    if isinstance(A, np.ndarray):
        return owned(A)
    is_opaque = jax.tree_util.all_leaves([A]) and not isinstance(A, jax.Array)
    return (lambda v: A @ v) if is_opaque else A


def is_function(A: Any) -> TypeGuard[Callable[[Array], Array]]:
    return callable(A) and not hasattr(A, "__matmul__")


def apply(A: Any, v: Array) -> Array:
    return A(v) if is_function(A) else A @ v


def over_columns(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A user's function of one vector, for columns too."""
    return lambda v: f(v) if v.ndim == 1 else jax.vmap(f, 1, 1)(v)


def result_dtype(A: Any, v: Array, name: str) -> Any:
    """The dtype of A·v.

    Raises:
      ValueError: A·v does not have v's shape.
    """
    if hasattr(A, "dtype") and hasattr(A, "shape"):
        return jnp.result_type(A.dtype, v.dtype)  # a trace to find out would cost a millisecond
    v = v if v.ndim == 1 else v[:, 0]
    out = jax.eval_shape(lambda v: apply(A, v), v)
    if getattr(out, "shape", None) != v.shape:
        raise ValueError(f"{name}·v must be a vector of shape {v.shape} like v; got {getattr(out, 'shape', out)}")
    return out.dtype


def tolerance(value: Any, name: str) -> Any:
    """A number from 0 up in JAX's default float, traced or of NumPy: an array on the device would cost 50 µs.

    Raises:
      ValueError: it is negative, NaN or infinite. TypeError: it is not one number.
    """
    if not isinstance(value, Tracer):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be one number; got {value!r}") from None
        if not (number >= 0 and math.isfinite(number)):
            raise ValueError(f"{name} must be a number from 0 up; got {value}")
        return np.asarray(value, jax.dtypes.canonicalize_dtype(float))
    return jnp.asarray(value, float)


def interval(value: Any, name: str) -> tuple[Array, Array]:
    """Two numbers, the first at most the second, both positive.

    Raises:
      TypeError: not two numbers. ValueError: not in order, or not positive.
    """
    if not isinstance(value, (tuple, list, np.ndarray, jax.Array)) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, (least, largest); got {value!r}")
    least, largest = tolerance(value[0], name), tolerance(value[1], name)
    if not any(isinstance(v, Tracer) for v in value) and not 0 < float(value[0]) <= float(value[1]):
        raise ValueError(f"{name} must be positive, the least first; got ({value[0]}, {value[1]})")
    return least, largest


def factor(value: Any, name: str) -> float:
    """A number between 0 and 1, neither of them.

    Raises:
      TypeError: not a number. ValueError: not between.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number between 0 and 1; got {value!r}")
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1; got {value}")
    return float(value)


def narrow_dtype(dtype: Any, allowed: tuple[str, ...]) -> Any:
    """`dtype` as NumPy's.

    Raises:
      ValueError: not one of `allowed`.
    """
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = None
    if name not in allowed:
        raise ValueError(f"dtype must be one of {', '.join(allowed)}; got {dtype!r}")
    return jnp.dtype(dtype)


def count(value: Any, name: str, least: int) -> int:
    """A whole number, or the largest that 32 bits hold.

    Raises:
      TypeError: not a whole number. ValueError: below `least`.
    """
    return min(whole_number(name, value, least), 2**31 - 1)


def integer(value: Any) -> Any:
    """In 32 bits, traced or of NumPy."""
    return jnp.asarray(value, jnp.int32) if isinstance(value, Tracer) else np.asarray(value, np.int32)


def history_length(history: Any, maxiter: int | None, longest: int) -> int:
    """Norms to keep: none, up to `longest` iterations and the start, or as many as asked for and the start."""
    if isinstance(history, (bool, np.bool_)):
        return (longest if maxiter is None else min(maxiter, longest)) + 1 if history else 0
    return count(history, "history", 0) + 1


def function_or_none(f: Any, name: str) -> Any:
    if f is not None and not callable(f):
        raise TypeError(f"{name} must be a function or None; got {f!r}")
    return f
