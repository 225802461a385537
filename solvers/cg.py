"""Conjugate gradients (Hestenes and Stiefel 1952; Cevahir et al., Algorithm 1; Saad, Iterative Methods, Algorithm 9.1).

Traffic of a step without preconditioner, in vectors of n: the product reads p, writes q and computes pᵀq in the same
pass where rows are short (elsewhere pᵀq takes 2n more); the update of r reads 2, writes 1 and computes rᵀr; the update
of x and p reads 3 and writes 2. Together they move 10n.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jaxsparse_fmt.core.vector_passes import Number, Pass
from solvers.core.iterate import Method
from solvers.core.scaling import Map
from solvers.core.settings import Settings, solver
from solvers.core.solve import solve
from solvers.core.space import Space
from solvers.core.stopping import Now, is_finite, root, status_of
from solvers.core.vectors import ratio
from solvers.solution import Solution, Status


class Work(NamedTuple):
    x: Array  # [n] the vector to add to x
    r: Array  # [n] residual b − A·x by recursion
    p: Array  # [n] direction
    gamma: Array  # rᵀ·M·r


class MergedWork(NamedTuple):
    x: Array
    r: Array
    p: Array
    s: Array  # [n] A·p
    u: Array  # [n] M·r
    w: Array  # [n] A·u
    gamma: Number  # rᵀ·u
    delta: Number  # uᵀ·w
    last_gamma: Array  # of the step before
    last_alpha: Array


@solver()
def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    one_reduction: bool = False,
    **settings: Unpack[Settings],
) -> Solution:
    """Solves A·x = b for a symmetric (Hermitian) positive definite A.

    Works inside jit, vmap and grad. Differentiable in b and in A's values to any order, by implicit differentiation:
    the derivative of a solve is a solve with the same A, M and rtol, and is NaN where that solve does not converge. x
    has no derivative with respect to M and x0; the derivatives of `residual_norm` and `history` are NaN. See `adjoint`
    for more.

    Args:
      A: [n, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape and `@`; or a function v -> A·v.
        A matrix is an argument of the compiled solver, which serves all matrices of its format and array shapes. A
        function, or a matrix that is not a pytree, is traced at each call. Outside jit the same function object reuses
        its compiled solver, with the arrays that it closes over now; a new lambda compiles again.
      b: [n], or with a matrix A [n, k] for k systems at once: they share every product, and each starts, counts its
        iterations and ends separately. With a function A, b is an array of any shape or a pytree of arrays: a single
        system, whose A and M are functions of such arrays. Use `jax.vmap` for several.
      x0: the start, of the shape of b. The solve starts from zero for None, and if the largest number of x0's
        residual is at least 1024 times that of b.
      M: an approximation of A⁻¹, positive definite: anything with `@`, a function r -> M·r, or the [n] numbers of a
        diagonal M.
      rtol, atol: stop when ‖b − A·x‖₂ ≤ max(rtol·‖b‖₂, atol), by the true residual. Where rounding errors hinder
        that, as in float32 they often do, a solve that stagnates at their level ends as ROUNDED, a success: x is as
        accurate as the dtype allows. An rtol below the dtype's eps asks for more, and ends with STAGNATION.
      maxiter: most iterations; None allows 10·n. A solve ends before where its residual grows beyond what rounding lets
        it recover from (DIVERGED), or A proves not symmetric while the residual does not fall.
      history: keep the residual norms; True keeps up to 10,000, a number keeps up to that many.
      callback: called as callback(x) after every iteration, as in SciPy; copies x to the host each time. Not available
        for a matrix over several devices.
      progress: called as progress(iterations, residual_norm) about every 16 iterations. Outside jit a solve with a
        callback or progress returns after the last call, and compiles for a new function.
      check_every: iterations between checks, at most 1000; None takes 1 on a CPU, and on a GPU, where a check waits for
        a copy to the host, 10 or 40, or fewer with an M of many arrays, such as `precond.multigrid`. The number changes
        neither the answer nor the reported iterations.
      adjoint: how derivatives are computed: an `Adjoint`, with a tolerance, maxiter and report of its own; or
        "unrolled", which takes at most maxiter steps and differentiates them, for example to train an M: then x and
        residual_norm have derivatives with respect to A, b, x0 and M, and reverse mode stores the vectors of maxiter
        steps.
      one_reduction: use the form with one reduction a step instead of two (Chronopoulos and Gear 1989), for
        many devices, where a reduction waits for all of them. It reads and writes 4 vectors more, and computes pᵀ·A·p
        as a difference, which in float32 may become negative from a condition number of about 1e7:
        NOT_POSITIVE_DEFINITE.

    Returns:
      A `Solution`. Its status reports how the solve ended; x is always finite, and the best one where a solve failed.

    Raises:
      ValueError, TypeError: shapes that do not fit, or invalid arguments.
    """
    if not isinstance(one_reduction, bool):
        raise TypeError(f"one_reduction must be True or False; got {one_reduction!r}")
    return solve(ONE_REDUCTION if one_reduction else METHOD, A, b, x0, settings)


def start(space: Space, A: Map, M: Map, r: Array, last: Array | None) -> Work:
    """The first vectors: the direction is `last` with its part along M·r replaced, so that rᵀ·p = rᵀ·M·r.

    This is a reliable update (Clark et al. 2010, §5): a restart from M·r would lose the conjugacy to earlier directions
    and converge as slowly as from the start.
    """
    z, last = M(r), jnp.zeros_like(r) if last is None else last
    gamma, along = space.inner_products((r, z), (r, last)).real
    return Work(jnp.zeros_like(r), r, last + ratio(gamma - along, gamma).astype(r.dtype) * z, gamma)


def step(space: Space, A: Map, M: Map, work: Work, now: Now) -> tuple[Work, Now]:
    """One step in three kernels: the passes also compute the loop's numbers, for which XLA would launch others."""
    x, r, p, gamma = work
    q, curvature = space.product_dot(A, p)
    (r,), (curvature, alpha, _), (rr,) = space.sweep(DESCEND, (gamma, curvature, *now), (r, q))
    z = M(r)
    rz = rr if z is r else space.part(r, z)
    (x, p), (gamma, k, size, ended, *_), _ = space.sweep(TURN, (gamma, curvature, alpha, rr, rz, *now), (x, p, z))
    return Work(x, r, p, gamma), now._replace(k=k, norm=size, code=ended)


def _descend(gamma, curvature, *now):
    return curvature, gamma / curvature, Now(*now).active & definite(gamma, curvature)


def _descend_each(scalars, r, q):
    _, alpha, moves = scalars
    r = jnp.where(moves, r - alpha * q, r)
    return (r,), ((r, r),)


def _turn(gamma, curvature, alpha, rr, rz, *now):
    now = Now(*now)
    moves = now.active & definite(gamma, curvature)
    then = now.after(root(rr), code(gamma, curvature))
    return jnp.where(moves, rz, gamma), then.k, then.norm, then.code, alpha, moves, rz / gamma


def _turn_each(scalars, x, p, z):
    *_, alpha, moves, beta = scalars
    return (jnp.where(moves, x + alpha * p, x), jnp.where(moves, z + beta * p, p)), ()


DESCEND = Pass(_descend, _descend_each)
TURN = Pass(_turn, _turn_each)


@jax.jit
def definite(gamma: Array, curvature: Array) -> Array:
    """Whether `code` is RUNNING."""
    return (gamma > 0) & (curvature > 0) & is_finite(gamma) & is_finite(curvature)


@jax.jit
def code(gamma: Array, curvature: Array) -> Array:
    """RUNNING while rᵀ·M·r and pᵀ·A·p are positive, as with a definite A and M; else the Status of the failure."""
    of_finite = status_of(
        ((gamma < 0) | (curvature < 0), Status.NOT_POSITIVE_DEFINITE),
        ((gamma == 0) | (curvature == 0), Status.BREAKDOWN),
    )
    return jnp.where(is_finite(gamma) & is_finite(curvature), of_finite, jnp.int32(Status.NON_FINITE))


def start_merged(space: Space, A: Map, M: Map, r: Array, last: None) -> MergedWork:
    u = M(r)
    w, delta = space.product_dot(A, u)
    gamma, delta = space.joined(space.part(r, u), delta)
    zero = jnp.zeros_like(r)
    one = jnp.ones_like(space.total(gamma))
    return MergedWork(zero, r, zero, zero, u, w, gamma, delta, jnp.inf * one, one)


def step_merged(space: Space, A: Map, M: Map, work: MergedWork, now: Now) -> tuple[MergedWork, Now]:
    """Chronopoulos and Gear 1989, §2; pᵀ·A·p = δ − β·γ / α of the last step. Devices exchange all sums at once."""
    x, r, p, s, u, w, gamma, delta, last_gamma, last_alpha = work
    numbers = gamma, delta, last_gamma, last_alpha, now.active  # `now` in a pass would cost XLA two kernels more
    vectors, (gamma, curvature, last_gamma, last_alpha, *_), (rr,) = space.sweep(ADVANCE, numbers, (x, r, p, s, u, w))
    x, r, p, s = vectors
    u = M(r)
    w, delta = space.product_dot(A, u)
    rr, rz, delta = space.joined(rr, rr if u is r else space.part(r, u), delta)
    now = now.after(jnp.sqrt(space.total(rr)), code(gamma, curvature))
    return MergedWork(x, r, p, s, u, w, rz, delta, last_gamma, last_alpha), now


def _advance(gamma, delta, last_gamma, last_alpha, active):
    beta = gamma / last_gamma
    curvature = delta - beta * gamma / last_alpha
    alpha, moves = gamma / curvature, active & definite(gamma, curvature)
    kept = jnp.where(moves, gamma, last_gamma), jnp.where(moves, alpha, last_alpha)
    return gamma, curvature, *kept, alpha, beta, moves


def _advance_each(scalars, x, r, p, s, u, w):
    *_, alpha, beta, moves = scalars
    p, s = jnp.where(moves, u + beta * p, p), jnp.where(moves, w + beta * s, s)
    x, r = jnp.where(moves, x + alpha * p, x), jnp.where(moves, r - alpha * s, r)
    return (x, r, p, s), ((r, r),)


ADVANCE = Pass(_advance, _advance_each)
METHOD = Method(start, step, keeps=True, sums=True)
ONE_REDUCTION = Method(start_merged, step_merged, sums=True)
