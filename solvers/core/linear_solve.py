"""A solve of A·x = b as one primitive over its operators, which are pytrees: the derivative of a solve is a solve.

From A·x = b follows A·dx = db − dA·x: one more system with the same matrix, whose transpose is a solve with Aᵀ. So the
primitive has three kinds: the solution, which a user calls, and the products of A⁻¹ and of A⁻ᵀ with a right-hand side,
which start from zero and check their residual. Derivatives of any order, and transposes, consist of these three.
"""

import contextvars
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, within
from solvers.core import arguments, iterate, nullspaces, opaque
from solvers.core.iterate import Method, Options, System
from solvers.core.operators import Function, UserFunction
from solvers.core.space import Map, Space, length, outside, product, transposed
from solvers.core.stopping import FULL, RESTART, RUNNING, End, Limits, Now, is_failure, status_of
from solvers.core.vectors import ratio, scaled
from solvers.solution import Solution, Status

TRUNCATED = (Status.CONVERGED, Status.MAXITER, Status.STAGNATION, Status.ROUNDED)


@dataclasses.dataclass(frozen=True)
class Adjoint:
    """Options for the linear systems of a derivative: A·dx = db − dA·x forward, Aᵀ·λ = x̄ backward.

    They start from zero, with the method and M of the solve. A derivative is NaN if its system neither meets the
    tolerance nor comes as close to it as rounding allows, or if the solve itself failed.

    Attributes:
      rtol: relative to the system's own right-hand side; None takes that of the solve. 0: down to rounding.
      maxiter: most iterations; None takes 10·n, or the maxiter of the solve if that is larger.
      truncated: accept the results of a solve, and of a derivative's system, that ended by maxiter or stagnation. The
        derivative takes the x returned for the solution; adjoint="unrolled" differentiates the steps instead.
      report: called as report(status, iterations, relative_residual) when such a system ends: a `Status`, an int and a
        float; arrays of [k] for k systems at once. If the solve itself failed, the status is that of the solve.

    Raises:
      ValueError, TypeError: at construction, for an invalid number or function.
    """

    rtol: float | None = None
    maxiter: int | None = None
    truncated: bool = False
    report: Callable[[Any, Any, Any], None] | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None:
            object.__setattr__(self, "rtol", float(arguments.nonnegative(self.rtol, "rtol")))
        if self.maxiter is not None:
            object.__setattr__(self, "maxiter", arguments.int_at_least(self.maxiter, "maxiter", 0))
        if not isinstance(self.truncated, bool):
            raise TypeError(f"truncated must be True or False; got {self.truncated!r}")
        arguments.function_or_none(self.report, "report")


# Whether a preconditioner is being traced; the solves inside it are `Rough`.
in_preconditioner = contextvars.ContextVar("in_preconditioner", default=False)


@dataclasses.dataclass(frozen=True)
class Rough(Adjoint):
    """The adjoint of a solve inside a preconditioner. Its transpose is not checked, since M is itself approximate."""


def as_preconditioner(M: UserFunction) -> UserFunction:
    """M, inside which solves are `Rough`."""

    def applied(r: jax.Array) -> Any:
        token = in_preconditioner.set(True)
        try:
            return M.apply(r)
        finally:
            in_preconditioner.reset(token)

    return dataclasses.replace(M, apply=applied)


