"""Solves of many systems with one known pattern and traced values, on the device: what `direct` becomes under vmap.

The host analyses the pattern once: an order of elimination that fills little, and the pattern of L and U (`Pattern`).
The device factors all systems at once, without pivoting (`core/lanes.py`); or, where a diagonal entry is missing and n
is small, by dense LU. The true residual, refined, judges each system. One that misses its tolerance is solved again
alone, by dense LU with pivoting, or by SuperLU where n is larger; so what elimination without pivoting cannot do costs
time, and no status.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import lu_factor, lu_solve

from jaxsparse_fmt._tracing import device_of
from jaxsparse_fmt.core import lanes, mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis, Reordered
from jaxsparse_fmt.formats import memory
from solvers import banded
from solvers.core import arguments
from solvers.core.iterate import System
from solvers.core.space import Map, product, transposed
from solvers.core.stopping import End, is_failure, is_rounding, status_of
from solvers.core.vectors import exponent_of, matmul, power_of_two
from solvers.patterns import Pattern
from solvers.solution import Status

ALONE = 2**17  # updates of a single system that cost less than a call of the host, half a millisecond
DENSE = 512  # unknowns, up to which a system that needs pivots is factored as a dense one
ENTRIES = 2**24  # of dense matrices that are factored at once
STEPS = 10  # of refinement, at most
SHRINKS = 1 / 16  # of x: a later correction that is longer shows a condition number near 1/eps

Solver = Callable[[System, bool], tuple[Array, End]]


def serves(pattern: Pattern) -> bool:
    """Whether there is a way on the device."""
    return pattern.n <= DENSE or pattern.plan is not None


def on_device(pattern: Pattern, alone: Solver) -> Solver:
    """`alone` for one system whose values are traced, and a solve on the device for a batch of them under vmap."""

    def solver(sizes: tuple[int, ...], is_mapped: Any, is_transposed: bool) -> Callable[[System], tuple[Array, End]]:
        """The solve of a system if `sizes` is (), or of (k,): k systems, of which the leaves that are mapped differ."""

        @custom_vmap
        def solved(system: System) -> tuple[Array, End]:
            if sizes:
                axes = jax.tree.map(lambda mapped: 0 if mapped else None, is_mapped)
                return _solved(pattern, system, axes, is_transposed, alone)
            plan = pattern.plan
            # Else for one system a call of the host, which pivots, takes less time.
            if plan is None or len(plan.place) + len(plan.updates[0]) > ALONE:
                return alone(system, is_transposed)
            with_axis, every = jax.tree.map(lambda a: a[None], system), jax.tree.map(lambda _: True, system)
            return jax.tree.map(lambda a: a[0], solver((1,), every, is_transposed)(with_axis))

        @solved.def_vmap
        def batch(count: int, is_outer: Any, system: System) -> Any:
            """A batch of batches is one batch: else XLA would take both ways of every `lax.cond`."""
            size = sizes[0] if sizes else 1

            def merged(either: bool, inner: bool, outer: bool, a: Array) -> Array:
                if not either or not sizes:
                    return a
                a = a if outer else a[None]
                a = a if inner else a[:, None]
                return jnp.broadcast_to(a, (count, size, *a.shape[2:])).reshape(count * size, *a.shape[2:])

            is_either = jax.tree.map(operator.or_, is_mapped, is_outer[0])
            given = jax.tree.map(merged, is_either, is_mapped, is_outer[0], system)
            out = solver((count * size,), is_either, is_transposed)(given)
            out = jax.tree.map(lambda a: a.reshape(count, *sizes, *a.shape[1:]), out)
            return out, jax.tree.map(lambda _: True, out)

        return solved

    return lambda system, is_transposed: solver((), jax.tree.map(lambda _: False, system), is_transposed)(system)


def inverse_of(system: System) -> tuple[Any, Basis]:
    """The inverse by which a system is solved, and the basis of the loop in whose order it is."""
    M = system.M
    return (M.A, M.outer) if isinstance(M, Reordered) else (M, IDENTITY)


def _plain(system: System) -> System:
    """The system in the order of A's rows, with b [k, n], and with the values [nnz] of A's entries in place of A."""
    M, basis = inverse_of(system)
    b = basis.leave(system.b)
    return System(M.factors.values, None, b.reshape(b.shape[0], -1).T, None, system.limits)


def _product(system: System, is_transposed: bool, v: Array) -> Array:
    """A·v, or Aᵀ·v, of [k, n] in the order of A's rows."""
    basis, like = inverse_of(system)[1], system.b
    A = product(system.A, like.dtype)
    A = transposed(A, like) if is_transposed else A
    return basis.leave(A(basis.enter(v.T.reshape(like.shape)))).reshape(v.T.shape).T


