"""The loop of every Krylov method: start, steps, the true residual, the verdict (`stopping`), and start again.

A method is a few functions: `start` makes its vectors from a true residual, `step` advances them once, `iterate`
computes what they add to x. The loop stops the method where its recursion meets the tolerance, computes the true
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

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.vector_passes import Pass
from solvers.core import stopping
from solvers.core.scaling import Map, power_of_two
from solvers.core.space import Space
from solvers.core.stopping import RUNNING, WAITING, Best, End, Limits, Loop, Now, Outer, anyone, is_taken, recorded

FAR = 1024  # times b: an x0 with a residual of that size is not used
STEPS_PER_CHECK = 1000  # at most, since all but one of them may be wasted
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms


def x_of(M: Map, work: Any) -> Array:
    """The part `x` of the work, which most methods add to the iterate that they started from."""
    return work.x


class Method(NamedTuple):
    """A Krylov method: static and hashable.

    Attributes:
      start: (space, A, M, r, last) -> work. `last` is the last direction if the method `keeps` it, else None. Every sum
        over a vector is asked of the `Space`: the vectors may be one device's pieces.
      step: (space, A, M, work, now) -> (work, now.after(residual norm, code)). The code is RUNNING; FULL for the last
        step before a restart; or RESTART or a Status for a step that must not be taken. In the last two cases, and
        where a column is not active, the work must not change (`holding` does that). These codes may depend only on
        scalars of the old vectors, so that XLA fuses the selects into the updates and reads nothing more.
      iterate: (M, work) -> the vector to add to x.
      self_adjoint: the method assumes that A is its own adjoint, so that it solves systems with the adjoint too.
      keeps: a restart may continue in the last direction.
      estimates: the residual norm of `step` is only an estimate: the method minimises another residual.
      least_squares: the method may end with LEAST_SQUARES, which is checked by the true residual.
      sums: (whether there is no M) -> the pass for whose sums `step` asks with A·v, and the number of vectors beside.
      unrolled: the steps of a trip of the inner loop, if that has several between two checks. A trip costs a GPU some
        µs, each step in it another copy for XLA to compile, about 10 ms a kernel: 1 where a step has dozens of kernels.
    """

    start: Callable[..., Any]
    step: Callable[[Space, Map, Map, Any, Now], tuple[Any, Now]]
    iterate: Callable[[Map, Any], Array] = x_of
    self_adjoint: bool = True
    keeps: bool = False
    estimates: bool = False
    least_squares: bool = False
    sums: Callable[[bool], tuple[Pass, int]] | None = None
    unrolled: int = 5


def holding(step: Callable[[Space, Map, Map, Any], tuple[Any, Array, Array]], scratch: tuple[str, ...] = ()) -> Any:
    """A method's step, made from one that always moves; the fields `scratch` may change in a step that is not taken."""

    def held(space: Space, A: Map, M: Map, work: Any, now: Now) -> tuple[Any, Now]:
        new, size, code = step(space, A, M, work)
        moves = now.active & is_taken(code)
        kept = chosen(moves, new, work, scratch)
        return kept, now.after(size, code)

    return held


