"""Least squares: what A may be, and derivatives, which are solves with Hermitian systems; `lsmr` has the loop."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._arguments import owned
from solvers.core import opaque
from solvers.core.iterate import Options, System
from solvers.core.linear_solve import TRUNCATED, Adjoint, has_failed, hermitian_solve, report
from solvers.core.operators import UserFunction, refuse_scipy, wrapped
from solvers.core.space import exponent, largest
from solvers.core.vectors import adjoint_product, scaled


class Maps(NamedTuple):
    """A linear map and its adjoint; a pytree if both are pytrees."""

    apply: Any  # [n] -> [m]
    adjoint: Any  # [m] -> [n]

    @property
    def H(self) -> "Maps":
        return Maps(self.adjoint, self.apply)


class LeastSquares(opaque.Operation):
    """The shortest x with the least ‖b − A·x‖, differentiable in b and in whatever A depends on, to any order.

    The loop is not differentiated. Let H be A if A has at least as many rows as columns, else Aᴴ. x is half of the
    solution of a Hermitian system (Björck 1996, §1.1.4),

        y + H·z = f                A = H: y the residual b − A·x, z = x, f = b, g = 0
        Hᴴ·y    = g                A = Hᴴ: y = x, f = 0, g = b

    whose derivatives are solves with itself. Two least-squares solves give one: y₀ = (Hᴴ)⁺·g and z = H⁺·(f − y₀).

    Attributes:
      loop: (options, system, inside, rtol_normal) -> x and how the solve ended.
      inside: whether M approximates (AᴴA)⁻¹; if not, it approximates (AAᴴ)⁻¹.
    """

    loop: Callable[..., tuple[Array, Any]]
    options: Options
    adjoint: Adjoint
    inside: bool = True

    def compute(self, system: System) -> tuple[Array, Any]:
        return self.loop(self.options, system, self.inside)

    def jvp(self, system: System, tangents: System) -> tuple[Any, Any]:
        x, end = self(system)
        A, dA, db, failed = system.A, tangents.A, tangents.b, has_failed(self.adjoint, end.code)
        options = self.options._replace(history_length=0, callback=None, progress=None)
        is_tall = system.b.shape[0] >= x.shape[0]
        H, dH = (A, dA) if is_tall else (A.H, dA.H)
        with_H = dataclasses.replace(self, options=options, inside=self.inside == is_tall)
        system_H = system._replace(A=H, x0=None, limits=system.limits.of_derivative(x.dtype))
        y, z = (system.b - A.apply(x), x) if is_tall else (x, with_H(system_H._replace(b=-x))[0])
        y, z = (opaque.witness(failed, v) for v in (y, z))
        df, dg = (db, None) if is_tall else (None, db)
        df = _less(df, opaque.jvp(lambda f: f(z), H.apply, dH.apply))
        dg = _less(dg, opaque.jvp(lambda f: f(y), H.adjoint, dH.adjoint))
        d_end = opaque.undefined(end, tangents)
        if df is None and dg is None:
            return (x, end), (opaque.besides(failed, x, (tangents.M, tangents.x0)), d_end)
        m = y.shape[0]
        # Both right-hand sides form one array: custom_linear_solve has no transpose if one of several is constant.
        rhs = jnp.concatenate([jnp.zeros_like(y) if df is None else df, jnp.zeros_like(z) if dg is None else dg])
        rhs = opaque.unless(failed, rhs)

        def matvec(yz: Array) -> Array:
            return jnp.concatenate([yz[:m] + H.apply(yz[m:]), H.adjoint(yz[:m])])

        dyz = hermitian_solve(matvec, lambda rhs: jnp.concatenate(with_H._saddle(system_H, rhs[:m], rhs[m:])), rhs)
        return (x, end), (opaque.unless(failed, dyz[m:] if is_tall else dyz[:m]), d_end)

    def _saddle(self, system: System, f: Array, g: Array) -> tuple[Array, Array]:
        """y and z with y + H·z = f and Hᴴ·y = g, for the H of the system; NaN if a solve fails.

        If H has dependent columns, g may lie outside the range of Hᴴ. Then y is the least-squares solution, and z is
        NaN.
        """
        H, eps = system.A, jnp.finfo(f.dtype).eps
        exact = jnp.maximum(jnp.sqrt(eps) * system.limits.rtol, 32 * eps)  # the second rule: for a g out of range
        y, end = self.loop(self.options, system._replace(A=H.H, b=g), not self.inside, rtol_normal=exact)
        z, end_z = self.loop(self.options, system._replace(b=f - y), self.inside)
        report(self.adjoint.report, end, end.code, g)
        report(self.adjoint.report, end_z, end_z.code, f)
        sound, exists = end.sound & end_z.sound, end.consistent
        if self.adjoint.truncated:
            ended = [jnp.isin(e.code, jnp.array(TRUNCATED)) for e in (end, end_z)]
            sound, exists = sound | ended[0] & ended[1], exists | ended[0]
        is_zero = jnp.all(f == 0, axis=0) & jnp.all(g == 0, axis=0)  # as of a failure that the loss masks
        y, z = jnp.where(sound, f - H.apply(z), jnp.nan), jnp.where(sound & exists, z, jnp.nan)
        return jnp.where(is_zero, 0, y), jnp.where(is_zero, 0, z)


def _less(a: Array | None, b: Array | None) -> Array | None:
    """a − b, None for zero."""
    return a if b is None else -b if a is None else a - b


def two_sided(A: Any, b: Array) -> tuple[tuple[Any, Any], Any, int]:
    """A matrix and None, or A and Aᴴ as functions; the dtype of their products; the number of columns."""
    m = b.shape[0]
    if isinstance(A, (tuple, list)) and len(A) == 2 and all(callable(f) for f in A):
        if b.ndim == 2:
            raise ValueError(
                f"two functions take one right-hand side, of shape (m,); b has shape {b.shape}. For its columns map "
                "the solve, jax.vmap(lambda b: lsmr(A, b), 1); for one unknown of several axes pass b.ravel(), and "
                "functions that reshape"
            )
        x = jax.eval_shape(A[1], jax.ShapeDtypeStruct((m,), b.dtype))
        y = jax.eval_shape(A[0], x)
        if len(x.shape) != 1 or y.shape != (m,):
            raise ValueError(f"the two functions take b's shape {(m,)} to {x.shape} and back to {y.shape}")
        return (UserFunction(A[0], A[0]), UserFunction(A[1], A[1])), jnp.result_type(x.dtype, y.dtype), x.shape[0]
    refuse_scipy(A, "A")
    A = cast(Any, A)
    if not all(hasattr(A, name) for name in ("shape", "T", "__matmul__")) or len(A.shape) != 2:
        raise TypeError(
            f"A must be a matrix with a shape (m, n), T and @, or a pair of functions (v -> A·v, u -> Aᴴ·u); got {A!r}"
        )
    if A.shape[0] != m:
        raise ValueError(f"A has shape {tuple(A.shape)}, and b of length {m} needs {m} rows")
    if A.shape[1] == 0:
        raise ValueError(f"A has shape {tuple(A.shape)}; least squares needs at least one unknown")
    if isinstance(A, np.ndarray):
        A = owned(A)
        A = A if jnp.issubdtype(A.dtype, jnp.inexact) else A.astype(float)
    operator, dtype = wrapped(A, "A"), A.dtype if hasattr(A, "dtype") else b.dtype
    is_opaque = isinstance(operator, UserFunction)
    return (operator, UserFunction(lambda u: adjoint_product(A, u), A.T) if is_opaque else None), dtype, A.shape[1]


def sized(A: Maps, b: Array) -> tuple[Array, Array]:
    """e with 2ᵉ about the size of A, by column of b, which is of size 1; and a multiple of Aᴴ·b."""
    most = jnp.finfo(b.dtype).maxexp // 2
    up = jnp.where(largest(A.adjoint(b)) < 2.0**-most, most, 0)
    s = A.adjoint(scaled(b, up))  # in which an A of the least numbers shows, too
    s, e_s = jnp.where(jnp.isfinite(s), s, 0), exponent(s)
    e_A = jnp.maximum(e_s, exponent(A.apply(scaled(s, up - e_s))))  # Aᴴ·b alone need not show the size of a damp
    return jnp.where(largest(s) > 0, e_A - up, 0), s
