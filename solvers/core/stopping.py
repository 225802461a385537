"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual, and what a solve that misses it says.

`Now` ends the method by the residual of its recursion, `looked` where that grows or waits long. `judged` then takes the
true residual: CONVERGED, another start of the method, or a failure, which is judged again at its best x. `diagnosed`
names what is at fault. `lsmr` has a rule of its own.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array, lax

from solvers.core.scaling import Map
from solvers.core.space import Space
from solvers.solution import Status

# Codes beside a Status: go on; start again from the true residual, without or with this step, or since the residual
# has not fallen for long.
RUNNING, RESTART, FULL, WAITING = -1, -2, -3, -4
BETTER = 0.9  # times the norm of the best x: a residual below it makes a better one
PATIENCE = 200  # steps after which a residual that has not fallen is looked at, and after each doubling of them
LOOK = 32  # steps after which a norm that always falls is compared with the true one, and after each doubling of them
ROUNDED = 10  # ‖r‖ ≤ ROUNDED·eps·(‖A‖·‖x‖ + ‖b‖)
LEAST_SQUARES = 30  # ‖A·r‖ ≤ LEAST_SQUARES·√eps·‖A‖·‖r‖
MOST = 64  # over eps: a residual that size, for a b of about 1, hides b
AT_FAULT = 1e-3  # the cosine of A·M·r and r below which M is to blame
BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)


class Limits(NamedTuple):
    """Numbers of the stopping rule: traced, so that changing them does not recompile.

    Attributes:
      drop: the true residual is computed whenever the recursion's has fallen by this factor; 0: only at its end.
      derivative_rtol, derivative_maxiter: for the systems that derivatives solve; None takes the solve's own number,
        since each number is copied to the device.
      budget: steps that another way to solve the system would cost. A solve that seems to need more of them than that
        ends with MAXITER (`paced`). None: no such rule, and nothing of it in the program.
    """

    rtol: Array
    atol: Array
    maxiter: Array
    drop: Array
    derivative_rtol: Any = None
    derivative_maxiter: Any = None
    budget: Any = None

    @property
    def of_derivative(self) -> Self:
        """Those of the systems that derivatives solve."""
        rtol = self.rtol if self.derivative_rtol is None else self.derivative_rtol
        maxiter = self.maxiter if self.derivative_maxiter is None else self.derivative_maxiter
        return self._replace(rtol=rtol, atol=jnp.zeros_like(self.atol), maxiter=maxiter, budget=None)


class Best(NamedTuple):
    """The best x so far, in the scale of the loop."""

    x: Array
    norm: Array  # of its residual, by recursion
    k: Array  # iterations when it was found, or when the solve last waited


class Pace(NamedTuple):
    """How fast a solve with a `budget` falls: its smallest norm so far, and the same as it was after `k` steps."""

    k: Array
    norm: Array
    least: Array


class Loop(NamedTuple):
    """A method between two true residuals."""

    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Any  # [history_length], by column too; None without history
    best: Any = None
    pace: Any = None  # a `Pace`, if there is a budget


class Outer(NamedTuple):
    """A solve at a true residual."""

    x: Array
    r: Array  # b − A·x
    norm: Array  # of r
    k: Array
    code: Array  # RUNNING or how it ended
    ended: Array  # how the method ended, of a solve that runs on only to be judged at another x; else RUNNING
    norms: Any
    direction: Any  # the last one, where the method keeps it
    best: Best
    pace: Any = None


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Any


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
        # Of a right-hand side of about 1: rounding then leaves more than it.
        active, most = self.active, MOST / jnp.finfo(norm.dtype).eps
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


def anyone(flags: Array) -> Array:
    """Whether any column's flag is set."""
    return flags if flags.ndim == 0 else jnp.any(flags)


def once_if(flags: Array, f: Callable[..., Any], carried: Any, *operands: Array) -> Any:
    """f(carried, *operands) where any flag is set, else `carried`: by a loop of one trip or none.

    vmap would copy the operands of a condition, A among them, once for each system. What does not depend on the trip's
    number XLA computes before the loop, and so also where there is no trip.
    """
    trip = lambda number, carried: f(carried, *(jnp.where(number == 0, a, 0) for a in operands))  # noqa: E731
    return lax.fori_loop(0, anyone(flags).astype(jnp.int32), trip, carried)


