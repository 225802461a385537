"""Chebyshev iteration (Golub and Varga 1961; Saad, Iterative Methods, Algorithm 12.1): no inner product in its steps.

It needs an interval that holds the eigenvalues of M·A. In vectors of n: one product, one use of M, and 8 more as XLA
fuses it.
"""

from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
from jax import Array

from solvers.core import arguments
from solvers.core.iterate import Method, holding
from solvers.core.scaling import Map, unscaled
from solvers.core.settings import Settings, solver
from solvers.core.solve import solve
from solvers.core.spectrum import chebyshev_step, spectrum
from solvers.core.stopping import status_of
from solvers.core.vectors import norm
from solvers.solution import Solution, Status


class Work(NamedTuple):
    x: Array  # [n] what is added to x
    r: Array  # [n] residual
    d: Array  # [n] the next change of x
    rho: Array
    center: Array  # of the interval
    radius: Array


@solver()
def chebyshev(
    A: Any, b: Any, x0: Any = None, *, bounds: tuple[float, float] | None = None, **settings: Unpack[Settings]
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A without inner products.

    Args:
      M: an approximation of A⁻¹, positive definite: anything with `@`, or a function r -> M·r.
      bounds: the least and the largest eigenvalue of M·A. If the first number is too large, the solve takes more steps;
        if the second is too small, it diverges (DIVERGED). None estimates both with 12 steps of Lanczos' method.
      The others, the `Solution` and the errors: as in `cg`.
    """
    given = () if bounds is None else arguments.positive_interval(bounds, "bounds")
    return solve(METHOD, A, b, x0, settings, parameters=given)


def prepare(A: Map, M: Map, b: Array, *bounds: Array) -> tuple[Array, Array]:
    """Center and radius of the interval."""
    (_, of_A), (_, of_M) = unscaled(A, b.dtype), unscaled(M, b.dtype)
    given = [of_A * a.astype(b.real.dtype) * of_M for a in bounds]
    least, largest = given or (a.astype(b.real.dtype) for a in spectrum(A, M, b))
    center = (largest + least) / 2
    return center, jnp.maximum((largest - least) / 2, jnp.finfo(b.dtype).eps * center)


def start(A: Map, M: Map, r: Array, last: None, center: Array, radius: Array) -> Work:
    columns = norm(r).shape
    center, radius = jnp.broadcast_to(center, columns), jnp.broadcast_to(radius, columns)
    return Work(jnp.zeros_like(r), r, M(r) / center, radius / center, center, radius)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    x, r, d, rho, center, radius = work
    x, r = x + d, r - A(d)
    rho, momentum, length = chebyshev_step(rho, center, radius)
    d = momentum * d + length * M(r)
    code = status_of((center <= 0, Status.NOT_POSITIVE_DEFINITE), (~jnp.isfinite(center), Status.NON_FINITE))
    return Work(x, r, d, rho, center, radius), norm(r), code


METHOD = Method(start, holding(step), prepare=prepare)
