"""What the preconditioners of this package share: what may come in, and vectors that scale rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

Array = jax.Array


def square(A: Any, name: str, maker: str) -> int:
    """The number of unknowns of a square matrix.

    Args:
      name: of the preconditioner, with its article; maker: of the function that makes it.

    Raises:
      ValueError: A is not square.
    """
    shape = getattr(A, "shape", ())
    if len(shape) != 2 or shape[0] != shape[1]:
        got = shape or type(A).__name__
        raise ValueError(f"{name} preconditioner needs a square matrix; got {got}. Pass M={maker}(A), not M={maker}")
    return shape[0]


def is_traced(*trees: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def rows_scaled(d: Array, r: Array) -> Array:
    """d [n] times the rows of r, [n] or [n, k]."""
    return (d if jnp.ndim(r) == 1 else d[:, None]) * r
