"""The loop of every Krylov method; its stopping rule is in `stopping`.

A method is a few functions: `start` makes its vectors from a true residual, `step` advances them once, `iterate`
computes what they add to x. The loop stops the method where its recursion meets the tolerance, computes the true
residual, and starts the method again from it as long as that helps. Refinement is the same loop with a narrower
operator inside (`refine.py`).

Vectors are [n], or [n, k] for k systems at once, which share every product. Scalars are then [k], and every column
starts, counts its iterations and ends separately.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core.scaling import Map, Scaled, balanced, exponent, largest, scaled
from solvers.core.stopping import RUNNING, Limits, Loop, Now, Outer, is_taken, verdict
from solvers.core.vectors import norm
from solvers.solution import Status

FAR = 1024  # times b: an x0 with a residual of that size is not used
STEPS_UNROLLED = 20
STEPS_PER_CHECK = 1000  # at most, since all but one of them may be wasted
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms


def x_of(M: Map, work: Any) -> Array:
    """The part `x` of the work, which most methods add to the iterate that they started from."""
    return work.x


class Method(NamedTuple):
    """A Krylov method: static and hashable.

    Attributes:
      start: (A, M, r, last) -> work. `last` is the last direction if the method `keeps` it, else None.
      step: (A, M, work, now) -> (work, now.after(residual norm, code)). The code is RUNNING; FULL for the last step
        before a restart; or RESTART or a Status for a step that must not be taken. In the last two cases, and where a
        column is not active, the work must not change (`holding` does that). These codes may depend only on scalars of
        the old vectors, so that XLA fuses the selects into the updates and reads nothing more.
      iterate: (M, work) -> the vector to add to x.
      self_adjoint: the method assumes that A is its own adjoint, so that it solves systems with the adjoint too.
      keeps: a restart continues in the last direction.
      estimates: the residual norm of `step` is only an estimate: the method minimises another residual.
      least_squares: the method may end with LEAST_SQUARES, which the loop checks by the true residual.
    """

    start: Callable[..., Any]
    step: Callable[[Map, Map, Any, Now], tuple[Any, Now]]
    iterate: Callable[[Map, Any], Array] = x_of
    self_adjoint: bool = True
    keeps: bool = False
    estimates: bool = False
    least_squares: bool = False


def holding(step: Callable[[Map, Map, Any], tuple[Any, Array, Array]], scratch: tuple[str, ...] = ()) -> Any:
    """A method's step, made from one that always moves; the fields `scratch` may change in a step that is not taken."""

    def held(A: Map, M: Map, work: Any, now: Now) -> tuple[Any, Now]:
        new, size, code = step(A, M, work)
        moves = now.active & is_taken(code)
        kept = jax.tree.map(lambda new, old: jnp.where(moves, new, old), new, work)
        return kept._replace(**{name: getattr(new, name) for name in scratch}), now.after(size, code)

    return held


class Options(NamedTuple):
    """Static options of the loop.

    Attributes:
      callback, progress: the user's functions.
      dtype, values: in a refinement, the dtype of the inner vectors, and that of the inner matrix.
    """

    history_length: int
    steps_per_check: int
    callback: Callable[..., None] | None
    progress: Callable[..., None] | None
    dtype: Any = None
    values: Any = None


class System(NamedTuple):
    """A·x = b and the other inputs of the loop; a pytree if its maps are.

    Attributes:
      M: an approximation of A⁻¹.
      b, x0: [n] or [n, k]; x0 None starts from zero.
      inner: the A that the method multiplies with, in `Options.dtype`; M then takes vectors of that dtype too. None: A
        itself.
    """

    A: Any
    M: Any
    b: Any
    x0: Any
    limits: Limits
    inner: Any = None


class Found(NamedTuple):
    """A solve before a failure is examined (`diagnosis`).

    Attributes:
      x: in the user's scale, and finite. The others are in the scale of the loop.
      exponents: of A, M and b.
    """

    x: Array
    outer: Outer
    b: Array
    tolerance: Array
    exponents: tuple[Array, Array, Array]