class Solve(opaque.Operation):
    """A solve as an operation of the primitive, with its static arguments.

    The kind "solution" yields x and how the solve ended, of a `System`; the other two kinds yield x alone.

    x is linear in b, and differentiable to any order in b and in whatever A depends on. x does not depend on M, x0 and
    the other arguments, and has no derivative with respect to them. The residual norm depends on all of them but is not
    a differentiable function: its derivative is NaN. So are the derivatives of a failed x: by A and b, or, if neither
    moves, by M and x0, whose cotangents cost the transpose of what made them.
    """

    method: Method
    options: Options
    adjoint: Any  # an `Adjoint`, or a number of unrolled steps
    kind: Literal["solution", "inverse", "transposed"] = "solution"

    def compute(self, system: System) -> Any:
        if system.basis.devices == 1 and self.options.callback is None:
            system = system._replace(basis=IDENTITY)  # the loop reads none of its arrays
        # XLA would take seconds to fold the norm of a constant b, one that a closure holds.
        system = system._replace(b=lax.optimization_barrier(system.b))
        if self.kind == "solution":
            x, end = _run(self.method, self.options, system, False)
            return x, end._replace(Ax_norm=None, b_norm=None)
        return self._checked(system._replace(limits=system.limits.of_derivative(system.b.dtype)))

    def jvp(self, system: System, tangents: System) -> tuple[Any, Any]:
        out, db = self(system), tangents.b
        x, end = out if self.kind == "solution" else (out, None)
        failed, inverse, dx = system.failed, self, None
        if end is not None:
            inverse, failed = dataclasses.replace(self, kind="inverse"), has_failed(self.adjoint, end.code)
            x = opaque.witness(failed, x)
        system = system._replace(x0=None, failed=failed)
        dA_x = opaque.jvp(lambda A: self._product(A, x)(x), system.A, tangents.A)
        if dA_x is not None:  # XLA fuses the sign with what follows
            dx = -inverse(system._replace(b=dA_x if db is None else dA_x - db))
        elif db is not None:
            dx = inverse(system._replace(b=db))
        elif end is not None:
            dx = opaque.besides(failed, x, (tangents.M, tangents.x0))
        if end is None:
            return out, dx
        return out, (dx, opaque.undefined(end, tangents._replace(limits=None)))

    def columns(self, system: System, dims: System) -> Any:
        """Under vmap over b and x0 alone: one solve of several columns, which share every product."""
        b, x0, others = system.b, system.x0, jax.tree.leaves(dims._replace(b=None, x0=None, failed=None))
        called = self.options.callback, self.options.progress, self.adjoint.report
        if b.ndim != 2 or dims.b is None or others or any(f is not None for f in called):
            return None  # b already has columns, or matrices differ too, or a user's function is called for each system
        b = jnp.moveaxis(b, dims.b, 1)
        if x0 is not None:
            x0 = jnp.broadcast_to(x0[:, None], b.shape) if dims.x0 is None else jnp.moveaxis(x0, dims.x0, 1)
        return self(system._replace(b=b, x0=x0))

    def linear(self) -> int:
        return self.inputs(tuple(range(self.tree.num_leaves))).b

    def transpose(self, system: System, cotangent: Any) -> Any:
        kind = "inverse" if self.kind == "transposed" else "transposed"
        return dataclasses.replace(self, kind=kind)(system._replace(b=cotangent, x0=None))

    def _checked(self, system: System) -> Array:
        """A⁻¹·b, or A⁻ᵀ·b; NaN if that system is not solved, or b is not 0 and belongs to a solve that failed."""
        c, is_transposed = system.b, self.kind == "transposed"
        failed = system.failed
        c, system = opaque.unless(failed, c), system._replace(failed=None)
        # For a Hermitian A, Aᵀ is the conjugate of A, so the fast product solves Aᵀ·x = c as A·x̄ = c̄. A may not be
        # Hermitian, and a derivative may change a single entry without its mirror image.
        mirrored = is_transposed and self.method.self_adjoint
        options = self.options._replace(history_length=0, callback=None, progress=None)
        system = system._replace(b=jnp.conj(c) if mirrored else c, x0=None)
        x, end = _run(self.method, options, system, is_transposed and not mirrored)
        if not mirrored:
            return _or_nan(self.adjoint, x, end, None, c, failed)
        x, space = jnp.conj(x), outside(system.basis)
        r = c - self._product(system.A, c)(x)
        unit = space.unit(r)
        end, limit = end._replace(norm=unit * space.norm(r / unit)), system.limits.rtol * end.b_norm
        return _or_nan(self.adjoint, x, end, limit, c, failed)

    def _product(self, A: Any, like: Array) -> Map:
        return transposed(product(A, like.dtype), like) if self.kind == "transposed" else product(A, like.dtype)


# JAX traces and lowers it once for a solve and its derivatives.
@functools.partial(jax.jit, static_argnums=(0, 1, 3))
def _run(method: Method, options: Options, system: System, is_transposed: bool) -> tuple[Array, End]:
    """The loop, inside one shard_map if A and M can be applied there."""
    if method.whole is not None:
        return method.whole(system, is_transposed)

    def run(space: Space, system: System) -> tuple[Array, End]:
        like, sums = system.b, method.sums and method.sums(system.M is None)
        narrow = like if options.dtype is None else mesh_axes.shaped_like(like, options.dtype)
        A, M = product(system.A, like.dtype, sums), None if system.M is None else product(system.M, narrow.dtype)
        inner = None if system.inner is None else product(system.inner, narrow.dtype, sums)
        if is_transposed:
            A, inner = transposed(A, like), None if inner is None else transposed(inner, narrow)
            M = None if M is None else transposed(M, narrow)
        return iterate.run(space, method, options, system._replace(A=A, M=M, inner=inner))

    basis: Any = system.basis
    space, specs = outside(basis), _in_pieces(options, basis, system)
    if specs is None:
        return run(space, system)
    in_pieces = functools.partial(run, dataclasses.replace(space, in_pieces=True))
    return basis.run(in_pieces, (system._replace(basis=IDENTITY),), (specs,), (specs.b, PartitionSpec()))


