"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual, and the status of a solve.

`Now` ends the method by the residual norm of its recursion, `looked` where that norm grows or does not fall for long.
`judged` then takes the true residual: CONVERGED, another start of the method, or a failure. After a failure one more
trip of the loop judges the best x. `lsmr` has a rule of its own.
"""

from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from solvers.core.scaling import Map
from solvers.core.space import Space
from solvers.core.vectors import anyone, once_if, squares
from solvers.solution import Status

# Codes besides a Status: the method goes on; it must start again from the true residual, without or with this step; the
# residual has not fallen for long; the recursion meets its goal, or maxiter is reached.
RUNNING, RESTART, FULL, WAITING, ENDED = -1, -2, -3, -4, -5
RETRY = 64  # above any Status
BETTER = 0.9  # times the norm of the best x: a residual below it makes a better one
PATIENCE = 200  # steps after which a residual that has not fallen is looked at, and after each doubling of them
LOOK = 32  # steps after which a norm that always falls is compared with the true one, and after each doubling of them
ROUNDED = 10  # ‖r‖ ≤ ROUNDED·eps·(‖A‖·‖x‖ + ‖b‖)
MOST = 64  # over eps: a residual that size, for a b of about 1, hides b


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


class Last(NamedTuple):
    """The last direction of a method that keeps it."""

    p: Array  # [n]
    along: Array  # Re rᴴ·p, with the true residual; ∞ if the direction is not to be kept


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
    """A solve at a true residual.

    While it is RUNNING, `best` is the best x before. A solve that failed at another x takes one more trip without
    steps, which judges the best x; then `best` is the x at which it failed.
    """

    x: Array
    r: Array  # b − A·x
    squared: Array  # ‖r‖²
    k: Array
    code: Array  # RUNNING, or how it ended, with RETRY added while the best x is still to be judged
    norms: Any
    last: Any  # a `Last`, if the method keeps its direction
    best: Best
    Ax_norm: Any  # ‖A‖·‖x‖ from below, of a self-adjoint method
    pace: Any = None

    @property
    def norm(self) -> Array:
        """‖r‖."""
        return jnp.sqrt(self.squared)

    @property
    def goes_on(self) -> Array:
        return (self.code == RUNNING) | self.retries

    @property
    def retries(self) -> Array:
        return self.code >= RETRY


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Any
    Ax_norm: Any = None  # ‖A‖·‖x‖ from below, of a self-adjoint method or a failure
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


class Probe(NamedTuple):
    """A pseudorandom vector v and A·v, by which a failure of a self-adjoint method is examined."""

    v: Array
    Av: Array
    size: Array  # the mean of |A·v|


class Rule(NamedTuple):
    """A·x = b in the scale of the loop, and what a solve of it is judged by.

    Attributes:
      narrow: dtype of a refinement's inner vectors; None: no refinement.
      unit: a power of two; b is the user's over it.
      probe: for a self-adjoint method; else None.
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
    probe: Probe | None = None

    @property
    def noise_norm(self) -> Any:
        """About the norm of the probe."""
        return (self.space.length_of(self.b) / 3) ** 0.5

    def stuck(self, now: Now | Loop, best: Best) -> Array:
        """Whether the residual blew up, or found no better x for many steps.

        A method that keeps its direction then ends as WAITING. Least squares, whose recursion falls at every step even
        while x grows, is then compared with the true residual. Other methods may take any number of steps.
        """
        is_late = now.k >= 2 * best.k + (LOOK if self.method.least_squares else PATIENCE)
        if self.method.least_squares:
            return is_late
        return has_blown_up(now, best) | is_late if self.method.keeps else has_blown_up(now, best)

    def until_look(self, now: Now, best: Best) -> Array:
        """Whether some column goes on, and none is due for a look: at a better x, or if it is `stuck`."""
        stuck = self.stuck(now, best)
        if self.method.least_squares:
            lives, is_due = now.active, stuck
        else:
            lives, is_due = now.active & ~stuck, now.norm <= BETTER * best.norm
        return anyone(lives) & ~anyone(lives & is_due)


