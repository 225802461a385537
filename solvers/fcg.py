"""Flexible conjugate gradients, for a preconditioner that changes from step to step (Golub and Ye 1999, Algorithm 2.1).

β takes M·r against the change of the residual, which keeps a direction conjugate to the last whatever M did: an inner
solve to some tolerance, a narrow type, a cycle with cut-offs. One more vector is read than in `cg`, and one more
reduction made: 12n a step as XLA fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from solvers._iterate import Map, Method, dot, holding, norm
from solvers._solve import solve
from solvers.cg import Work, code, start
from solvers.solution import Solution

Array = jax.Array


def fcg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    history: bool | int = False,
    callback: Callable[[Array], None] | None = None,
    progress: Callable[[int, float], None] | None = None,
    check_every: int | None = None,
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A with a preconditioner that may change.

    Args:
      M: an approximation of A⁻¹, about symmetric and positive definite, not the same in every step, not even linear:
        anything with `@`, or a function r -> M·r such as an inner solve.
      The others: as in `cg`.

    Returns:
      A `Solution`, differentiable as that of `cg`.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    return solve(METHOD, A, b, x0, M, rtol, atol, maxiter, history, callback, progress, check_every)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, p, gamma = work
    q = A(p)
    curvature = dot(p, q)
    alpha = gamma / curvature
    x, r_new = x + alpha * p, r - alpha * q
    z = M(r_new)
    gamma_new = dot(r_new, z)
    beta = (gamma_new - dot(r, z)) / gamma
    return Work(x, r_new, z + beta * p, gamma_new), norm(r_new), code(gamma, curvature)


METHOD = Method(start, holding(step), keeps=True)
