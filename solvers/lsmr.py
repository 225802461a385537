"""LSMR: least squares by MINRES on the normal equations, which are never formed (Fong and Saunders 2011).

`_lsmr` has the loop; this file has the public function, its result and the derivatives.
"""

import dataclasses
from typing import Any, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from jaxsparse_fmt._types import owned, pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from solvers import _lsmr
from solvers._lsmr import End, Given, Maps
from solvers.core import arguments, opaque, program
from solvers.core.adjoint import TRUNCATED, hermitian_solve, report
from solvers.core.interrupts import calling
from solvers.core.iterate import Options
from solvers.core.program import Entry
from solvers.core.settings import Adjoint, Settings, limits_of_derivatives, settled, solver
from solvers.core.stopping import Limits
from solvers.solution import Solution


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LeastSquaresSolution(Solution):
    """A least-squares solution, a pytree.

    Attributes:
      x: [n] or [n, k].
      residual_norm: ‖b − A·x‖₂, recomputed from x.
      normal_residual_norm: ‖Aᴴ·(b − A·x) − damp²·x‖₂, recomputed from x; 0 at the minimum.
      norms: normal residual norms of the recursion by iteration; None without `history`.
      The others: as in `Solution`.
    """

    normal_residual_norm: Array


class Plan(NamedTuple):
    """The static arguments; n is A's number of columns."""

    options: Options
    adjoint: Adjoint
    n: int


@solver()
def lsmr(A: Any, b: Any, x0: Any = None, *, damp: float = 0.0, **settings: Unpack[Settings]) -> LeastSquaresSolution:
    """The x that minimises ‖b − A·x‖² + damp²·‖x‖², for A of any shape; the shortest such x if x0 is None.

    Works inside jit, vmap and grad. Differentiable in b, damp and A's values to any order, by two least-squares solves
    with A and Aᴴ, if A has full rank or damp is positive. If the rank is less, the derivative in b is that of the
    shortest x, and the derivative in A, which exists only for changes that keep the rank, is NaN.

    Args:
      A: [m, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape, `@` and `T`; or a pair of
        functions (v -> A·v, u -> Aᴴ·u), traced at each call, as a function in `cg`.
      b: [m], or [m, k] for k problems at once.
      x0: [n] or [n, k]; None starts from zero.
      damp: λ, from 0 up.
      M: an approximation of (AᴴA + λ²)⁻¹, positive definite: anything with `@`, a function r -> M·r, or the [n]
        numbers of a diagonal M, such as 1 / d with d the squared lengths of A's columns, plus λ².
      rtol, atol: with r = (b − A·x, −λ·x), stop when ‖r‖₂ ≤ max(rtol·‖b‖₂, atol), which is possible if b is in A's
        range; or when ‖Aᴴ(b − A·x) − λ²·x‖₂ ≤ rtol·‖A‖₂·‖r‖₂ with the method's estimate of ‖A‖₂, from below. Both rules
        use the true r, and CONVERGED means that one of them is met. In single precision the second needs an rtol well
        above 1e-6.
      maxiter: most iterations, of two products each; None allows 10·min(m, n).
      history: keep the normal residual norms.
      adjoint: an `Adjoint`; "unrolled" is refused.
      The others and the errors: as in `cg`.
    """
    b = arguments.nonempty(b, "b", "least squares needs at least one equation")
    maps, dtype, n = _two_sided(A, b)
    x0 = None if x0 is None else arguments.vectors(x0, "x0")
    if x0 is not None and x0.shape != (n, *b.shape[1:]):
        raise ValueError(f"x0 has shape {x0.shape}; A and b need {(n, *b.shape[1:])}")
    damped = isinstance(damp, (Tracer, jax.Array)) or arguments.tolerance(damp, "damp") != 0
    dtype = jnp.result_type(dtype, b.dtype, jnp.float32, *(() if x0 is None else (x0.dtype,)))
    b, x0 = b.astype(dtype), None if x0 is None else x0.astype(dtype)
    M = arguments.preconditioner(settings.get("M"), jax.ShapeDtypeStruct((n, *b.shape[1:]), dtype))
    factor = arguments.tolerance(damp, "damp") if damped else None
    options, adjoint, limits = settled(settings, n, 10 * min(b.shape[0], n))
    if adjoint == "unrolled":
        raise TypeError("adjoint must be a solvers.Adjoint for lsmr, which is not unrolled; got 'unrolled'")
    forth, back, M = map(arguments.over_columns, (*maps, M))
    with calling(options):
        return _solve(Plan(options, adjoint, n), (forth, back, M), IDENTITY, b, x0, factor, limits)