def has_blown_up(now: Now | Loop, best: Best) -> Array:
    """Whether the residual has grown too far for a recovery: rounding leaves eps times the largest one."""
    return now.norm > jnp.finfo(now.norm.dtype).eps ** -0.875 * best.norm


def looked(rule: Rule, loop: Loop, x: Array, now: Now) -> Loop:
    """The loop at x with its best x, and with the reason as its code if the method ends without a code of its own."""
    best, size = loop.best, loop.norm
    if rule.method.least_squares:
        seen = now.active & rule.stuck(loop, best)
        size = once_if(seen, lambda _, x: rule.space.norm(rule.b - rule.A(x)), size, x)
        # The recursion is wrong, or the residual grows, which with a symmetric A only an M can cause.
        ends = seen & ~(size <= 2 * jnp.minimum(loop.norm, best.norm))
        best = _where(seen & (size < best.norm), Best(x, size, best.k), best)
        best = best._replace(k=jnp.where(seen, loop.k, best.k))
    else:
        best = _where(size <= BETTER * best.norm, Best(x, size, loop.k), best)
        ends = rule.stuck(loop, best)
    reason = jnp.where(has_blown_up(loop, loop.best), jnp.int32(Status.DIVERGED), jnp.int32(WAITING))
    code = jnp.where(ends, reason, jnp.where(now.active, jnp.int32(RUNNING), jnp.int32(ENDED)))
    return loop._replace(best=best, code=jnp.where(loop.code == RUNNING, code, loop.code))


def judged(rule: Rule, x: Array, p: Any, loop: Loop, outer: Outer, before: Array) -> Outer:
    """The solve at x, without entries that the dtype cannot hold in the user's scale, by its true residual.

    Args:
      p: the direction of a method that keeps it, else None.
      loop, outer: how the method ended, and from where it started, with a residual of norm `before`.
    """
    retries, given, scaled = outer.retries, x, x * rule.unit
    x = jnp.where(jnp.isfinite(scaled), scaled, 0) / rule.unit
    Ax = rule.A(x)
    r = rule.b - Ax
    truth = _truth(rule, r, x, given - x, Ax, p)
    code = _verdict(rule, truth, before, loop)
    better = _is_better(rule, truth.norm, before, code, loop, outer)
    # In the last trip x is the best one, and the other one is that of the trip before.
    other = Best(jnp.where(retries, outer.x, x), jnp.where(retries, before, truth.norm), loop.k)
    best = _where(retries | better, other, loop.best)._replace(k=loop.k)
    code = jnp.where(is_failure(code) & ~better & ~retries, code + RETRY, code)
    last = None
    if p is not None:
        # Keep the direction only after three or more steps, and only in a refinement or if the code is WAITING.
        worth = (loop.k - outer.k > 2) & ((rule.narrow is not None) | (loop.code == WAITING))
        last = Last(p, jnp.where(worth, truth.along, jnp.inf))
    return Outer(x, r, truth.squared, loop.k, code, loop.norms, last, best, truth.Ax_norm, loop.pace)


class _Truth(NamedTuple):
    """Sums at an x with its true residual r; ‖x‖² and the like in a scale that keeps A·x in range."""

    squared: Array  # ‖r‖²
    x_squared: Array  # ‖x‖²
    lost: Array  # ‖x before it was cut to the dtype's range − x‖²
    along: Any  # Re rᴴ·p, of a method that keeps its direction p
    asymmetry: Any  # vᴴ·(A·x) − (A·v)ᴴ·x, of a self-adjoint method
    Ax_norm: Any  # ‖A‖·‖x‖ from below, likewise

    @property
    def norm(self) -> Array:
        return jnp.sqrt(self.squared)


