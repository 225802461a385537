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
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.vector_passes import Pass
from solvers.core import stopping
from solvers.core.diagnosis import diagnosed
from solvers.core.pace import Pace, paced
from solvers.core.scaling import Map, unit_of
from solvers.core.space import Space
from solvers.core.stopping import RUNNING, Best, End, Last, Limits, Loop, Now, Outer, is_taken, recorded
from solvers.core.vectors import anyone, squares
from solvers.solution import Status

State = TypeVar("State", Loop, Outer)
FAR = 1024  # times b: an x0 with a residual of that size is not used
STEPS_PER_CHECK = 1000  # at most: all but one of them may be wasted
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms


def x_of(M: Map, work: Any) -> Array:
    """The part `x` of the work, which most methods add to the iterate that they started from."""
    return work.x


class Method(NamedTuple):
    """A Krylov method: static and hashable.

    Attributes:
      start: (space, A, M, r, squared, last) -> work, with ‖r‖². `last` is a `Last` if the method `keeps` its direction,
        else None. The `Space` computes every sum over a vector: the vectors may be one device's pieces.
      step: (space, A, M, work, now) -> (work, now.after(residual norm, code)). The code is RUNNING; FULL for the last
        step before a restart; or RESTART or a Status for a step that must not be taken. Then, and in columns that are
        not active, the work must not change (`holding` sees to that). These codes may depend only on scalars of the old
        vectors, so that XLA fuses the selects into the updates and reads nothing more.
      iterate: (M, work) -> the vector to add to x.
      self_adjoint: the method assumes that A is its own adjoint, so that it solves systems with the adjoint too.
      keeps: the method keeps its direction p: a restart may continue in it.
      least_squares: the method may end with LEAST_SQUARES, which is checked by the true residual.
      sums: (whether there is no M) -> the pass whose sums `step` needs with A·v, and the number of its other vectors.
      unrolled: the steps of a trip of the inner loop, if that has several between two checks. A trip costs a GPU some
        µs, and XLA compiles each step in it once more, about 10 ms a kernel: 1 if a step has dozens of kernels.
      whole: (system, is_transposed) -> x and its `End`, in place of the loop.
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
        new, size, code = step(space, A, M, work)
        moves = now.active & is_taken(code)
        kept = chosen(moves, new, work, scratch)
        return kept, now.after(size, code)

    return held


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
      b, x0: [n] or [n, k], which have entered the basis; x0 None starts from zero.
      inner: the A that the method multiplies with, in `Options.dtype`; M then takes vectors of that dtype too. None: A
        itself.
    """

    A: Any
    M: Any
    b: Any
    x0: Any
    limits: Limits
    inner: Any = None
    basis: Basis = IDENTITY