def _two_sided(A: Any, b: Array) -> tuple[tuple[Any, Any], Any, int]:
    """A matrix and None or a pair of functions, the dtype of their products, and the number of columns."""
    m = b.shape[0]
    if isinstance(A, (tuple, list)) and len(A) == 2 and all(callable(f) for f in A):
        column = jax.ShapeDtypeStruct((m,), b.dtype)
        x = jax.eval_shape(A[1], column)
        y = jax.eval_shape(A[0], x)
        if len(x.shape) != 1 or y.shape != (m,):
            raise ValueError(f"the two functions take b's shape {(m,)} to {x.shape} and back to {y.shape}")
        return tuple(A), jnp.result_type(x.dtype, y.dtype), x.shape[0]
    arguments.refuse_scipy(A, "A")
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
    dtype = A.dtype if hasattr(A, "dtype") else b.dtype
    if jax.tree_util.all_leaves([A]) and not isinstance(A, jax.Array):
        return (lambda v: A @ v, lambda u: jnp.conj(A.T @ jnp.conj(u))), dtype, A.shape[1]
    return (A, None), dtype, A.shape[1]


def _compute(
    plan: Plan, maps: tuple[Any, Any, Any], _: Basis, b: Array, x0: Any, damp: Any, limits: tuple[Limits, Any]
) -> LeastSquaresSolution:
    m, dtype, (forth, back, M) = b.shape[0], b.dtype, maps
    if back is None:
        A = forth
        forth, back = (lambda v: A @ v), (lambda u: jnp.conj(A.T @ jnp.conj(u)))
    rows, factor, shape = b, None, (plan.n, *b.shape[1:])
    if damp is not None:
        # The damped problem is the plain one with λ·I below A and zeros below b.
        factor = damp.astype(jnp.finfo(dtype).dtype)
        above, below = forth, back
        forth = lambda v: jnp.concatenate([above(v).astype(dtype), factor * v])  # noqa: E731
        back = lambda u: below(u[:m]).astype(dtype) + factor * u[m:]  # noqa: E731
        rows = jnp.concatenate([b, jnp.zeros(shape, dtype)])
    unknown = mesh_axes.varying(jnp.zeros(shape, dtype), rows)
    K = Maps(
        program.traced(lambda v: forth(v).astype(dtype), unknown), program.traced(lambda u: back(u).astype(dtype), rows)
    )
    if M is not None:
        precondition = M
        M = program.traced(lambda r: arguments.apply(precondition, r).astype(dtype), unknown)
    settled = lax.stop_gradient(Given(M, x0, limits[0], limits_of_derivatives(*limits), factor))
    x, end = _differentiable(plan.options, plan.adjoint, K, True, rows, settled, m)
    norms = end.norms if plan.options.history_length else None
    return LeastSquaresSolution(x, end.code, end.k, end.norm, norms, end.normal)


def _examples(plan: Plan, b: Array) -> tuple[Any, Any, Any]:
    whole = jnp.zeros((plan.n, *b.shape[1:]), b.dtype) if mesh_axes.all_axes(b) else b
    unknown = mesh_axes.shaped_like(whole, b.dtype).update(shape=(plan.n, *b.shape[1:]))
    return unknown, b, unknown


_solve = Entry(_compute, _examples)


# ------------------------------------------------------------------------------------------------- differentiation


