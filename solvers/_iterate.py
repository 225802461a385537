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
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxsparse_fmt._types import floating_dtype
from jaxsparse_fmt.basis import IDENTITY
from solvers.solution import Solution, Status

Array = jax.Array
Map = Callable[[Array], Array]

RUNNING = -1
# Steps between two looks at the stopping rule. On a GPU a look waits for a copy to the host, 10-20 µs.
STEPS_PER_CHECK = {"cpu": 1}
STEPS_PER_CHECK_DEFAULT = 10
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
    b = _vector(b, "b")
    n = b.shape[0]
    if n == 0:
        raise ValueError("b is empty; a system needs at least one unknown")
    x0 = None if x0 is None else _vector(x0, "x0")
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {x0.shape}; it must have b's, {b.shape}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, Tracer) and not float(value) >= 0:
            raise ValueError(f"{name} must be a number from 0 up; got {value}")
    if maxiter is not None and not isinstance(maxiter, Tracer) and int(maxiter) < 0:
        raise ValueError(f"maxiter must be at least 0; got {maxiter}")
    if check_every is not None and check_every < 1:
        raise ValueError(f"check_every must be at least 1 step; got {check_every}")
    maxiter = min(10 * n, 2**31 - 1) if maxiter is None else maxiter
    options = Options(
        _history_length(history, maxiter),
        check_every or STEPS_PER_CHECK.get(jax.default_backend(), STEPS_PER_CHECK_DEFAULT),
        callback,
        progress,
    )
    A, M = _operator(A, n, "A"), None if M is None else _operator(M, n, "M")
    limits = Limits(jnp.asarray(rtol), jnp.asarray(atol), jnp.asarray(maxiter, jnp.int32))
    return _solve(method, options, A, M, b, x0, limits)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _solve(method: Method, options: Options, A: Any, M: Any, b: Array, x0: Array | None, limits: Limits) -> Solution:
    basis = getattr(A, "basis", IDENTITY)
    inner = getattr(A, "in_basis", A)
    apply_M = (lambda r: r) if M is None else (lambda r: basis.enter(_apply(M, basis.leave(r))))
    b_inner = basis.enter(b)
    dtype = jax.eval_shape(lambda v: _apply(inner, v), b_inner).dtype
    dtype = jnp.result_type(dtype, b.dtype, *(() if x0 is None else (x0.dtype,)))
    b_inner = b_inner.astype(dtype)
    start = jnp.zeros_like(b_inner) if x0 is None else basis.enter(x0).astype(dtype)
    matvec = lambda v: _apply(inner, v).astype(dtype)  # noqa: E731
    precondition = lambda r: apply_M(r).astype(dtype)  # noqa: E731
    x, end = _differentiable(method, options, matvec, precondition, b_inner, start, limits)
    return Solution(basis.leave(x), end.code, end.k, end.norm, end.norms if options.history_length else None)


def _history_length(history: bool | int, maxiter: Any) -> int:
    if history is False:
        return 0
    if history is not True:
        return int(history) + 1
    return (MAX_HISTORY if isinstance(maxiter, Tracer) else min(int(maxiter), MAX_HISTORY)) + 1


def _vector(a: Any, name: str) -> Array:
    a = jnp.asarray(a)
    if a.ndim != 1:
        raise ValueError(f"{name} must be one vector of shape (n,); got {a.shape}. For several, map with jax.vmap")
    return a if jnp.issubdtype(a.dtype, jnp.inexact) else a.astype(floating_dtype(a.dtype, name))