def run(space: Space, method: Method, options: Options, system: System) -> tuple[Array, End]:
    """x with A·x = b, finite, and how the solve ended. Inside, b is scaled by a power of two."""
    A, M, b, x0, limits, inner, basis = system
    narrow, multiplied = options.dtype or b.dtype, A if inner is None else inner
    v = space.probe(b) if method.self_adjoint else None
    Av = None if v is None else A(v)
    unit = unit_of(space, b)
    b = b / unit
    squared, *of_A = space.sums(squares(b), *(() if Av is None else (jnp.abs(Av),)))
    b_norm = jnp.sqrt(squared)
    tolerance = jnp.maximum(limits.rtol * b_norm, limits.atol / unit).astype(b_norm.dtype)
    tolerance = jnp.minimum(tolerance, jnp.finfo(tolerance.dtype).max)  # which no infinite residual meets
    drop = jnp.maximum(limits.drop, jnp.finfo(narrow).eps / 16)  # a recursion that fell by more is rounding
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        r, x, squared = unless_far(space, A, b, x0, unit, squared)
    rule = stopping.Rule(space, method, options.dtype, A, M, b, unit, b_norm, tolerance, limits.maxiter)
    if v is not None and Av is not None:
        rule = rule._replace(probe=stopping.Probe(v, Av, of_A[0] / space.length_of(b)))
    real = jnp.finfo(narrow).dtype
    # A refinement carries narrow vectors only, and computes many true residuals, each of which finds the best x.
    looks = inner is None and (method.iterate is x_of or method.least_squares)
    most = None if looks else jnp.asarray(stopping.MOST / jnp.finfo(real).eps, real)
    # The host reads the condition of a GPU's loop, for some 30 µs; a look between steps costs less than two.
    often = looks and (options.steps_per_check == 1 or method.least_squares)
    is_checked = b.ndim == 1 and options.steps_per_check == 1  # by the condition of the loop, before each step

    def trip(outer: Outer) -> Outer:
        """Runs the method from a true residual until its recursion ends it; then judges x by its true residual."""
        before = outer.norm
        work = method.start(space, multiplied, M, outer.r.astype(narrow), outer.squared.astype(real), outer.last)
        goal = jnp.maximum(tolerance, drop * before).astype(real)

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

        onward = steps(advance, options, unit, method.unrolled)

        def several(loop: Loop) -> Loop:
            loop = onward(loop)
            if limits.budget is None:
                return loop
            return paced(loop, now_of(loop).active, tolerance.astype(real), limits.budget)

        def with_look(loop: Loop) -> Loop:
            best, loop = loop.best, loop._replace(best=None)  # which no step reads

            def until_look(loop: Loop) -> Array:
                return rule.until_look(now_of(loop), best)

            loop = repeated(until_look, several, loop) if often else several(loop)
            return stopping.looked(rule, loop._replace(best=best), x_of_loop(loop), now_of(loop))

        best = outer.best if looks else None
        loop = Loop(work, outer.k, before.astype(real), outer.code, outer.norms, best, outer.pace)
        if looks:
            loop = repeated(lambda loop: anyone(loop.code == RUNNING), with_look, loop)
        else:
            loop = repeated(lambda loop: anyone(now_of(loop).active), several, loop)._replace(best=outer.best)
        x = jnp.where(outer.retries, outer.best.x, x_of_loop(loop))
        new = stopping.judged(rule, x, loop.work.p if method.keeps else None, loop, outer, before)
        if b.ndim == 1:  # a single system is in the loop only while it goes on
            return new
        return jax.tree.map(lambda new, old: jnp.where(outer.goes_on, new, old), new, outer)

    size, k = jnp.sqrt(squared), jnp.zeros(b_norm.shape, jnp.int32)
    norms = jnp.full((options.history_length, *k.shape), -1, size.dtype) if options.history_length else None
    last = Last(jnp.zeros_like(r, narrow), jnp.full_like(size, jnp.inf)) if method.keeps else None
    pace = None if limits.budget is None else Pace(k, size.astype(real), size.astype(real))
    Ax_norm = None if rule.probe is None else jnp.zeros_like(size)
    code = jnp.full_like(k, RUNNING)
    outer = Outer(x, r, squared, k, code, recorded(norms, k, size), last, Best(x, size, k), Ax_norm, pace)
    outer = repeated(lambda outer: anyone(outer.goes_on), trip, mesh_axes.varying(outer, r))

    # If the recursion was wrong, the best x may be worse than that at which the solve failed, or even than the start.
    failed, best, norm, found = stopping.is_failure(outer.code), outer.best, outer.norm, outer.x
    for other, other_norm in ((best.x, best.norm), (x, size)):
        is_better = failed & (other_norm < norm)
        norm, found = jnp.where(is_better, other_norm, norm), jnp.where(is_better, other, found)
    code, Ax_norm = diagnosed(rule, outer, found, norm)
    if options.dtype is not None:  # a start that is not finite is no fault of the narrow type
        code = jnp.where(failed & ~jnp.isfinite(size), jnp.int32(Status.NON_FINITE), code)
    norms = outer.norms if outer.norms is None else jnp.where(outer.norms < 0, outer.norms, outer.norms * unit)
    return found * unit, End(outer.k, norm * unit, code, norms, Ax_norm * unit, b_norm * unit)


def unless_far(space: Space, A: Map, b: Array, x0: Array, unit: Array, b_squared: Array) -> tuple[Array, Array, Array]:
    """r = b − A·x, x = x0 / unit, and ‖r‖²; b, zero and ‖b‖² in columns with a residual FAR times as long as b.

    The rounding errors of such a residual would hide b. Hence a column with b = 0 starts at its solution, 0. The
    residual of an x0 that is not finite stays, so that the solve reports it.
    """
    x = x0 / unit
    r = b - A(x)
    squared, nothing = space.sums(squares(r), squares(0 * x0))
    is_far = (nothing == 0) & ~(squared < FAR**2 * b_squared)
    x = jnp.where(is_far | ~jnp.isfinite(x), 0, x)
    return jnp.where(is_far, b, r), x, jnp.where(is_far, b_squared, squared)


def steps(advance: Callable[[Loop], Loop], options: Options, unit: Any, unroll: int) -> Callable[[Loop], Loop]:
    """A function that advances `steps_per_check` times, and reports to `progress`.

    Args:
      unit: times the loop's norm is the norm in the user's scale.
    """
    number = min(options.steps_per_check, STEPS_PER_CHECK)

    def trip(loop: Loop) -> Loop:
        if number == 1:
            loop = advance(loop)
        else:
            one = jax.jit(advance)  # so that JAX lowers the copies of an unrolled step once
            loop = lax.fori_loop(0, number, lambda _, loop: one(loop), loop, unroll=min(number, unroll))
        if (progress := options.progress) is not None:
            k = jnp.max(loop.k)
            due = k % STEPS_PER_REPORT < number
            report = functools.partial(jax.debug.callback, lambda k, value: progress(int(k), float(value)))
            lax.cond(due, report, lambda *_: None, k, jnp.max(loop.norm * unit))
        return loop

    return trip


def repeated(goes_on: Callable[[State], Array], f: Callable[[State], State], loop: State) -> State:
    return lax.while_loop(goes_on, f, mesh_axes.varying(loop, loop))


def show(callback: Callable[..., None], moves: Array, x: Array) -> None:
    """Calls callback(x) on the host if any column moves."""

    def called(any_moves: Any, x: Any) -> None:
        if any_moves:
            callback(x)

    jax.debug.callback(called, jnp.any(moves), x, ordered=True)
