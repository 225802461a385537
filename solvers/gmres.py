"""Restarted GMRES, flexible or not (Saad and Schultz 1986; Saad 1993; Saad, Iterative Methods, Algorithms 6.9 and 9.6).

Preconditioned from the right, so that the residual that it makes least is the true one. Arnoldi's vectors are made
orthogonal by classical Gram-Schmidt done twice, as products with the whole basis: two reductions each, where the
modified one takes one for every vector (Giraud et al. 2005: twice is enough).

Step j of a cycle moves, in vectors of n beside the product and M, about 4·j, rounded up to a power of two; memory is
`restart` vectors, twice that when flexible. A cycle ends with one product more, for the true residual.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from solvers import _arguments as arguments
from solvers._iterate import FULL, Map, Method, holding, norm, ratio, status_of
from solvers._solve import solve
from solvers.solution import Solution, Status

Array = jax.Array


class Work(NamedTuple):
    """For several systems the numbers have one more axis, the last."""

    r: Array  # [n] residual that the cycle started from
    V: Array  # [restart + 1, n] orthonormal basis of the Krylov space
    Z: Array | None  # [restart, n] M·V, where M changes
    Q: Array  # [restart + 1, restart + 1] the rotations, multiplied
    R: Array  # [restart, restart] upper triangle: Q·H
    j: Array  # steps done
    size: Array  # ‖r‖


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    history: bool | int = False,
    callback: Callable[[Array], None] | None = None,
    progress: Callable[[int, float], None] | None = None,
    check_every: int | None = None,
    restart: int = 30,
    flexible: bool = False,
) -> Solution:
    """Solves A·x = b for any square A; the residual never grows.

    Args:
      M: an approximation of A⁻¹: anything with `@`, or a function r -> M·r.
      restart: steps of a cycle; fewer take less memory and time a step, and more steps.
      flexible: M may change from step to step, an inner solve for instance.
      The others: as in `cg`; maxiter counts steps, not cycles.

    Returns:
      A `Solution`, differentiable as that of `cg`; a derivative solves with the transposed of A and of M.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    n = max(jnp.shape(b)[0], 1) if jnp.ndim(b) else 1
    chosen = method(min(arguments.count(restart, "restart", 1), n), bool(flexible))
    return solve(chosen, A, b, x0, M, rtol, atol, maxiter, history, callback, progress, check_every)


@functools.cache
def method(restart: int, flexible: bool = False) -> Method:
    start_ = functools.partial(start, restart=restart, flexible=flexible)
    return Method(start_, holding(step, scratch=("V", "Z")), iterate, self_adjoint=False)


def start(A: Map, M: Map, r: Array, last: None, *, restart: int, flexible: bool) -> Work:
    del A, M, last
    size = norm(r)
    V = jnp.zeros((restart + 1, *r.shape), r.dtype).at[0].set(ratio(r, size))
    Z = jnp.zeros((restart, *r.shape), r.dtype) if flexible else None
    identity = jnp.eye(restart + 1, dtype=r.dtype).reshape(restart + 1, restart + 1, *(1,) * size.ndim)
    Q = jnp.broadcast_to(identity, (restart + 1, restart + 1, *size.shape))
    R = jnp.zeros((restart, restart, *size.shape), r.dtype)
    return Work(r, V, Z, Q, R, jnp.zeros(size.shape, jnp.int32), size)


def step(A: Map, M: Map, work: Work) -> tuple[Work, Array, Array]:
    r, V, Z, Q, R, j, size = work
    t, restart = jnp.max(j), R.shape[0]  # every column that still moves is at step t
    z = M(lax.dynamic_index_in_dim(V, t, keepdims=False))
    w, h = _orthogonal(V, A(z), t)
    below = norm(w)
    V = V.at[t + 1].set(ratio(w, below), mode="drop")
    Z = None if Z is None else Z.at[t].set(z, mode="drop")
    column = jnp.einsum("ij...,j...->i...", Q, h.at[t + 1].set(below.astype(h.dtype), mode="drop"))
    # One rotation more, of rows t and t + 1, turns the entry below the diagonal to zero.
    a, upper, lower = column[t], Q[t], Q[jnp.minimum(t + 1, restart)]
    length = jnp.hypot(jnp.abs(a), below)
    Q = Q.at[t].set(ratio(jnp.conj(a) * upper + below * lower, length))
    Q = Q.at[t + 1].set(ratio(a * lower - below * upper, length), mode="drop")
    R = R.at[:, t].set(column[:restart].at[t].set(length.astype(R.dtype)), mode="drop")
    code = status_of(
        (~jnp.isfinite(length), Status.NON_FINITE),
        (length <= jnp.finfo(r.dtype).eps * jnp.max(jnp.abs(R), axis=(0, 1)), Status.BREAKDOWN),
        (j + 1 >= restart, FULL),
    )
    return Work(r, V, Z, Q, R, j + 1, size), jnp.abs(Q[jnp.minimum(t + 1, restart), 0]) * size, code


def iterate(M: Map, work: Work) -> Array:
    """M·V·y, or Z·y, with the y that makes the residual least: R·y = Q·e₁·‖r‖."""
    restart = work.R.shape[0]
    done = jnp.arange(restart) < work.j[..., None]  # [..., restart]
    R, g = jnp.moveaxis(work.R, (0, 1), (-2, -1)), jnp.moveaxis(work.Q[:restart, 0], 0, -1) * work.size[..., None]
    R = jnp.where(done[..., None, :] & done[..., :, None], R, jnp.eye(restart, dtype=R.dtype))
    y = jnp.where(done, g, 0)[..., None]
    y = jax.scipy.linalg.solve_triangular(R, y)[..., 0]
    y = jnp.moveaxis(y, -1, 0)
    return _combined(work.Z, y) if work.Z is not None else M(_combined(work.V[:restart], y))


def _orthogonal(V: Array, w: Array, t: Array) -> tuple[Array, Array]:
    """w without its parts along V[0], …, V[t], and those parts, [restart + 1]. Reads a power of two of vectors."""
    sizes = [s for s in (4, 8, 16, 32, 64, 128, 256, 512) if s < V.shape[0]] + [V.shape[0]]

    def against(size, V, w):
        V = V[:size]
        parts = _parts(V, w)
        w = w - _combined(V, parts)
        again = _parts(V, w)
        h = jnp.zeros((work_size, *parts.shape[1:]), w.dtype).at[:size].set(parts + again)
        return w - _combined(V, again), h

    work_size = V.shape[0]
    which = jnp.sum(t + 1 > jnp.array(sizes[:-1], jnp.int32)) if len(sizes) > 1 else jnp.int32(0)
    return lax.switch(which, [functools.partial(against, size) for size in sizes], V, w)


def _parts(V: Array, w: Array) -> Array:
    return jnp.einsum("in...,n...->i...", jnp.conj(V), w)


def _combined(V: Array, y: Array) -> Array:
    return jnp.einsum("in...,i...->n...", V, y)
