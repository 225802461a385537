"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual, and what a solve that misses it says.

`Now` ends the method by the residual of its recursion, `watched` where that grows or waits long. `verdict` then judges
the true residual: CONVERGED, another start of the method, or a failure. `finished` takes the best x of a failure, and
names what is at fault. `lsmr` has a rule of its own.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array, lax

from solvers.core.scaling import Map, in_trip, scaled
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
    """

    rtol: Array
    atol: Array
    maxiter: Array
    drop: Array


class Best(NamedTuple):
    """The best x so far, in the scale of the loop."""

    x: Array
    norm: Array  # of its residual, by recursion
    k: Array  # iterations when it was found, or when the solve last waited


class Loop(NamedTuple):
    """A method between two true residuals."""

    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Any  # [history_length], by column too; None without history
    best: Any = None


class Outer(NamedTuple):
    """A solve at a true residual."""

    x: Array
    r: Array  # b − A·x
    norm: Array  # of r
    k: Array
    code: Array  # RUNNING or how it ended
    norms: Any
    direction: Any  # the last one, where the method keeps it
    best: Best


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


def recorded(norms: Any, k: Array, value: Array) -> Any:
    """`norms` with norms[k] = value, nothing for k < 0 or past the end; None stays."""
    if norms is None or norms.shape[0] == 0:
        return norms
    at = jnp.where(k < 0, norms.shape[0], k)
    index = at if k.ndim == 0 else (at, jnp.arange(k.shape[0]))
    return norms.at[index].set(value.astype(norms.dtype), mode="drop")


def watched(loop: Loop, at: Callable[[Loop], Array], waits: bool) -> Loop:
    """The loop with its best x; DIVERGED where the residual grew far beyond that of the best, WAITING where it waits.

    Args:
      at: the loop's x.
      waits: whether to end a method that has not found a better x for long, as a method that keeps its direction can.
    """
    best, code, eps = loop.best, loop.code, jnp.finfo(loop.norm.dtype).eps
    better = loop.norm < BETTER * best.norm

    def taken(_: Array, x: Array) -> Array:
        return jnp.where(better, at(loop), x)

    # A loop of one trip or none: else every step would write this vector.
    x = lax.fori_loop(0, anyone(better).astype(jnp.int32), taken, best.x)
    best = Best(x, jnp.where(better, loop.norm.astype(best.norm.dtype), best.norm), jnp.where(better, loop.k, best.k))
    # Rounding leaves eps times the largest residual.
    grew = loop.norm > eps**-0.875 * best.norm
    code = jnp.where((code == RUNNING) & grew, jnp.int32(Status.DIVERGED), code)
    if waits:
        code = jnp.where((code == RUNNING) & (loop.k >= 2 * best.k + PATIENCE), WAITING, code)
    return loop._replace(code=code, best=best)


def checked(loop: Loop, at: Callable[[Loop], Array], true_norm: Callable[[Array], Array]) -> Loop:
    """As `watched`, for a method whose recursion falls at every step also where x grows: by the true residual.

    Where that is more than twice the norm of the recursion, the method ends: to start again if that halved a residual.
    """
    best = loop.best
    due = (loop.code == RUNNING) & (loop.k >= 2 * best.k + LOOK)

    def look(trip: Array, state: tuple[Best, Array]) -> tuple[Best, Array]:
        best, code = state
        x = in_trip(trip, at(loop))
        size = true_norm(x)
        better, lies = due & (size < best.norm), due & ~(size <= 2 * loop.norm)
        new = Best(x, size, loop.k)
        best = Best(*(jnp.where(better, now, old) for now, old in zip(new, best, strict=True)))
        return best._replace(k=jnp.where(due, loop.k, best.k)), jnp.where(lies, jnp.int32(WAITING), code)

    best, code = lax.fori_loop(0, anyone(due).astype(jnp.int32), look, (best, loop.code))
    return loop._replace(code=code, best=best)


class Probe(NamedTuple):
    """A vector v without a pattern, and A·v, by which a failure is examined."""

    v: Array
    Av: Array
    v_norm: Any  # about
    Av_norm: Array


def probed(space: Space, A: Map, like: Array) -> Probe:
    v = space.probe(like)
    Av = A(v)
    return Probe(v, Av, (space.length_of(like) / 3) ** 0.5, space.norm(Av))


class Rule(NamedTuple):
    """A·x = b in the scale of the loop, and what a solve of it is judged by.

    Attributes:
      narrow: dtype of a refinement's inner vectors; None: no refinement.
      of_b: b is 2^−of_b times the user's.
      look: for a self-adjoint method and a refinement; else None.
    """

    space: Space
    method: Any
    narrow: Any
    A: Map
    M: Map
    b: Array
    of_b: Array
    b_norm: Array
    tolerance: Array
    maxiter: Array
    look: Probe | None


def verdict(rule: Rule, x: Array, r: Array, loop: Loop, outer: Outer) -> Outer:
    """The solve at x with the true residual r: RUNNING, or how it ended.

    Args:
      loop: how the method ended; `outer`: where it started.
    """
    space, method, look, b_norm = rule.space, rule.method, rule.look, rule.b_norm
    code, claimed, before = loop.code, loop.norm, outer.norm
    eps, asymmetric = jnp.finfo(outer.norm.dtype).eps, jnp.bool_(False)
    if method.self_adjoint and look is not None:
        squares, of_v, of_Av, size = space.inner_products((r, r), (look.v, rule.b - r), (look.Av, x), (x, x))
        now = jnp.sqrt(squares.real)
        rounding = look.v_norm * (2 * b_norm + now) + look.Av_norm * jnp.sqrt(size.real)
        asymmetric = jnp.abs(of_v - of_Av) > 100 * eps * rounding
    else:
        now = space.norm(r)
    # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not be
    # taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion, and the next may gain more.
    may_grow = now > 10 * eps * b_norm if method.estimates else jnp.bool_(False)
    gained = (code == FULL) & (claimed < (1 - 100 * eps) * before)
    gained &= may_grow | (now <= (1 + eps**0.5) * before)
    least = jnp.where((code == RESTART) | (code == FULL) | may_grow, 1, 0.5)
    waits = (code == WAITING) & (now <= 2 * claimed) & ~asymmetric
    # The norm of a best x that this start of the method claims is that of its recursion.
    is_claim = jnp.bool_(False) if method.least_squares else loop.best.k > outer.k
    better = now < jnp.where(is_claim, before, loop.best.norm)
    code = status_of(
        (~jnp.isfinite(now), Status.NON_FINITE),
        (now <= rule.tolerance, Status.CONVERGED),
        (code >= 0, code),
        (loop.k >= rule.maxiter, Status.MAXITER),
        (~((code == RESTART) | gained | waits | (now < least * before)), Status.STAGNATION),
    )
    code = jnp.where(asymmetric & (code > 0) & (code != Status.NON_FINITE), Status.NOT_SYMMETRIC, code)
    best = Best(*(jnp.where(better, new, old) for new, old in zip((x, now, loop.k), loop.best, strict=True)))
    best = best._replace(k=jnp.where(waits, loop.k, best.k))
    return Outer(x, r, now, loop.k, code.astype(jnp.int32), loop.norms, outer.direction, best)


def finished(rule: Rule, outer: Outer) -> tuple[Array, End]:
    """x in the user's scale, and the `End`. A failure takes the best x, and one product or two to find its cause."""
    space, A, b, of_b, tolerance = rule.space, rule.A, rule.b, rule.of_b, rule.tolerance

    def given(x: Array) -> Array:
        x = scaled(x, of_b)
        return jnp.where(jnp.isfinite(x), x, 0)

    x, failed = outer.x, outer.code != Status.CONVERGED
    lost = space.anywhere(jnp.isfinite(x) & (scaled(given(x), -of_b) != x))

    def examined(trip: Array, known: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, size, code = known
        tried = in_trip(trip, scaled(given(jnp.where(lost, x, outer.best.x)), -of_b))
        r_tried = b - A(tried)
        now = space.norm(r_tried)
        better = ~lost & (now < jnp.where(jnp.isfinite(size), size, jnp.inf))
        if rule.look is not None and (rule.method.least_squares or rule.narrow is not None):
            code = _cause(rule, rule.look, (in_trip(trip, outer.r), r_tried), outer, code)
        wrong = (code == Status.CONVERGED) & ~(now <= tolerance)
        wrong |= (code == Status.LEAST_SQUARES) & ~(now <= 1.1 * size)
        code = jnp.where(lost & wrong, Status.OUT_OF_RANGE, code)
        code = jnp.where(better & (now <= tolerance), Status.CONVERGED, code)
        x, size = (jnp.where(lost | better, new, old) for new, old in ((tried, x), (now, size)))
        look = rule.look or probed(space, lambda v: A(in_trip(trip, v)), b)
        is_rounding = (code == Status.STAGNATION) & is_accurate(rule, look, x, size)
        return x, size, jnp.where(is_rounding, jnp.int32(Status.ROUNDED), code)

    # A loop of one trip or none: vmap would copy the operands of a condition, A among them, once for each system.
    due = anyone(lost | failed).astype(jnp.int32)
    x, size, code = lax.fori_loop(0, due, examined, (x, outer.norm, outer.code))
    norms = outer.norms
    norms = norms if norms is None else jnp.where(norms < 0, norms, scaled(norms, of_b))
    return given(x), End(outer.k, scaled(size, of_b), code, norms)


def is_accurate(rule: Rule, look: Probe, x: Array, size: Array) -> Array:
    """Whether x, with a residual of norm `size`, solves a system that differs from this one by rounding errors.

    The least relative change of A and b that makes x a solution is ‖r‖ / (‖A‖·‖x‖ + ‖b‖) (Rigal and Gaches 1967). A
    tolerance below the rounding unit of b asks for more, and a residual near ‖b‖ is no solution however large x is.
    """
    eps, b_norm = jnp.finfo(size.dtype).eps, rule.b_norm
    limit = ROUNDED * eps * (look.Av_norm / look.v_norm * rule.space.norm(x) + b_norm)
    return (size <= jnp.minimum(limit, eps**0.25 * b_norm)) & (rule.tolerance >= eps * b_norm) & jnp.isfinite(limit)


def _cause(rule: Rule, look: Probe, residuals: tuple[Array, Array], outer: Outer, code: Array) -> Array:
    """The code of a failure, by the products that tell least squares, and a narrow type, from others.

    LEAST_SQUARES stays where A·r is about zero, so that ‖r‖ is least with an M, too; else it becomes BREAKDOWN. In a
    refinement the failure of the narrow method stays if the wide type confirms it, or if M is at fault; else it becomes
    PRECISION.
    """
    space, method, narrow, A = rule.space, rule.method, rule.narrow, rule.A
    (last, r), wide = residuals, outer.r.dtype
    eps, A_norm = jnp.finfo(wide).eps, space.length(look.Av) / look.v_norm  # squares of small numbers would underflow
    if method.least_squares:
        limit = LEAST_SQUARES * jnp.finfo(narrow or wide).eps ** 0.5 * A_norm * space.norm(last)
        solved = space.length(A(last)) <= limit
        if narrow is not None:
            solved &= A_norm > 0  # a narrow A may be zero where the wide one is not
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