def recorded(norms: Any, k: Array, value: Array) -> Any:
    """`norms` with norms[k] = value, nothing for k < 0 or past the end; None stays."""
    if norms is None or norms.shape[0] == 0:
        return norms
    at = jnp.where(k < 0, norms.shape[0], k)
    index = at if k.ndim == 0 else (at, jnp.arange(k.shape[0]))
    return norms.at[index].set(value.astype(norms.dtype), mode="drop")


class Probe(NamedTuple):
    """A vector v without a pattern, and A·v, by which a failure is examined."""

    v: Array
    Av: Array


class Rule(NamedTuple):
    """A·x = b in the scale of the loop, and what a solve of it is judged by.

    Attributes:
      narrow: dtype of a refinement's inner vectors; None: no refinement.
      unit: a power of two; b is the user's over it.
      look: for a self-adjoint method; else None.
    """

    space: Space
    method: Any
    narrow: Any
    A: Map
    M: Map
    b: Array
    unit: Array
    b_norm: Array
    tolerance: Array
    maxiter: Array
    look: Probe | None

    @property
    def noise_norm(self) -> Any:
        """About the norm of the probe."""
        return (self.space.length_of(self.b) / 3) ** 0.5


def is_due(rule: Rule, loop: Loop) -> Array:
    """Whether the method is to be looked at: at a better x, at one that blew up, or after many steps without either.

    A method that keeps its direction waits; one whose recursion falls at every step, also where x grows, is compared
    with the true residual.
    """
    best, method = loop.best, rule.method
    is_late = loop.k >= 2 * best.k + (LOOK if method.least_squares else PATIENCE)
    if method.least_squares:
        return is_late
    return (loop.norm < BETTER * best.norm) | _blew_up(loop) | (is_late if method.keeps else False)


def _blew_up(loop: Loop) -> Array:
    """Rounding leaves eps times the largest residual."""
    return loop.norm > jnp.finfo(loop.norm.dtype).eps ** -0.875 * loop.best.norm


def looked(rule: Rule, loop: Loop, x: Array, due: Array) -> Loop:
    """The loop at x with its best x: DIVERGED where the residual blew up, WAITING where the true one is to be seen."""
    best, size = loop.best, loop.norm
    if rule.method.least_squares:
        size = once_if(due, lambda _, x: rule.space.norm(rule.b - rule.A(x)), size, x)  # not where the method has ended
        # A recursion that lies, or a residual that grows, which of a symmetric A it does by M alone.
        better, ended, seen = due & (size < best.norm), due & ~(size <= 2 * jnp.minimum(loop.norm, best.norm)), due
    else:
        better = seen = due & (size < BETTER * best.norm)
        ended = due & ~better
    k, code = jnp.where(seen, loop.k, best.k), jnp.where(_blew_up(loop), jnp.int32(Status.DIVERGED), WAITING)
    best = _where(better, Best(x, size.astype(best.norm.dtype), best.k), best)._replace(k=k)
    return loop._replace(code=jnp.where(ended, code, loop.code), best=best)


def paced(loop: Loop, active: Array, tolerance: Array, budget: Array) -> Loop:
    """The loop with its pace; MAXITER in all columns if one of them would take more than `budget` further steps.

    The rate is that of the last half of all steps, first after budget / 2 steps and then whenever their number has
    doubled. So a solve that does not fall wastes half of what the other way costs, and one that is predicted to end
    within the budget goes on. At first twice the budget is allowed, since Krylov methods get faster.
    """
    k, norm, least = loop.pace
    least = jnp.where(loop.norm < least, loop.norm, least)
    due = active & (loop.k >= jnp.maximum(2 * k, budget / 4))
    fall, rest = jnp.log(norm / least), jnp.log(least / tolerance)
    allowed = jnp.where(loop.k < budget, 2, 1) * budget
    is_slow = due & (loop.k >= budget / 2) & ~(rest * (loop.k - k) <= allowed * fall)
    pace = Pace(jnp.where(due, loop.k, k), jnp.where(due, least, norm), least)
    return loop._replace(code=jnp.where(active & anyone(is_slow), jnp.int32(Status.MAXITER), loop.code), pace=pace)


