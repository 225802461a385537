"""The loop of `expm_multiply`: exp(B)·v over [0, 1] in steps of adaptive length, each in a Krylov space of B.

A step from y projects B onto a Krylov space V of m vectors, B·V ≈ V·H, takes ‖y‖·V·exp(τ·H)·e₁ for exp(τ·B)·y, and
estimates its error by the next two terms of that expansion (Saad 1992, §5.2; Sidje 1998, §3.2). Where the error is too
large for the length τ, the step is repeated with a smaller τ in the same space.

`sensitivity` is the reverse mode: with x(s) = exp(s·B)·y and λ(s) = exp(s·Bᵀ)·ȳ, the cotangent of the numbers that B
depends on is the integral over s of the cotangents of λ(1 − s)ᵀ·B·x(s). Within a step, x and λ lie in Krylov spaces of
B and of Bᵀ, and the integral is a block of one small exponential (Van Loan 1978).

Traffic of a step in vectors of n: m products, and about 2·m² for their orthogonalisation. Memory: m + 1 vectors.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core.scaling import Map, exponent, scaled
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import EXACT, matmul, norm, orthogonal, ratio
from solvers.solution import Status

TAYLOR = 18  # terms for a matrix of norm 1/2 at most: the rest is below 1e-22
ROUNDING = 8  # times eps: an error allowed in every step
LONGEST = 0.9, 4.0  # bounds of a step: times the longest expected to meet the tolerance, and times the last step
KEPT = 100  # steps that reverse mode stores, one vector for each


class Limits(NamedTuple):
    """Traced, so that changing them does not recompile."""

    rtol: Array
    maxiter: Array


class Space(NamedTuple):
    """A Krylov space of m + 1 vectors: B·V[j] = Σᵢ H[i, j]·V[i] for j < m."""

    V: Array  # [m + 1, n] orthonormal rows, zero once the space is invariant
    H: Array  # [m + 1, m + 1], the last column zero
    beta: Array  # norm of the vector that the space starts from, over 2ᵉ, so that its square stays within the dtype
    e: Array
    beyond: Array  # ‖B·V[m]‖


class Walk(NamedTuple):
    """The state of the loop on the way from v to exp(B)·v."""

    y: Array  # [n] exp(s·B)·v
    s: Array  # time reached, from 0 to 1
    tau: Array  # length of the next step
    error: Array  # estimated, over ‖y‖
    code: Array
    steps: Array
    lengths: Array | None  # [KEPT] of the steps, and the vectors from which they start, [KEPT, n]
    starts: Array | None


class End(NamedTuple):
    """The result of the loop, without exp(B)·v."""

    code: Array
    steps: Array
    products: Array
    error: Array  # estimated ‖error‖


def run(B: Map, v: Array, m: int, limits: Limits) -> tuple[Array, End]:
    """exp(B)·v [n], zeros where it is not finite, and how it ended.

    Args:
      B: v -> B·v for v [n].
      m: vectors in a Krylov space.
    """
    walk = _walk(B, v, m, limits, keep=False)
    finite = jnp.all(jnp.isfinite(walk.y))
    y = jnp.where(finite, walk.y, 0)
    code = jnp.where(finite, walk.code, Status.NON_FINITE).astype(jnp.int32)
    e = exponent(y)
    return y, End(code, walk.steps, walk.steps * (m + 1), scaled(walk.error * norm(scaled(y, -e)), e))


def _walk(B: Map, v: Array, m: int, limits: Limits, keep: bool) -> Walk:
    eps, zero = jnp.finfo(v.dtype).eps, jnp.zeros((), v.real.dtype)
    lengths = jnp.zeros(KEPT, zero.dtype) if keep else None
    starts = jnp.zeros((KEPT, *v.shape), v.dtype) if keep else None
    rtol = limits.rtol.astype(zero.dtype)

    def step(walk: Walk) -> Walk:
        space = krylov(B, walk.y, m)
        size = jnp.max(jnp.sum(jnp.abs(space.H), axis=0))
        tau = jnp.where(jnp.isinf(walk.tau), jnp.minimum(1, ratio(zero + m, size)), walk.tau)
        tau = jnp.where(size == 0, 1, tau)
        goal = lambda tau: jnp.maximum(tau * rtol, ROUNDING * eps)  # noqa: E731
        longest = lambda tau, error: LONGEST[0] * tau * (goal(tau) / error) ** (1 / m)  # noqa: E731

        def attempt(tried: tuple[Array, ...]) -> tuple[Array, ...]:
            tau, tries, error, _ = tried
            shorter = jnp.clip(longest(tau, error), 0.1 * tau, 0.7 * tau)
            tau = jnp.where(tries == 0, tau, jnp.where(jnp.isfinite(error), shorter, 0.1 * tau))
            tau = jnp.minimum(tau, 1 - walk.s)
            tau = jnp.where(1 - walk.s - tau < eps, 1 - walk.s, tau)
            y, error = across(space, tau)
            return tau, tries + 1, error, y

        def fails(tried: tuple[Array, ...]) -> Array:
            tau, tries, error, _ = tried
            return (tries == 0) | (~(error <= goal(tau)) & (tau > eps) & jnp.isfinite(size))

        tau, _, error, y = lax.while_loop(fails, attempt, mesh_axes.varying((tau, jnp.int32(0), zero, walk.y), walk.y))
        s = walk.s + tau
        code = status_of(
            (~jnp.isfinite(size), Status.NON_FINITE),
            (~(error <= goal(tau)), Status.STAGNATION),
            ((s >= 1) & (walk.error + error <= 1.2 * rtol), Status.CONVERGED),
            (s >= 1, Status.STAGNATION),
            (walk.steps + 1 >= limits.maxiter, Status.MAXITER),
        )
        following = jnp.clip(longest(tau, jnp.maximum(error, eps)), tau, LONGEST[1] * tau)
        kept = None, None
        if walk.lengths is not None and walk.starts is not None:
            kept = walk.lengths.at[walk.steps].set(tau), walk.starts.at[walk.steps].set(walk.y)  # past the end: dropped
        return Walk(y, s, following, walk.error + error, code, walk.steps + 1, *kept)

    none = jnp.where(limits.maxiter > 0, RUNNING, Status.MAXITER).astype(jnp.int32)
    none = jnp.where(jnp.any(v != 0), none, jnp.where(jnp.all(jnp.isfinite(B(v))), Status.CONVERGED, Status.NON_FINITE))
    walk = mesh_axes.varying(Walk(v, zero, zero + jnp.inf, zero, none, jnp.int32(0), lengths, starts), v)
    return lax.while_loop(lambda walk: walk.code == RUNNING, step, walk)


def krylov(B: Map, y: Array, m: int) -> Space:
    """The Krylov space of B and y, by Arnoldi's method with classical Gram-Schmidt, applied twice."""
    e = exponent(y)
    y = scaled(y, -e)
    beta = norm(y)
    V = jnp.zeros((m + 1, *y.shape), y.dtype).at[0].set(ratio(y, beta))
    H = jnp.zeros((m + 1, m + 1), y.dtype)

    def grow(j: Array, grown: tuple[Array, Array]) -> tuple[Array, Array]:
        V, H = grown
        Bv = B(V[j])
        w, h = orthogonal(V, Bv, j)
        below, size = norm(w), norm(Bv)
        below = jnp.where(below <= 10 * jnp.finfo(y.dtype).eps * size, 0, below)  # the space is invariant
        w = jnp.where(below == 0, 0, ratio(w, below))
        return V.at[j + 1].set(w), H.at[:, j].set(h.at[j + 1].set(below.astype(h.dtype)))

    V, H = lax.fori_loop(0, m, grow, mesh_axes.varying((V, H), y))
    return Space(V, H, beta, e, norm(B(V[m])))


