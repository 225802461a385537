"""The one loop and the one stopping rule of every Krylov method, and implicit differentiation around them.

A method is two functions: `start(x, r)` makes its vectors from an iterate and its true residual, and `step(work)`
advances them once. The loop around them decides when to stop: when ‖b − A·x‖ ≤ max(rtol·‖b‖, atol), by the true
residual. Where the recursion claims it and the true residual does not agree, the method starts again from the true
residual, as long as that helps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt.basis import IDENTITY, Basis
from solvers import _arguments as arguments
from solvers.solution import Solution, Status

Array = jax.Array
Map = Callable[[Array], Array]

RUNNING = -1
# Steps between two looks at the stopping rule. On a GPU a look waits for a copy to the host, 10-20 µs.
STEPS_PER_CHECK = {"cpu": 1}
STEPS_PER_CHECK_DEFAULT = 10
# A derivative has no status: where its own system ends with one of these, it is NaN rather than wrong.
NO_DERIVATIVE = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.NON_FINITE, Status.DIVERGED)
STEPS_PER_REPORT = 16  # a report costs about 0.1 ms
# A default history holds this many iterations.
MAX_HISTORY = 10_000


class Work(Protocol):
    """A method's vectors; `x` is the iterate."""

    @property
    def x(self) -> Array: ...


class Method(NamedTuple):
    """start(A, M, x, r) -> work; step(A, M, work) -> (work, residual norm, RUNNING or a Status).

    A Status ends the solve and says that the step must not be taken: it may hang on scalars of the old vectors only.
    """

    start: Callable[[Map, Map, Array, Array], Any]
    step: Callable[[Map, Map, Any], tuple[Any, Array, Array]]


class Options(NamedTuple):
    """Static options of the loop."""

    history_length: int
    steps_per_check: int
    callback: Callable[[Array], None] | None
    progress: Callable[[int, float], None] | None


class Limits(NamedTuple):
    """Numbers of the stopping rule: traced, so that changing them does not recompile."""

    rtol: Array
    atol: Array
    maxiter: Array


class Loop(NamedTuple):
    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Array  # [history_length]


# --------------------------------------------------------------------------------------------------------- the door


def solve(
    method: Method,
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any,
    rtol: float,
    atol: float,
    maxiter: int | None,
    history: bool | int,
    callback: Callable[[Array], None] | None,
    progress: Callable[[int, float], None] | None,
    check_every: int | None,
) -> Solution:
    """Checks the arguments, enters the matrix's basis, solves, and leaves it. See `cg` for the arguments."""
    b = arguments.vector(b, "b")
    n = b.shape[0]
    if n == 0:
        raise ValueError("b is empty; a system needs at least one unknown")
    x0 = None if x0 is None else arguments.vector(x0, "x0")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    steps = STEPS_PER_CHECK.get(jax.default_backend(), STEPS_PER_CHECK_DEFAULT)
    traced = isinstance(maxiter, Tracer)
    limit = min(10 * n, 2**31 - 1) if maxiter is None else maxiter if traced else arguments.count(maxiter, "maxiter", 0)
    options = Options(
        arguments.history_length(history, None if traced else limit, MAX_HISTORY),
        steps if check_every is None else arguments.count(check_every, "check_every", 1),
        arguments.function_or_none(callback, "callback"),
        arguments.function_or_none(progress, "progress"),
    )
    limits = Limits(arguments.tolerance(rtol, "rtol"), arguments.tolerance(atol, "atol"), jnp.asarray(limit, jnp.int32))
    A = arguments.linear_map(A, n, "A")
    inner, basis = getattr(A, "in_basis", A), getattr(A, "basis", IDENTITY)
    dtype = arguments.result_dtype(inner, b, "A")
    dtype = jnp.result_type(dtype, b.dtype, *(() if x0 is None else (x0.dtype,)))
    b, x0 = b.astype(dtype), None if x0 is None else x0.astype(dtype)
    if M is not None:
        M = arguments.linear_map(M, n, "M")
        arguments.result_dtype(M, b, "M")
    if not (arguments.is_function(A) or arguments.is_function(M)):
        return _compiled(method, options, inner, basis, M, b, x0, limits)
    # A function is traced anew at every call, since what it closes over may have changed, and so is what holds it.
    inner, M = (arguments.traced(f, b) if arguments.is_function(f) else f for f in (inner, M))
    return jax.jit(_solve, static_argnums=(0, 1))(method, options, inner, basis, M, b, x0, limits)


