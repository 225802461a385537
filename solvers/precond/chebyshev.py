"""Chebyshev polynomials of the matrix as preconditioners (Saad, Iterative Methods, §12.3.2, Algorithm 12.1).

p is the polynomial of its degree that minimises the largest |1 − λ·p(λ)| on [λmin, λmax]: `degree + 1` steps of
Chebyshev's iteration for A·z = r, from zero, give p(A)·r. It costs `degree` products with A and no inner product.
"""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import real_number
from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt._tracing import is_traced, standard_promotion
from jaxsparse_fmt.core.basis import Basis, Reordered
from solvers.core import arguments
from solvers.core.operators import operand
from solvers.precond import _checks as checks
from solvers.precond._spectrum import chebyshev_step, spectrum

# Without bounds λmin is λmax / 30, as in smoothers of multigrid (Adams, Brezina, Hu and Tuminaro 2003): the polynomial
# flattens the upper part of the spectrum, and the solver around it does the rest.
RATIO = 30
# Steps of the Lanczos process that estimates λmax, and the factor on the estimate.
LANCZOS_STEPS, SAFETY = 10, 1.05
# The smallest Ritz value of a positive definite matrix may lie this far below zero, relative to the largest.
ROUNDING = 1e-4


@exportable
@brief
@pytree
class Chebyshev(checks.Refreshed):
    """p(M·A)·M as an operator: `@ r` for r of [n] or [n, k]. Symmetric where A and M are; the same at every call.

    Attributes:
      A: the matrix.
      M: the preconditioner inside the polynomial, or None.
      bounds: [2], λmin and λmax of M·A. Positive definite as long as no eigenvalue exceeds λmin + λmax.
      degree: of p, and the products with A that an application takes.
      estimated: whether the bounds were estimated; otherwise they were given.
    """

    A: Any
    M: Any
    bounds: Array
    degree: int = dataclasses.field(metadata={"static": True})
    estimated: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(_dtype(self.A, self.M))

    @property
    def T(self) -> Self:
        """Itself for real matrices, which must be symmetric; the polynomial of the transposes for complex ones."""
        if not jnp.issubdtype(self.dtype, jnp.complexfloating):
            return self
        return dataclasses.replace(self, A=self.A.T, M=None if self.M is None else self.M.T)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, self.bounds, 1)
        r = r.astype(jnp.result_type(self.dtype, r.dtype))
        low, high = self.bounds.astype(jnp.result_type(self.bounds, jnp.finfo(r.dtype).dtype))
        center = (high + low) / 2
        radius = jnp.maximum((high - low) / 2, jnp.finfo(center.dtype).eps * center)

        def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            x, r, d, rho = state
            rho, momentum, length = chebyshev_step(rho, center, radius)
            r = r - self.A @ d
            d = momentum.astype(r.dtype) * d + length.astype(r.dtype) * _applied(self.M, r)
            return (x + d, r, d, rho), None

        d = _applied(self.M, r) * (1 / center).astype(r.dtype)
        (x, *_), _ = lax.scan(step, (d, r, d, radius / center), length=self.degree)
        return x

    def _anew(self, A: Any) -> "Chebyshev":
        return chebyshev(A, self.degree, None if self.estimated else self.bounds, checks.renewed(self.M, A))

    def _entered(self, basis: Basis) -> Any:
        """By products of `A.in_basis`; for a basis that is not A's it permutes at both ends of an application."""
        order = self.A.basis
        M = None if self.M is None else self.M._entered(order)
        if order.is_identity or (M is None and self.M is not None):
            return self if basis.is_identity else None
        inside = dataclasses.replace(self, A=self.A.in_basis, M=M)
        return inside if order.same(basis) else Reordered(inside, basis, order)

    def _partition(self, axis: Any) -> Self | None:
        same = PartitionSpec()
        A, M = (same if a is None else a._partition(axis) for a in (self.A, self.M))
        if A is None or M is None:
            return None
        return dataclasses.replace(self, A=A, M=M, bounds=same)


