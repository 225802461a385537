"""Restarted GMRES, flexible or not (Saad and Schultz 1986; Saad 1993; Saad, Iterative Methods, Algorithms 6.9 and 9.6).

Preconditioned from the right, it minimises the true residual; from the left it minimises M·r, and estimates the true
residual until the cycle ends. Either side may stagnate where the other converges. Classical Gram-Schmidt, applied twice
(Giraud et al. 2005: twice is enough), makes Arnoldi's vectors orthogonal by products with the whole basis: two
reductions for each, whereas the modified process takes one for every vector of the basis.

Beside the product and M, step j of a cycle moves about 4·j vectors of n, with j rounded up to a power of two. The
memory is `restart` vectors, twice that when flexible. One product more, for the true residual, ends a cycle.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from solvers.core import arguments
from solvers.core.iterate import Method, holding
from solvers.core.scaling import Map
from solvers.core.settings import Settings, solver
from solvers.core.solve import solve
from solvers.core.stopping import FULL, status_of
from solvers.core.vectors import combined, norm, orthogonal, ratio
from solvers.solution import Solution, Status


class Work(NamedTuple):
    """Vectors and numbers between steps; for several systems the numbers have one more axis, the last."""

    r: Array  # [n] residual that the cycle started from, from the left M·r
    V: Array  # [restart + 1, n] orthonormal basis of the Krylov space
    Z: Array | None  # [restart, n] M·V, where M changes
    Q: Array  # [restart + 1, restart + 1] the rotations, multiplied
    R: Array  # [restart, restart] upper triangle: Q·H
    j: Array  # steps done
    size: Array  # ‖r‖, from the left ‖M·r‖
    r_size: Array  # ‖r‖


@solver()
def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    restart: int = 30,
    flexible: bool = False,
    side: str = "right",
    **settings: Unpack[Settings],
) -> Solution:
    """Solves A·x = b for any square A; with side="right" the residual never grows from one cycle to the next.

    If a cycle gains nothing, the next one would repeat it, and the solve ends with the status STAGNATION. Then a larger
    restart, the other side, or, for a symmetric A, `cg` or `minres` with the same M may get further.

    Args:
      M: an approximation of A⁻¹: anything with `@`, or a function r -> M·r.
      restart: steps of a cycle; with a smaller restart, a step takes less memory and time, and the solve takes more
        steps.
      flexible: allow an M that changes from step to step, such as an inner solve.
      side: "right" minimises ‖b − A·x‖ in every cycle; "left" minimises ‖M·(b − A·x)‖, while the residual itself may
        grow. Both stop by the true residual.
      The others: as in `cg`; maxiter counts steps, not cycles.

    Returns:
      A `Solution`, differentiable as that of `cg`; a derivative solves with the transposes of A and M.

    Raises:
      ValueError, TypeError: shapes that do not fit, or arguments that make no sense.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left'; got {side!r}")
    if flexible and side == "left":
        raise ValueError("side='left' needs the same M in every step; take flexible=True with side='right'")
    n, numbers = arguments.unknowns(A, b), jax.tree.leaves(b)
    restart = min(arguments.int_at_least(restart, "restart", 1), n)
    vectors = (1 + bool(flexible)) * restart + 1
    arguments.check_free_memory(
        vectors * sum(map(np.size, numbers)) * jnp.result_type(*numbers, jnp.float32).itemsize,
        f"restart={restart}: {vectors} vectors of {n} unknowns",
        "take a smaller restart, or bicgstab, which needs no more vectors with every step",
    )
    return solve(method(restart, bool(flexible), side == "left"), A, b, x0, settings)


@functools.cache
def method(restart: int, flexible: bool = False, left: bool = False) -> Method:
    start_ = functools.partial(start, restart=restart, flexible=flexible, left=left)
    step_ = holding(functools.partial(step, left=left), scratch=("V", "Z"))
    return Method(start_, step_, functools.partial(iterate, left=left), self_adjoint=False, estimates=left)


def start(A: Map, M: Map, r: Array, last: None, *, restart: int, flexible: bool, left: bool) -> Work:
    del A, last
    r_size = norm(r)
    r = M(r) if left else r
    size = norm(r)
    V = jnp.zeros((restart + 1, *r.shape), r.dtype).at[0].set(ratio(r, size))
    Z = jnp.zeros((restart, *r.shape), r.dtype) if flexible else None
    identity = jnp.eye(restart + 1, dtype=r.dtype).reshape(restart + 1, restart + 1, *(1,) * size.ndim)
    Q = jnp.broadcast_to(identity, (restart + 1, restart + 1, *size.shape))
    R = jnp.zeros((restart, restart, *size.shape), r.dtype)
    return Work(r, V, Z, Q, R, jnp.zeros(size.shape, jnp.int32), size, r_size)


def step(A: Map, M: Map, work: Work, *, left: bool) -> tuple[Work, Array, Array]:
    r, V, Z, Q, R, j, size, r_size = work
    t, restart = jnp.max(j), R.shape[0]  # every column that still moves is at step t
    v = lax.dynamic_index_in_dim(V, t, keepdims=False)
    z = v if left else M(v)
    w, h = orthogonal(V, M(A(z)) if left else A(z), t)
    below = norm(w)
    V = V.at[t + 1].set(ratio(w, below), mode="drop")
    Z = None if Z is None else Z.at[t].set(z, mode="drop")
    column = jnp.einsum("ij...,j...->i...", Q, h.at[t + 1].set(below.astype(h.dtype), mode="drop"))
    # Another rotation, of rows t and t + 1, makes the entry below the diagonal zero.
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
    return Work(r, V, Z, Q, R, j + 1, size, r_size), jnp.abs(Q[jnp.minimum(t + 1, restart), 0]) * r_size, code


def iterate(M: Map, work: Work, *, left: bool) -> Array:
    """M·V·y, from the left V·y, or Z·y if flexible, with the y that minimises the residual: R·y = Q·e₁·‖r‖."""
    restart = work.R.shape[0]
    done = jnp.arange(restart) < work.j[..., None]  # [..., restart]
    R, g = jnp.moveaxis(work.R, (0, 1), (-2, -1)), jnp.moveaxis(work.Q[:restart, 0], 0, -1) * work.size[..., None]
    R = jnp.where(done[..., None, :] & done[..., :, None], R, jnp.eye(restart, dtype=R.dtype))
    y = jnp.where(done, g, 0)[..., None]
    y = jax.scipy.linalg.solve_triangular(R, y)[..., 0]
    y = jnp.moveaxis(y, -1, 0)
    if work.Z is not None:
        return combined(work.Z, y)
    x = combined(work.V[:restart], y)
    return x if left else M(x)
