"""Chebyshev iteration (Golub and Varga 1961; Saad, Iterative Methods, Algorithm 12.1): no inner product in its steps.

It needs an interval that holds the eigenvalues of M·A. In vectors of n: one product, one use of M, and 8 more as XLA
fuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from solvers import _arguments as arguments
from solvers._bounds import spectrum
from solvers._iterate import Map, Method, holding, norm, status_of
from solvers._solve import solve
from solvers.solution import Solution, Status

Array = jax.Array


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    d: Array  # [n] the next change of x
    rho: Array
    center: Array  # of the interval
    radius: Array


def chebyshev(
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
    bounds: tuple[float, float] | None = None,
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A without inner products.

    Args:
      M: an approximation of A⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      bounds: the least and the largest eigenvalue of M·A. Too large a first number costs steps, too small a second one
        convergence (DIVERGED). None estimates them with 12 steps of Lanczos' method.
      The others: as in `cg`.

    Returns:
      A `Solution`, differentiable as that of `cg`.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    given = () if bounds is None else arguments.interval(bounds, "bounds")
    return solve(METHOD, A, b, x0, M, rtol, atol, maxiter, history, callback, progress, check_every, parameters=given)


def prepare(A: Map, M: Map, b: Array, *bounds: Array) -> tuple[Array, Array]:
    """Center and radius of the interval."""
    least, largest = (a.astype(b.real.dtype) for a in (bounds or spectrum(A, M, b)))
    center = (largest + least) / 2
    return center, jnp.maximum((largest - least) / 2, jnp.finfo(b.dtype).eps * center)


def start(A: Map, M: Map, r: Array, last: None, center: Array, radius: Array) -> Work:
    del A, last
    columns = norm(r).shape
    center, radius = jnp.broadcast_to(center, columns), jnp.broadcast_to(radius, columns)
    return Work(jnp.zeros_like(r), r, M(r) / center, radius / center, center, radius)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, d, rho, center, radius = work
    x, r = x + d, r - A(d)
    rho_new = 1 / (2 * center / radius - rho)
    d = (rho_new * rho) * d + (2 * rho_new / radius) * M(r)
    code = status_of((center <= 0, Status.NOT_POSITIVE_DEFINITE), (~jnp.isfinite(center), Status.NON_FINITE))
    return Work(x, r, d, rho_new, center, radius), norm(r), code


METHOD = Method(start, holding(step), prepare=prepare)