def _in_pieces(options: Options, basis: Any, system: System) -> System | None:
    """How the system lies over the devices of its basis, if the loop can run inside shard_map.

    It cannot if A or M is a function of whole vectors, if columns lie over another mesh axis, along which some devices
    would step on while others have ended, or with `progress`, which every device would call.
    """
    if basis.devices == 1 or options.progress is not None:
        return None
    piece, axis = basis.over.piece_of(system.b), basis.over.axis
    same: Any = PartitionSpec()
    A, M, inner = (same if a is None else a._partition(axis) for a in (system.A, system.M, system.inner))
    if None in (A, M, inner) or piece != PartitionSpec(axis):
        return None
    return System(A, M, piece, None if system.x0 is None else piece, same, inner)


def hermitian_solve(matvec: Map, solve: Map, rhs: Array) -> Array:
    """The z with matvec(z) = rhs by `solve`, differentiable; the transpose of a Hermitian system is its conjugate."""
    return lax.custom_linear_solve(
        matvec, rhs, lambda _, rhs: solve(rhs), lambda _, rhs: jnp.conj(solve(jnp.conj(rhs)))
    )


def has_failed(adjoint: Adjoint, code: Array) -> Any:
    """The code of a solve that has no derivatives, else 0; None: inside a preconditioner, where any x serves."""
    if isinstance(adjoint, Rough):
        return None
    failed = ~jnp.isin(code, jnp.array(TRUNCATED)) if adjoint.truncated else is_failure(code)
    return jnp.where(failed, code, 0)


def _or_nan(adjoint: Adjoint, x: Array, end: End, limit: Array | None, c: Array, of_solve: Any) -> Array:
    """x if the solve succeeded, else NaN unless c is 0; inside a preconditioner always x.

    Args:
      limit: the tolerance for `end.norm`, to which rounding adds; None: the loop itself judged this system.
      of_solve: `System.failed`, by which c is NaN.
    """
    code = end.code
    if limit is not None:
        is_other = end.norm > jnp.maximum(limit, 100 * jnp.finfo(c.dtype).eps * end.Ax_norm)
        code = jnp.where(is_other & ~is_failure(code), jnp.int32(Status.NOT_SYMMETRIC), code)
    if (failed := has_failed(adjoint, code)) is None:
        return x
    told = code
    if adjoint.report is not None and of_solve is not None:
        told = jnp.where((of_solve > 0) & (code == Status.NON_FINITE), of_solve, code)
    report(adjoint.report, end, told, c)
    is_zero = jnp.all(c == 0, axis=0) if end.b_norm is None else end.b_norm == 0  # as of a failure that the loss masks
    return jnp.where(is_zero, 0, jnp.where(failed, jnp.nan, x))


def report(to: Any, end: Any, code: Array, rhs: Array) -> None:
    """Calls `Adjoint.report`, if any: with Python numbers for one system, with arrays [k] for several."""
    if to is None:
        return

    def called(code: Any, iterations: Any, residual: Any) -> None:
        one = np.ndim(code) == 0
        to(*((Status(int(code)), int(iterations), float(residual)) if one else (code, iterations, residual)))

    jax.debug.callback(called, code, end.k, ratio(end.norm, length(rhs)))


def in_basis(
    solve: Solve, maps: tuple[Any, ...], basis: Basis, b: Array, x0: Any, limits: Limits, spaces: Any
) -> Solution:
    """The solution of what `by_method` has checked, in the user's order; the compiled body of every A·x = b."""
    options, (A, M), inner, narrow = solve.options, maps, None, solve.options.dtype or b.dtype
    b, x0 = basis.enter(b), None if x0 is None else basis.enter(x0)
    if options.values is not None:
        values = options.dtype if options.values == jnp.float32 else options.values
        inner = A.astype(values)
        M = M if isinstance(M, Function) else jax.tree.map(functools.partial(_narrowed, dtype=options.dtype), M)
    M, singular, rhs = None if M is None else within(M, basis), A, b
    if spaces is not None:
        b, x0 = nullspaces.projected(spaces.L, b), None if x0 is None else nullspaces.projected(spaces.Z, x0)
        A, inner = (nullspaces.deflated(a, spaces, basis.over, dtype) for a, dtype in ((A, b.dtype), (inner, narrow)))
        M = nullspaces.between(M, spaces, basis.over, narrow, solve.method.least_squares)
    system = System(A, M, b, x0, lax.stop_gradient(limits), inner, basis)
    if isinstance(solve.adjoint, int):
        x, end = _unrolled(outside(basis), solve.method, options, solve.adjoint, system)
    else:
        x, end = solve(system)  # the primitive: see `Solve.compute`
    norms = end.norms if options.history_length else None
    sol = Solution(x, end.code, end.k, end.norm, norms)
    if spaces is not None:
        sol = nullspaces.shortest(sol, singular, rhs, spaces, basis, system.limits)
    return dataclasses.replace(basis._shared(dataclasses.replace(sol, x=None)), x=basis.leave(sol.x))