def _operator(A: Any, n: int, name: str) -> Any:
    """A as a pytree: matrices as they are, functions wrapped so that jit knows them by identity.

    Raises:
      TypeError: neither a function nor something with a shape and `@`. ValueError: not square, or not of b's size.
    """
    shape = getattr(A, "shape", None)
    if shape is None:
        if not callable(A):
            raise TypeError(
                f"{name} must be a matrix with a shape and @, or a function v -> {name}·v; got {type(A).__name__}"
            )
        is_pytree = not jax.tree_util.all_leaves([A])
        return A if is_pytree else jax.tree_util.Partial(A)
    if tuple(shape) != (n, n):
        raise ValueError(f"{name} has shape {tuple(shape)}; a system with b of length {n} needs ({n}, {n})")
    if type(A).__module__.partition(".")[0] == "scipy":
        raise TypeError(f"{name} is a SciPy matrix; convert it once with jaxsparse_fmt.from_scipy(...)")
    return jnp.asarray(A) if isinstance(A, np.ndarray) else A


def _apply(A: Any, v: Array) -> Array:
    return A @ v if hasattr(A, "__matmul__") else A(v)


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
    matvec, consts = _hoisted(matvec, b)
    precondition, M_consts = _hoisted(precondition, b)
    frozen = lax.stop_gradient((M_consts, x0, limits))
    options_of_tangent = options._replace(history_length=0, callback=None, progress=None)

    @jax.custom_jvp
    def run(consts, b, frozen):
        M_consts, x0, limits = frozen
        A, M = (lambda v: matvec(v, *consts)), (lambda r: precondition(r, *M_consts))
        return _run(method, options, A, M, b, x0, limits)

    @run.defjvp
    def tangent(primals, tangents):
        (consts, b, frozen), (d_consts, db, _) = primals, tangents
        M_consts, _, limits = frozen
        x, end = run(consts, b, frozen)
        _, dA_x = jax.jvp(lambda *c: matvec(x, *c), tuple(consts), tuple(d_consts))
        A, M = (lambda v: matvec(v, *consts)), (lambda r: precondition(r, *M_consts))

        def from_zero(A, rhs):
            return _run(
                method, options_of_tangent, A, M, rhs, jnp.zeros_like(rhs), limits._replace(atol=0.0 * limits.atol)
            )[0]

        def transposed_from_zero(_, c):
            # For a Hermitian matrix Aᵀ is its conjugate, so Aᵀ·λ = c is A·λ̄ = c̄: solved with the fast product. The
            # system differentiated further is Aᵀ's, since a single entry of A may be perturbed without its mirror
            # image.
            return jnp.conj(from_zero(A, jnp.conj(c)))

        dx = lax.custom_linear_solve(A, db - dA_x, from_zero, transposed_from_zero)
        return (x, end), (dx, jax.tree.map(_no_tangent, end))

    return run(consts, b, frozen)


def _hoisted(f: Map, example: Array) -> tuple[Callable[..., Array], list[Array]]:
    """f as a function of its closed-over arrays too, all of them; `jax.closure_convert` leaves integers behind."""
    closed = jax.make_jaxpr(f)(example)
    return lambda v, *consts: jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(v)[0], closed.consts


def _no_tangent(a: Array) -> Any:
    return jnp.zeros_like(a) if jnp.issubdtype(a.dtype, jnp.inexact) else np.zeros(a.shape, jax.dtypes.float0)


# --------------------------------------------------------------------------------------------------------- the loop


def _run(method, options, A, M, b, x0, limits) -> tuple[Array, End]:
    """Solves A·x = b on a b scaled to about 1 by a power of two: exact, and no square under- or overflows."""
    exponent = _exponent(b)
    b, x0 = _scaled(b, -exponent), _scaled(x0, -exponent)
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
    end = End(loop.k, _scaled(true_norm, exponent), code, _scaled(loop.norms, exponent))
    return _scaled(loop.work.x, exponent), end


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


def _exponent(b: Array) -> Array:
    """e with max|b| ≈ 2ᵉ, within what the dtype can scale by; 0 for a zero or non-finite b."""
    largest = jnp.max(jnp.abs(b))
    limit = jnp.finfo(b.dtype).maxexp - 8
    _, e = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 0))
    return jnp.clip(e, -limit, limit).astype(jnp.int32)


def _scaled(a: Array, exponent: Array) -> Array:
    return a * jnp.ldexp(jnp.ones((), jnp.finfo(a.dtype).dtype), exponent)