def across(space: Space, tau: Array) -> tuple[Array, Array]:
    """exp(τ·B)·y [n], and the estimate of its relative error, rounding included."""
    V, H, beta, e, beyond = space
    m = H.shape[0] - 1
    # Another row and column give the next term of the expansion.
    larger = jnp.zeros((m + 2, m + 2), H.dtype).at[: m + 1, : m + 1].set(H).at[m + 1, m].set(1)
    column = _exp(tau * larger)[:, 0]
    first, second = jnp.abs(column[m]), jnp.abs(column[m + 1]) * beyond
    error = jnp.where(first > 10 * second, second, jnp.where(first > second, first * second / (first - second), first))
    y = scaled(jnp.einsum("i,in->n", beta * column[: m + 1], V, precision=EXACT), e)
    rounding = jnp.finfo(H.dtype).eps
    return y, ratio(error + rounding, jnp.sqrt(jnp.sum(jnp.abs(column[: m + 1]) ** 2)))


def _exp(X: Array) -> Array:
    """exp of a small matrix [p, p], by scaling and squaring. XLA compiles it faster than jax.scipy's expm."""
    size = jnp.max(jnp.sum(jnp.abs(X), axis=0))
    _, e = jnp.frexp(jnp.where(jnp.isfinite(size), size, 0))
    halvings = jnp.maximum(e + 1, 0)
    X = X * jnp.ldexp(jnp.ones((), size.dtype), -halvings)
    one = mesh_axes.varying(jnp.eye(X.shape[0], dtype=X.dtype), X)
    series = lambda k, F: one + matmul(X, F) / (TAYLOR - k)  # noqa: E731
    F = lax.fori_loop(0, TAYLOR, series, one)
    return lax.fori_loop(0, halvings, lambda _, F: matmul(F, F), F)