def judged(rule: Rule, x: Array, loop: Loop, outer: Outer) -> Outer:
    """The solve at x by its true residual: RUNNING, or how it ended.

    Args:
      loop: how the method ended; `outer`: where it started.
    """
    space, method, look, b_norm = rule.space, rule.method, rule.look, rule.b_norm
    code, claimed, before, is_last = loop.code, loop.norm, outer.norm, outer.ended != RUNNING
    eps, asymmetric = jnp.finfo(before.dtype).eps, jnp.bool_(False)
    r, loses = rule.b - rule.A(x), (in_range(x, rule.unit) != x).astype(x.dtype)
    of_look = () if look is None else ((look.v, rule.b - r), (look.Av, x), (x, x), (look.Av, look.Av))
    squared, lost, *sums = space.inner_products((r, r), (loses, loses), *of_look)
    now = jnp.sqrt(squared.real)
    if look is not None:
        rounding = rule.noise_norm * (2 * b_norm + now) + jnp.sqrt(sums[2].real) * jnp.sqrt(sums[3].real)
        asymmetric = jnp.abs(sums[0] - sums[1]) > 100 * eps * rounding
    # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not be
    # taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion, and the next may gain more.
    may_grow = now > 10 * eps * b_norm if method.estimates else jnp.bool_(False)
    gained = (code == FULL) & (claimed < (1 - 100 * eps) * before)
    gained &= may_grow | (now <= (1 + eps**0.5) * before)
    least = jnp.where((code == RESTART) | (code == FULL) | may_grow, 1, 0.5)
    waits = (code == WAITING) & (now <= 2 * claimed) & ~asymmetric
    code = status_of(
        (~jnp.isfinite(now) & ~is_last, Status.NON_FINITE),
        (jnp.isfinite(now) & (now <= rule.tolerance), Status.CONVERGED),  # of an infinite b the tolerance is too
        (code >= 0, code),
        (loop.k >= rule.maxiter, Status.MAXITER),
        (~((code == RESTART) | gained | waits | (now < least * before)), Status.STAGNATION),
    )
    code = jnp.where(asymmetric & (code > 0) & (code != Status.NON_FINITE), Status.NOT_SYMMETRIC, code)
    is_worse = (code == Status.LEAST_SQUARES) & is_last & ~(now <= 1.1 * before)
    code = jnp.where(is_worse, Status.OUT_OF_RANGE, code).astype(jnp.int32)
    new = Outer(x, r, now, loop.k, code, outer.ended, loop.norms, outer.direction, loop.best, loop.pace)
    return returned(rule, new, outer, loop.code == WAITING, lost.real > 0)


def returned(rule: Rule, new: Outer, outer: Outer, waited: Array, lost: Array) -> Outer:
    """The solve with its best x so far.

    A solve that is over, but not at the x that the user gets, runs on without steps, to be judged there: a failure at
    its best x, and any without numbers that leave the range of the dtype, if it has `lost` such.
    """
    x, now, code, best, is_last = new.x, new.norm, new.code, new.best, new.ended != RUNNING
    converged, over, wrong = code == Status.CONVERGED, code != RUNNING, code == Status.LEAST_SQUARES
    # The norm of a best x that this start of the method claims is that of its recursion.
    is_claim = ~over & (jnp.bool_(False) if rule.method.least_squares else best.k > outer.k)
    better = jnp.where(wrong, BETTER, 1) * now < jnp.where(is_claim, outer.norm, best.norm)
    best = _where(better | ~jnp.isfinite(best.norm), Best(x, now, new.k), best)
    best = best._replace(k=jnp.where(waited, new.k, best.k))
    to_best = ~converged & (best.norm != now)
    tried = in_range(jnp.where(to_best, best.x, x), rule.unit)
    again = over & ~is_last & (to_best | lost)
    ended = jnp.where(again, jnp.where(converged, jnp.int32(Status.OUT_OF_RANGE), code), new.ended)
    # In the last look `best` is the other x, at which the method ended, unless that has lost numbers.
    other = Best(x, jnp.where(lost, jnp.inf, now), new.k)
    x, now = jnp.where(again, tried, jnp.where(is_last, best.x, x)), jnp.where(is_last, best.norm, now)
    code = jnp.where(again, RUNNING, code)
    return new._replace(x=x, norm=now, code=code, ended=ended, best=_where(again, other, best))


