"""Checks of the matrices from which preconditioners are made."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def entries(data: np.ndarray, diagonal: np.ndarray, first: int = 0, order: str = "") -> None:
    """Refuses a matrix with these entries, and this diagonal from row `first` on, that multigrid cannot treat."""
    if not np.all(np.isfinite(data)):
        raise ValueError("A has a NaN or an infinity among its entries; look for it where A is assembled")
    if np.any(zeros := diagonal == 0):
        raise ValueError(
            f"A has a zero on its diagonal, first in row {first + np.flatnonzero(zeros)[0]}{order}, and multigrid's "
            "smoothers divide by the diagonal; eliminate such unknowns (constraints, empty rows), or take another "
            "preconditioner"
        )


def near_null(B: Any, n: int, dtype: Any) -> Any:
    """The near-null space as [n, k], whose numbers are not checked yet."""
    B = B[:, None] if B.ndim == 1 else B
    if B.ndim != 2 or B.shape[0] != n or B.shape[1] == 0:
        raise ValueError(f"B must hold one row an unknown, shape ({n}, k); got {B.shape}")
    if B.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError(f"B is complex and A is not; pass real columns, or A.astype({B.dtype})")
    return B


def finite_near_null(B: np.ndarray) -> None:
    if not np.all(np.isfinite(B)):
        raise ValueError("B has a NaN or an infinity among its entries")


def fits(largest: float, dtype: Any, what: str) -> None:
    """Refuses numbers up to `largest` that are not finite in this dtype."""
    limit = float(jnp.finfo(dtype).max)
    if not largest <= limit:
        raise ValueError(
            f"{what} has numbers up to {largest:.3g}, and dtype {jnp.dtype(dtype).name} holds none above {limit:.3g}; "
            "scale A, or take a wider dtype"
        )
