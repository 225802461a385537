"""The loop of `lsmr`: Golub and Kahan's bidiagonalisation, and LSMR's recurrences (Fong and Saunders 2011, Table 2).

It differs from `core/iterate` in that A has two sides, m and n, and that either of two rules ends the loop:

    ‖r‖ ≤ max(rtol·‖b‖, atol)    or    ‖Aᴴ·r‖ ≤ rtol_normal·‖A‖·‖r‖        r = b − A·x

The recurrences estimate both norms, but only the true r ends the loop: if r does not meet the rule that the recurrences
meet, LSMR starts again from the true r, as long as that helps. ‖A‖ is estimated by the largest ‖A·v‖ / ‖v‖ so far, from
below, which makes the second rule stricter.

Traffic of a step in vectors: the two products, 3 of m, and 9 of n; a preconditioner adds its own and 4 of n.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core import iterate
from solvers.core.iterate import Options
from solvers.core.scaling import Map, exponent, largest, scaled
from solvers.core.stopping import RUNNING, Limits, Loop, status_of
from solvers.core.vectors import dot, norm, ratio
from solvers.solution import Status


class Maps(NamedTuple):
    """A linear map and its adjoint; a pytree if both are pytrees."""

    apply: Any  # [n] -> [m]
    adjoint: Any  # [m] -> [n]

    @property
    def H(self) -> "Maps":
        return Maps(self.adjoint, self.apply)


class Work(NamedTuple):
    """u = E·u′ and v = N·v′, with the preconditioners E of rows and N of columns, one of which is the identity."""

    x: Array  # [n] the vector to add to x
    u: Array  # [m] left vector
    u_: Array  # [m] u′
    v: Array  # [n] right vector
    v_: Array  # [n] v′
    h: Array  # [n] direction
    h_bar: Array  # [n]
    s: Array | None  # [n] Aᴴ·r, kept where N is M: `zeta_bar` is then not its norm
    alpha_bar: Array
    rho: Array
    rho_bar: Array
    c_bar: Array
    s_bar: Array
    zeta: Array
    zeta_bar: Array  # ‖Aᴴ·r‖, with a sign
    # For ‖r‖ (§5 of the paper).
    beta_dd: Array
    beta_d: Array
    rho_d: Array
    tau: Array
    theta: Array
    alpha: Array
    A_norm: Array  # from below
    r_norm: Array


class Given(NamedTuple):
    """What a solve is given beside A and b, and is not differentiated by.

    Attributes:
      M: a definite map, or None.
      x0: [n] or [n, k], or None.
      of_derivative: the limits of the systems that derivatives solve.
      damp: λ if λ·I is part of A, since Aᴴ·b need not depend on it; or None.
    """

    M: Any
    x0: Any
    limits: Limits
    of_derivative: Limits
    damp: Any = None


class Outer(NamedTuple):
    x: Array
    r: Array
    r_norm: Array
    s_norm: Array  # ‖Aᴴ·r‖
    A_norm: Array
    k: Array
    code: Array
    norms: Array


class End(NamedTuple):
    """The result of a solve, without its solution."""

    k: Array
    norm: Array  # ‖r‖, true, of its first `rows`
    normal: Array  # ‖Aᴴ·r‖, true
    code: Array
    norms: Array  # of Aᴴ·r by recursion
    # Whether a rule was met, and whether the first one was, or as far as rounding lets.
    sound: Array
    consistent: Array


def run(
    options: Options, A: Maps, b: Array, given: Given, inside: bool, rows: int | None = None, rtol_normal: Any = None
) -> tuple[Array, End]:
    """x with the least ‖b − A·x‖, and from x0 = 0 the shortest such x. Powers of two scale A, b and M.

    Args:
      inside: whether M approximates (AᴴA)⁻¹; if not, it approximates (AAᴴ)⁻¹.
      rows: the first rows of b, of which the residual norm is returned; None: all.
      rtol_normal: of the second rule; None: that of the first.

    Returns:
      x [n] or [n, k], zero wherever it is not finite, and how the solve ended.
    """
    M, x0, limits, _, damp = given
    unscaled, r = A, b
    x = jnp.zeros_like(unscaled.adjoint(b))
    if x0 is not None:
        r, x = iterate.unless_far(A.apply, b, x0, jnp.isfinite(largest(x0)))
    e_b = jnp.maximum(exponent(b), exponent(r))
    b, r = scaled(b, -e_b), scaled(r, -e_b)
    e_A = exponent(A.adjoint(r))
    if damp is not None:
        e_A = jnp.where(damp == 0, e_A, jnp.maximum(e_A, exponent(damp[None])))
    A = Maps(lambda v: scaled(unscaled.apply(v), -e_A), lambda v: scaled(unscaled.adjoint(v), -e_A))
    x = scaled(x, e_A - e_b)
    E = N = lambda v: v
    if M is not None:
        e_M = exponent(M(A.adjoint(r) if inside else r))
        near_one = lambda v: scaled(M(v), -e_M)  # noqa: E731
        E, N = (E, near_one) if inside else (near_one, N)

    b_norm = norm(b)
    real = b_norm.dtype
    tolerance = jnp.maximum(limits.rtol * b_norm, scaled(jnp.asarray(limits.atol, real), -e_b)).astype(real)
    rtol_normal = jnp.asarray(limits.rtol if rtol_normal is None else rtol_normal, real)
    least = jnp.finfo(real).eps / 16  # a recursion that fell by more is rounding
    out = e_b - e_A

    def normal(work: Work) -> Array:
        return norm(work.s) if work.s is not None else jnp.abs(work.zeta_bar)

    def claims(work: Work, goal: Array) -> Array:
        return (work.r_norm <= goal) | (normal(work) <= jnp.maximum(rtol_normal, least) * work.A_norm * work.r_norm)

    def trip(outer: Outer) -> Outer:
        """LSMR from a true residual until its recurrences meet a rule."""
        work = _start(A, E, N, outer, M is not None and inside)
        goal = jnp.maximum(tolerance, least * outer.r_norm) * ratio(work.r_norm, outer.r_norm)

        def goes_on(loop: Loop) -> Array:
            return (loop.code == RUNNING) & ~claims(loop.work, goal) & (loop.k < limits.maxiter)

        def advance(loop: Loop) -> Loop:
            moves = goes_on(loop)
            new, code = _step(A, E, N, loop.work)
            work = jax.tree.map(lambda new, old: jnp.where(moves & (code == RUNNING), new, old), new, loop.work)
            k = loop.k + (moves & (code == RUNNING))
            size = normal(work)
            if options.callback is not None:
                iterate.show(options.callback, moves, scaled(outer.x + work.x, out))
            norms = iterate.record(loop.norms, jnp.where(moves, k, -1), size)
            return Loop(work, k, size, jnp.where(moves, code, loop.code), norms)

        loop = Loop(work, outer.k, outer.s_norm, outer.code, outer.norms)
        # Not unrolled: XLA takes minutes to compile twenty copies of a step of two products and about 60 scalars.
        loop = iterate.advance_while(goes_on, advance, loop, options, e_b + e_A, unroll=1)
        x = outer.x + jnp.where(outer.code == RUNNING, loop.work.x, 0)
        r = b - A.apply(x)
        new = _judged(x, r, jnp.maximum(outer.A_norm, loop.work.A_norm), loop.k, loop.norms, loop.code, outer)
        return new._replace(code=jnp.where(outer.code == RUNNING, new.code, outer.code))

    def _judged(x, r, A_norm, k, norms, method_code, before: Outer | None) -> Outer:
        r_norm, s_norm = norm(r), norm(A.adjoint(r))
        A_norm = jnp.maximum(A_norm, ratio(s_norm, r_norm))
        helped = True if before is None else (s_norm < before.s_norm / 2) | (r_norm < before.r_norm / 2)
        code = status_of(
            (~jnp.isfinite(r_norm + s_norm), Status.NON_FINITE),
            ((r_norm <= tolerance) | (s_norm <= rtol_normal * A_norm * r_norm), Status.CONVERGED),
            (jnp.asarray(method_code) != RUNNING, method_code),
            (k >= limits.maxiter, Status.MAXITER),
            (~jnp.asarray(helped), Status.STAGNATION),
        )
        return Outer(x, r, r_norm, s_norm, A_norm, k, jnp.broadcast_to(code, r_norm.shape), norms)

    zero = jnp.zeros(b_norm.shape, jnp.int32)
    norms = jnp.full((options.history_length, *b_norm.shape), -1, real)
    A_norm = jnp.zeros_like(b_norm) if x0 is None else ratio(norm(A.apply(x)), norm(x))
    outer = _judged(x, r, A_norm, zero, norms, zero + RUNNING, None)
    outer = outer._replace(norms=iterate.record(norms, zero, outer.s_norm))
    outer = mesh_axes.varying(outer, r)
    outer = lax.while_loop(lambda outer: jnp.any(outer.code == RUNNING), trip, outer)

    x = scaled(outer.x, out)
    x = jnp.where(jnp.isfinite(x), x, 0)
    kept = scaled(x, -out)
    lost = jnp.any(kept != outer.x, axis=0)

    def returned(_, outer: Outer) -> Outer:
        """The residual and code of the returned x, if x lost bits in the user's scale."""
        new = _judged(kept, b - A.apply(kept), outer.A_norm, outer.k, outer.norms, RUNNING, outer)
        code = jnp.where(
            (outer.code == Status.CONVERGED) & (new.code != Status.CONVERGED), Status.OUT_OF_RANGE, outer.code
        )
        code = jnp.where(jnp.all(jnp.isfinite(outer.x), axis=0), code, Status.NON_FINITE)
        return new._replace(code=code)

    outer = lax.fori_loop(0, jnp.any(lost).astype(jnp.int32), returned, outer)
    own = outer.r_norm if rows is None else norm(outer.r[:rows])
    norms = jnp.where(outer.norms < 0, outer.norms, scaled(outer.norms, e_b + e_A))
    rounding = 100 * jnp.finfo(real).eps * (outer.A_norm * norm(outer.x) + b_norm)
    sound = (outer.code == Status.STAGNATION) & (outer.s_norm <= outer.A_norm * rounding)
    sound |= outer.code == Status.CONVERGED
    consistent = outer.r_norm <= jnp.maximum(tolerance, rounding)
    s_norm = scaled(outer.s_norm, e_b + e_A)
    return x, End(outer.k, scaled(own, e_b), s_norm, outer.code, norms, sound, consistent)


