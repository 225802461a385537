"""The loop of every Krylov method: start, steps, the true residual, the verdict (`stopping`), and start again.

A method is a few functions: `start` makes its vectors from a true residual, `step` advances them once, `iterate`
computes what they add to x. The loop stops the method when its recursion meets the tolerance, computes the true
residual, and starts the method again from it as long as that helps. Refinement is the same loop with a narrower
operator inside (`refine.py`). A solve that fails returns the best x that it saw.

Vectors are [n], or [n, k] for k systems at once, which share every product. Scalars are then [k], and every column
starts, counts its iterations and ends separately.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._progress import Reports, Watcher
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.vector_passes import Pass
from solvers.core import stopping
from solvers.core.diagnosis import diagnosed
from solvers.core.space import Map, Space
from solvers.core.stopping import OVER, RUNNING, Best, End, Limits, Loop, Now, Outer, is_taken, recorded
from solvers.core.vectors import anyone, dot, exponent_of, power_of_two
from solvers.solution import Status

FAR = 1024  # times b: an x0 with a residual that large is not used
STEPS_PER_CHECK = 1000  # at most: all but one of them may be wasted
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms


def x_of(M: Map, work: Any) -> Array:
    """The part `x` of the work, which most methods add to the iterate that they started from."""
    return work.x


class Method(NamedTuple):
    """A Krylov method: static and hashable.

    Attributes:
      start: (space, A, M, r, squared, last) -> work, with ‖r‖². `last` is `Outer.last`; None unless the method `keeps`
        its direction. The `Space` computes every sum over a vector: the vectors may be one device's pieces.
      step: (space, A, M, work, now) -> (work, now.after(residual norm, code)). The code is RUNNING; FULL for the last
        step before a restart; or RESTART or a Status for a step that must not be taken. Then, and in columns that are
        not active, the work must not change (`holding` sees to that). These codes may depend only on scalars of the old
        vectors, so that XLA fuses the selects into the updates and reads nothing more.
      iterate: (M, work) -> the vector to add to x.
      self_adjoint: the method assumes that A is its own adjoint, so that it solves systems with the adjoint too.
      keeps: a restart may continue in the direction p of the work.
      least_squares: the method may end with LEAST_SQUARES, which is checked by the true residual.
      sums: (whether there is no M) -> the pass whose sums `step` needs with A·v, and the number of its other vectors.
        Without M such a method takes r for M·r, and no square of a vector of its step depends on ‖A‖.
      unrolled: the steps of a trip of the inner loop, if that has several between two checks. A trip costs a GPU some
        µs, and each step in it 10 ms a kernel to compile: 1 if a step has dozens of kernels.
      whole: (system, whether A is transposed) -> x and how the solve ended, in place of the loop.
    """

    start: Callable[..., Any]
    step: Callable[[Space, Map, Map, Any, Now], tuple[Any, Now]]
    iterate: Callable[[Map, Any], Array] = x_of
    self_adjoint: bool = True
    keeps: bool = False
    least_squares: bool = False
    sums: Callable[[bool], tuple[Pass, int]] | None = None
    unrolled: int = 5
    whole: Callable[..., Any] | None = None


def holding(step: Callable[[Space, Map, Map, Any], tuple[Any, Array, Array]], scratch: tuple[str, ...] = ()) -> Any:
    """A method's step, made from one that always moves; the fields `scratch` may change in a step that is not taken."""

    def held(space: Space, A: Map, M: Map, work: Any, now: Now) -> tuple[Any, Now]:
        new, norm, code = step(space, A, M, work)
        both = {name: (getattr(new, name), getattr(work, name)) for name in work._fields if name not in scratch}
        numbers = {name: pair for name, pair in both.items() if getattr(pair[0], "shape", None) == now.k.shape}
        # Apart from the norm, a sum over the new vectors: so XLA selects in the pass that makes them.
        moves = _moves(now, code)
        now, numbers = _after(now, norm, code, moves, numbers)
        return chosen(moves, new._replace(**numbers), work._replace(**numbers), scratch), now

    return held


@one_kernel
def _moves(now: Now, code: Array) -> Array:
    return now.active & is_taken(code)


@one_kernel
def _after(now: Now, norm: Array, code: Array, moves: Array, numbers: dict[str, tuple[Array, Array]]) -> Any:
    return now.after(norm, code), {name: jnp.where(moves, *pair) for name, pair in numbers.items()}


