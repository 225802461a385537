"""The cause of a failed solve: found after the loop, once, by a product or two with A."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from solvers.core.stopping import MOST, Judge, Last, Outer, is_failure, is_rounding, noise
from solvers.core.vectors import once_if
from solvers.solution import Status

LEAST_SQUARES = 30  # ‖A·r‖ ≤ LEAST_SQUARES·√eps·‖A‖·‖r‖
AT_FAULT = 1e-3  # the cosine of A·M·r and r below which M is to blame
BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)


def diagnosed(judge: Judge, outer: Outer, x: Array, norm: Array) -> tuple[Array, Any]:
    """The code of a solve that is over at x, by a product or two with A if it failed, and ‖A‖·‖x‖ from below.

    Args:
      norm: of the residual of x.
    """
    space, method, probe = judge.space, judge.method, judge.probe
    is_plain = judge.narrow is None and not method.least_squares
    if is_plain and probe is not None:
        return outer.code, outer.Ax_norm

    def examined(carried: tuple[Array, Array], x: Array, r: Array, v: Array) -> tuple[Array, Array]:
        code, Ax_norm = carried
        A_norm = space.length(judge.A(v) if probe is None else probe.Av)
        if not is_plain:
            code = _cause(judge, A_norm, x, r, norm, outer.last, code)
        if probe is None:
            Ax_norm = space.norm(A_norm * x)
            stagnates = jnp.where(code == Status.OUT_OF_RANGE, Status.STAGNATION, code)
            accurate = is_rounding(stagnates, norm, Ax_norm, judge.b_norm, judge.tolerance)
            code = jnp.where(accurate, jnp.int32(Status.ROUNDED), code)
        return code, Ax_norm

    v = noise(space, judge.b) if probe is None else probe.v
    Ax_norm = jnp.zeros_like(norm) if outer.Ax_norm is None else outer.Ax_norm
    return once_if(is_failure(outer.code), examined, (outer.code, Ax_norm), x, outer.r, v)


def _cause(judge: Judge, A_norm: Array, x: Array, r: Array, norm: Array, last: Last | None, code: Array) -> Array:
    """The code of a failure, by products that tell least squares, and a narrow type, from other causes.

    LEAST_SQUARES stays if A·r is about zero, so that ‖r‖ is least with an M, too; else it becomes BREAKDOWN. In a
    refinement the failure of the narrow method stays if the wide type confirms it, or if M is at fault; else it becomes
    PRECISION.
    """
    space, method, narrow, A = judge.space, judge.method, judge.narrow, judge.A
    wide, eps = r.dtype, jnp.finfo(r.dtype).eps
    if method.least_squares:
        limit = LEAST_SQUARES * jnp.finfo(narrow or wide).eps ** 0.5 * A_norm * space.norm(r)
        is_solution = space.length(A(r)) <= limit
        otherwise = Status.BREAKDOWN if narrow is None else Status.PRECISION
        code = jnp.where((code == Status.LEAST_SQUARES) & ~is_solution, otherwise, code)
    if narrow is None:
        return code
    z = judge.M(r.astype(narrow)).astype(wide)
    Az = A(z)
    rz, curvature, rounding = space.dot(r, z), space.dot(z, Az), 100 * eps * space.norm(z) * space.norm(Az)
    if last is not None:
        p = last.p.astype(wide)
        Ap = A(p)
        curvature, rounding = space.dot(p, Ap), 100 * eps * space.norm(p) * space.norm(Ap)
    # A·M·r is nearly orthogonal to r, or longer than a residual in the narrow type may grow.
    of_M = jnp.abs(space.dot(r, Az)) < AT_FAULT * space.norm(r) * space.norm(Az)
    of_M |= space.norm(Az) > MOST / jnp.finfo(narrow).eps * space.norm(r)
    confirmed = [
        of_M & (code != Status.NON_FINITE),
        (code == Status.NON_FINITE) & ~jnp.isfinite(space.norm(r) + space.norm(z) + space.norm(Az)),
        (code == Status.NOT_POSITIVE_DEFINITE) & ((curvature < -rounding) | (rz < 0)),
        (code == Status.BREAKDOWN) & ((jnp.abs(curvature) <= rounding) | (rz == 0)),
    ]
    of_the_method = functools.reduce(jnp.logical_or, [code == s for s in BREAKS])
    # About the residual that rounding in the wide type leaves; a larger one is due to the narrow type.
    limit = 100 * eps * A_norm * space.norm(x)
    of_the_method |= (code == Status.STAGNATION) & (norm > limit)
    return jnp.where(of_the_method & ~functools.reduce(jnp.logical_or, confirmed), Status.PRECISION, code)
