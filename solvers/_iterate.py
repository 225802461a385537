"""The one loop and the one stopping rule of every Krylov method.

A method is a few functions: `start` makes its vectors from a true residual, `step` advances them once, `iterate` says
what they add to x. The loop around them decides when to stop: when ‖b − A·x‖ ≤ max(rtol·‖b‖, atol), by the true
residual. Where the recursion claims it and the true residual does not agree, the method starts again from the true
residual, as long as that helps. Refinement is the same loop with a narrower operator inside (`refine.py`).

Vectors are [n], or [n, k] for k systems at once, which share every product. Numbers are then [k], and every column
starts, counts and ends by itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt import vectors
from jaxsparse_fmt.vectors import inner_product
from solvers.solution import Status

Array = jax.Array
Map = Callable[[Array], Array]

# What a step says beside a Status: go on; start again from the true residual, without or with this step.
RUNNING, RESTART, FULL = -1, -2, -3
BREAKS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)
FAR = 1024  # times b: an x0 with such a residual is not used
STEPS_UNROLLED = 20
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms


def x_of(M: Map, work: Any) -> Array:
    """What most methods' vectors add to the iterate that they started from."""
    del M
    return work.x


class Method(NamedTuple):
    """A Krylov method: static and hashable.

    Attributes:
      start: (A, M, r, last, *parameters) -> work. `last` is the work of before, where the method `keeps` it, else None.
      step: (A, M, work, active) -> (work, residual norm, code). The code is RUNNING, FULL for the last step before a
        restart, or RESTART or a Status, which say that the step must not be taken: then, and where it is not `active`,
        the work stays as it is (`holding` sees to that). Those codes may hang on scalars of the old vectors only, so
        that the selects join the updates and read nothing more.
      iterate: (M, work) -> what it adds to x.
      self_adjoint: it takes A for its own adjoint, which then has the same solver.
      keeps: a restart goes on in the direction of before.
      prepare: (A, M, b, *parameters) -> parameters, once in a solve.
    """

    start: Callable[..., Any]
    step: Callable[[Map, Map, Any, Array], tuple[Any, Array, Array]]
    iterate: Callable[[Map, Any], Array] = x_of
    self_adjoint: bool = True
    keeps: bool = False
    prepare: Callable[..., tuple[Any, ...]] = lambda A, M, b, *parameters: parameters


def holding(step: Callable[[Map, Map, Any], tuple[Any, Array, Array]], scratch: tuple[str, ...] = ()) -> Any:
    """A method's step out of one that always moves; the fields `scratch` may change though it is not taken."""

    def held(A: Map, M: Map, work: Any, active: Array) -> tuple[Any, Array, Array]:
        new, size, code = step(A, M, work)
        moves = active & _is_taken(code)
        kept = jax.tree.map(lambda new, old: jnp.where(moves, new, old), new, work)
        return kept._replace(**{name: getattr(new, name) for name in scratch}), size, code

    return held


class Options(NamedTuple):
    """Static options of the loop; in a refinement, the dtype of the inner vectors, and that of the inner matrix."""

    history_length: int
    steps_per_check: int
    callback: Callable[[Array], None] | None
    progress: Callable[[int, float], None] | None
    dtype: Any = None
    values: Any = None


class Limits(NamedTuple):
    """Numbers of the stopping rule: traced, so that changing them does not recompile.

    Attributes:
      drop: the true residual is taken anew where the recursion's has fallen by this factor; 0: at its end only.
    """

    rtol: Array
    atol: Array
    maxiter: Array
    drop: Array


class Loop(NamedTuple):
    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Array  # [history_length], by column too


class Outer(NamedTuple):
    x: Array
    r: Array  # b − A·x
    norm: Array  # of r
    k: Array
    code: Array  # RUNNING or how it ended
    norms: Array
    work: Any  # where the method keeps it


