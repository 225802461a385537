"""The inner side of a refinement: a matrix and a preconditioner in a narrower type."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxsparse_fmt.core.basis import Operator
from solvers.core.operators import Function, UserFunction, Wrapped


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


def check_narrows(A: Operator) -> None:
    """Raises TypeError if A has no values to narrow."""
    if isinstance(A, UserFunction) or not hasattr(A.A if isinstance(A, Wrapped) else A, "astype"):
        raise TypeError("A is a function, which has no narrower values; store it as a matrix, or take the method")


def narrowed(A: Any, values: Any, vectors: Any) -> Operator:
    """A with values in a narrow type, to be multiplied with `vectors`."""
    dtype = vectors if values == jnp.float32 else values
    return Wrapped(A.A.astype(dtype)) if isinstance(A, Wrapped) else A.astype(dtype)


def cast(M: Any, dtype: Any) -> Any:
    """A preconditioner with its arrays in a narrow type; a function is returned unchanged."""
    if M is None or isinstance(M, Function | UserFunction):
        return M

    def narrow(a: Any) -> Any:
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return a
        return a.astype(dtype if jnp.iscomplexobj(a) else jnp.finfo(dtype).dtype)

    return jax.tree.map(narrow, M)