def chosen(flags: Array, new: Any, old: Any, scratch: tuple[str, ...] = ()) -> Any:
    """The work `new` in columns whose flag is set, else `old`; the fields `scratch` always of the new one."""
    first = getattr(new, "columns_first", ()) if flags.ndim else ()

    def field(name: str, new: Any, old: Any) -> Any:
        if new is old:
            return old
        where = flags[:, None, None] if name in first else flags
        return new if name in scratch else jax.tree.map(lambda new, old: jnp.where(where, new, old), new, old)

    return type(new)(*map(field, new._fields, new, old))


class Options(NamedTuple):
    """Static options of the loop.

    Attributes:
      dtype, values: in a refinement, the dtype of the inner vectors, and that of the inner matrix.
    """

    history_length: int
    steps_per_check: int
    callback: Callable[..., None] | None
    progress: Watcher | None
    dtype: Any = None
    values: Any = None


class System(NamedTuple):
    """A·x = b and the other inputs of the loop; a pytree if its maps are.

    Attributes:
      M: None: no preconditioner; then a power of two, about 1 / ‖A‖, takes the place of one.
      b, x0: [n] or [n, k], which have entered the basis; x0 None starts from zero.
      inner: the A that the method multiplies with, in `Options.dtype`; M then takes vectors of that dtype too. None: A
        itself.
      failed: of a system that gives a derivative of a solve: the code with which that failed, or 0, by column too.
    """

    A: Any
    M: Any
    b: Any
    x0: Any
    limits: Limits
    inner: Any = None
    basis: Basis = IDENTITY
    failed: Any = None


def run(space: Space, method: Method, options: Options, system: System) -> tuple[Array, End]:
    """x with A·x = b, finite, and how the solve ended. Inside, b is scaled by a power of two."""
    A, M, b, x0, limits, inner, basis, _ = system
    budget = limits.budget
    narrow, multiplied = options.dtype or b.dtype, A if inner is None else inner
    v = space.unit_noise(b)
    Av, unit = A(v), space.unit(b)
    b = b / unit
    squared = space.dot(b, b)
    sized = M is None and method.sums is None
    of_A = space.largest(Av)
    b_norm, tolerance, drop, scale, inverse, size = _numbers(narrow, sized, squared, limits[:4], unit, of_A)
    Av_squared, skew = space.dot(inverse * Av, inverse * Av), None
    if method.least_squares and jnp.iscomplexobj(b):
        skew = inverse * jnp.abs(space.inner_product(v, Av).imag)
    if M is None:
        M = by_norm(size)
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        r, x, squared = unless_far(space, A, b, x0, unit, squared)
    of_b, of_A = (A, M, b, unit, b_norm, tolerance, limits.maxiter), (v, Av, scale, Av_squared, skew)
    judge = stopping.Judge(space, method, options.dtype, options.values, *of_b, *of_A)
    real = jnp.finfo(narrow).dtype
    # A refinement carries narrow vectors only, and computes many true residuals, each of which finds the best x.
    looks = inner is None and (method.iterate is x_of or method.least_squares)
    most = None if looks else jnp.asarray(stopping.MOST / jnp.finfo(real).eps, real)
    # The host reads the condition of a GPU's loop, for some 30 µs; a look between steps costs less than two.
    often = looks and (options.steps_per_check == 1 or method.least_squares)
    is_checked = b.ndim == 1 and options.steps_per_check == 1  # by the condition of the loop, before each step

    def trip(outer: Outer) -> Outer:
        """Runs the method from a true residual until its recursion ends it; then judges x by its true residual."""
        before, goal, runs, is_new = _started(real, outer.squared, outer.phase, tolerance, drop)
        work = method.start(space, multiplied, M, outer.r.astype(narrow), outer.squared.astype(real), outer.last)

        def now_of(loop: Loop) -> Now:
            return Now(loop.k, loop.norm, loop.code, goal, limits.maxiter, most)

        def x_of_loop(loop: Loop) -> Array:
            return outer.x + method.iterate(M, loop.work).astype(b.dtype)

        def advance(loop: Loop) -> Loop:
            """One step, or none in the columns that are over."""
            now = Now(loop.k, loop.norm, loop.code) if is_checked else now_of(loop)
            work, now = method.step(space, multiplied, M, loop.work, now)
            if options.callback is not None:
                show(options.callback, now.k > loop.k, basis.leave(x_of_loop(loop._replace(work=work)) * unit))
            norms = loop.norms
            if options.history_length:
                norms = recorded(norms, jnp.where(now.k > loop.k, now.k, -1), now.norm)
            return loop._replace(work=work, k=now.k, norm=now.norm, code=now.code, norms=norms)

        onward = steps(advance, options, lambda loop: (loop.norm * unit,) * 2 + (tolerance * unit,), method.unrolled)

        def several(loop: Loop) -> Loop:
            loop = onward(loop)
            return loop if budget is None else paced(loop, now_of(loop).active, tolerance.astype(real), budget)

        def with_look(loop: Loop) -> Loop:
            best, loop = loop.best, loop._replace(best=None)  # which no step reads
            if often:
                numbers = best._replace(x=None)
                loop = lax.while_loop(lambda loop: stopping.until_look(method, now_of(loop), numbers), several, loop)
            else:
                loop = several(loop)
            return stopping.looked(judge, loop._replace(best=best), x_of_loop(loop), now_of(loop))

        best = outer.best if looks else None
        loop = Loop(work, outer.k, before.astype(real), outer.code, outer.norms, runs, best, outer.pace)
        loop = mesh_axes.varying(loop, loop)
        if looks:
            loop = lax.while_loop(lambda loop: anyone(loop.runs), with_look, loop)
        else:
            loop = lax.while_loop(lambda loop: anyone(now_of(loop).active), several, loop)._replace(best=outer.best)
        x = jnp.where(is_new, x_of_loop(loop), outer.best.x)
        new = stopping.judged(judge, x, loop, outer, before, is_new)
        if b.ndim == 1:  # a single system is in the loop only while it goes on
            return new
        return jax.tree.map(lambda new, old: jnp.where(outer.phase != OVER, new, old), new, outer)

    norm, k = b_norm if x0 is None else jnp.sqrt(squared), jnp.zeros(b_norm.shape, jnp.int32)
    norms = jnp.full((options.history_length, *k.shape), -1, norm.dtype) if options.history_length else None
    last = (jnp.zeros_like(r, narrow), jnp.full_like(norm, jnp.inf)) if method.keeps else None
    pace = None if budget is None else (k, norm.astype(real), norm.astype(real))
    Ax_norm, best, phase = jnp.zeros_like(norm), Best(x, norm, k), jnp.full_like(k, stopping.STEPPING)
    norms, code = recorded(norms, k, norm), jnp.full_like(k, RUNNING)
    outer = Outer(x, r, squared, k, code, norms, last, best, Ax_norm, pace, phase)
    outer = lax.while_loop(lambda outer: anyone(outer.phase != OVER), trip, mesh_axes.varying(outer, r))

    # If the recursion was wrong, the best x may be worse than that at which the solve failed, or even than the start.
    takes_best, takes_start, least = _least(outer.code, outer.squared, outer.best.norm, norm)
    found = jnp.where(takes_start, x, jnp.where(takes_best, outer.best.x, outer.x))
    code = diagnosed(judge, outer, found, least)
    if options.dtype is not None:  # a start that is not finite is no fault of the narrow type
        was_lost = stopping.is_failure(outer.code) & ~jnp.isfinite(norm)
        code = jnp.where(was_lost, jnp.int32(Status.NON_FINITE), code)
    norms = outer.norms if outer.norms is None else jnp.where(outer.norms < 0, outer.norms, outer.norms * unit)
    if options.progress is not None:
        tell_end(options.progress, outer.k, least * unit, tolerance * unit, code)
    return found * unit, End(outer.k, least * unit, code, norms, outer.Ax_norm * unit, b_norm * unit)


