"""How a solve ended: the cause of a failure, and the true residual of x as it is returned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core.vector_passes import inner_product
from solvers.core.iterate import Found, Method, Options, System
from solvers.core.scaling import Map, Scaled, in_trip, scaled
from solvers.core.stopping import End
from solvers.core.vectors import dot, norm, probe
from solvers.solution import Status

BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)
LEAST_SQUARES = 30  # ‖A·M·r‖ ≤ LEAST_SQUARES·√eps·‖A‖·‖M·r‖


def ended(method: Method, options: Options, system: System, found: Found, examined: bool = True) -> End:
    """The end of a solve.

    Args:
      examined: name the cause of a failure, and take the residual of x as returned.
    """
    outer, (_, _, of_b) = found.outer, found.exponents
    size, code = _diagnosed(method, options.dtype, system, found) if examined else (outer.norm, outer.code)
    code = jnp.where(jnp.all(jnp.isfinite(outer.x), axis=0), code, Status.NON_FINITE).astype(jnp.int32)
    norms = jnp.where(outer.norms < 0, outer.norms, scaled(outer.norms, of_b))
    return End(outer.k, scaled(size, of_b), code, norms)


def _diagnosed(method: Method, narrow: Any, system: System, found: Found) -> tuple[Array, Array]:
    """The true residual norm and the code, examined if a solve failed or x lost bits in the user's scale.

    The examination takes one or two products; otherwise there is no product.

    Args:
      narrow: dtype of a refinement's inner vectors; None: no refinement.
    """
    outer, (of_A, of_M, of_b) = found.outer, found.exponents
    A, M = Scaled(system.A, of_A), Scaled(system.M, of_M)
    returned = scaled(found.x, -(of_b + of_A))  # outer.x after rounding in the user's scale
    lost = jnp.any(returned != outer.x, axis=0)

    def examined(trip: Array, known: tuple[Array, Array]) -> tuple[Array, Array]:
        size, code = known
        x, r, b, v = (in_trip(trip, a) for a in (outer.x, outer.r, found.b, probe(found.b)))
        # As for A·y with y = x / D, whose numbers are about 1.
        x, Ax, eps = scaled(x, -A.exponent), b - r, jnp.finfo(b.dtype).eps
        Av = A(jnp.where(lost, returned, scaled(v, A.exponent)))
        size = jnp.where(lost, now := norm(b - Av), size)
        worse = (code == Status.CONVERGED) & ~(now <= found.tolerance)
        worse |= (code == Status.LEAST_SQUARES) & ~(now <= 1.1 * outer.norm)
        code = jnp.where(lost & worse, Status.OUT_OF_RANGE, code)
        if method.least_squares:
            code = _least_squares(A, M, narrow, r, norm(Av) / norm(v), code)
        if narrow is not None:
            direction = None if outer.direction is None else in_trip(trip, outer.direction)
            code = _in_the_wide_type(A, M, narrow, r, direction, code)
        if method.self_adjoint:
            gap = jnp.abs(inner_product(v, Ax) - inner_product(Av, x))
            asymmetric = gap > 100 * eps * (norm(v) * (norm(Ax) + norm(b)) + norm(Av) * norm(x))
            code = jnp.where(_is_failure(code) & asymmetric & ~lost, Status.NOT_SYMMETRIC, code)
        if narrow is not None:
            # About the residual that rounding in the wide type leaves; a larger one is due to the narrow type.
            limit = 100 * eps * norm(Av) / norm(v) * norm(x)
            code = jnp.where((code == Status.STAGNATION) & (outer.norm > limit), Status.PRECISION, code)
        return size, code.astype(jnp.int32)

    # A loop of one trip or none: vmap would copy the operands of a condition, A among them, once for each system.
    due = lost | _is_failure(outer.code) | ((outer.code == Status.NON_FINITE) & (narrow is not None))
    return lax.fori_loop(0, jnp.any(due).astype(jnp.int32), examined, (outer.norm, outer.code))


def _least_squares(A: Scaled, M: Map, narrow: Any, r: Array, A_norm: Array, code: Array) -> Array:
    """LEAST_SQUARES stays where A·M·r is about zero for the true r; else it becomes BREAKDOWN, or PRECISION."""
    own = narrow or r.dtype
    z, least = M(r.astype(own)).astype(r.dtype), LEAST_SQUARES * jnp.sqrt(jnp.finfo(own).eps)
    is_solved = norm(A(z)) <= least * A_norm * norm(scaled(z, -A.exponent))
    if narrow is not None:
        is_solved &= A_norm > 0  # a narrow A may be zero where the wide one is not
    otherwise = Status.BREAKDOWN if narrow is None else Status.PRECISION
    return jnp.where((code == Status.LEAST_SQUARES) & ~is_solved, otherwise, code)


def _in_the_wide_type(A: Map, M: Map, narrow: Any, r: Array, direction: Array | None, code: Array) -> Array:
    """The failure of a narrow method if the wide type confirms it, else PRECISION."""
    wide = r.dtype
    z = M(r.astype(narrow)).astype(wide)
    p = z if direction is None else direction.astype(wide)
    Ap, eps = A(p), jnp.finfo(wide).eps
    curvature, rounding = dot(p, Ap), 100 * eps * norm(p) * norm(Ap)
    confirmed = [
        (code == Status.NON_FINITE) & ~jnp.isfinite(norm(r) + norm(z) + norm(Ap)),
        (code == Status.NOT_POSITIVE_DEFINITE) & ((curvature < -rounding) | (dot(r, z) < 0)),
        (code == Status.BREAKDOWN) & ((jnp.abs(curvature) <= rounding) | (dot(r, z) == 0)),
    ]
    of_the_method = functools.reduce(jnp.logical_or, [code == s for s in BREAKS])
    return jnp.where(of_the_method & ~functools.reduce(jnp.logical_or, confirmed), Status.PRECISION, code)


@jax.jit
def _is_failure(code: Array) -> Array:
    return (code != Status.CONVERGED) & (code != Status.NON_FINITE) & (code != Status.OUT_OF_RANGE)