def run(method: Method, options: Options, system: System, leave: Map) -> Found:
    """Solves A·x = b with b scaled by a power of two, and where A is far from 1 A and M too (`scaling`).

    Args:
      leave: maps x out of the basis, for a callback.
    """
    A, M, b, x0, limits, inner = system
    of_b = exponent(b)
    b = scaled(b, -of_b)
    narrow = b.dtype if options.dtype is None else options.dtype
    own, M, finite = balanced(A if inner is None else inner, M, b.astype(narrow))
    A, of_x = Scaled(A, own.exponent), of_b + own.exponent
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        r, x = unless_far(A, b, scaled(x0, -of_x), jnp.isfinite(largest(x0)))
    b_norm = norm(b)
    tolerance = jnp.maximum(limits.rtol * b_norm, scaled(limits.atol.astype(b_norm.dtype), -of_b))
    tolerance = tolerance.astype(b_norm.dtype)
    level = 10 * jnp.finfo(b_norm.dtype).eps * b_norm  # of rounding errors in a residual, at least
    start = functools.partial(method.start, own, M)
    keeps = method.keeps and inner is not None

    def trip(outer: Outer) -> Outer:
        """The method, from a true residual until its recursion meets the tolerance."""
        r = outer.r.astype(narrow)
        work = start(r, outer.direction)
        drop = jnp.maximum(limits.drop, jnp.finfo(narrow).eps / 16)  # a recursion that fell by more is rounding
        goal = jnp.maximum(tolerance, drop * outer.norm).astype(r.real.dtype)

        def numbers(loop: Loop) -> Now:
            return Now(loop.k, loop.norm, loop.code, goal, limits.maxiter)

        def advance(loop: Loop) -> Loop:
            """One step, or none in the columns that are over."""
            work, now = method.step(own, M, loop.work, numbers(loop))
            moves = now.k > loop.k
            if options.callback is not None:
                x = outer.x + method.iterate(M, work).astype(outer.x.dtype)
                show(options.callback, moves, leave(scaled(x, of_x)))
            norms = record(loop.norms, jnp.where(moves, now.k, -1), now.norm)
            return Loop(work, now.k, now.norm, now.code, norms)

        loop = Loop(work, outer.k, outer.norm.astype(goal.dtype), outer.code, outer.norms)
        loop = advance_while(lambda loop: numbers(loop).active, advance, loop, options, of_b)
        x = outer.x + jnp.where(outer.code == RUNNING, method.iterate(M, loop.work).astype(b.dtype), 0)
        r = b - A(x)
        now = norm(r)
        recursion = loop.k, loop.norm, loop.code
        code = verdict((tolerance, limits.maxiter), now, outer.norm, recursion, level if method.estimates else None)
        code = jnp.where(outer.code == RUNNING, code, outer.code)
        kept = None
        if keeps:  # the direction after a step or two is not worth keeping, unless the diagnosis needs it
            kept = jnp.where((code == RUNNING) & (loop.k - outer.k <= 2), 0, loop.work.p)
        return Outer(x, r, now, loop.k, code, loop.norms, kept)

    now = norm(r)
    k, running = jnp.zeros(now.shape, jnp.int32), jnp.full(now.shape, RUNNING, jnp.int32)
    norms = record(jnp.full((options.history_length, *now.shape), -1, now.dtype), k, now)
    code = verdict((tolerance, limits.maxiter), now, jnp.full_like(now, jnp.nan), (k, now, running))
    code = jnp.where(finite, code, Status.NON_FINITE)  # for b = 0 too: 0·NaN is NaN
    direction = jnp.zeros_like(r, narrow) if keeps else None  # zeros are none
    outer = mesh_axes.varying(Outer(x, r, now, k, code, norms, direction), r)
    outer = lax.while_loop(lambda outer: jnp.any(outer.code == RUNNING), trip, outer)
    x = scaled(outer.x, of_x)
    x = jnp.where(jnp.isfinite(x), x, 0)
    return Found(x, outer, b, tolerance, (own.exponent, M.exponent, of_b))


def unless_far(A: Map, b: Array, x: Array, finite: Array) -> tuple[Array, Array]:
    """b − A·x and x; b and zero in columns with a residual FAR times b, whose rounding errors would hide b.

    Hence a column with b = 0 starts at its solution, 0.

    Args:
      finite: whether the x0 behind a column of x is finite; a NaN in x0 must stay, so that the solve reports it.
    """
    r = b - A(x)
    is_far = finite & ~(largest(r) < FAR * largest(b))
    return jnp.where(is_far, b, r), jnp.where(is_far, 0, x)


def advance_while(
    goes_on: Callable[[Loop], Array],
    advance: Callable[[Loop], Loop],
    loop: Loop,
    options: Options,
    of_norm: Array,
    unroll: int = STEPS_UNROLLED,
) -> Loop:
    """Advances while any column goes on, `steps_per_check` steps at a time.

    Args:
      of_norm: e, where 2ᵉ times the loop's norm is the norm in the user's scale, for `progress`.
    """
    steps = min(options.steps_per_check, STEPS_PER_CHECK)
    loop = mesh_axes.varying(loop, loop)

    def trip(loop: Loop) -> Loop:
        loop = lax.fori_loop(0, steps, lambda _, loop: advance(loop), loop, unroll=min(steps, unroll))
        if (progress := options.progress) is not None:
            called = lambda k, value: progress(int(k), float(value))  # noqa: E731
            k = jnp.max(loop.k)
            due = k % STEPS_PER_REPORT < steps
            report = functools.partial(jax.debug.callback, called)
            lax.cond(due, report, lambda *_: None, k, jnp.max(scaled(loop.norm, of_norm)))
        return loop

    return lax.while_loop(lambda loop: jnp.any(goes_on(loop)), trip, loop)


def record(norms: Array, k: Array, value: Array) -> Array:
    """norms[k] = value, nothing for k < 0 or past the end."""
    if norms.shape[0] == 0:
        return norms
    at = jnp.where(k < 0, norms.shape[0], k)
    index = at if k.ndim == 0 else (at, jnp.arange(k.shape[0]))
    return norms.at[index].set(value.astype(norms.dtype), mode="drop")


def show(callback: Callable[..., None], moves: Array, x: Array) -> None:
    """Calls callback(x) on the host where any column moves."""
    called = lambda moved, x: callback(x) if moved else None  # noqa: E731
    jax.debug.callback(called, jnp.any(moves), x, ordered=True)