@functools.partial(one_kernel, statics=2)
def _numbers(narrow: Any, sized: bool, squared: Array, limits: Any, unit: Array, of_A: Array) -> tuple[Any, ...]:
    """‖b‖, the tolerance, the drop, a power of two about ‖A‖, its inverse, and that for `by_norm`."""
    rtol, atol, _, drop = limits
    b_norm = jnp.sqrt(squared)
    tolerance = jnp.maximum(rtol * b_norm, atol / unit).astype(b_norm.dtype)
    tolerance = jnp.minimum(tolerance, jnp.finfo(tolerance.dtype).max)  # which no infinite residual meets
    drop = jnp.maximum(drop, jnp.finfo(narrow).eps / 16)  # a recursion that fell by more is rounding
    exponent = exponent_of(of_A)
    scales = (power_of_two(e, b_norm.dtype) for e in (exponent, -exponent))
    return b_norm, tolerance, drop, *scales, inverse_norm(of_A.astype(jnp.finfo(narrow).dtype)) if sized else None


def inverse_norm(of_A: Array) -> Array:
    """The even power of two about 1 / `of_A`: its root is one too, so that minres rounds alike for all sizes of A."""
    return power_of_two(-(exponent_of(of_A) >> 1 << 1), of_A.dtype)


def by_norm(inverse: Array | None) -> Map:
    """In place of a preconditioner: then no square of a vector over- or underflows because A is large or small."""
    return lambda r: r if inverse is None else inverse * r