@arguments.door
def chebyshev(A: Any, degree: int = 4, bounds: Any = None, M: Any = None) -> Chebyshev:
    """The Chebyshev polynomial of A, or of M·A, on an interval that holds the upper part of its spectrum.

    The result is positive definite if A and M are and no eigenvalue of M·A exceeds λmin + λmax; eigenvalues below λmin
    do no harm. Works inside jit too.

    Args:
      A: [n, n], symmetric (Hermitian) positive definite: a pytree with a shape, a dtype and `@`, or a dense array.
      degree: of the polynomial; an application takes that many products with A.
      bounds: (λmin, λmax) of M·A. None takes as λmax 1.05 times the largest Ritz value of 10 Lanczos steps from a fixed
        start plus the norm of its residual (Parlett, The Symmetric Eigenvalue Problem, §13.2), and as λmin λmax/30.
      M: a symmetric positive definite preconditioner to work around, such as `jacobi(A)`, which makes the interval free
        of the rows' scale; a pytree with `@`. None is the identity.

    Raises:
      ValueError: A is not square; M is of another size; a negative degree; bounds that are not 0 < λmin ≤ λmax; or,
        without bounds and outside jit, A is not positive definite or holds a NaN. TypeError: A or M is a function, or
        bounds are not two numbers.

    Examples:
      >>> js.cg(A, b, M=js.precond.chebyshev(A)).success
      True
    """
    n = checks.square(A, "chebyshev", 1)
    degree = arguments.int_at_least(degree, "degree", 0)
    A, M = checks.storable(A, n, "A"), None if M is None else checks.storable(M, n, "M")
    ends = None if bounds is None else _positive_interval(bounds, "bounds")
    in_words = {"degree": degree, "bounds": bounds, "M": M}
    A.basis.agree(lambda: in_words)
    if ends is not None:
        return Chebyshev(A, M, jnp.stack(ends), degree, estimated=False)
    bounds, smallest = _estimated(A, M)
    if not is_traced(bounds) and not (0 < bounds[1] < math.inf and smallest >= -ROUNDING * bounds[1]):
        raise ValueError(
            f"a Chebyshev preconditioner needs a finite, positive definite matrix and M; the spectrum of their product "
            f"was estimated to reach from {smallest:g} to {bounds[1]:g}; use precond.ilu, or gmres without M"
        )
    return Chebyshev(A, M, bounds, degree, estimated=True)


def _positive_interval(value: Any, name: str) -> tuple[Array, Array]:
    """Two numbers, (least, largest). TypeError: not two numbers. ValueError: not in order, or not positive."""
    is_pair = isinstance(value, (tuple, list, np.ndarray, jax.Array)) and getattr(value, "ndim", 1) == 1
    if not is_pair or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, (least, largest); got {value!r}")
    least, largest = (v if isinstance(v, Tracer) else real_number(f"each of {name}", v) for v in value)
    if not is_traced(least, largest) and not 0 < least <= largest < math.inf:
        raise ValueError(f"{name} must be (least, largest) with 0 < least ≤ largest < ∞; got ({least}, {largest})")
    return arguments.tolerance(least, name), arguments.tolerance(largest, name)


def _applied(M: Any, r: Array) -> Array:
    return r if M is None else (M @ r).astype(r.dtype)


def _dtype(A: Any, M: Any) -> Any:
    """The dtype of M·A·v, as far as A and M declare theirs."""
    return jnp.result_type(
        *(operator.dtype for operator in (A, M) if operator is not None and operator.dtype is not None)
    )


@jax.jit
def _estimated(A: Any, M: Any) -> tuple[Array, Array]:
    """Bounds [2] on the spectrum of M·A, and its smallest Ritz value."""
    dtype = jnp.result_type(_dtype(A, M), jnp.float32)
    like = jnp.zeros(A.shape[0], dtype)
    smallest, largest = spectrum(lambda z: (A @ z).astype(dtype), lambda w: _applied(M, w), like, LANCZOS_STEPS)
    high = SAFETY * largest
    return jnp.stack([high / RATIO, high]), smallest