# ---------------------------------------------------------------------------------------------------- reverse mode


def sensitivity(B: Any, v: Array, cotangent: Array, m: int, limits: Limits, numbers: Array) -> tuple[Array, Array]:
    """The cotangent of `numbers` in exp(B(numbers))·v, and whether every step met its tolerance.

    Args:
      B: (numbers, vector) -> vector, linear in the vector.
    """
    ahead_of = lambda x: B(numbers, x)  # noqa: E731
    back_of = lambda u: jax.linear_transpose(ahead_of, v)(u)[0]  # noqa: E731
    walk = _walk(ahead_of, v, m, limits, keep=True)
    eps = jnp.finfo(v.dtype).eps
    lengths, starts = cast(Array, walk.lengths), cast(Array, walk.starts)
    trips = jnp.minimum(walk.steps, KEPT)
    if shared := mesh_axes.varies_beyond(v, numbers):
        trips = lax.pmax(trips, shared)  # devices sum their cotangents, so all must make as many steps

    def back(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        total, u, worst = state
        at = jnp.maximum(walk.steps - 1 - i, 0)
        tau = jnp.where(i < walk.steps, lengths[at], 0)
        ahead, behind = krylov(ahead_of, starts[at], m), krylov(back_of, u, m)
        u, error = across(behind, tau)
        both = jnp.zeros((2 * m + 2, 2 * m + 2), v.dtype).at[0, m + 1].set(1)
        both = both.at[: m + 1, : m + 1].set(behind.H).at[m + 1 :, m + 1 :].set(ahead.H.T)
        X = ahead.beta * behind.beta * _exp(tau * both)[: m + 1, m + 1 :]
        along = scaled(jnp.einsum("ij,jn->in", X, ahead.V, precision=EXACT), ahead.e + behind.e)
        part = jax.vjp(lambda numbers: jax.vmap(lambda x: B(numbers, x))(along), numbers)[1](behind.V)[0]
        bound = 100 * jnp.maximum(tau * limits.rtol, ROUNDING * eps).astype(worst.dtype)
        return total + part, u, jnp.maximum(worst, error / bound)

    nothing = mesh_axes.varying(jnp.zeros_like(numbers), numbers)
    start = nothing, *mesh_axes.varying((cotangent, jnp.zeros_like(walk.s)), v)
    total, _, worst = lax.fori_loop(0, trips, back, start)
    return total, (walk.code == Status.CONVERGED) & (walk.steps <= KEPT) & (worst <= 1)