def _differentiable(
    options: Options, adjoint: Adjoint, A: Maps, inside: bool, b: Array, given: Given, rows: int | None = None
) -> tuple[Array, End]:
    """The shortest x with the least ‖b − A·x‖, differentiable in b and in whatever A depends on, to any order.

    The loop itself is not differentiated. Let H be A if A has at least as many rows as columns, and Aᴴ otherwise. x is
    half of the solution of

        y + H·z = f                A = H: y the residual b − A·x, z = x, f = b, g = 0
        Hᴴ·y    = g                A = Hᴴ: y = x, f = 0, g = b

    (Björck 1996, §1.1.4): a Hermitian system, whose derivatives are solves with itself, through
    `lax.custom_linear_solve`. Two least-squares solves do it: y₀ = (Hᴴ)⁺·g and z = H⁺·(f − y₀).

    Args:
      inside: whether M approximates (AᴴA)⁻¹; if not, it approximates (AAᴴ)⁻¹.
      rows: the first rows of b, of which the residual norm is returned; None: all.
    """
    is_tall = b.shape[0] >= jax.eval_shape(A.adjoint, b).shape[0]
    options_of_tangent = options._replace(history_length=0, callback=None, progress=None)

    def primal(A, b, given):
        return _lsmr.run(options, A, b, given, inside, rows)

    def solution(A, b, given):
        return opaque.apply(primal, tangent, A, b, given)

    def tangent(primals, tangents):
        (A, b, given), (dA, db, _) = primals, tangents
        x, end = solution(A, b, given)
        of_derivative = given._replace(x0=None, limits=given.of_derivative)
        d_end = opaque.undefined(end, tangents[:2])
        H, dH = (A, dA) if is_tall else (A.H, dA.H)
        if is_tall:
            y, z = b - A.apply(x), x
        else:
            y, z = x, _differentiable(options_of_tangent, adjoint, H, not inside, -x, of_derivative)[0]
        df, dg = (db, None) if is_tall else (None, db)
        df = _less(df, opaque.jvp(lambda f: f(z), H.apply, dH.apply))
        dg = _less(dg, opaque.jvp(lambda f: f(y), H.adjoint, dH.adjoint))
        if df is None and dg is None:
            return (x, end), (None, d_end)
        m = y.shape[0]
        # Both right-hand sides form one array: custom_linear_solve has no transpose if one of several is constant.
        rhs = jnp.concatenate([jnp.zeros_like(y) if df is None else df, jnp.zeros_like(z) if dg is None else dg])

        def matvec(yz):
            return jnp.concatenate([yz[:m] + H.apply(yz[m:]), H.adjoint(yz[:m])])

        def solve(rhs):
            f, g = rhs[:m], rhs[m:]
            return jnp.concatenate(_saddle(options_of_tangent, adjoint, H, inside == is_tall, f, g, of_derivative))

        dyz = hermitian_solve(matvec, solve, rhs)
        return (x, end), (dyz[m:] if is_tall else dyz[:m], d_end)

    return solution(A, b, given)


def _less(a: Array | None, b: Array | None) -> Array | None:
    """a − b, None for zero."""
    return a if b is None else -b if a is None else a - b


def _saddle(
    options: Options, adjoint: Adjoint, H: Maps, inside: bool, f: Array, g: Array, given: Given
) -> tuple[Array, Array]:
    """y and z with y + H·z = f and Hᴴ·y = g; NaN where a solve fails.

    Where H has dependent columns, g may lie outside the range of Hᴴ. Then y is the least-squares solution,
    and z is NaN.
    """
    eps = jnp.finfo(f.dtype).eps
    exact = jnp.maximum(jnp.sqrt(eps) * given.limits.rtol, 32 * eps)  # the second rule is only for a g out of range
    y, end = _lsmr.run(options, H.H, g, given, not inside, rtol_normal=exact)
    z, end_z = _lsmr.run(options, H, f - y, given, inside)
    report(adjoint.report, end, end.code, g)
    report(adjoint.report, end_z, end_z.code, f)
    sound, exists = end.sound & end_z.sound, end.consistent
    if adjoint.truncated:
        ended = [jnp.isin(e.code, jnp.array(TRUNCATED)) for e in (end, end_z)]
        sound, exists = sound | ended[0] & ended[1], exists | ended[0]
    return jnp.where(sound, f - H.apply(z), jnp.nan), jnp.where(sound & exists, z, jnp.nan)