def chosen(flags: Array, new: Any, old: Any, scratch: tuple[str, ...] = ()) -> Any:
    """The work `new` where the flag is set, else `old`, by column; the fields `scratch` of the new one."""
    first = getattr(new, "columns_first", ()) if flags.ndim else ()

    def field(name: str, new: Any, old: Any) -> Any:
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
    narrow, own = options.dtype or b.dtype, A if inner is None else inner
    unit = power_of_two(space.exponent(b), b.dtype)
    b = b / unit
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        r, x = unless_far(space, A, b, x0 / unit, jnp.isfinite(space.largest(x0)))
    b_norm = space.norm(b)
    tolerance = jnp.maximum(limits.rtol * b_norm, limits.atol.astype(unit.dtype) / unit).astype(b_norm.dtype)
    drop = jnp.maximum(limits.drop, jnp.finfo(narrow).eps / 16)  # a recursion that fell by more is rounding
    v = space.probe(b) if method.self_adjoint else None
    look = None if v is None else stopping.Probe(v, A(v))
    rule = stopping.Rule(space, method, options.dtype, A, M, b, unit, b_norm, tolerance, limits.maxiter, look)

    def trip(outer: Outer) -> Outer:
        """The method, from a true residual until its recursion meets the tolerance, and the true residual there."""
        work = method.start(space, own, M, outer.r.astype(narrow), outer.direction)
        goal = jnp.maximum(tolerance, drop * outer.norm).astype(jnp.finfo(narrow).dtype)
        of = lambda loop: Now(loop.k, loop.norm, loop.code, goal, limits.maxiter)  # noqa: E731

        def at(loop: Loop) -> Array:
            return outer.x + jnp.where(outer.ended == RUNNING, method.iterate(M, loop.work), 0).astype(b.dtype)

        def advance(loop: Loop) -> Loop:
            """One step, or none in the columns that are over."""
            work, now = method.step(space, own, M, loop.work, of(loop))
            moves = now.k > loop.k
            if options.callback is not None:
                show(options.callback, moves, basis.leave(at(loop._replace(work=work)) * unit))
            norms = recorded(loop.norms, jnp.where(moves, now.k, -1), now.norm)
            return loop._replace(work=work, k=now.k, norm=now.norm, code=now.code, norms=norms)

        loop = Loop(work, outer.k, outer.norm.astype(goal.dtype), outer.ended, outer.norms, outer.best, outer.pace)
        active, onward = lambda loop: anyone(of(loop).active), steps(advance, options, unit, method.unrolled)

        def several(loop: Loop) -> Loop:
            loop = onward(loop)
            if limits.budget is None:
                return loop
            return stopping.paced(loop, of(loop).active, tolerance.astype(goal.dtype), limits.budget)

        # A refinement carries narrow vectors only, and computes many true residuals, each of which finds the best x.
        if inner is None and (method.iterate is x_of or method.least_squares):
            due = lambda loop: of(loop).active & stopping.is_due(rule, loop)  # noqa: E731
            looked = lambda loop: stopping.looked(rule, loop, at(loop), due(loop))  # noqa: E731
            until_due = lambda loop: active(loop) & ~anyone(due(loop))  # noqa: E731
            to_due = lambda loop: repeated(until_due, several, loop)  # noqa: E731
            # The host reads the condition of a GPU's loop, for some 30 µs; a look between steps costs less than two.
            often = options.steps_per_check == 1 or method.least_squares
            loop = repeated(active, lambda loop: looked(to_due(loop) if often else several(loop)), loop)
        else:
            loop = repeated(active, several, loop._replace(best=None))._replace(best=outer.best)
        new = stopping.judged(rule, at(loop), loop, outer)
        if method.keeps:
            # The direction after a step or two is not worth keeping, nor one in the wide type, unless the method waits.
            worth = (loop.k - outer.k > 2) & ((inner is not None) | (loop.code == WAITING))
            new = new._replace(direction=jnp.where(worth | (new.code != RUNNING), loop.work.p, 0))
        # Columns that are over stay as they are; a single system is in the loop only while it runs.
        kept = lambda new, old: jnp.where(outer.code == RUNNING, new, old)  # noqa: E731
        return new if b.ndim == 1 else jax.tree.map(kept, new, outer)

    size, k = b_norm if x0 is None else space.norm(r), jnp.zeros(b_norm.shape, jnp.int32)
    norms = jnp.full((options.history_length, *k.shape), -1, size.dtype) if options.history_length else None
    direction = jnp.zeros_like(r, narrow) if method.keeps else None  # zeros are none
    best, of_narrow = Best(x, size, k), size.astype(jnp.finfo(narrow).dtype)
    pace = None if limits.budget is None else stopping.Pace(k, of_narrow, of_narrow)
    outer = Outer(x, r, size, k, k + RUNNING, k + RUNNING, recorded(norms, k, size), direction, best, pace)
    outer = lax.while_loop(lambda outer: anyone(outer.code == RUNNING), trip, mesh_axes.varying(outer, r))
    norms = outer.norms
    norms = norms if norms is None else jnp.where(norms < 0, norms, norms * unit)
    code, is_worse = stopping.diagnosed(rule, outer), outer.norm > size  # than the start, by a recursion that was wrong
    end = End(outer.k, jnp.where(is_worse, size, outer.norm) * unit, code, norms)
    x = jnp.where(is_worse, x, outer.x) * unit
    return jnp.where(jnp.isfinite(x), x, 0), end


def unless_far(space: Space, A: Map, b: Array, x: Array, finite: Array) -> tuple[Array, Array]:
    """b − A·x and x; b and zero in columns with a residual FAR times b, whose rounding errors would hide b.

    Hence a column with b = 0 starts at its solution, 0.

    Args:
      finite: whether the x0 behind a column of x is finite; a NaN in x0 must stay, so that the solve reports it.
    """
    r = b - A(x)
    is_far = finite & ~(space.largest(r) < FAR * space.largest(b))
    return jnp.where(is_far, b, r), jnp.where(is_far, 0, x)


def steps(advance: Callable[[Loop], Loop], options: Options, unit: Any, unroll: int) -> Callable[[Loop], Loop]:
    """Advances `steps_per_check` times, and reports to `progress`.

    Args:
      unit: times the loop's norm is the norm in the user's scale.
    """
    number = min(options.steps_per_check, STEPS_PER_CHECK)

    def trip(loop: Loop) -> Loop:
        if number == 1:
            loop = advance(loop)
        else:
            loop = lax.fori_loop(0, number, lambda _, loop: advance(loop), loop, unroll=min(number, unroll))
        if (progress := options.progress) is not None:
            called = lambda k, value: progress(int(k), float(value))  # noqa: E731
            k = jnp.max(loop.k)
            due = k % STEPS_PER_REPORT < number
            report = functools.partial(jax.debug.callback, called)
            lax.cond(due, report, lambda *_: None, k, jnp.max(loop.norm * unit))
        return loop

    return trip


def repeated(goes_on: Callable[[Loop], Array], f: Callable[[Loop], Loop], loop: Loop) -> Loop:
    return lax.while_loop(goes_on, f, mesh_axes.varying(loop, loop))


def show(callback: Callable[..., None], moves: Array, x: Array) -> None:
    """Calls callback(x) on the host where any column moves."""
    called = lambda moved, x: callback(x) if moved else None  # noqa: E731
    jax.debug.callback(called, jnp.any(moves), x, ordered=True)