def _solve(
    method: Method, options: Options, A: Any, basis: Basis, M: Any, b: Array, x0: Any, limits: Limits
) -> Solution:
    """`A` works in the basis. `M` enters it where it can (`entered`); where not, it costs two permutations a step."""
    dtype = b.dtype
    matvec = lambda v: arguments.apply(A, v).astype(dtype)  # noqa: E731
    start = None if x0 is None else basis.enter(x0)
    M_inner = lambda r: r  # noqa: E731
    if hasattr(M, "entered"):
        entered = M.entered(basis)
        M_inner = lambda r: arguments.apply(entered, r).astype(dtype)  # noqa: E731
    elif M is not None:
        M_inner = lambda r: basis.enter(arguments.apply(M, basis.leave(r))).astype(dtype)  # noqa: E731
    x, end = _differentiable(method, options, matvec, M_inner, basis.enter(b), start, limits)
    return Solution(basis.leave(x), end.code, end.k, end.norm, end.norms if options.history_length else None)


_compiled = jax.jit(_solve, static_argnums=(0, 1))


# ------------------------------------------------------------------------------------------------- differentiation


class End(NamedTuple):
    """How a solve ended, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Array


def _differentiable(method, options, matvec, precondition, b, x0, limits) -> tuple[Array, End]:
    """x with A·x = b, differentiable in b and in whatever `matvec` depends on, to any order.

    The loop itself is not differentiated. From A·x = b follows A·dx = db − dA·x: one more system with the same matrix,
    through `lax.custom_linear_solve`, whose transpose is a solve too. x0 and M do not bear on the solution and get no
    derivative; the tangent system starts from zero, with rtol of its own right-hand side and without atol, so that a
    cotangent of any size is answered to the same relative accuracy.
    """
    A, M = arguments.traced(matvec, b), arguments.traced(precondition, b)
    frozen = lax.stop_gradient((M, x0, limits))
    options_of_tangent = options._replace(history_length=0, callback=None, progress=None)

    @jax.custom_jvp
    def run(A, b, frozen):
        M, x0, limits = frozen
        return _run(method, options, A, M, b, x0, limits)

    @run.defjvp
    def tangent(primals, tangents):
        (A, b, frozen), (dA, db, _) = primals, tangents
        M, _, limits = frozen
        x, end = run(A, b, frozen)
        _, dA_x = jax.jvp(lambda A: A(x), (A,), (dA,))

        def from_zero(_, rhs):
            relative = limits._replace(atol=jnp.zeros_like(limits.atol))
            dx, end = _run(method, options_of_tangent, A, M, rhs, None, relative)
            return jnp.where(jnp.isin(end.code, jnp.array(NO_DERIVATIVE)), jnp.nan, dx)

        def transposed_from_zero(_, c):
            # For a Hermitian matrix Aᵀ is its conjugate, so Aᵀ·λ = c is A·λ̄ = c̄: solved with the fast product. The
            # system differentiated further is Aᵀ's, since a single entry of A may be perturbed without its mirror
            # image.
            return jnp.conj(from_zero(A, jnp.conj(c)))

        dx = lax.custom_linear_solve(A, db - dA_x, from_zero, transposed_from_zero)
        return (x, end), (dx, jax.tree.map(_no_tangent, end))

    return run(A, b, frozen)


def _no_tangent(a: Array) -> Any:
    return jnp.zeros_like(a) if jnp.issubdtype(a.dtype, jnp.inexact) else np.zeros(a.shape, jax.dtypes.float0)


# --------------------------------------------------------------------------------------------------------- the loop


def _run(method, options, A, M, b, x0, limits) -> tuple[Array, End]:
    """Solves A·x = b on a b scaled to about 1 by a power of two: exact, and no square under- or overflows."""
    exponent = _exponent(b) if x0 is None else _exponent(b, b - A(x0))
    x0 = jnp.zeros_like(b) if x0 is None else _scaled(x0, -exponent)
    b = _scaled(b, -exponent)
    b_norm = norm(b)
    tolerance = jnp.maximum(limits.rtol * b_norm, _scaled(limits.atol.astype(b_norm.dtype), -exponent))
    tolerance = tolerance.astype(b_norm.dtype)
    x0 = jnp.where(b_norm == 0, jnp.zeros_like(x0), x0)  # A·x = 0 is solved by 0, exactly

    def trip(loop: Loop) -> Loop:
        advance = lambda _, loop: _advance(method, options, A, M, loop, tolerance, limits.maxiter, exponent)  # noqa: E731
        steps = options.steps_per_check
        loop = lax.fori_loop(0, steps, advance, loop, unroll=min(steps, STEPS_PER_CHECK_DEFAULT))
        if options.progress is not None:
            report = functools.partial(jax.debug.callback, _report(options.progress))
            due = loop.k % STEPS_PER_REPORT < steps
            lax.cond(due, report, lambda *_: None, loop.k, _scaled(loop.norm, exponent))
        return loop

    def restart(state):
        """The true residual decides; where it says go on, the method runs until its recursion claims to be done."""
        loop, before, _ = state
        x = loop.work.x
        r = b - A(x)
        now = norm(r)
        code = _verdict(now, before, tolerance, loop, limits.maxiter)
        norms = _record(loop.norms, loop.k, jnp.where(jnp.isnan(before), now, loop.norm))
        loop = Loop(method.start(A, M, x, r), loop.k, now, code, norms)
        return lax.while_loop(lambda s: _goes_on(s, tolerance, limits.maxiter), trip, loop), now, code

    norms = jnp.full(options.history_length, jnp.nan, b_norm.dtype)
    running = jnp.int32(RUNNING)
    work = method.start(lambda v: v, lambda r: r, x0, b)  # only x counts: the first restart makes the rest
    first = Loop(work, jnp.int32(0), jnp.full_like(b_norm, jnp.inf), running, norms)
    state = (first, jnp.full_like(b_norm, jnp.nan), running)
    loop, true_norm, code = lax.while_loop(lambda s: s[2] == RUNNING, restart, state)
    x = _scaled(loop.work.x, exponent)
    finite = jnp.isfinite(x)
    code = jnp.where(jnp.all(finite), code, Status.NON_FINITE).astype(jnp.int32)
    end = End(loop.k, _scaled(true_norm, exponent), code, _scaled(loop.norms, exponent))
    return jnp.where(finite, x, 0), end


def _advance(method, options, A, M, loop: Loop, tolerance, maxiter, exponent) -> Loop:
    """One step, or none where the loop is over.

    Whether it moves hangs on numbers known before the vectors change, so that the selects join the updates and read
    nothing more.
    """
    active = _goes_on(loop, tolerance, maxiter)
    work, new_norm, code = method.step(A, M, loop.work)
    moves = active & (code == RUNNING)
    largest = 1 / jnp.finfo(new_norm.dtype).eps  # of a right-hand side of about 1
    blown_up = jnp.where(jnp.isfinite(new_norm), Status.DIVERGED, Status.NON_FINITE)
    code = jnp.where(moves & ~(new_norm <= largest), blown_up, code)
    work = jax.tree.map(lambda new, old: jnp.where(moves, new, old), work, loop.work)
    k = loop.k + moves.astype(jnp.int32)
    if options.callback is not None:
        jax.debug.callback(_if_moved(options.callback), moves, _scaled(work.x, exponent), ordered=True)
    norms = _record(loop.norms, jnp.where(moves, k, -1), new_norm)
    return Loop(
        work, k, jnp.where(moves, new_norm, loop.norm), jnp.where(active, code, loop.code).astype(jnp.int32), norms
    )


def _goes_on(loop: Loop, tolerance, maxiter) -> Array:
    return (loop.code == RUNNING) & (loop.norm > tolerance) & (loop.k < maxiter)


def _verdict(now, before, tolerance, loop: Loop, maxiter) -> Array:
    """RUNNING or how it ended, by the true residual norm `now`, the one before it, and what the method said."""
    helped = jnp.isnan(before) | (now < 0.5 * before)
    ends = [
        (~jnp.isfinite(now), Status.NON_FINITE),
        (now <= tolerance, Status.CONVERGED),
        (loop.code != RUNNING, loop.code),
        (loop.k >= maxiter, Status.MAXITER),
        (~helped, Status.STAGNATION),
    ]
    return jnp.select([c for c, _ in ends], [jnp.int32(s) for _, s in ends], jnp.int32(RUNNING)).astype(jnp.int32)


def _record(norms: Array, k: Array, value: Array) -> Array:
    """norms[k] = value, nothing for k < 0 or past the end."""
    if norms.shape[0] == 0:
        return norms
    return norms.at[jnp.where(k < 0, norms.shape[0], k)].set(value, mode="drop")


def _report(progress: Callable[[int, float], None]) -> Callable[..., None]:
    return lambda k, value: progress(int(k), float(value))


def _if_moved(callback: Callable[[Array], None]) -> Callable[..., None]:
    return lambda moved, x: callback(x) if moved else None


# --------------------------------------------------------------------------------------------------------- numbers


def dot(x: Array, y: Array) -> Array:
    """Re xᴴ·y."""
    return jnp.vdot(x, y).real


def norm(x: Array) -> Array:
    return jnp.sqrt(dot(x, x))


def _exponent(*vectors: Array) -> Array:
    """e with 2ᵉ about the largest number in `vectors`, as far as the dtype can scale; 0 for zeros and infinities."""
    largest = jnp.max(jnp.abs(jnp.stack(vectors)))
    limit = jnp.finfo(vectors[0].dtype).maxexp - 8
    _, e = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 0))
    return jnp.clip(e, -limit, limit).astype(jnp.int32)


def _scaled(a: Array, exponent: Array) -> Array:
    return a * jnp.ldexp(jnp.ones((), jnp.finfo(a.dtype).dtype), exponent)