def _start(A: Maps, E: Map, N: Map, outer: Outer, hides: bool) -> Work:
    """From a true residual: beta·u = r and alpha·v = Aᴴ·u, each of length 1 in the norm of its preconditioner.

    Args:
      hides: whether N is M, so that Aᴴ·r has to be kept.
    """
    u, u_, beta = _unit(E, outer.r)
    v, v_, alpha = _unit(N, A.adjoint(u))
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    s = A.adjoint(outer.r) if hides else None
    vectors = jnp.zeros_like(v), u, u_, v, v_, v, jnp.zeros_like(v), s
    rotations = alpha, one, one, one, zero, zero, alpha * beta, beta, zero, one, zero, zero
    return Work(*vectors, *rotations, alpha, outer.A_norm, beta)


def _step(A: Maps, E: Map, N: Map, w: Work) -> tuple[Work, Array]:
    """One step, and RUNNING or the code of a failure."""
    Av = A.apply(w.v)
    A_norm = jnp.maximum(w.A_norm, ratio(norm(Av), norm(w.v)))
    u, u_, beta = _unit(E, Av - w.alpha * w.u_)
    v, v_, alpha = _unit(N, A.adjoint(u) - beta * w.v_)
    # Rotations turn the lower bidiagonal matrix into an upper one, R, and the transpose of R into another.
    rho = jnp.hypot(w.alpha_bar, beta)
    c, s = ratio(w.alpha_bar, rho), ratio(beta, rho)
    theta_new, alpha_bar = s * alpha, c * alpha
    theta_bar = w.s_bar * rho
    rho_bar = jnp.hypot(w.c_bar * rho, theta_new)
    c_bar, s_bar = ratio(w.c_bar * rho, rho_bar), ratio(theta_new, rho_bar)
    zeta, zeta_bar = c_bar * w.zeta_bar, -s_bar * w.zeta_bar
    h_bar = w.h - ratio(theta_bar * rho, w.rho * w.rho_bar) * w.h_bar
    x = w.x + ratio(zeta, rho * rho_bar) * h_bar
    h = v - ratio(theta_new, rho) * w.h
    # ‖r‖ by one more rotation.
    beta_hat, beta_dd = c * w.beta_dd, -s * w.beta_dd
    rho_tilde = jnp.hypot(w.rho_d, theta_bar)
    c_tilde, s_tilde = ratio(w.rho_d, rho_tilde), ratio(theta_bar, rho_tilde)
    theta, rho_d = s_tilde * rho_bar, c_tilde * rho_bar
    beta_d = -s_tilde * w.beta_d + c_tilde * beta_hat
    tau = ratio(w.zeta - w.theta * w.tau, rho_tilde)
    r_norm = jnp.hypot(beta_d - ratio(zeta - theta * tau, rho_d), beta_dd)
    code = status_of(
        (~jnp.isfinite(alpha) | ~jnp.isfinite(beta), Status.NON_FINITE),
        ((alpha < 0) | (beta < 0), Status.NOT_POSITIVE_DEFINITE),
    )
    normal = None if w.s is None else s_bar**2 * w.s + zeta_bar * c_bar * v_
    vectors = x, u, u_, v, v_, h, h_bar, normal
    rotations = alpha_bar, rho, rho_bar, c_bar, s_bar, zeta, zeta_bar, beta_dd, beta_d, rho_d, tau, theta
    return Work(*vectors, *rotations, alpha, A_norm, r_norm), code


def _unit(M: Map, v_: Array) -> tuple[Array, Array, Array]:
    """M·v′ and v′ over their length √(v′ᴴ·M·v′), and that length, negative where M is not definite."""
    v = M(v_)
    squared = dot(v_, v)
    length = jnp.sign(squared) * jnp.sqrt(jnp.abs(squared))
    return ratio(v, length), ratio(v_, length), length
