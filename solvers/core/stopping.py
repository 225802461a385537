"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual, and the causes of failures.

`Now` ends the method by the residual of its recursion. `verdict` then judges the true residual: CONVERGED, another
start of the method, or a failure. `diagnosis` examines a failure once, after the loop, and names its cause. `iterate`
computes the tolerance; `lsmr` has a rule of its own.
"""

import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core.vector_passes import inner_product
from solvers.core.scaling import Map, Scaled, in_trip, scaled
from solvers.core.vectors import dot, norm, probe
from solvers.solution import Status

# Codes of a step beside a Status: go on; start again from the true residual, without or with this step.
RUNNING, RESTART, FULL = -1, -2, -3
BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)
LEAST_SQUARES = 30  # ‖A·M·r‖ ≤ LEAST_SQUARES·√eps·‖A‖·‖M·r‖


class Limits(NamedTuple):
    """Numbers of the stopping rule: traced, so that changing them does not recompile.

    Attributes:
      drop: the true residual is computed whenever the recursion's has fallen by this factor; 0: only at its end.
      calls: arguments of `callback` and `progress` before their own (`host_calls`).
    """

    rtol: Array
    atol: Array
    maxiter: Array
    drop: Array
    calls: tuple[Any, ...] = ()


class Rule(NamedTuple):
    """The stopping rule in the scale in which the loop solves.

    Attributes:
      level: the size of rounding errors in a residual, for a method that only estimates residuals; else None.
    """

    tolerance: Array
    maxiter: Array
    level: Array | None = None


class Loop(NamedTuple):
    """A method between two true residuals."""

    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Array  # [history_length], by column too


class Outer(NamedTuple):
    """A solve at a true residual."""

    x: Array
    r: Array  # b − A·x
    norm: Array  # of r
    k: Array
    code: Array  # RUNNING or how it ended
    norms: Array
    direction: Any  # the last one, where the method keeps it


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Array
    direction: Any = ()  # the last one, if the system had one; no leaf else


class Now(NamedTuple):
    """The numbers of a loop and what ends it, by column too.

    A pass over vectors may take and return them; kernels in Mosaic GPU have no ~ of flags.
    """

    k: Array
    norm: Array
    code: Array
    goal: Array  # the norm at which the method ends
    maxiter: Any

    @property
    def active(self) -> Array:
        """Whether the method takes another step, by the residual norm of its recursion."""
        return (self.code == RUNNING) & (self.norm > self.goal) & (self.k < self.maxiter)

    def after(self, norm: Array, code: Array) -> Self:
        """The numbers after a step with this norm and code; as they were where the method is not active."""
        active, most = self.active, jnp.finfo(norm.dtype).eps ** -1.5  # of a right-hand side of about 1
        moves = active & is_taken(code)
        blown_up = jnp.where(is_finite(norm), jnp.int32(Status.DIVERGED), jnp.int32(Status.NON_FINITE))
        code = jnp.where(moves, jnp.where(norm <= most, code, blown_up), code)
        norm, code = jnp.where(moves, norm, self.norm), jnp.where(active, code, self.code)
        return self._replace(k=self.k + moves.astype(jnp.int32), norm=norm, code=code)


def is_taken(code: Array) -> Array:
    """Whether a step with this code counts."""
    return (code == RUNNING) | (code == FULL)


def is_finite(a: Array) -> Array:
    """As jnp.isfinite, which kernels in Mosaic GPU do not have."""
    return jnp.abs(a) <= jnp.finfo(a.dtype).max


def root(a: Array) -> Array:
    """The square root of a ≥ 0, and a itself where that is denormal. Mosaic GPU has jnp.sqrt since JAX 0.11."""
    return jnp.where(a >= jnp.finfo(a.dtype).tiny, a * lax.rsqrt(a), a)


def verdict(rule: Rule, now: Array, before: Array, loop: Loop) -> Array:
    """RUNNING or how the solve ended, by the true residual norm `now`, the one `before`, and the method's code."""
    return _verdict(rule, now, before, loop._replace(work=None, norms=None))


