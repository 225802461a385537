"""Eigenproblems that `eigsh` solves as others: K·x = λ·M·x, and the eigenvalues nearest to a number.

With M = C·Cᴴ, by SuperLU without pivoting, the first is the problem of C⁻¹·K·C⁻ᴴ, and x = C⁻ᴴ·y. The pairs nearest to
sigma are those of the largest eigenvalues of the inverse of K − sigma·M (Ericsson and Ruhe 1980).
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import pytree
from solvers import factors
from solvers.core import arguments
from solvers.core.space import norm
from solvers.direct import Factorized, factorized, matrix_norm
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status

TRUE = 1000  # times eps·(‖A‖ + |λ|·‖M‖)·‖v‖: the residual norm of A·v − λ·M·v that is allowed with sigma


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Reduced:
    """C⁻¹·A·C⁻ᴴ or, of the factors of A − sigma·M, the inverse of C⁻¹·(A − sigma·M)·C⁻ᴴ.

    Attributes:
      A: a matrix, or a `Factorized` one.
      M, root, turned: M, C⁻¹ and its transpose.
      moves: whether derivatives in M are due. C is constant, and C⁻¹·M·C⁻ᴴ an identity that moves with M: `powered`.
    """

    A: Any
    M: Any
    root: factors.Inverse
    turned: factors.Inverse
    moves: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape

    @property
    def dtype(self) -> Any:
        return jnp.promote_types(self.A.dtype, self.M.dtype)

    def __matmul__(self, v: Array) -> Array:
        if not isinstance(self.A, Factorized):
            return self.powered(self.root @ (self.A @ self.adjoint(self.powered(v, -0.5))), -0.5)
        still = lax.stop_gradient(self.M)
        w = still @ (self.A @ (still @ self.adjoint(self.powered(v, 0.5))))
        return self.powered(self.root @ w, 0.5)

    def adjoint(self, v: Array) -> Array:
        """C⁻ᴴ·v."""
        return jnp.conj(self.turned @ jnp.conj(v))

    def powered(self, v: Array, p: float) -> Array:
        """(C⁻¹·M·C⁻ᴴ)ᵖ·v by the binomial series, to second order: v, with derivatives."""
        if not self.moves:
            return v
        off = lambda v: self.root @ (self.M @ self.adjoint(v)) - v  # noqa: E731
        once = off(v)
        return v + p * once + p * (p - 1) / 2 * off(once)


def _root(M: Any, shape: tuple[int, int]) -> factors.Inverse:
    """C⁻¹ of M = C·Cᴴ; refuses what is not a known Hermitian positive definite matrix of this shape."""
    M = arguments.still(M)
    checks.ours(M, "eigsh(M=)")
    if M.shape != shape:
        raise ValueError(f"M has shape {M.shape}; with A of shape {shape} it must have the same")
    if arguments.is_traced(M):
        raise TypeError("M is traced inside jit, and the host factors it: close over M, or call eigsh outside of jit")
    with contextlib.suppress(SolverError):  # singular, or not finite
        host, found = factors.on_host(M, ("cholesky",), "eigsh(M=)")
        made: Any = factors.split(found, jnp.promote_types(M.dtype, jnp.float32))
        D = np.real(made.inverse_pivots)
        if host.symmetric and np.all(D > 0) and np.array_equal(found.made.perm_r, found.made.perm_c):
            own = factors.Factors(np.sqrt(D), made.lower, None, made.rows)  # real √D: of a complex M every r is complex
            return jax.device_put(factors.Inverse(None, own, ("cholesky",)))
    raise ValueError(
        "M is not symmetric (Hermitian) and positive definite with finite entries, as the M of A·x = λ·M·x must be"
    )


def transformed(A: Any, M: Any, sigma: Any, v0: Any, search: Callable[..., Any]) -> Any:
    """The pairs of A·x = λ·M·x that `search` finds: (map, v0) -> `EigenSolution`; those nearest to sigma, if given."""
    if not hasattr(A, "shift"):
        raise TypeError(
            f"M and sigma need a jaxsparse_fmt matrix A, got {type(A).__name__}; convert it with jsf.from_scipy"
        )
    inner = A
    if sigma is not None:
        if np.ndim(sigma) or not isinstance(sigma, (int, float, np.number, Array)) or jnp.iscomplexobj(sigma):
            raise TypeError(f"sigma must be a real number; got {sigma!r}")
        sigma = jnp.asarray(sigma, jnp.finfo(A.dtype).dtype)
        if not arguments.is_traced(sigma) and not np.isfinite(sigma):
            raise ValueError(f"sigma must be finite; got {float(sigma)}")
        try:
            inner = factorized(A.shift(-sigma) if M is None else A - sigma * M)
        except SolverError as error:
            if error.status is not Status.SINGULAR:
                raise
            what = "A" if M is None else "A·x = λ·M·x"
            text = f"{what} has the eigenvalue sigma = {float(sigma):g}, or one too near to it; take a number beside it"
            raise SolverError(error.status, text) from None
    if M is not None:
        root = _root(M, A.shape)
        inner = Reduced(inner, M, root, root.T, arguments.is_traced(M))
        v0 = None if v0 is None else root @ (M @ v0)
    return _returned(A, M, sigma, inner, search(inner, v0=v0))


@jax.jit
def _returned(A: Any, M: Any, sigma: Any, inner: Any, found: Any) -> Any:
    """The pairs of A, from those that were `found` of `inner`."""
    values, X = found.eigenvalues, found.eigenvectors
    if isinstance(inner, Reduced):
        X = inner.adjoint(inner.powered(X, -0.5))
    if sigma is not None:
        values = sigma + 1 / values
        order = jnp.argsort(values)
        values, X = values[order], X[:, order]
    residuals = lax.stop_gradient(norm(A @ X - values * (X if M is None else M @ X)))
    code = found.code
    if sigma is not None:
        # Rounding in products with the inverse hides other pairs if sigma is nearly an eigenvalue.
        scale = matrix_norm(A) + jnp.abs(values) * (1 if M is None else matrix_norm(M))
        is_true = residuals <= TRUE * jnp.finfo(values.dtype).eps * lax.stop_gradient(scale * norm(X))
        code = jnp.where((code == Status.CONVERGED) & ~jnp.all(is_true), jnp.int32(Status.STAGNATION), code)
    return dataclasses.replace(found, eigenvalues=values, eigenvectors=X, code=code, residual_norms=residuals)
