"""LSMR: least squares by MINRES on the normal equations, which are never formed (Fong and Saunders 2011, Table 2).

It has a loop of its own, since A has two sides, m and n, and either of two rules ends the loop:

    ‖r‖ ≤ max(rtol·‖b‖, atol)    or    ‖Aᴴ·r‖ ≤ max(rtol·‖r‖, 10·eps·‖b‖)·‖A‖        r = b − A·x

The recurrences of Golub and Kahan's bidiagonalisation estimate both norms, but only the true r ends the loop: if r does
not meet the rule that the recurrences meet, LSMR starts again from the true r, as long as that helps. ‖A‖ is estimated
by the largest ‖A·v‖ / ‖v‖ so far, from below, which makes the second rule stricter.

Traffic of a step in vectors: the two products, 3 of m, and 9 of n; a preconditioner adds its own and 4 of n.
"""

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import Tracer

from jaxsparse_fmt._one_kernel import one_kernel
from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import within
from solvers.core import arguments, iterate
from solvers.core.iterate import Options, System
from solvers.core.nullspaces import KEYWORDS
from solvers.core.operators import preconditioner, traced
from solvers.core.program import Entry
from solvers.core.solve import NUMBERS, Keywords, Settings, solver
from solvers.core.space import Map, exponent, largest, length, norm
from solvers.core.stopping import RUNNING, Limits, Loop, is_rounding, recorded, status_of
from solvers.core.vectors import adjoint_product, dot, once_if, ratio, scaled
from solvers.least_squares import LeastSquares, Maps, sized, two_sided
from solvers.solution import Solution, Status

ROUNDING = 10  # times eps·‖A‖·‖b‖: normal residuals that are rounding
SCALARS = "alpha", "rotations", "zeta_bar", "A_norm", "r_norm"  # fields of Work


@exportable
@pytree
class LeastSquaresSolution(Solution):
    """A least-squares solution, a pytree.

    Attributes:
      x: [n] or [n, k].
      residual_norm: ‖b − A·x‖₂, recomputed from x.
      normal_residual_norm: ‖Aᴴ·(b − A·x) − damp²·x‖₂, recomputed from x; 0 at the minimum.
      norms: normal residual norms of the recursion by iteration; None without `history`.

    Other attributes are those of `Solution`.
    """

    normal_residual_norm: Array


@solver(KEYWORDS)
def lsmr(A: Any, b: Any, x0: Any = None, *, damp: float = 0.0, **settings: Unpack[Keywords]) -> LeastSquaresSolution:
    """The x that minimises ‖b − A·x‖² + damp²·‖x‖², for A of any shape; the shortest such x if x0 is None.

    Works inside jit, vmap and grad. Differentiable in b, damp and A's values to any order, by two least-squares solves
    with A and Aᴴ, if A has full rank or damp is positive. If the rank is less, the derivative in b is that of the
    shortest x, and the one in A, which only exists for changes that keep the rank, is NaN, as after a failed solve.

    Args:
      A: [m, n] matrix: a jaxsparse_fmt format, a dense array, anything with a shape, `@` and `T`; or a pair of
        functions (v -> A·v, u -> Aᴴ·u), traced at each call, as a function in `cg`.
      b: [m], or, for a matrix A, [m, k] for k problems at once.
      x0: [n] or [n, k]; None starts from zero.
      damp: λ, from 0 up.
      M: an approximation of (AᴴA + λ²)⁻¹, positive definite: anything with `@`, a function r -> M·r, or the [n]
        numbers of a diagonal M, such as 1 / d with d the squared lengths of A's columns, plus λ².
      rtol, atol: with r = (b − A·x, −λ·x), stop when ‖r‖₂ ≤ max(rtol·‖b‖₂, atol), which is possible if b is in A's
        range; or when s = Aᴴ(b − A·x) − λ²·x meets ‖s‖₂ ≤ rtol·‖A‖₂·‖r‖₂, or is rounding, ‖s‖₂ ≤ 10·eps·‖A‖₂·‖b‖₂,
        with the method's estimate of ‖A‖₂, from below. All rules use the true r, and CONVERGED means that one is met.
      maxiter: most iterations, of two products each; None allows 10·min(m, n).
      history: keep the normal residual norms.
      adjoint: an `Adjoint`; "unrolled" is refused.

    Other arguments and the errors are those of `cg`.

    Examples:
      >>> tall = js.vstack([A, A])
      >>> js.lsmr(tall, np.ones(32), rtol=1e-8).status
      <Status.CONVERGED: 0>
    """
    return by_settings(A, b, x0, damp, Settings(**settings))