class End(NamedTuple):
    """How a solve ended, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Array


def run(
    method: Method,
    options: Options,
    A: Map,
    M: Map,
    b: Array,
    x0: Array | None,
    limits: Limits,
    inner: Map | None,
    parameters: tuple[Any, ...],
    leave: Map,
) -> tuple[Array, End]:
    """Solves A·x = b on a b scaled to about 1 by a power of two: exact, and no square of it under- or overflows.

    Args:
      inner: A for the method, in `options.dtype`, which M takes then too; None: A itself.
      leave: makes of x what a callback is to see.
    """
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        # Far from b, x0 would hide it in its own rounding errors; and A·x = 0 is solved by 0, exactly.
        r = b - A(x0)
        is_far = _largest(r) >= FAR * _largest(b)
        is_far &= jnp.isfinite(_largest(r))
        r, x = jnp.where(is_far, b, r), jnp.where(is_far, 0, x0)
    exponent = _exponent(b, r)
    b, r, x = _scaled(b, -exponent), _scaled(r, -exponent), _scaled(x, -exponent)
    b_norm = norm(b)
    tolerance = jnp.maximum(limits.rtol * b_norm, _scaled(limits.atol.astype(b_norm.dtype), -exponent))
    tolerance = tolerance.astype(b_norm.dtype)
    narrow = b.dtype if options.dtype is None else options.dtype
    own = A if inner is None else inner
    parameters = method.prepare(own, M, r.astype(narrow), *parameters)
    start = functools.partial(method.start, own, M)

    def trip(outer: Outer) -> Outer:
        """The method, from a true residual until its recursion claims to be done."""
        r = outer.r.astype(narrow)
        work = start(r, outer.work, *parameters)
        drop = jnp.maximum(limits.drop, jnp.finfo(narrow).eps / 16)  # a recursion that fell by more proves nothing
        goal = jnp.maximum(tolerance, drop * outer.norm).astype(r.real.dtype)
        loop = Loop(work, outer.k, outer.norm.astype(goal.dtype), outer.code, outer.norms)
        advance = functools.partial(_advance, method, options, own, M, outer.x, goal, limits.maxiter, exponent, leave)
        loop = _while(lambda loop: _goes_on(loop, goal, limits.maxiter), advance, loop, options, exponent)
        x = outer.x + jnp.where(outer.code == RUNNING, method.iterate(M, loop.work).astype(b.dtype), 0)
        r = b - A(x)
        now = norm(r)
        said = _verdict(now, outer.norm, tolerance, loop, limits.maxiter)
        code = jnp.where(outer.code == RUNNING, said, outer.code)
        kept = None
        if method.keeps and inner is not None:  # after a step or two there is no direction worth it
            few = (code == RUNNING) & (loop.k - outer.k <= 2)
            kept = jax.tree.map(lambda a: jnp.where(few, 0, a), loop.work)
        return Outer(x, r, now, loop.k, code, loop.norms, kept)

    now = norm(r)
    k, running = jnp.zeros(now.shape, jnp.int32), jnp.full(now.shape, RUNNING, jnp.int32)
    norms = _record(jnp.full((options.history_length, *now.shape), jnp.nan, now.dtype), k, now)
    nothing = Loop(None, k, now, running, norms)
    code = _verdict(now, jnp.full_like(now, jnp.nan), tolerance, nothing, limits.maxiter)
    work = None
    if method.keeps and inner is not None:  # a direction of zeros is none
        shapes = jax.eval_shape(lambda r: start(r, None, *parameters), r.astype(narrow))
        work = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    outer = Outer(x, r, now, k, code, norms, work)
    outer = lax.while_loop(lambda outer: jnp.any(outer.code == RUNNING), trip, outer)
    code = _diagnosis(method, A, M, b, outer, narrow if inner is not None else None)
    x = _scaled(outer.x, exponent)
    finite = jnp.isfinite(x)
    code = jnp.where(jnp.all(finite, axis=0), code, Status.NON_FINITE).astype(jnp.int32)
    end = End(outer.k, _scaled(outer.norm, exponent), code, _scaled(outer.norms, exponent))
    return jnp.where(finite, x, 0), end


def _while(goes_on: Callable[[Loop], Array], advance: Callable[[Loop], Loop], loop: Loop, options, exponent) -> Loop:
    """Advances while any column goes on, `steps_per_check` steps at a time."""
    steps = options.steps_per_check

    def trip(loop: Loop) -> Loop:
        loop = lax.fori_loop(0, steps, lambda _, loop: advance(loop), loop, unroll=min(steps, STEPS_UNROLLED))
        if options.progress is not None:
            report = functools.partial(jax.debug.callback, _report(options.progress))
            k = jnp.max(loop.k)
            due = k % STEPS_PER_REPORT < steps
            lax.cond(due, report, lambda *_: None, k, jnp.max(_scaled(loop.norm, exponent)))
        return loop

    return lax.while_loop(lambda loop: jnp.any(goes_on(loop)), trip, loop)


def _advance(method, options, A, M, base, goal, maxiter, exponent, leave, loop: Loop) -> Loop:
    """One step, or none in the columns that are over."""
    active = _goes_on(loop, goal, maxiter)
    work, new_norm, code = method.step(A, M, loop.work, active)
    moves = active & _is_taken(code)
    largest = jnp.finfo(new_norm.dtype).eps ** -1.5  # of a right-hand side of about 1
    blown_up = jnp.where(jnp.isfinite(new_norm), Status.DIVERGED, Status.NON_FINITE)
    code = jnp.where(moves & ~(new_norm <= largest), blown_up, code)
    k = loop.k + moves.astype(jnp.int32)
    if options.callback is not None:
        x = base + method.iterate(M, work).astype(base.dtype)
        jax.debug.callback(_if_moved(options.callback), jnp.any(moves), leave(_scaled(x, exponent)), ordered=True)
    norms = _record(loop.norms, jnp.where(moves, k, -1), new_norm)
    code = jnp.where(active, code, loop.code).astype(jnp.int32)
    return Loop(work, k, jnp.where(moves, new_norm, loop.norm), code, norms)


def _is_taken(code: Array) -> Array:
    return (code == RUNNING) | (code == FULL)


def _goes_on(loop: Loop, goal, maxiter) -> Array:
    return (loop.code == RUNNING) & (loop.norm > goal) & (loop.k < maxiter)


def _verdict(now, before, tolerance, loop: Loop, maxiter) -> Array:
    """RUNNING or how it ended, by the true residual norm `now`, the one before it, and what the method said."""
    asked_to = (loop.code == RESTART) | (loop.code == FULL)
    # A method that asks to start again may have gone up on its way, as bicgstab does. It comes to an end all the same:
    # at maxiter, or since a first step that may not be taken is a failure.
    helped = jnp.isnan(before) | (loop.code == RESTART) | (now < jnp.where(asked_to, 1, 0.5) * before)
    failed = (loop.code != RUNNING) & ~asked_to
    ends = [
        (~jnp.isfinite(now), Status.NON_FINITE),
        (now <= tolerance, Status.CONVERGED),
        (failed, loop.code),
        (loop.k >= maxiter, Status.MAXITER),
        (~helped, Status.STAGNATION),
    ]
    return _select(ends, RUNNING)


def _select(cases: list[tuple[Array, Any]], otherwise: int) -> Array:
    """The number of the first case that holds. Nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*(c.shape for c, _ in cases)))