def _truth(rule: Rule, r: Array, x: Array, lost: Array, Ax: Array, p: Any) -> _Truth:
    """All sums in one reduction."""
    probe, scale = rule.probe, 1 if rule.probe is None else rule.probe.size
    rows = [squares(r), squares(scale * x), squares(scale * lost)]
    if probe is not None:
        rows += [jnp.conj(probe.v) * Ax - jnp.conj(probe.Av) * x, squares(probe.Av / probe.size)]
    if p is not None:
        rows.append(jnp.conj(r) * p)
    sums = rule.space.sums(*rows)
    asymmetry = Ax_norm = None
    if probe is not None:
        asymmetry = jnp.abs(sums[3])
        Ax_norm = jnp.sqrt(sums[1].real) * jnp.sqrt(sums[4].real) / rule.noise_norm
    return _Truth(sums[0].real, sums[1].real, sums[2].real, None if p is None else sums[-1].real, asymmetry, Ax_norm)


def _is_better(rule: Rule, norm: Array, before: Array, code: Array, loop: Loop, outer: Outer) -> Array:
    """Whether x, whose residual has this norm, is better than the best x."""
    best = loop.best
    if rule.method.least_squares:
        return jnp.where(code == Status.LEAST_SQUARES, BETTER, 1) * norm < best.norm
    # The norm of a best x that was found since the method started is that of its recursion, which may be wrong.
    claims = best.k > outer.k
    runs = (loop.code < 0) & (loop.k < rule.maxiter)
    return (norm < jnp.where(claims & runs, before, best.norm)) | (claims & (best.k == loop.k))


def _verdict(rule: Rule, truth: _Truth, before: Array, loop: Loop) -> Array:
    """RUNNING, or how the solve ended, by its true residual, whose norm was `before` when the method started."""
    norm, code, claimed, method = truth.norm, loop.code, loop.norm, rule.method
    eps = jnp.finfo(before.dtype).eps
    is_lost = ~(truth.lost <= eps**2 * truth.x_squared)
    asymmetric = None
    if truth.asymmetry is not None:
        asymmetric = truth.asymmetry > 100 * eps * rule.noise_norm * (2 * rule.b_norm + norm + truth.Ax_norm)
    if method.keeps or method.least_squares:
        waits = (code == WAITING) & (norm <= 2 * claimed)
        goes_on = (norm < 0.5 * before) | (waits if asymmetric is None else waits & ~asymmetric)
    else:
        # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not
        # be taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion; the next may gain more.
        restarts, is_full = code == RESTART, code == FULL
        gained = is_full & (claimed < (1 - 100 * eps) * before) & (norm <= (1 + eps**0.5) * before)
        goes_on = restarts | gained | (norm < jnp.where(is_full, 1, 0.5) * before)
    code = status_of(
        (norm <= rule.tolerance, Status.CONVERGED),
        (code >= 0, code & (RETRY - 1)),
        (~jnp.isfinite(norm + claimed), Status.NON_FINITE),
        (claimed > MOST / jnp.finfo(claimed.dtype).eps, Status.DIVERGED),
        (loop.k >= rule.maxiter, Status.MAXITER),
        (goes_on & ~is_lost, RUNNING),
        otherwise=Status.STAGNATION,
    )
    if asymmetric is not None:
        is_cause = asymmetric & (code > 0) & (code != Status.NON_FINITE)
        code = jnp.where(is_cause, jnp.int32(Status.NOT_SYMMETRIC), code)
        accurate = is_rounding(code, norm, truth.Ax_norm, rule.b_norm, rule.tolerance)
        code = jnp.where(accurate, jnp.int32(Status.ROUNDED), code)
    is_cause = (code == Status.STAGNATION) & is_lost
    if method.least_squares:
        is_cause |= (code == Status.LEAST_SQUARES) & ~(truth.lost <= 0.01 * truth.x_squared)
    return jnp.where(is_cause, jnp.int32(Status.OUT_OF_RANGE), code)


def is_failure(code: Array) -> Array:
    return (code > 0) & (code != Status.ROUNDED)


def _where(flags: Array, new: Best, old: Best) -> Best:
    return Best(*(jnp.where(flags, new, old) for new, old in zip(new, old, strict=True)))


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


def status_of(*cases: tuple[Array, Any], otherwise: int = RUNNING) -> Array:
    """The code of the first case that holds, by nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*[c.shape for c, _ in cases]))
