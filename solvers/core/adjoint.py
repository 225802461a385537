"""Implicit differentiation: the derivative of a solve is a solve.

From A·x = b follows A·dx = db − dA·x: one more system with the same matrix, whose transpose is a solve with Aᵀ. Three
functions have derivatives of any order and transposes that consist of the same three: `solution`, which a user calls,
and the products of A⁻¹ and of A⁻ᵀ with a right-hand side (`inverse`), which start from zero and check their residual.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from solvers.core import diagnosis, iterate, opaque, program
from solvers.core.iterate import Method, Options, System
from solvers.core.scaling import Map, Product, in_trip
from solvers.core.settings import Adjoint, Rough, as_preconditioner
from solvers.core.stopping import End, Limits
from solvers.core.vectors import length, probe, ratio
from solvers.solution import Status

TRUNCATED = (Status.CONVERGED, Status.MAXITER, Status.STAGNATION)


def solved(
    method: Method, options: Options, adjoint: Adjoint, basis: Basis, system: System, of_derivative: Limits
) -> tuple[Array, End]:
    """x with A·x = b, and how the solve ended, both in the basis.

    x is linear in b, and differentiable to any order in b and in whatever A depends on. x does not depend on M, x0 and
    the other arguments, and has no derivative with respect to them. The residual norm depends on all of them but is not
    a differentiable function: its derivative is NaN.

    Args:
      of_derivative: limits for the systems that the derivatives solve.
    """
    b, inner = system.b, system.inner
    narrow = mesh_axes.shaped_like(b, b.dtype if options.dtype is None else options.dtype)
    A, M = _traced(system.A, b), _traced(as_preconditioner(system.M), narrow)
    inner = None if inner is None else _traced(inner, narrow)
    shown = IDENTITY if options.callback is None else basis
    # Whether a derivative is NaN depends on its residual, not on the cause of a failure, except in a refinement.
    examined = adjoint.truncated or adjoint.report is not None or inner is not None
    of_tangent = options._replace(history_length=0, callback=None, progress=None)

    # JAX traces and lowers it once for the solve and its derivatives, which differ in `ended`.
    @functools.partial(jax.jit, static_argnums=0)
    def loop(options, system, shown):
        return iterate.run(method, options, system, shown.leave)

    def run(options, system, shown=IDENTITY, examined=True):
        with basis.scope():  # a derivative is traced later, when the caller has left its scope
            found = loop(options, system, shown)
            return found.x, diagnosis.ended(method, options, system, found, examined)

    def solution(A, b, given, fixed):
        return opaque.apply(of_solution, jvp_of_solution, A, b, given, fixed, transpose=transpose_of_solution)

    def of_solution(A, b, given, fixed):
        (M, inner, x0), (limits, _, shown) = given, fixed
        return run(options, System(A, M, b, x0, limits, inner), shown)

    def jvp_of_solution(primals, tangents):
        x, end = solution(*primals)
        dx = tangent(False, x, primals[0], primals[2:], tangents)
        return (x, end), (dx, opaque.undefined(end, tangents[:3]))

    def transpose_of_solution(primals, cotangent):
        return inverse(True, primals[0], cotangent, primals[2:])

    def tangent(transposed, x, A, others, tangents):
        """dx of A·x = b, or of Aᵀ·x = b."""
        dA, db = tangents[:2]
        dA_x = opaque.jvp(lambda A: _transposed(A, x)(x) if transposed else A(x), A, dA)
        if dA_x is None:
            return None if db is None else inverse(transposed, A, db, others)
        # The sign stands outside, where XLA fuses it with what follows.
        return -inverse(transposed, A, dA_x if db is None else dA_x - db, others)

    def of_inverse(transposed, A, c, others):
        (M, inner, _), (_, limits, _) = others
        own = _transposed(A, c) if transposed else A
        system = System(A, M, c, None, limits, inner)
        if transposed and method.self_adjoint:
            # For a Hermitian A, Aᵀ is the conjugate of A, so the fast product solves Aᵀ·x = c as A·x̄ = c̄. A may not
            # be Hermitian, and a derivative may change a single entry without its mirror image.
            system = system._replace(b=jnp.conj(c))
        elif transposed:
            M, inner = _transposed(M, narrow), None if inner is None else _transposed(inner, narrow)
            system = system._replace(A=own, M=M, inner=inner)
        x, end = run(of_tangent, system, examined=examined)
        x = jnp.conj(x) if transposed and method.self_adjoint else x
        end = end._replace(norm=length(c - own(x)))
        return _or_nan(adjoint, A, x, c, end, limits.rtol)

    # Kept, since JAX traces a function once.
    of_inverses = {way: functools.partial(of_inverse, way) for way in (False, True)}

    def inverse(transposed, A, c, others):
        """A⁻¹·c, or A⁻ᵀ·c if `transposed`; NaN where that system is not solved (`_or_nan`)."""

        def jvp(primals, tangents):
            x = inverse(transposed, *primals)
            return x, tangent(transposed, x, primals[0], primals[2], tangents)

        def transpose(primals, cotangent):
            return inverse(not transposed, primals[0], cotangent, primals[2])

        return opaque.apply(of_inverses[transposed], jvp, A, c, others, transpose=transpose)

    fixed = lax.stop_gradient((system.limits, of_derivative, shown))
    return solution(A, b, (M, inner, system.x0), fixed)


def hermitian_solve(matvec: Map, solve: Map, rhs: Array) -> Array:
    """The z with matvec(z) = rhs by `solve`, differentiable; the transpose of a Hermitian system is its conjugate."""
    of_conjugate = lambda _, rhs: jnp.conj(solve(jnp.conj(rhs)))  # noqa: E731
    return lax.custom_linear_solve(matvec, rhs, lambda _, rhs: solve(rhs), of_conjugate)


def _traced(f: Any, like: Any) -> Any:
    """f, a map of vectors like `like`, as a pytree."""
    if isinstance(f, Product):  # whose two functions read the same arrays; derivatives are those of the first
        return Product(_traced(f.apply, like), lax.stop_gradient(_traced(f.with_dot, like)))
    return program.traced(f, like)


def _transposed(f: Map, example: Any) -> Map:
    """v -> fᵀ·v of a linear f from and to vectors like `example`, as a pytree."""
    like = mesh_axes.shaped_like(example, example.dtype)
    return program.traced(lambda v: jax.linear_transpose(f, like)(v)[0], example)


def _or_nan(adjoint: Adjoint, A: Map, x: Array, c: Array, end: End, rtol: Array) -> Array:
    """x if its residual meets the tolerance or is rounding, else NaN; inside a preconditioner always x."""
    if isinstance(adjoint, Rough):
        return x
    excess = end.norm - rtol * length(c)

    def look(trip: Array, met: Array) -> Array:
        v = in_trip(trip, probe(c))
        rounding = 100 * jnp.finfo(c.dtype).eps * (length(A(v)) / length(v)) * length(in_trip(trip, x))
        return met | (excess <= rounding) & jnp.isfinite(rounding)

    met = excess <= 0
    # A loop of one trip or none, as in `iterate`: only solves that miss their tolerance pay for the product.
    met = lax.fori_loop(0, jnp.any(~met).astype(jnp.int32), look, met)
    code = jnp.where(~met & (end.code == Status.CONVERGED), Status.NOT_SYMMETRIC, end.code)
    if adjoint.truncated:
        met |= jnp.isin(code, jnp.array(TRUNCATED))
    report(adjoint.report, end, code, c)
    return jnp.where(met & (code != Status.NON_FINITE), x, jnp.nan)


def report(to: Any, end: Any, code: Array, rhs: Array) -> None:
    """Calls `Adjoint.report`, if any: with Python numbers for one system, with arrays [k] for several."""
    if to is None:
        return

    def called(code: Any, iterations: Any, residual: Any) -> None:
        one = np.ndim(code) == 0
        to(*((Status(int(code)), int(iterations), float(residual)) if one else (code, iterations, residual)))

    jax.debug.callback(called, code, end.k, ratio(end.norm, length(rhs)))