def status_of(*cases: tuple[Array, int]) -> Array:
    """For a step: the code of the first case that holds, else RUNNING."""
    return _select(list(cases), RUNNING)


# ------------------------------------------------------------------------------------------------------- post mortem


def _diagnosis(method: Method, A: Map, M: Map, b: Array, outer: Outer, narrow: Any) -> Array:
    """The code, told more exactly where a solve failed; a product or two then, and none else.

    Args:
      narrow: dtype of a refinement's inner vectors.
    """

    def examined(_, code: Array) -> Array:
        x, Ax, v = outer.x, b - outer.r, probe(b)
        Av, eps = A(v), jnp.finfo(b.dtype).eps
        if narrow is not None:
            code = _in_the_wide_type(A, M, outer, code, narrow)
        if method.self_adjoint:
            gap = jnp.abs(inner_product(v, Ax) - inner_product(Av, x))
            asymmetric = gap > 100 * eps * (norm(v) * (norm(Ax) + norm(b)) + norm(Av) * norm(x))
            code = jnp.where(_is_failure(code) & asymmetric, Status.NOT_SYMMETRIC, code)
        if narrow is not None:
            # About what rounding in the wide type leaves of a residual; above it, the narrow type is to blame.
            limit = 100 * eps * norm(Av) / norm(v) * norm(x)
            code = jnp.where((code == Status.STAGNATION) & (outer.norm > limit), Status.PRECISION, code)
        return code.astype(jnp.int32)

    # A loop of one trip or none: vmap would make a condition's operands, A among them, as many as it maps over.
    failed = _is_failure(outer.code) | ((outer.code == Status.NON_FINITE) & (narrow is not None))
    return lax.fori_loop(0, jnp.any(failed).astype(jnp.int32), examined, outer.code)


