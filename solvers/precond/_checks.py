"""Checks of the matrices from which preconditioners are made."""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

from jaxsparse_fmt._types import check_keeps_imaginary


def square(A: Any, name: str, maker: str) -> int:
    """The number of unknowns of a square matrix. ValueError: A is not square.

    Args:
      name: the preconditioner's name, with its article. maker: the name of the function that makes it.
    """
    shape = getattr(A, "shape", ())
    if len(shape) != 2 or shape[0] != shape[1]:
        cure = f"Pass M={maker}(A), not M={maker}"
        if callable(A):
            cure += "; of a function v -> A·v whose diagonal d you know, pass M=1/d"
        raise ValueError(f"{name} preconditioner needs a square matrix; got {shape or type(A).__name__}. {cure}")
    return shape[0]


def renewing(M: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises ValueError unless the shape is M's, TypeError if the dtype is complex and M is not."""
    if tuple(shape) != M.shape:
        raise ValueError(f"M.refreshed(A) takes a matrix of M's shape {M.shape}; got {tuple(shape)}")
    check_keeps_imaginary(dtype, M.dtype)


def like(new: Any, old: Any) -> Any:
    """`new` with the dtypes of `old`, so that a scan can carry it."""
    return jax.tree.map(lambda a, b: a.astype(b.dtype), new, old)


def untraced(A: Any) -> None:
    """Raises TypeError where A is traced, which multigrid's set-up on the host cannot be."""
    if is_traced(A):
        raise TypeError(
            "multigrid is set up on the host and A is traced; build M outside jit and pass it as an argument"
        )


def is_traced(*trees: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))