def _solved(pattern: Pattern, system: System, axes: Any, is_transposed: bool, alone: Solver) -> tuple[Array, End]:
    """The solutions of a batch, by the first axes of the leaves whose `axes` are 0."""
    plan, parts = pattern.plan, jax.vmap(_plain, (axes,))(system)
    way = inverse_of(system)[0].factors.is_transposed != is_transposed

    def A(v: Array) -> Array:
        return jax.vmap(lambda system, v: _product(system, is_transposed, v), (axes, 0))(system, v)

    careful = None
    is_tridiagonal = bool(np.all(np.abs(pattern.row - pattern.col) <= 1))
    if is_tridiagonal and device_of().platform != "cpu":
        inverse, careful = _tridiagonal(pattern, parts.A, way)
    elif plan is None:
        inverse = _dense(pattern, parts.A, way)
    else:
        bytes_of_all = len(parts.b) * plan.places * parts.A.dtype.itemsize
        what, cure = f"the factors of {len(parts.b)} systems", "solve fewer at a time, by jax.lax.map(..., batch_size=)"
        arguments.check_free_memory(bytes_of_all, what, cure, memory.free)
        F = lanes.factored(plan, parts.A)
        inverse = functools.partial(lanes.solved, plan, F, is_transposed=way)
    leaves, tree = jax.tree.flatten(system)
    mapped = [axis is not None for axis in tree.flatten_up_to(axes)]

    def shaped(system: System, x: Array, end: End) -> tuple[Array, End]:
        x = inverse_of(system)[1].enter(x.T.reshape(system.b.shape))
        return x, jax.tree.map(lambda a: a.reshape(system.b.shape[1:]), end)

    def pivoted(given: Any) -> tuple[Array, End]:
        failed, moving, *found = given
        rest = iter(moving)
        one = jax.tree.unflatten(tree, [next(rest) if m else a for a, m in zip(leaves, mapped, strict=True)])
        by = functools.partial(_by_dense, pattern) if pattern.n <= DENSE else alone
        return lax.cond(failed, lambda: by(one, is_transposed), lambda: tuple(found))

    def by_pivots(x: Array, end: End) -> tuple[Array, End]:
        failed = jnp.any(is_failure(end.code), axis=1)
        x, end = met(system, x, end)
        moving = [a for a, m in zip(leaves, mapped, strict=True) if m]
        return lax.cond(jnp.any(failed), lambda: lax.map(pivoted, (failed, moving, x, end)), lambda: (x, end))

    met = jax.vmap(shaped, (axes, 0, 0))
    return _refined(A, inverse, parts, careful, functools.partial(met, system), by_pivots)


