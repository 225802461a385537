"""Chebyshev polynomials of the matrix as preconditioners (Saad, Iterative Methods, §12.3.2, Algorithm 12.1).

p is the polynomial of its degree that makes 1 − λ·p(λ) smallest on [λmin, λmax]: what `degree + 1` steps of Chebyshev's
iteration for A·z = r, from zero, apply to r. Its cost is `degree` products with A and no inner product.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._types import owned
from jaxsparse_fmt.basis import IDENTITY, Basis, Between
from solvers import _arguments as arguments
from solvers._bounds import spectrum
from solvers.precond import _door as door

Array = jax.Array

# Without bounds λmin is λmax / 30, as in smoothers of multigrid (Adams, Brezina, Hu and Tuminaro 2003): the polynomial
# flattens the upper part of the spectrum, and the solver around it does the rest.
RATIO = 30
# Steps of the Lanczos process behind an estimated λmax, and what it is multiplied by.
LANCZOS_STEPS, SAFETY = 10, 1.05
# How far below zero, relative to the largest, the smallest Ritz value of a positive definite matrix may come out.
ROUNDING = 1e-4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Chebyshev:
    """p(M·A)·M as an operator: `@ r` for r of [n] or [n, k]. Symmetric where A and M are; the same at every call.

    Attributes:
      A: the matrix.
      M: the preconditioner inside the polynomial, or None.
      bounds: [2], λmin and λmax of M·A. Positive definite as long as no eigenvalue exceeds λmin + λmax.
      order: how to reach the order of unknowns in which A and M work.
      degree: of p, and the products with A that an application takes.
    """

    A: Any
    M: Any
    bounds: Array
    order: Basis
    degree: int = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(jnp.result_type(self.A.dtype, getattr(self.M, "dtype", self.A.dtype)))

    @property
    def T(self) -> Chebyshev:
        """Itself for real matrices, which must be symmetric; the polynomial of the transposes for complex ones."""
        if not jnp.issubdtype(self.dtype, jnp.complexfloating):
            return self
        return dataclasses.replace(self, A=self.A.T, M=None if self.M is None else self.M.T)

    def __matmul__(self, r: Array) -> Array:
        r = owned(r)
        r = self.order.enter(r.astype(jnp.result_type(self.dtype, r.dtype)))
        low, high = self.bounds.astype(jnp.result_type(self.bounds, jnp.finfo(r.dtype).dtype))
        centre, radius = (high + low) / 2, (high - low) / 2
        # ρₖ = T_{k−1}(σ)/T_k(σ) at σ = centre / radius, in closed form, where the algorithm has a recurrence.
        q = (jnp.sqrt(high) - jnp.sqrt(low)) / (jnp.sqrt(high) + jnp.sqrt(low))
        k = jnp.arange(1, self.degree + 2)
        rho = q * (1 + q ** (2 * k - 2)) / (1 + q ** (2 * k))
        steps = (rho[1:] * rho[:-1]).astype(r.dtype), (2 / radius * rho[1:]).astype(r.dtype)

        def step(state: tuple[Array, ...], coefficients: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
            x, r, d = state
            momentum, length = coefficients
            r = r - self.A @ d
            d = momentum * d + length * _applied(self.M, r)
            return (x + d, r, d), None

        d = _applied(self.M, r) * (1 / centre).astype(r.dtype)
        (x, _, _), _ = lax.scan(step, (d, r, d), steps)
        return self.order.leave(x)

    def entered(self, basis: Basis) -> Chebyshev:
        """The same operator between vectors that have entered `basis`.

        Its products are those of `A.in_basis`. It permutes nothing where `basis` is A's own, the same array; any other
        costs two permutations an application, however high the degree.
        """
        own = getattr(self.A, "basis", IDENTITY)
        if not (type(own) is type(basis) is type(self.order) is Basis):
            return self._entered_elsewhere(own, basis)
        if self.M is not None and not hasattr(self.M, "entered"):
            own = IDENTITY
        A = self.A if own.perm is None else self.A.in_basis
        M = self.M if own.perm is None or self.M is None else self.M.entered(own)
        if self.order.perm is None and own.perm is basis.perm:
            return dataclasses.replace(self, A=A, M=M)
        unknowns = jnp.arange(self.shape[0], dtype=jnp.int32)
        inside = own.enter(self.order.enter(unknowns))
        return dataclasses.replace(self, A=A, M=M, order=Basis(basis.leave(unknowns)[inside]))

    def _entered_elsewhere(self, own: Basis, basis: Basis) -> Chebyshev:
        """Where an order is more than a permutation: unknowns over devices."""
        assert self.order.is_identity, "it has entered before"
        if self.M is not None and not hasattr(self.M, "entered"):
            own = IDENTITY
        A = self.A if own.is_identity else self.A.in_basis
        M = self.M if own.is_identity or self.M is None else self.M.entered(own)
        return dataclasses.replace(
            self, A=A, M=M, order=IDENTITY if own.same(basis) else Between(outer=basis, inner=own)
        )


def chebyshev(A: Any, degree: int = 4, bounds: Any = None, M: Any = None) -> Chebyshev:
    """The Chebyshev polynomial of A, or of M·A, on an interval that holds the upper part of its spectrum.

    Positive definite where A and M are and no eigenvalue of M·A exceeds λmin + λmax; small eigenvalues, below λmin, do
    no harm. Works inside jit too.

    Args:
      A: [n, n], symmetric (Hermitian) positive definite: a pytree with a shape, a dtype and `@`, or a dense array.
      degree: of the polynomial; that many products with A an application.
      bounds: (λmin, λmax) of M·A. None takes as λmax 1.05 times the largest Ritz value of 10 Lanczos steps from a fixed
        start plus the norm of its residual (Parlett, The Symmetric Eigenvalue Problem, §13.2), and as λmin λmax/30.
      M: a symmetric positive definite preconditioner to work around, such as `jacobi(A)`, which makes the interval free
        of the rows' scale; a pytree with `@`. None is the identity.

    Raises:
      ValueError: A is not square; M is of another size; a negative degree; bounds that are not 0 < λmin < λmax; or,
        without bounds and outside jit, A is not positive definite or holds a NaN. TypeError: A or M is a function.
    """
    n = door.square(A, "a Chebyshev", "chebyshev")
    degree = arguments.count(degree, "degree", 0)
    A, M = _operator(A, n, "A"), None if M is None else _operator(M, n, "M")
    if bounds is not None:
        return Chebyshev(A, M, _checked(bounds), IDENTITY, degree)
    bounds, smallest = _estimated(A, M)
    if not door.is_traced(bounds) and not (math.isfinite(bounds[1]) and smallest >= -ROUNDING * bounds[1]):
        raise ValueError(
            f"a Chebyshev preconditioner needs a finite, positive definite matrix and M; the spectrum of their product "
            f"was estimated to reach from {smallest:g} to {bounds[1]:g}"
        )
    return Chebyshev(A, M, bounds, IDENTITY, degree)


def _operator(A: Any, n: int, name: str) -> Any:
    A = arguments.linear_map(A, n, name)
    if arguments.is_function(A):
        raise TypeError(f"{name} must be a pytree with a shape and @, which a preconditioner can hold; got a function")
    return A


def _checked(bounds: Any) -> Array:
    try:
        low, high = (jnp.asarray(b, float) for b in bounds)
        if low.ndim or high.ndim:
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(f"bounds must be two numbers, (λmin, λmax); got {bounds!r}") from None
    if not door.is_traced((low, high)) and not 0 < low < high < math.inf:
        raise ValueError(f"bounds must satisfy 0 < λmin < λmax; got ({low:g}, {high:g})")
    return jnp.stack([low, high])


def _applied(M: Any, r: Array) -> Array:
    return r if M is None else (M @ r).astype(r.dtype)


@jax.jit
def _estimated(A: Any, M: Any) -> tuple[Array, Array]:
    """Bounds [2] on the spectrum of M·A, and its smallest Ritz value."""
    dtype = jnp.result_type(A.dtype, getattr(M, "dtype", A.dtype), jnp.float32)
    like = jnp.zeros(A.shape[0], dtype)
    smallest, largest = spectrum(lambda z: (A @ z).astype(dtype), lambda w: _applied(M, w), like, LANCZOS_STEPS)
    high = SAFETY * largest
    return jnp.stack([high / RATIO, high]), smallest