def _where(flags: Array, new: Best, old: Best) -> Best:
    return Best(*(jnp.where(flags, new, old) for new, old in zip(new, old, strict=True)))


def in_range(x: Array, unit: Array) -> Array:
    """x without what the dtype cannot hold of it in the user's scale."""
    given = x * unit
    return jnp.where(jnp.isfinite(given), given, 0) / unit


def diagnosed(rule: Rule, outer: Outer) -> Array:
    """The code of a solve that is over, by a product or two with A where it failed."""

    def examined(code: Array, x: Array, r: Array, v: Array) -> Array:
        Av = rule.A(v) if rule.look is None else rule.look.Av
        A_norm = rule.space.length(Av) / rule.noise_norm  # squares of small numbers would underflow
        if rule.method.least_squares or rule.narrow is not None:
            code = _cause(rule, A_norm, r, outer, code)
        is_accurate = is_rounding(code, outer.norm, A_norm * rule.space.norm(x), rule.b_norm, rule.tolerance)
        return jnp.where(is_accurate, jnp.int32(Status.ROUNDED), code)

    v = rule.space.probe(rule.b) if rule.look is None else rule.look.v
    return once_if(outer.code != Status.CONVERGED, examined, outer.code, outer.x, outer.r, v)


def is_rounding(code: Array, size: Array, Ax_norm: Array, b_norm: Array, tolerance: Array) -> Array:
    """Whether a solve stagnates at an x, of residual norm `size`, that solves a system which differs by rounding.

    The least relative change of A and b that makes x a solution is ‖r‖ / (‖A‖·‖x‖ + ‖b‖) (Rigal and Gaches 1967). A
    tolerance below the rounding unit of b asks for more, and a residual near ‖b‖ is no solution however large x is.

    Args:
      Ax_norm: ‖A‖·‖x‖.
    """
    eps = jnp.finfo(size.dtype).eps
    limit = ROUNDED * eps * (Ax_norm + b_norm)
    is_near = (size <= jnp.minimum(limit, eps**0.25 * b_norm)) & jnp.isfinite(limit)
    return (code == Status.STAGNATION) & is_near & (tolerance >= eps * b_norm)


def _cause(rule: Rule, A_norm: Array, r: Array, outer: Outer, code: Array) -> Array:
    """The code of a failure, by the products that tell least squares, and a narrow type, from others.

    LEAST_SQUARES stays where A·r is about zero, so that ‖r‖ is least with an M, too; else it becomes BREAKDOWN. In a
    refinement the failure of the narrow method stays if the wide type confirms it, or if M is at fault; else it becomes
    PRECISION.
    """
    space, method, narrow, A = rule.space, rule.method, rule.narrow, rule.A
    wide, eps = r.dtype, jnp.finfo(r.dtype).eps
    if method.least_squares:
        limit = LEAST_SQUARES * jnp.finfo(narrow or wide).eps ** 0.5 * A_norm * space.norm(r)
        solved = space.length(A(r)) <= limit
        otherwise = Status.BREAKDOWN if narrow is None else Status.PRECISION
        code = jnp.where((code == Status.LEAST_SQUARES) & ~solved, otherwise, code)
    if narrow is None:
        return code
    z = rule.M(r.astype(narrow)).astype(wide)
    Az = A(z)
    rz, curvature, rounding = space.dot(r, z), space.dot(z, Az), 100 * eps * space.norm(z) * space.norm(Az)
    if outer.direction is not None:
        p = outer.direction.astype(wide)
        Ap = A(p)
        curvature, rounding = space.dot(p, Ap), 100 * eps * space.norm(p) * space.norm(Ap)
    # What M proposes, A takes elsewhere, or as far as a residual in the narrow type may grow.
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
    limit = 100 * eps * A_norm * space.norm(outer.x)
    of_the_method |= (code == Status.STAGNATION) & (outer.norm > limit)
    return jnp.where(of_the_method & ~functools.reduce(jnp.logical_or, confirmed), Status.PRECISION, code)


def status_of(*cases: tuple[Array, Any], otherwise: int = RUNNING) -> Array:
    """The code of the first case that holds, by nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*(c.shape for c, _ in cases)))
