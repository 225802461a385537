"""Refinement in mixed precision: a narrow method inside, the residual and the solution wide.

The loop is that of every method (`_iterate`), with a narrow matrix for the method: Cevahir et al., §4, Algorithm 2,
whose inner solves start anew each time. With conjugate gradients inside, the direction is kept and the residual
replaced by the true one whenever it has fallen by a factor (reliable updates, Clark et al. 2010, §5), so that nothing
of what the directions learnt is lost, and the iterations stay about those of the wide method.

Traffic of a step: that of the method in the narrow type, about half in float32. A wide product and 6 wide vectors more
for each factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from solvers import _arguments as arguments
from solvers._iterate import Method
from solvers._solve import solve
from solvers.bicgstab import METHOD as BICGSTAB
from solvers.cg import METHOD as CG
from solvers.fcg import METHOD as FCG
from solvers.gmres import method as gmres_method
from solvers.minres import METHOD as MINRES
from solvers.solution import Solution

Array = jax.Array

METHODS: dict[str, Method] = {"cg": CG, "fcg": FCG, "minres": MINRES, "bicgstab": BICGSTAB, "gmres": gmres_method(30)}
WORTHWHILE = 50_000_000  # bytes of A
DTYPES = ("float32", "bfloat16", "float16")


def refine(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int | None = None,
    history: bool | int = False,
    callback: Callable[[Array], None] | None = None,
    progress: Callable[[int, float], None] | None = None,
    check_every: int | None = None,
    dtype: Any = None,
    method: str = "cg",
    inner: Any = None,
    drop: float | None = None,
) -> Solution:
    """Solves A·x = b to the accuracy of b's dtype, most of the work in a narrower one.

    Args:
      A: as in `cg`. Its values are stored a second time in `dtype`, unless that is what they have: entries that are
        exact in float32 are best held so once, under a float64 b.
      M: an approximation of A⁻¹, in the narrow type where it is a pytree.
      dtype: of the inner matrix: "float32", or "bfloat16" or "float16" under float32 vectors; float16 with rows scaled
        by powers of two, so that none over- or underflows. None takes float32 under 64-bit vectors, but the
        wide type itself where A has less than 50 MB: a GPU's cache holds that, steps are no faster in a narrow type,
        and some more are needed.
      method: the inner one: "cg", "fcg", "minres", "bicgstab" or "gmres".
      inner: the inner matrix itself, for an A that is a function.
      drop: the true residual is taken anew where the narrow one has fallen by this factor; None takes 0.03 for "cg" and
        "fcg", which go on in their direction then, and for the others, which start anew, 1e-4, 1e-2 below float32.
      The others: as in `cg`.

    Returns:
      A `Solution`: its residual norm is true and wide. Its status is PRECISION where the condition number is too large
      for the narrow type, and it is differentiable as that of `cg`.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense, such as a dtype that is not
        narrower than that of A and b.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    narrow = None
    if dtype is not None or inner is not None or arguments.is_function(A) or _is_worthwhile(A, b):
        narrow = arguments.narrow_dtype(dtype or "float32", DTYPES)
    if drop is None:
        drop = 0.03 if METHODS[method].keeps else 1e-4 if narrow == "float32" else 1e-2
    drop = arguments.factor(drop, "drop")
    return solve(
        METHODS[method],
        A,
        b,
        x0,
        M,
        rtol,
        atol,
        maxiter,
        history,
        callback,
        progress,
        check_every,
        narrow=narrow,
        inner=inner,
        drop=0.0 if narrow is None else drop,
    )


def _is_worthwhile(A: Any, b: Any) -> bool:
    arrays = [leaf for leaf in jax.tree.leaves(A) if hasattr(leaf, "dtype")]
    numbers = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact)]
    wide = jnp.finfo(jnp.result_type(arguments.vectors(b, "b"), *numbers)).bits == 64
    return wide and sum(a.size * a.dtype.itemsize for a in arrays) >= WORTHWHILE
