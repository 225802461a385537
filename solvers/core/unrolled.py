"""A fixed number of steps as ordinary JAX operations, which JAX differentiates.

Unlike the solution (`linear_solve`), the result of k steps has derivatives with respect to M and x0. Its residual norm
has derivatives too, which training a preconditioner needs. Reverse mode keeps the vectors of every step.
"""

import jax.numpy as jnp
from jax import Array, lax

from solvers.core.iterate import Method, Options, System, by_norm, chosen, inverse_norm
from solvers.core.space import Space, product
from solvers.core.stopping import FULL, RESTART, RUNNING, End, Now, status_of
from solvers.core.vectors import scaled
from solvers.solution import Status


def run(space: Space, method: Method, options: Options, steps: int, system: System) -> tuple[Array, End]:
    """x [n] or [n, k] after at most `steps` steps, and how it ended; steps after the tolerance is met change nothing.

    The method starts again only if its own codes require that; the true residual is computed once, at the end.
    """
    b, x0, limits = system.b, system.x0, system.limits
    A = product(system.A, b.dtype)
    if system.M is not None:
        M = product(system.M, b.dtype)
    else:
        M = by_norm(None if method.sums else inverse_norm(lax.stop_gradient(space.largest(A(space.unit_noise(b))))))
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
        safe = chosen(active, work, initial)
        new, now = method.step(space, A, M, safe, now)
        moves, restarts = now.k > k, (now.code == FULL) | (now.code == RESTART)
        now = now._replace(norm=jnp.where(moves, now.norm, norm))  # else it may be that of `initial`
        work = chosen(moves, new, work)
        anew = active & restarts & (now.norm > goal)
        x, work = lax.cond(jnp.any(anew), restarted, lambda x, work, _: (x, work), x, work, anew)
        code = jnp.where(restarts, jnp.int32(RUNNING), now.code)
        return (x, work, now.norm, code, now.k), jnp.where(moves, now.norm, -1)

    def restarted(x, work, anew):
        closer = x + jnp.where(anew, method.iterate(M, work), 0)
        r = b - A(closer)
        fresh = method.start(space, A, M, r, space.dot(r, r), None)
        return closer, chosen(anew, fresh, work)

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