def by_settings(A: Any, b: Any, x0: Any, damp: Any, settings: Settings) -> LeastSquaresSolution:
    vectors = {"b": b, "x0": x0}
    b = arguments.nonempty(b, "b", "least squares needs at least one equation", 1)
    maps, dtype, n = two_sided(A, b)
    if x0 is not None and (x0 := arguments.vectors(x0, "x0")).shape != (n, *b.shape[1:]):
        raise ValueError(f"x0 has shape {x0.shape}; A and b need {(n, *b.shape[1:])}")
    dtype = jnp.result_type(dtype, b.dtype, jnp.float32, *(() if x0 is None else (x0.dtype,)))
    b, x0 = b.astype(dtype), None if x0 is None else x0.astype(dtype)
    M = preconditioner(settings.M, jax.ShapeDtypeStruct((n, *b.shape[1:]), dtype))
    factor = arguments.tolerance(damp, "damp") if isinstance(damp, (Tracer, jax.Array)) or damp != 0 else None
    options, adjoint, limits = settings.of_loop(jax.tree.leaves((maps, b)), n, 10 * min(b.shape[0], n))
    if adjoint == "unrolled":
        raise TypeError("adjoint must be a solvers.Adjoint for lsmr, which is not unrolled; got 'unrolled'")
    inside, x_basis, b_basis = maps[0]._in_bases()
    b_basis.agree(lambda: vectors | {"damp": damp, "M": M} | {name: getattr(settings, name) for name in NUMBERS})
    b, x0 = b_basis.placed(b), x_basis.placed(x0)
    bases: Any = x_basis, b_basis
    calls = options.callback is not None or options.progress is not None
    return _solve((options, adjoint, n), (inside, maps[1], M), bases, b, x0, factor, limits, calls=calls)


def _compute(
    plan: Any, maps: tuple[Any, Any, Any], bases: Any, b: Array, x0: Any, damp: Any, limits: Limits
) -> LeastSquaresSolution:
    (options, adjoint, n), (A, H, M), (x_basis, b_basis), dtype = plan, maps, bases, b.dtype
    b, x0 = b_basis.enter(b), None if x0 is None else x_basis.enter(x0)
    if H is None:
        n = A.shape[1]
    m, shape = b.shape[0], (n, *b.shape[1:])
    # A damped problem is the plain one with λ·I below A and zeros below b.
    factor = None if damp is None else damp.astype(jnp.finfo(dtype).dtype)
    rows = b if damp is None else jnp.concatenate([b, jnp.zeros(shape, dtype)])
    unknown = mesh_axes.varying(jnp.zeros(shape, dtype), rows)

    def forth(v: Array) -> Array:
        above = (A @ v).astype(dtype)
        return above if factor is None else jnp.concatenate([above, factor * v])

    def back(u: Array) -> Array:
        above = u if factor is None else u[:m]
        sums = (adjoint_product(A, above) if H is None else H @ above).astype(dtype)
        return sums if factor is None else sums + factor * u[m:]

    K = Maps(traced(forth, unknown), traced(back, rows))
    if M is not None:
        precondition = within(M, x_basis)
        M = traced(lambda r: (precondition @ r).astype(dtype), unknown)
    x, end = LeastSquares(_run, options, adjoint)(System(K, M, rows, x0, lax.stop_gradient(limits)))
    norms = end.norms if options.history_length else None
    ends = b_basis._shared((end.code, end.k, length(end.r[:m]), norms, end.normal))
    return LeastSquaresSolution(x_basis.leave(x), *ends)


def _examples(plan: Any, b: Array) -> tuple[Any, Any, Any]:
    whole = jnp.zeros((plan[2], *b.shape[1:]), b.dtype) if mesh_axes.all_axes(b) else b
    unknown = mesh_axes.shaped_like(whole, b.dtype).update(shape=(plan[2], *b.shape[1:]))
    return unknown, b, unknown


_solve = Entry(_compute, _examples)


# -------------------------------------------------------------------------------------------------------- the loop


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
    alpha: Array
    rotations: tuple[Array, ...]  # ρ, ρ̄, ᾱ, c̄, s̄, ζ, and for ‖r‖ (§5 of the paper) β̈, β̇, ρ̇, τ, θ
    zeta_bar: Array  # ‖Aᴴ·r‖, with a sign
    A_norm: Array  # from below
    r_norm: Array

    @property
    def s_norm(self) -> Array:
        return jnp.abs(self.zeta_bar) if self.s is None else norm(self.s)