def _in_the_wide_type(A: Map, M: Map, outer: Outer, code: Array, narrow: Any) -> Array:
    """What a narrow method failed of, if that is so in the wide type too, else PRECISION."""
    r, wide = outer.r, outer.r.dtype
    z = M(r.astype(narrow)).astype(wide)
    p = z if outer.work is None else outer.work.p.astype(wide)
    Ap, eps = A(p), jnp.finfo(wide).eps
    curvature, rounding = dot(p, Ap), 100 * eps * norm(p) * norm(Ap)
    confirmed = [
        (code == Status.NON_FINITE) & ~jnp.isfinite(norm(r) + norm(z)),
        (code == Status.NOT_POSITIVE_DEFINITE) & ((curvature < -rounding) | (dot(r, z) < 0)),
        (code == Status.BREAKDOWN) & ((jnp.abs(curvature) <= rounding) | (dot(r, z) == 0)),
    ]
    of_the_method = functools.reduce(jnp.logical_or, [code == s for s in BREAKS])
    return jnp.where(of_the_method & ~functools.reduce(jnp.logical_or, confirmed), Status.PRECISION, code)


def _is_failure(code: Array) -> Array:
    return (code != Status.CONVERGED) & (code != Status.NON_FINITE)


# --------------------------------------------------------------------------------------------------------- numbers


@dataclasses.dataclass(frozen=True)
class Product:
    """v -> A·v, and with it vᴴ·A·v from the same pass."""

    apply: Map
    with_dot: Callable[[Array], tuple[Array, vectors.Number]]

    def __call__(self, v: Array) -> Array:
        return self.apply(v)


def product_dot(A: Map, v: Array) -> tuple[Array, vectors.Number]:
    """A·v and vᴴ·A·v."""
    if isinstance(A, Product):
        return A.with_dot(v)
    q = A(v)
    return q, vectors.dot(v, q)


def dot(x: Array, y: Array) -> Array:
    """Re xᴴ·y, column by column."""
    return inner_product(x, y).real


def norm(x: Array) -> Array:
    return jnp.sqrt(dot(x, x))


def ratio(a: Array, b: Array) -> Array:
    """a / b, 0 where b is."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def probe(like: Array) -> Array:
    """Numbers without a pattern in the shape of `like`, the same in every column and every run."""
    v = vectors.noise(like.shape[0], like.real.dtype).astype(like.dtype)
    return jnp.broadcast_to(v.reshape(-1, *(1,) * (like.ndim - 1)), like.shape)


def _largest(v: Array) -> Array:
    return jnp.max(jnp.abs(v), axis=0)


def _exponent(*vectors: Array) -> Array:
    """e with 2ᵉ about the largest number in `vectors`, as far as the dtype can scale; 0 for zeros and infinities."""
    largest = functools.reduce(jnp.maximum, map(_largest, vectors))
    limit = jnp.finfo(vectors[0].dtype).maxexp - 8
    _, e = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 0))
    return jnp.clip(e, -limit, limit).astype(jnp.int32)


def _scaled(a: Array, exponent: Array) -> Array:
    return a * jnp.ldexp(jnp.ones((), jnp.finfo(a.dtype).dtype), exponent)


def _record(norms: Array, k: Array, value: Array) -> Array:
    """norms[k] = value, nothing for k < 0 or past the end."""
    if norms.shape[0] == 0:
        return norms
    at = jnp.where(k < 0, norms.shape[0], k)
    index = at if k.ndim == 0 else (at, jnp.arange(k.shape[0]))
    return norms.at[index].set(value.astype(norms.dtype), mode="drop")


def _report(progress: Callable[[int, float], None]) -> Callable[..., None]:
    return lambda k, value: progress(int(k), float(value))


def _if_moved(callback: Callable[[Array], None]) -> Callable[..., None]:
    return lambda moved, x: callback(x) if moved else None
