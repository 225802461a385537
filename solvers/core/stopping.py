"""The stopping rule, ‖b − A·x‖ ≤ max(rtol·‖b‖, atol) by the true residual.

`Now` ends the method by the residual of its recursion. `verdict` then judges the true residual: CONVERGED, another
start of the method, or a failure, whose cause `diagnosis` names. `iterate` computes the tolerance; `lsmr` has a rule of
its own.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from solvers.solution import Status

# Codes of a step beside a Status: go on; start again from the true residual, without or with this step.
RUNNING, RESTART, FULL = -1, -2, -3


class Limits(NamedTuple):
    """Numbers of the stopping rule: traced, so that changing them does not recompile.

    Attributes:
      drop: the true residual is computed whenever the recursion's has fallen by this factor; 0: only at its end.
    """

    rtol: Array
    atol: Array
    maxiter: Array
    drop: Array


class Loop(NamedTuple):
    """A method between two true residuals."""

    work: Any
    k: Array  # iterations done
    norm: Array  # residual norm of the recursion
    code: Array  # RUNNING or how it ended
    norms: Array  # [history_length], by column too


class Outer(NamedTuple):
    """A solve at a true residual."""

    x: Array
    r: Array  # b − A·x
    norm: Array  # of r
    k: Array
    code: Array  # RUNNING or how it ended
    norms: Array
    direction: Any  # the last one, where the method keeps it


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # true residual norm
    code: Array
    norms: Array


class Now(NamedTuple):
    """The numbers of a loop and what ends it, by column too.

    A pass over vectors may take and return them; kernels in Mosaic GPU have no ~ of flags.
    """

    k: Array
    norm: Array
    code: Array
    goal: Array  # the norm at which the method ends
    maxiter: Any

    @property
    def active(self) -> Array:
        """Whether the method takes another step, by the residual norm of its recursion."""
        return (self.code == RUNNING) & (self.norm > self.goal) & (self.k < self.maxiter)

    def after(self, norm: Array, code: Array) -> Self:
        """The numbers after a step with this norm and code; as they were where the method is not active."""
        active, most = self.active, jnp.finfo(norm.dtype).eps ** -1.5  # of a right-hand side of about 1
        moves = active & is_taken(code)
        blown_up = jnp.where(is_finite(norm), jnp.int32(Status.DIVERGED), jnp.int32(Status.NON_FINITE))
        code = jnp.where(moves, jnp.where(norm <= most, code, blown_up), code)
        norm, code = jnp.where(moves, norm, self.norm), jnp.where(active, code, self.code)
        return self._replace(k=self.k + moves.astype(jnp.int32), norm=norm, code=code)


def is_taken(code: Array) -> Array:
    """Whether a step with this code counts."""
    return (code == RUNNING) | (code == FULL)


def is_finite(a: Array) -> Array:
    """As jnp.isfinite, which kernels in Mosaic GPU do not have."""
    return jnp.abs(a) <= jnp.finfo(a.dtype).max


def root(a: Array) -> Array:
    """The square root of a ≥ 0, and a itself where that is denormal. Mosaic GPU has jnp.sqrt since JAX 0.11."""
    return jnp.where(a >= jnp.finfo(a.dtype).tiny, a * lax.rsqrt(a), a)


@jax.jit
def verdict(limits: tuple[Any, Any], now: Array, before: Array, recursion: Any, level: Any = None) -> Array:
    """RUNNING or how the solve ended, by the true residual norm `now`, the one `before`, and the method's code.

    Args:
      limits: the tolerance in the scale in which the loop solves, and maxiter.
      recursion: the number of iterations, the residual norm of the recursion, and the code.
      level: the size of rounding errors in a residual, for a method that only estimates residuals; else None.
    """
    (tolerance, maxiter), (k, claimed, code) = limits, recursion
    restarts = (code == RESTART) | (code == FULL)
    # The residual may rise until a method starts again, as in bicgstab: then maxiter, or a first step that may not be
    # taken, ends the solve. Rounding may hide the gain of a full cycle by the recursion, and the next may gain more.
    eps = jnp.finfo(now.dtype).eps
    gained = (code == FULL) & (claimed < (1 - 100 * eps) * before)
    may_grow = jnp.bool_(False) if level is None else now > level
    gained &= may_grow | (now <= (1 + jnp.sqrt(eps)) * before)
    least = jnp.where(restarts | may_grow, 1, 0.5)
    helped = jnp.isnan(before) | (code == RESTART) | gained | (now < least * before)
    failed = (code != RUNNING) & ~restarts
    return status_of(
        (~jnp.isfinite(now), Status.NON_FINITE),
        (now <= tolerance, Status.CONVERGED),
        (failed, code),
        (k >= maxiter, Status.MAXITER),
        (~helped, Status.STAGNATION),
    )


def status_of(*cases: tuple[Array, Any], otherwise: int = RUNNING) -> Array:
    """The code of the first case that holds, by nested selects: the argmax of jnp.select is a GPU kernel of its own."""
    result = jnp.int32(otherwise)
    for condition, number in reversed(cases):
        result = jnp.where(condition, jnp.int32(number), result)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(*(c.shape for c, _ in cases)))
