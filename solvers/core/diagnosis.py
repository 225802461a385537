"""The cause of a failed solve: found after the loop, once, by a product or two with A."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from solvers.core.stopping import MOST, Judge, Outer, is_failure
from solvers.core.vectors import once_if, ratio
from solvers.solution import Status

LEAST_SQUARES = 30  # ‖A·r‖ ≤ LEAST_SQUARES·√eps·‖A‖·‖r‖
AT_FAULT = 1e-3  # the cosine of A·M·r and r below which M is to blame
BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)


def diagnosed(judge: Judge, outer: Outer, x: Array, norm: Array) -> Array:
    """The code of a solve that is over at x, with a residual of this norm, by a product or two with A if it failed."""
    if judge.narrow is None and not judge.method.least_squares:
        return outer.code
    cause = functools.partial(_cause, judge, outer.last, norm)
    return once_if(is_failure(outer.code), cause, outer.code, x, outer.r)


def _cause(judge: Judge, last: Any, norm: Array, code: Array, x: Array, r: Array) -> Array:
    """The code of a failure, by products that tell least squares, and a narrow type, from other causes.

    LEAST_SQUARES stays if A·r is about zero, so that ‖r‖ is least with an M, too; else it becomes BREAKDOWN. In a
    refinement the failure of the narrow method stays if the wide type confirms it, or if M is at fault; else it becomes
    PRECISION.
    """
    space, method, narrow, A = judge.space, judge.method, judge.narrow, judge.A
    wide, eps, A_norm = r.dtype, jnp.finfo(r.dtype).eps, space.length(judge.Av)
    rounding = 100 * eps
    if method.least_squares:
        limit = LEAST_SQUARES * jnp.finfo(narrow or wide).eps ** 0.5 * A_norm * space.norm(r)
        is_solution = space.length(A(r)) <= limit
        otherwise = Status.BREAKDOWN if narrow is None else Status.PRECISION
        code = jnp.where((code == Status.LEAST_SQUARES) & ~is_solution, otherwise, code)
    if narrow is None:
        return code
    z = judge.M(r.astype(narrow)).astype(wide)
    Az = A(z)
    rz, pairs = space.dot(r, z), [(judge.v, judge.Av), (z, Az)]
    if last is not None:
        p = last[0].astype(wide)
        pairs.append((p, A(p)))
    # Of a direction that a narrow type sees clearly the sign is no rounding error.
    v, Av = pairs[-1]
    is_clear = jnp.abs(space.dot(v, Av)) > 10 * jnp.finfo(judge.values).eps * A_norm * space.dot(v, v)
    cosines = [ratio(space.dot(v, Av), space.length(v) * space.length(Av)) for v, Av in pairs]
    least, most = (functools.reduce(f, cosines) for f in (jnp.minimum, jnp.maximum))
    # A·M·r is nearly orthogonal to r, or longer than a residual in the narrow type may grow.
    of_M = jnp.abs(space.dot(r, Az)) < AT_FAULT * space.norm(r) * space.norm(Az)
    of_M |= space.norm(Az) > MOST / jnp.finfo(narrow).eps * space.norm(r)
    confirmed = [
        of_M & (code != Status.NON_FINITE),
        (code == Status.NON_FINITE) & ~jnp.isfinite(space.norm(r) + space.norm(z) + space.norm(Az)),
        (code == Status.NOT_POSITIVE_DEFINITE) & (is_clear | (least < -rounding) & (most > rounding) | (rz < 0)),
        (code == Status.BREAKDOWN) & ((jnp.abs(cosines[-1]) <= rounding) | (rz == 0)),
    ]
    of_the_method = functools.reduce(jnp.logical_or, [code == s for s in BREAKS])
    # About the residual that rounding in the wide type leaves; a larger one is due to the narrow type.
    limit = rounding * A_norm * space.norm(x)
    of_the_method |= (code == Status.STAGNATION) & (norm > limit)
    return jnp.where(of_the_method & ~functools.reduce(jnp.logical_or, confirmed), Status.PRECISION, code)