class Restart(NamedTuple):
    """A solve before its true residual is judged; r and its norms are those of the previous x."""

    x: Array
    r: Array
    r_norm: Array
    s_norm: Array  # ‖Aᴴ·r‖
    A_norm: Array
    k: Array
    failure: Array  # RUNNING, or why the recurrences ended
    code: Array
    norms: Array


class Ending(NamedTuple):
    """How a solve ended: its results without x."""

    k: Array
    r: Array  # b − A·x
    normal: Array  # ‖Aᴴ·r‖, true
    code: Array
    norms: Array  # of Aᴴ·r by recursion
    sound: Array  # whether a rule was met, as far as rounding lets
    consistent: Array  # whether the first rule was, as far as rounding lets

    @property
    def norm(self) -> Array:
        return length(self.r)


def _run(options: Options, system: System, inside: bool, rtol_normal: Any = None) -> tuple[Array, Ending]:
    """x with the least ‖b − A·x‖, and from x0 = 0 the shortest such x. Powers of two scale A and b.

    Args:
      inside: whether M approximates (AᴴA)⁻¹; if not, it approximates (AAᴴ)⁻¹.
      rtol_normal: of the second rule, without its bound for rounding; None: as at the top.

    Returns:
      x [n] or [n, k], zero wherever it is not finite, and how the solve ended.
    """
    users, M, b, x, limits, *_ = system
    e_b, finite = exponent(b), jnp.ones(b.shape[1:], bool)
    if x is not None:  # entries that are not finite are reported, with the residual of the x = 0 that is returned
        finite = jnp.isfinite(largest(x))
        x = jnp.where(finite, x, 0)
        x = jnp.where(finite & ~(largest(b - users.apply(x)) < iterate.FAR * largest(b)), 0, x)
    b = scaled(b, -e_b)
    e_A, s = sized(users, b)
    # Half of the scale comes before a product, in which small numbers would be lost if A's are near the least ones.
    half, rest = -e_A >> 1, -e_A - (-e_A >> 1)
    A = Maps(
        lambda v: scaled(users.apply(scaled(v, half)), rest), lambda v: scaled(users.adjoint(scaled(v, half)), rest)
    )
    out, x = e_b - e_A, jnp.zeros_like(s) if x is None else scaled(x, e_A - e_b)
    E = N = lambda v: v
    if M is not None:
        E, N = (E, M) if inside else (M, N)

    b_norm = norm(b)
    real, eps = b_norm.dtype, jnp.finfo(b_norm.dtype).eps
    tolerance = jnp.maximum(limits.rtol * b_norm, scaled(jnp.asarray(limits.atol, real), -e_b)).astype(real)
    relative = jnp.asarray(limits.rtol if rtol_normal is None else rtol_normal, real)
    rounding = ROUNDING * eps * b_norm if rtol_normal is None else 0
    least = eps / 16  # a recursion that fell by more is rounding

    def level(w: Work | Restart) -> Array:
        return jnp.maximum(jnp.maximum(relative, least) * w.r_norm, rounding) * w.A_norm

    def nearer(w: Work | Restart) -> Any:
        """[2] or [2, k], the two sides of the rule that is nearer to being met, for a bar."""
        by_s = w.s_norm * tolerance < w.r_norm * level(w)
        sides = jnp.where(by_s, jnp.stack([w.s_norm, level(w)]), jnp.stack([w.r_norm, tolerance]))
        return scaled(sides, jnp.where(by_s, e_A + e_b, e_b))

    def trip(state: Restart) -> Restart:
        """Judges x, and takes LSMR from its true residual until the recurrences meet a rule."""
        r = b - A.apply(state.x)
        r_norm, s_norm = norm(r), norm(s := A.adjoint(r))
        A_norm = jnp.maximum(state.A_norm, ratio(s_norm, r_norm))
        met = (r_norm <= tolerance) | (s_norm <= jnp.maximum(relative * r_norm, rounding) * A_norm)
        code = status_of(
            (state.code != RUNNING, state.code),
            (~jnp.isfinite(r_norm + s_norm), Status.NON_FINITE),
            (met, Status.CONVERGED),
            (state.failure != RUNNING, state.failure),
            (state.k >= limits.maxiter, Status.MAXITER),
            ((s_norm >= state.s_norm / 2) & (r_norm >= state.r_norm / 2), Status.STAGNATION),
        )
        work = _start(A, E, N, r, A_norm, s if M is not None and inside else None)
        goal = jnp.maximum(tolerance, least * r_norm) * ratio(work.r_norm, r_norm)

        def goes_on(loop: Loop) -> Array:
            unmet = (loop.work.r_norm > goal) & (loop.work.s_norm > level(loop.work))
            return unmet & (loop.code == RUNNING) & (loop.k < limits.maxiter)

        def advance(loop: Loop) -> Loop:
            new, failure = _step(A, E, N, loop.work)
            moves, old = goes_on(loop), loop.work
            pairs = {name: (getattr(new, name), getattr(old, name)) for name in SCALARS}
            takes, k, code, numbers = _moved(moves, failure, loop.k, loop.code, pairs)
            work = iterate.chosen(takes, new._replace(**numbers), old._replace(**numbers))
            if options.callback is not None:
                iterate.show(options.callback, moves, scaled(state.x + work.x, out))
            norms = recorded(loop.norms, jnp.where(moves, k, -1), work.s_norm)
            return Loop(work, k, work.r_norm, code, norms)

        norms = recorded(state.norms, jnp.where(state.k == 0, 0, -1), s_norm)
        loop = Loop(work, state.k, work.r_norm, code, norms)  # a trip is one step: two products, about 60 scalars
        several = iterate.steps(advance, options, lambda on: (scaled(on.work.r_norm, e_b), *nearer(on.work)), unroll=1)
        loop = lax.while_loop(lambda loop: jnp.any(goes_on(loop)), several, mesh_axes.varying(loop, loop))
        x = state.x + jnp.where(code == RUNNING, loop.work.x, 0)
        return Restart(x, r, r_norm, s_norm, jnp.maximum(A_norm, loop.work.A_norm), loop.k, loop.code, code, loop.norms)

    never, running = jnp.full_like(b_norm, jnp.inf), jnp.full(b_norm.shape, RUNNING, jnp.int32)
    A_norm = jnp.zeros_like(b_norm) if system.x0 is None else ratio(norm(A.apply(x)), norm(x))
    norms = jnp.full((options.history_length, *b_norm.shape), -1, real)
    failure = jnp.where(finite, running, Status.NON_FINITE).astype(jnp.int32)
    state = mesh_axes.varying(Restart(x, b, never, never, A_norm, 0 * running, failure, running, norms), b)
    state = lax.while_loop(lambda state: jnp.any(state.code == RUNNING), trip, state)

    noise = 100 * eps * (state.A_norm * norm(state.x) + b_norm)
    consistent = state.r_norm <= jnp.maximum(tolerance, noise)
    sound = (state.code == Status.STAGNATION) & (state.s_norm <= state.A_norm * noise)
    x = scaled(state.x, out)
    x, finite = jnp.where(jnp.isfinite(x), x, 0), jnp.all(jnp.isfinite(state.x), axis=0)

    def residuals(_: Any, x: Array) -> tuple[Array, Array]:
        r = b - A.apply(x)
        return r, norm(A.adjoint(r))

    held = scaled(x, -out)
    # The residual is that of the x returned, where the dtype does not hold all of it.
    differs = jnp.any(held != state.x, axis=0)
    r, s_norm = once_if(differs, residuals, (state.r, state.s_norm), held)
    lost = state.A_norm * norm(held - state.x) > jnp.maximum(tolerance, relative * state.r_norm)
    rounded = is_rounding(state.code, state.r_norm, state.A_norm * norm(state.x), b_norm, tolerance)
    causes = (~finite, Status.NON_FINITE), (lost, Status.OUT_OF_RANGE), (rounded, Status.ROUNDED)
    code = status_of(*causes, (finite, state.code))
    if options.progress is not None:
        iterate.tell_end(options.progress, state.k, nearer(state)[0], nearer(state)[1], code)
    norms = jnp.where(state.norms < 0, state.norms, scaled(state.norms, e_b + e_A))
    sound, normal = sound | (code == Status.CONVERGED), scaled(s_norm, e_b + e_A)
    return x, Ending(state.k, scaled(r, e_b), normal, code, norms, sound, consistent)