@jax.jit
def _verdict(rule: Rule, now: Array, before: Array, loop: Loop) -> Array:
    asked_to = (loop.code == RESTART) | (loop.code == FULL)
    # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not be
    # taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion, and the next may gain more.
    eps = jnp.finfo(now.dtype).eps
    gained = (loop.code == FULL) & (loop.norm < (1 - 100 * eps) * before)
    may_grow = jnp.bool_(False) if rule.level is None else now > rule.level
    gained &= may_grow | (now <= (1 + jnp.sqrt(eps)) * before)
    least = jnp.where(asked_to | may_grow, 1, 0.5)
    helped = jnp.isnan(before) | (loop.code == RESTART) | gained | (now < least * before)
    failed = (loop.code != RUNNING) & ~asked_to
    return status_of(
        (~jnp.isfinite(now), Status.NON_FINITE),
        (now <= rule.tolerance, Status.CONVERGED),
        (failed, loop.code),
        (loop.k >= rule.maxiter, Status.MAXITER),
        (~helped, Status.STAGNATION),
    )


def status_of(*cases: tuple[Array, Any], otherwise: int = RUNNING) -> Array:
    """The code of the first case that holds, by nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*(c.shape for c, _ in cases)))


# --------------------------------------------------------------------------------------- the cause of a failure


class Examined(NamedTuple):
    """The inputs of `diagnosis` beside the method and the end of the loop.

    Attributes:
      tolerance: on the true residual norm.
      returned: outer.x after rounding in the user's scale, scaled back for the loop.
      narrow: dtype of a refinement's inner vectors; None: no refinement.
    """

    A: Scaled
    M: Map
    b: Array
    tolerance: Array
    returned: Array
    narrow: Any


def diagnosis(method: Any, system: Examined, outer: Outer) -> tuple[Array, Array]:
    """The true residual norm and the code, examined if a solve failed or x lost bits in the user's scale.

    The examination takes one or two products; otherwise there is no product.

    Args:
      method: an `iterate.Method`.
    """
    A, tolerance, returned, narrow = system.A, system.tolerance, system.returned, system.narrow
    lost = jnp.any(returned != outer.x, axis=0)

    def examined(trip: Array, known: tuple[Array, Array]) -> tuple[Array, Array]:
        size, code = known
        x, r, b, v = (in_trip(trip, a) for a in (outer.x, outer.r, system.b, probe(system.b)))
        # As for A·y with y = x / D, whose numbers are about 1.
        x, Ax, eps = scaled(x, -A.exponent), b - r, jnp.finfo(b.dtype).eps
        Av = A(jnp.where(lost, returned, scaled(v, A.exponent)))
        size = jnp.where(lost, now := norm(b - Av), size)
        worse = (code == Status.CONVERGED) & ~(now <= tolerance)
        worse |= (code == Status.LEAST_SQUARES) & ~(now <= 1.1 * outer.norm)
        code = jnp.where(lost & worse, Status.OUT_OF_RANGE, code)
        if method.least_squares:
            code = _least_squares(system, r, norm(Av) / norm(v), code)
        if narrow is not None:
            direction = None if outer.direction is None else in_trip(trip, outer.direction)
            code = _in_the_wide_type(system, r, direction, code)
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


def _least_squares(system: Examined, r: Array, A_norm: Array, code: Array) -> Array:
    """LEAST_SQUARES stays where A·M·r is about zero for the true r; else it becomes BREAKDOWN, or PRECISION."""
    A, narrow = system.A, system.narrow
    own = narrow or r.dtype
    z, least = system.M(r.astype(own)).astype(r.dtype), LEAST_SQUARES * jnp.sqrt(jnp.finfo(own).eps)
    is_solved = norm(A(z)) <= least * A_norm * norm(scaled(z, -A.exponent))
    if narrow is not None:
        is_solved &= A_norm > 0  # a narrow A may be zero where the wide one is not
    otherwise = Status.BREAKDOWN if narrow is None else Status.PRECISION
    return jnp.where((code == Status.LEAST_SQUARES) & ~is_solved, otherwise, code)


def _in_the_wide_type(system: Examined, r: Array, direction: Array | None, code: Array) -> Array:
    """The failure of a narrow method if the wide type confirms it, else PRECISION."""
    wide = r.dtype
    z = system.M(r.astype(system.narrow)).astype(wide)
    p = z if direction is None else direction.astype(wide)
    Ap, eps = system.A(p), jnp.finfo(wide).eps
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
