"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual, and the status of a solve.

`Now` ends the method by the residual norm of its recursion, `looked` where that norm grows or does not fall for long.
`judged` then takes the true residual: CONVERGED, another start of the method, or a failure. After a failure one more
trip of the loop judges the best x. `lsmr`, batches and solves on the host have rules of their own.
"""

import functools
import itertools
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt._one_kernel import one_kernel
from solvers.core.space import Map, Space
from solvers.core.vectors import anyone, inner_product, once_if
from solvers.solution import Status

# Codes besides a Status: the method goes on; it must start again from the true residual, without or with this step; the
# residual has not fallen for long; the recursion meets its goal, or maxiter is reached.
RUNNING, RESTART, FULL, WAITING, ENDED = -1, -2, -3, -4, -5
# What the next trip of a solve does: it takes steps, or judges the best x after a failure at another one, or is none.
STEPPING, JUDGING, OVER = 0, 1, 2
BETTER = 0.9  # times the norm of the best x: a residual below it makes a better one
PATIENCE = 200  # steps after which a residual that has not fallen is looked at, and after each doubling of them
LOOK = 32  # steps after which a norm that always falls is compared with the true one, and after each doubling of them
ROUNDED = 10  # ‖r‖ ≤ ROUNDED·eps·(‖A‖·‖x‖ + ‖b‖)
MOST = 64  # over eps: a residual that large, for a b of about 1, hides b


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

    def of_derivative(self, dtype: Any) -> Self:
        """Those of the systems that derivatives solve, in vectors of a dtype, whose eps is the least rtol."""
        rtol = self.rtol if self.derivative_rtol is None else self.derivative_rtol
        rtol = jnp.maximum(rtol, jnp.finfo(dtype).eps)
        maxiter = self.maxiter if self.derivative_maxiter is None else self.derivative_maxiter
        return self._replace(rtol=rtol, atol=jnp.zeros_like(self.atol), maxiter=maxiter, budget=None)


class Best(NamedTuple):
    """The best x so far, in the scale of the loop."""

    x: Any  # None where only the numbers are needed
    norm: Array  # of its residual, by recursion
    k: Array  # iterations when it was found, or when the solve last waited


class Loop(NamedTuple):
    """A method between two true residuals."""

    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Any  # [history_length], by column too; None without history
    runs: Any = None  # whether it is RUNNING, if a look decides that
    best: Any = None
    pace: Any = None  # if there is a budget, (k, the norm after k steps, the least norm)


class Outer(NamedTuple):
    """A solve at a true residual.

    While it is STEPPING, `best` is the best x before. A solve that failed at another x takes one more trip without
    steps, which is JUDGING the best x; then `best` is the x at which it failed.
    """

    x: Array
    r: Array  # b − A·x
    squared: Array  # ‖r‖²
    k: Array
    code: Array  # RUNNING, or how it ended
    norms: Any
    last: Any  # if the method keeps its direction: p, and Re rᴴ·p, or ∞ if that is not to be kept
    best: Best
    Ax_norm: Array  # ‖A‖·‖x‖ from below
    pace: Any
    phase: Array  # STEPPING, JUDGING or OVER


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Any
    Ax_norm: Any = None  # ‖A‖·‖x‖ from below
    b_norm: Any = None


class Now(NamedTuple):
    """The scalars of a loop and what ends it, by column too; what ends it is None if it has just been checked.

    A pass over vectors may take and return them; kernels in Mosaic GPU have no ~ of flags.
    """

    k: Array
    norm: Array
    code: Array
    goal: Any = None  # the norm at which the method ends
    maxiter: Any = None
    most: Any = None  # the norm above which it ends, too, if nothing else looks for a residual that blew up

    @property
    def active(self) -> Array:
        """Whether the method takes another step, by the residual norm of its recursion."""
        runs = self.code == RUNNING
        if self.goal is not None:
            runs &= (self.norm > self.goal) & (self.k < self.maxiter)
        return runs if self.most is None else runs & (self.norm <= self.most)

    @property
    def numbers(self) -> tuple[Array, ...]:
        """Those that are not None."""
        return tuple([a for a in self if a is not None])

    def after(self, norm: Array, code: Array) -> Self:
        """The scalars after a step with this norm and code; as they were in columns that are not active."""
        active = self.active
        moves = active & is_taken(code)
        norm, code = jnp.where(moves, norm, self.norm), jnp.where(active, code, self.code)
        return self._replace(k=self.k + moves.astype(jnp.int32), norm=norm, code=code)


def is_taken(code: Array) -> Array:
    """Whether a step with this code counts."""
    return (code == RUNNING) | (code == FULL)


def recorded(norms: Any, k: Array, value: Array) -> Any:
    """`norms` with norms[k] = value, nothing for k < 0 or past the end; None stays."""
    if norms is None or norms.shape[0] == 0:
        return norms
    place = jnp.where(k < 0, norms.shape[0], k)
    index = place if k.ndim == 0 else (place, jnp.arange(k.shape[0]))
    return norms.at[index].set(value.astype(norms.dtype), mode="drop")


class Judge(NamedTuple):
    """A·x = b in the scale of the loop, and what a solve of it is judged by."""

    space: Space
    method: Any
    narrow: Any  # dtypes of a refinement's inner vectors and matrix; None: no refinement
    values: Any
    A: Map
    M: Map
    b: Array
    unit: Array  # a power of two; b is the user's over it
    b_norm: Array
    tolerance: Array
    maxiter: Array
    v: Array  # pseudorandom, of norm about 1: with A·v it shows ‖A‖, and whether A is self-adjoint
    Av: Array
    scale: Array  # a power of two about the largest |A·v|: the square of scale·x lies in the dtype
    squared: Array  # ‖A·v / scale‖²
    skew: Any  # |Im vᴴ·A·v| / scale, 0 of a Hermitian A; None where no look asks for it


def is_due(method: Any, now: Now, best: Best) -> Array:
    """Whether x is to be looked at: where it is better than the best x; for least squares, whose recursion falls at
    every step even while x grows, after many steps.
    """
    return now.k >= 2 * best.k + LOOK if method.least_squares else now.norm <= BETTER * best.norm


def is_stuck(method: Any, now: Now, best: Best) -> Array:
    """Whether the residual blew up, or found no better x for many steps of a method that keeps its direction."""
    return has_blown_up(now, best) | (now.k >= 2 * best.k + PATIENCE) if method.keeps else has_blown_up(now, best)


def has_blown_up(now: Now, best: Best) -> Array:
    """Whether the residual has grown too far for a recovery: rounding leaves eps times the largest one."""
    return now.norm > jnp.finfo(now.norm.dtype).eps ** -0.875 * best.norm


@functools.partial(one_kernel, statics=1)
def until_look(method: Any, now: Now, best: Best) -> Array:
    """Whether some column goes on, and none of these is due for a look."""
    lives = now.active if method.least_squares else now.active & ~is_stuck(method, now, best)
    return anyone(lives) & ~anyone(lives & is_due(method, now, best))


def looked(judge: Judge, loop: Loop, x: Array, now: Now) -> Loop:
    """The loop at x with its best x, and with the reason as its code if the method ends without a code of its own."""
    norm, best = loop.norm, loop.best._replace(x=None)
    if judge.method.least_squares:
        seen = now.active & is_due(judge.method, now, best)
        norm = once_if(seen, lambda _, x: judge.space.norm(judge.b - judge.A(x)), norm, x)
    skew = None if judge.skew is None else (judge.skew, judge.squared)
    is_better, best, code, runs = _after_look(judge.method, now, best, norm, skew)
    x = jnp.where(is_better, x, loop.best.x)
    return loop._replace(best=best._replace(x=x), code=code, runs=runs)


@functools.partial(one_kernel, statics=1)
def _after_look(method: Any, now: Now, best: Best, norm: Array, skew: Any) -> tuple[Array, Best, Array, Array]:
    """Whether x, of this residual norm, is better than the best x; the better one; the code; whether that runs."""
    reason = jnp.where(has_blown_up(now, best), jnp.int32(Status.DIVERGED), jnp.int32(WAITING))
    is_better = is_new = is_due(method, now, best)
    if method.least_squares:
        is_new &= now.active
        is_better = is_new & (norm < best.norm)
        # The recursion is wrong, or the residual grows, which with a symmetric A only an M can cause.
        ends = is_new & ~(norm <= 2 * jnp.minimum(now.norm, best.norm))
        if skew is not None:
            ends |= is_new & (norm > 0.5 * best.norm) & (skew[0] > 100 * jnp.finfo(norm.dtype).eps * jnp.sqrt(skew[1]))
    best = Best(None, jnp.where(is_better, norm, best.norm), jnp.where(is_new, now.k, best.k))
    if not method.least_squares:
        ends = is_stuck(method, now, best)
    code = status_of((now.code != RUNNING, now.code), (ends, reason), (now.active, RUNNING), otherwise=ENDED)
    return is_better, best, code, code == RUNNING


def judged(judge: Judge, x: Array, loop: Loop, outer: Outer, before: Array, is_new: Array) -> Outer:
    """The solve at x, without entries that the dtype cannot hold in the user's scale, by its true residual.

    Args:
      loop, outer: how the method ended, and from where it started, with a residual of norm `before`.
      is_new: whether x is not the best x, judged after a failure at that of `outer`.
    """
    unscaled, scaled, scale, p = x, x * judge.unit, judge.scale, loop.work.p if judge.method.keeps else None
    x = jnp.where(jnp.isfinite(scaled), scaled, 0) / judge.unit
    Ax = judge.A(x)
    r = judge.b - Ax
    refines = judge.narrow is not None
    pairs = {"r": (r, r), "x": (scale * x,) * 2, "lost": (scale * (unscaled - x),) * 2}
    if p is not None:
        pairs["along"] = r, p
    if judge.method.self_adjoint:
        pairs |= {"vAx": (judge.v, Ax), "Avx": (judge.Av, x)}  # equal if A is self-adjoint
    sums = dict(zip(pairs, judge.space.sum(*itertools.starmap(inner_product, pairs.values())), strict=True))
    limits = judge.b_norm, judge.tolerance, judge.maxiter, judge.squared
    now, best = Now(loop.k, loop.norm, loop.code), loop.best._replace(x=None)
    start = before, outer.k, is_new
    takes, best, code, along, Ax_norm, phase = _verdict(judge.method, refines, sums, limits, now, best, start)
    best = best._replace(x=jnp.where(takes, jnp.where(is_new, x, outer.x), loop.best.x))
    if p is not None and refines:
        p = jnp.where(is_new, p, outer.last[0])  # at which the method failed
    last = None if p is None else (p, along)
    return Outer(x, r, sums["r"].real, loop.k, code, loop.norms, last, best, Ax_norm, loop.pace, phase)


@functools.partial(one_kernel, statics=2)
def _verdict(method: Any, refines: bool, sums: dict[str, Array], limits: Any, now: Now, best: Best, start: Any) -> Any:
    """Whether the best x changes, and that one; the code; ∞ or r·p; ‖A‖·‖x‖; what the next trip does."""
    before, first_k, is_new = start
    norm, Ax_norm = jnp.sqrt(sums["r"].real), jnp.sqrt(sums["x"].real) * jnp.sqrt(limits[-1])
    code = _why(method, sums, limits, now, norm, Ax_norm, before)
    better = _is_better(method, code, now, limits[2], norm, best, before, first_k)
    # In the last trip x is the best one, and the other one, that of the trip before, takes its place.
    phase = status_of((code == RUNNING, STEPPING), (is_failure(code) & ~better & is_new, JUDGING), otherwise=OVER)
    norm = jnp.where(is_new, jnp.where(better, norm, best.norm), before)
    along = None
    if method.keeps:
        # Keep the direction only after three or more steps, and only in a refinement or if the code is WAITING.
        worth = (now.k - first_k > 2) & (refines | (now.code == WAITING))
        along = jnp.where(worth, sums["along"].real, jnp.inf)
    return ~is_new | better, Best(None, norm, now.k), code, along, Ax_norm, phase


def _why(method: Any, sums: Any, limits: Any, now: Now, norm: Array, Ax_norm: Array, before: Array) -> Array:
    """Why the solve ends at an x with a residual of this norm; RUNNING if the method starts again from it."""
    b_norm, tolerance, maxiter, Av_squared = limits
    x_squared, lost = sums["x"].real, sums["lost"].real
    code, claimed, eps = now.code, now.norm, jnp.finfo(before.dtype).eps
    is_lost, asymmetric = ~(lost <= eps**2 * x_squared), False
    if method.self_adjoint:
        asymmetric = jnp.abs(sums["vAx"] - sums["Avx"]) > 100 * eps * (2 * b_norm + norm + Ax_norm)
    code = status_of(
        (norm <= tolerance, Status.CONVERGED),
        (code >= 0, code),
        (~jnp.isfinite(norm + claimed), Status.NON_FINITE),
        (claimed > MOST / jnp.finfo(claimed.dtype).eps, Status.DIVERGED),
        (now.k >= maxiter, Status.MAXITER),
        (_may_help(method, now, norm, before, asymmetric) & ~is_lost, RUNNING),
        otherwise=Status.STAGNATION,
    )
    if not method.self_adjoint:
        # x is infinite, or so long that rounding alone leaves a residual longer than b: it follows a null vector.
        runs_away = (eps * Ax_norm > b_norm) | ~jnp.isfinite(lost)
        runs_away &= (now.k > 0) & jnp.isfinite(claimed + Av_squared + b_norm)  # without a step M is to blame
        runs_away &= (code == RUNNING) | (code == Status.MAXITER) | (code == Status.NON_FINITE)
        code = jnp.where(runs_away, jnp.int32(Status.DIVERGED), code)
    else:
        is_cause = asymmetric & (code > 0) & (code != Status.NON_FINITE)
        code = jnp.where(is_cause, jnp.int32(Status.NOT_SYMMETRIC), code)
    code = jnp.where(is_rounding(code, norm, Ax_norm, b_norm, tolerance), jnp.int32(Status.ROUNDED), code)
    is_cause = (code == Status.STAGNATION) & is_lost
    if method.least_squares:
        is_cause |= (code == Status.LEAST_SQUARES) & ~(lost <= 0.01 * x_squared)
    return jnp.where(is_cause, jnp.int32(Status.OUT_OF_RANGE), code)


def _may_help(method: Any, now: Now, norm: Array, before: Array, asymmetric: Any) -> Array:
    """Whether the residual fell so far that another start of the method may help."""
    claimed, eps = now.norm, jnp.finfo(before.dtype).eps
    if method.keeps or method.least_squares:
        waits = (now.code == WAITING) & (norm <= 2 * claimed)
        return (norm < 0.5 * before) | waits & ~asymmetric
    # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not be
    # taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion; the next may gain more.
    is_full = now.code == FULL
    gained = is_full & (claimed < (1 - 100 * eps) * before) & (norm <= (1 + eps**0.5) * before)
    return (now.code == RESTART) | gained | (norm < jnp.where(is_full, 1, 0.5) * before)


def _is_better(
    method: Any, code: Array, now: Now, maxiter: Array, norm: Array, best: Best, before: Array, first_k: Array
) -> Array:
    """Whether x, with a residual of this norm, is better than the best x."""
    if method.least_squares:
        return jnp.where(code == Status.LEAST_SQUARES, BETTER, 1) * norm < best.norm
    # The norm of a best x that was found since the method started is that of its recursion, which may be wrong.
    claims, runs = best.k > first_k, (now.code < 0) & (now.k < maxiter)
    return (norm < jnp.where(claims & runs, before, best.norm)) | (claims & (best.k == now.k))


def is_failure(code: Array) -> Array:
    return (code > 0) & (code != Status.ROUNDED)


def is_rounding(code: Array, norm: Array, Ax_norm: Array, b_norm: Array, tolerance: Array) -> Array:
    """Whether a solve stagnates at an x, of residual norm `norm`, that solves a system which differs by rounding."""
    near = within_rounding(norm, Ax_norm, b_norm, tolerance, jnp.finfo(norm.dtype).eps)
    return (code == Status.STAGNATION) & near


def within_rounding(norm: Any, Ax_norm: Any, b_norm: Any, tolerance: Any, eps: Any, xp: Any = jnp) -> Any:
    """Whether an x with this residual norm solves a system that differs by rounding, in jnp or NumPy.

    The least relative change of A and b that makes x a solution is ‖r‖ / (‖A‖·‖x‖ + ‖b‖) (Rigal and Gaches 1967). A
    tolerance below the rounding unit of b asks for more, and a residual near ‖b‖ is no solution however large x is.

    Args:
      Ax_norm: ‖A‖·‖x‖.
    """
    limit = ROUNDED * eps * (Ax_norm + b_norm)
    return (norm <= xp.minimum(limit, eps**0.25 * b_norm)) & xp.isfinite(limit) & (tolerance >= eps * b_norm)


def status_of(*cases: tuple[Array, Any], otherwise: int = RUNNING) -> Array:
    """The code of the first case that holds, by nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*[c.shape for c, _ in cases]))