def _start(A: Maps, E: Map, N: Map, r: Array, A_norm: Array, s: Array | None) -> Work:
    """From a true residual: beta·u = r and alpha·v = Aᴴ·u, each of length 1 in the norm of its preconditioner."""
    u, u_, beta = _unit(E, r)
    v, v_, alpha = _unit(N, A.adjoint(u))
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    rotations = one, one, alpha, one, zero, zero, beta, zero, one, zero, zero
    vectors = jnp.zeros_like(v), u, u_, v, v_, v, jnp.zeros_like(v), s
    return Work(*vectors, alpha, rotations, alpha * beta, A_norm, beta)


def _step(A: Maps, E: Map, N: Map, w: Work) -> tuple[Work, Array]:
    """One step, and RUNNING or the code of a failure."""
    Av = A.apply(w.v)
    A_norm = jnp.maximum(w.A_norm, ratio(norm(Av), norm(w.v)))
    u, u_, beta = _unit(E, Av - w.alpha * w.u_)
    v, v_, alpha = _unit(N, A.adjoint(u) - beta * w.v_)
    rotations, zeta_bar, factors, r_norm, code = _rotated(w.rotations, w.zeta_bar, alpha, beta)
    h_bar = w.h - factors[0] * w.h_bar
    x, h = w.x + factors[1] * h_bar, v - factors[2] * w.h
    normal = None if w.s is None else factors[3] * w.s + factors[4] * v_
    return Work(x, u, u_, v, v_, h, h_bar, normal, alpha, rotations, zeta_bar, A_norm, r_norm), code