@functools.partial(one_kernel, statics=1)
def _started(real: Any, squared: Array, phase: Array, tolerance: Array, drop: Array) -> tuple[Array, ...]:
    """‖r‖, the norm at which the method ends, whether it runs, and whether a new x is to be judged, or the best one."""
    norm = jnp.sqrt(squared)
    return norm, jnp.maximum(tolerance, drop * norm).astype(real), phase == stopping.STEPPING, phase != stopping.JUDGING


@one_kernel
def _least(code: Array, squared: Array, best: Array, start: Array) -> tuple[Array, Array, Array]:
    """Whether a failed solve takes its best x, or its first one, and the least norm."""
    failed, norm = stopping.is_failure(code), jnp.sqrt(squared)
    takes_best = failed & (best < norm)
    norm = jnp.where(takes_best, best, norm)
    takes_start = failed & (start < norm)
    return takes_best, takes_start, jnp.where(takes_start, start, norm)


def unless_far(space: Space, A: Map, b: Array, x0: Array, unit: Array, b_squared: Array) -> tuple[Array, Array, Array]:
    """r = b − A·x, x = x0 / unit, and ‖r‖²; b, zero and ‖b‖² in columns with a residual FAR times as long as b.

    The rounding errors of such a residual would hide b. Hence a column with b = 0 starts at its solution, 0. The
    residual of an x0 that is not finite stays, so that the solve reports it.
    """
    x = x0 / unit
    r = b - A(x)
    squared, nothing = space.sum(dot(r, r), dot(0 * x0, 0 * x0))
    is_far = (nothing == 0) & ~(squared < FAR**2 * b_squared)
    x = jnp.where(is_far | ~jnp.isfinite(x), 0, x)
    return jnp.where(is_far, b, r), x, jnp.where(is_far, b_squared, squared)


def steps(
    advance: Callable[[Loop], Loop], options: Options, watched: Callable[[Loop], Any], unroll: int
) -> Callable[[Loop], Loop]:
    """A function that advances `steps_per_check` times, and reports to `progress` the numbers `watched`."""
    number = min(options.steps_per_check, STEPS_PER_CHECK)

    def trip(loop: Loop) -> Loop:
        if number == 1:
            loop = advance(loop)
        else:
            one = jax.jit(advance)  # so that JAX lowers the copies of an unrolled step once
            loop = lax.fori_loop(0, number, lambda _, loop: one(loop), loop, unroll=min(number, unroll))
        if (progress := options.progress) is not None and loop.k.size:
            k = jnp.max(loop.k)
            due = k % STEPS_PER_REPORT < number
            lax.cond(due, functools.partial(jax.debug.callback, progress), lambda *_: None, k, *watched(loop))
        return loop

    return trip


def paced(loop: Loop, active: Array, tolerance: Array, budget: Array) -> Loop:
    """The loop with its pace (k, the norm after k steps, the least norm); MAXITER in all columns if one is too slow.

    One is if it would take more than `budget` further steps. The rate is that of the last half of all steps, first
    after budget / 2 steps and then whenever their number has doubled. So a solve that does not fall wastes half of what
    the other way costs, and one that is predicted to end within the budget goes on. At first twice the budget is
    allowed, since Krylov methods get faster.
    """
    k, norm, least = loop.pace
    least = jnp.where(loop.norm < least, loop.norm, least)
    due = active & (loop.k >= jnp.maximum(2 * k, budget / 4))
    fall, rest = jnp.log(norm / least), jnp.log(least / tolerance)
    allowed = jnp.where(loop.k < budget, 2, 1) * budget
    is_slow = due & (loop.k >= budget / 2) & ~(rest * (loop.k - k) <= allowed * fall)
    pace = jnp.where(due, loop.k, k), jnp.where(due, least, norm), least
    return loop._replace(code=jnp.where(active & anyone(is_slow), jnp.int32(Status.MAXITER), loop.code), pace=pace)


def tell_end(progress: Watcher, k: Array, compared: Any, target: Any, code: Array) -> None:
    """Reports the end of a solve to a bar."""
    if not isinstance(progress, Reports) and code.size:
        numbers, end = (k, compared, target, jnp.max(code)), progress.end
        jax.debug.callback(lambda k, compared, target, code: end(k, compared, target, Status(int(code)).name), *numbers)


def show(callback: Callable[..., None], moves: Array, x: Array) -> None:
    """Calls callback(x) on the host if any column moves."""

    def called(any_moves: Any, x: Any) -> None:
        if any_moves:
            callback(x)

    jax.debug.callback(called, jnp.any(moves), x, ordered=True)