def _refined(
    A: Map,
    inverse: Map,
    parts: System,
    careful: Map | None = None,
    met: Callable[[Array, End], Any] | None = None,
    missed: Callable[[Array, End], Any] = lambda *found: found,
) -> Any:
    """missed(x, end): x [batch, k, n] ← x + M·(b − A·x) from 0, until each residual meets its tolerance or stays.

    A success is judged by the true residual of x. The code of a failure is MAXITER, STAGNATION, OUT_OF_RANGE or
    NON_FINITE. If `met` is given: met(x, end) where all residuals meet their tolerances after the first step. Where
    they stay above them, the `careful` inverse goes on from the best x.

    Args:
      parts: a batch of `_plain` systems.
    """

    def norm(v: Array) -> Array:
        return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(v)), axis=-1))

    unit = power_of_two(exponent_of(jnp.max(jnp.abs(parts.b), axis=-1)), parts.b.dtype)[..., None]
    b, limits = parts.b / unit, parts.limits
    inverse, careful = (inverse, careful) if b.size else (lambda r: r, None)  # a kernel may refuse to have no lanes
    b_norm = norm(b)
    least = jnp.maximum(limits.rtol[:, None] * b_norm, limits.atol[:, None] / unit[..., 0]).astype(b_norm.dtype)

    class State(NamedTuple):
        x: Array  # the best so far
        size: Array  # [batch, k], the norm of its residual
        y: Array  # the last
        r: Array
        norm: Array  # of r
        last: Array  # the one before
        k: Array
        diverges: Array

    def gains(s: State) -> Array:
        return (s.size > least) & (s.norm > least) & (s.norm <= s.last / 2)

    def goes_on(s: State) -> Array:
        return gains(s) & (s.k < jnp.minimum(limits.maxiter, STEPS)[:, None])

    def step(inverse: Map, s: State) -> State:
        now = goes_on(s)
        # Kept in memory: XLA would transpose it anew for each of its uses.
        z = lax.optimization_barrier(jnp.where(now[..., None], inverse(s.r), 0).astype(s.y.dtype))
        diverges = s.diverges | now & (s.k > 0) & (norm(z) > SHRINKS * norm(s.y))
        y = s.y + z
        r = jnp.where(now[..., None], b - A(y), s.r)
        new = jnp.where(now, norm(r), s.norm)
        better = now & (new < s.size)
        x, size = jnp.where(better[..., None], y, s.x), jnp.where(better, new, s.size)
        return State(x, size, y, r, new, jnp.where(now, s.norm, s.last), s.k + now, diverges)

    zero, no = jnp.zeros_like(b), jnp.zeros(b_norm.shape, bool)
    start = State(zero, b_norm, zero, b, b_norm, jnp.full_like(b_norm, jnp.inf), no.astype(jnp.int32), no)
    start = mesh_axes.varying(start, (parts, b))

    def refined(s: State) -> Any:
        s = lax.while_loop(lambda s: jnp.any(goes_on(s)), functools.partial(step, inverse), s)
        if careful is not None:  # costs some thirty times as much
            s = s._replace(y=s.x, r=b - A(s.x), norm=s.size, last=start.last, diverges=no)
            s = lax.while_loop(lambda s: jnp.any(goes_on(s)), functools.partial(step, careful), s)
        A_norm = jnp.max(jnp.abs(parts.A), axis=1, initial=0)[:, None]  # from below
        Ax_norm = A_norm * norm(s.x)
        is_rounded = is_rounding(jnp.int32(Status.STAGNATION), s.size, Ax_norm, b_norm, least) & ~s.diverges
        is_finite = jnp.all(jnp.isfinite(parts.A), axis=1)[:, None] & jnp.isfinite(b_norm)
        x = s.x * unit
        in_range = jnp.all(jnp.isfinite(x) & jnp.isfinite(s.y), axis=-1)
        code = status_of(
            (~is_finite, Status.NON_FINITE),
            (~in_range, Status.OUT_OF_RANGE),
            (s.size <= least, Status.CONVERGED),
            (is_rounded, Status.ROUNDED),
            (gains(s), Status.MAXITER),
            otherwise=Status.STAGNATION,
        )
        return missed(x, End(s.k, s.size * unit[..., 0], code, None, Ax_norm * unit[..., 0]))

    if met is None:
        return refined(start)
    # The first step without what further ones need: its vectors are z and x.
    now, z = goes_on(start), lax.optimization_barrier(inverse(b).astype(b.dtype))
    x, size = jnp.where(now[..., None], z * unit, 0), jnp.where(now, norm(b - A(z)), b_norm)
    code, nothing, k = jnp.zeros_like(start.k), jnp.zeros_like(size), now.astype(jnp.int32)
    # One condition, since a GPU waits for the host at each.
    is_met = jnp.all(size <= least) & jnp.all(jnp.isfinite(x))
    end = End(k, size * unit[..., 0], code, None, nothing)
    return lax.cond(is_met, lambda: met(x, end), lambda: refined(step(lambda _: z, start)))