def _narrowed(a: Any, dtype: Any) -> Any:
    """An array of M in a narrow type, if it has floats or complex numbers."""
    real = jnp.finfo(dtype).dtype
    return a.astype(dtype if jnp.iscomplexobj(a) else real) if jnp.issubdtype(a.dtype, jnp.inexact) else a


def _unrolled(space: Space, method: Method, options: Options, steps: int, system: System) -> tuple[Array, End]:
    """x [n] or [n, k] after at most `steps` steps, and how it ended; steps after the tolerance is met change nothing.

    Ordinary operations, which JAX differentiates: unlike a solution, x has derivatives with respect to M and x0, and so
    has its residual norm, which training an M needs. Reverse mode keeps the vectors of every step. The method starts
    again only if its own codes require that; the true residual is computed once, at the end.
    """
    b, x0, limits = system.b, system.x0, system.limits
    A = product(system.A, b.dtype)
    if system.M is not None:
        M = product(system.M, b.dtype)
    else:
        M = iterate.by_norm(
            None if method.sums else iterate.inverse_norm(lax.stop_gradient(space.largest(A(space.unit_noise(b)))))
        )
    r, x = b, jnp.zeros_like(b)
    if x0 is not None:
        r, x = b - A(x0), x0
    of_b = lax.stop_gradient(jnp.maximum(space.exponent(b), space.exponent(r)))
    b, r, x = (scaled(v, -of_b) for v in (b, r, x))
    b_norm, first = space.norm(b), _norm(space, r)
    tolerance = jnp.maximum(limits.rtol * b_norm, scaled(limits.atol.astype(b_norm.dtype), -of_b))
    # A recursion that fell further is rounding, and a residual of zeros has no derivative.
    goal = lax.stop_gradient(jnp.maximum(tolerance, jnp.finfo(b.dtype).eps / 16 * first)).astype(first.dtype)
    r = jnp.where(first <= goal, space.probe(b), r)  # a system that takes no step needs any residual but zero
    initial = method.start(space, A, M, r, space.dot(r, r), None)

    def step(state, _):
        x, work, norm, code, k = state
        now = Now(k, norm, code, goal, steps)
        active = now.active
        # A step that is not taken is computed all the same; its derivative is multiplied by zero and must be finite.
        safe = iterate.chosen(active, work, initial)
        new, now = method.step(space, A, M, safe, now)
        moves, restarts = now.k > k, (now.code == FULL) | (now.code == RESTART)
        now = now._replace(norm=jnp.where(moves, now.norm, norm))  # else it may be that of `initial`
        work = iterate.chosen(moves, new, work)
        anew = active & restarts & (now.norm > goal)
        x, work = lax.cond(jnp.any(anew), restarted, lambda x, work, _: (x, work), x, work, anew)
        code = jnp.where(restarts, jnp.int32(RUNNING), now.code)
        return (x, work, now.norm, code, now.k), jnp.where(moves, now.norm, -1)

    def restarted(x, work, anew):
        closer = x + jnp.where(anew, method.iterate(M, work), 0)
        r = b - A(closer)
        fresh = method.start(space, A, M, r, space.dot(r, r), None)
        return closer, iterate.chosen(anew, fresh, work)

    code, k = jnp.full(first.shape, RUNNING, jnp.int32), jnp.zeros(first.shape, jnp.int32)
    (x, work, _, code, k), norms = lax.scan(step, (x, initial, first, code, k), length=steps)
    x = x + method.iterate(M, work)
    norm = _norm(space, b - A(x))
    code = status_of(
        (~jnp.isfinite(norm), Status.NON_FINITE),
        (norm <= tolerance, Status.CONVERGED),
        (code != RUNNING, code),
        (k >= steps, Status.MAXITER),
        otherwise=Status.STAGNATION,
    )
    norms = jnp.concatenate([first[None], norms])[: options.history_length]
    norms = jnp.where(norms < 0, norms, scaled(norms, of_b))
    return scaled(x, of_b), End(k, scaled(norm, of_b), code, norms)


def _norm(space: Space, r: Array) -> Array:
    """‖r‖₂, with derivative 0, not NaN, if it is 0."""
    squared = space.dot(r, r)
    return jnp.where(squared == 0, 0, jnp.sqrt(jnp.where(squared == 0, 1, squared)))