@one_kernel
def _rotated(rotations: tuple[Array, ...], zeta_bar: Array, alpha: Array, beta: Array) -> tuple[Any, ...]:
    """The rotations and zeta_bar of the next step, the factors of the vectors, ‖r‖, and RUNNING or a failure.

    Rotations turn the lower bidiagonal matrix into an upper one, R, and the transpose of R into another.
    """
    rho_before, rho_bar_before, alpha_bar, c_bar, s_bar, zeta_before, beta_dd, beta_d, rho_d, tau, theta = rotations
    rho = jnp.hypot(alpha_bar, beta)
    c, s = ratio(alpha_bar, rho), ratio(beta, rho)
    theta_new, alpha_bar, theta_bar = s * alpha, c * alpha, s_bar * rho
    rho_bar = jnp.hypot(c_bar * rho, theta_new)
    c_bar, s_bar = ratio(c_bar * rho, rho_bar), ratio(theta_new, rho_bar)
    zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
    # ‖r‖ by one more rotation.
    beta_hat, beta_dd, rho_tilde = c * beta_dd, -s * beta_dd, jnp.hypot(rho_d, theta_bar)
    c_tilde, s_tilde = ratio(rho_d, rho_tilde), ratio(theta_bar, rho_tilde)
    tau = ratio(zeta_before - theta * tau, rho_tilde)
    theta, rho_d, beta_d = s_tilde * rho_bar, c_tilde * rho_bar, -s_tilde * beta_d + c_tilde * beta_hat
    r_norm = jnp.hypot(beta_d - ratio(zeta - theta * tau, rho_d), beta_dd)
    code = status_of(
        (~jnp.isfinite(alpha) | ~jnp.isfinite(beta), Status.NON_FINITE),
        ((alpha < 0) | (beta < 0), Status.NOT_POSITIVE_DEFINITE),
    )
    rotations = rho, rho_bar, alpha_bar, c_bar, s_bar, zeta, beta_dd, beta_d, rho_d, tau, theta
    factors = (
        ratio(theta_bar * rho, rho_before * rho_bar_before),
        ratio(zeta, rho * rho_bar),
        ratio(theta_new, rho),
        s_bar**2,
        zeta_bar * c_bar,
    )
    return rotations, zeta_bar, factors, r_norm, code


@one_kernel
def _moved(moves: Array, failure: Array, k: Array, code: Array, numbers: dict[str, Any]) -> tuple[Any, ...]:
    """Whether the step is taken, and the numbers after it."""
    takes = moves & (failure == RUNNING)
    kept = {name: jax.tree.map(lambda new, old: jnp.where(takes, new, old), *pair) for name, pair in numbers.items()}
    return takes, k + takes.astype(jnp.int32), jnp.where(moves, failure, code), kept


def _unit(M: Map, v_: Array) -> tuple[Array, Array, Array]:
    """M·v′ and v′ over their length √(v′ᴴ·M·v′), and that length, negative where M is not definite."""
    v = M(v_)
    length = _signed_root(dot(v_, v))
    return ratio(v, length), ratio(v_, length), length


@one_kernel
def _signed_root(squared: Array) -> Array:
    return jnp.sign(squared) * jnp.sqrt(jnp.abs(squared))