def _matrix(pattern: Pattern, values: Array, way: bool) -> Array:
    """[batch, n, n], or their transposes if `way`."""
    row, col = (pattern.col, pattern.row) if way else (pattern.row, pattern.col)
    return lanes.gathered(values, row * pattern.n + col, pattern.n**2).reshape(-1, pattern.n, pattern.n)


def _tridiagonal(pattern: Pattern, values: Array, way: bool) -> tuple[Map, Map]:
    """r -> A⁻¹·r of a batch of tridiagonal matrices, by elimination without interchanges of rows, and with them."""
    (row, col), n = (pattern.col, pattern.row) if way else (pattern.row, pattern.col), pattern.n
    bands = lanes.gathered(values, (1 + row - col) * n + col, 3 * n).reshape(-1, 3, n)

    def with_interchanges(r: Array) -> Array:
        return banded.solved(bands[..., None, None], 1, 1, r.swapaxes(1, 2)[:, :, None])[:, :, 0].swapaxes(1, 2)

    return lambda r: banded.tridiagonal(bands, r.swapaxes(1, 2)).swapaxes(1, 2), with_interchanges


def _dense(pattern: Pattern, values: Array, way: bool) -> Map:
    """r -> A⁻¹·r of a batch, by dense LU with partial pivoting."""
    several = max(ENTRIES // pattern.n**2, 1)
    LU = lax.map(lambda a: lu_factor(_matrix(pattern, a[None], way)[0]), values, batch_size=several)
    return lambda r: jax.vmap(lambda LU, r: lu_solve(LU, r.T).T)(LU, r)


def _by_dense(pattern: Pattern, system: System, is_transposed: bool) -> tuple[Array, End]:
    """The solution of one system, with pivoting, and SINGULAR where its condition, after scaling, is at fault."""
    M, basis = inverse_of(system)
    parts = jax.tree.map(lambda a: a[None], _plain(system))
    D = _matrix(pattern, parts.A, M.factors.is_transposed != is_transposed)[0]
    rows = _inverse_size(jnp.max(jnp.abs(D), axis=1))
    cols = _inverse_size(jnp.max(jnp.abs(rows[:, None] * D), axis=0))
    scaled = rows[:, None] * D * cols
    inverse = jnp.linalg.inv(scaled)
    x, end = _refined(lambda v: matmul(v, D.T), lambda r: matmul(r * rows, inverse.T) * cols, parts)
    condition = jnp.linalg.norm(scaled, 1) * jnp.linalg.norm(inverse, 1)
    is_lost = is_failure(end.code) & (end.code != Status.NON_FINITE)
    is_singular = is_lost & ~(condition * jnp.finfo(D.dtype).eps < 0.1)
    end = end._replace(code=jnp.where(is_singular, jnp.int32(Status.SINGULAR), end.code))
    shape = system.b.shape
    return basis.enter(x[0].T.reshape(shape)), jax.tree.map(lambda a: a.reshape(shape[1:]), end)


def _inverse_size(magnitude: Array) -> Array:
    """A power of two about 1 / `magnitude`."""
    return power_of_two(-exponent_of(magnitude), magnitude.dtype)
