"""Eigenpairs at an end of a Hermitian matrix's spectrum, with a preconditioner: LOBPCG (Knyazev 2001), in a basis that
stays orthonormal (Hetmaniuk and Lehoucq 2006). `eigsh` has the result and the derivatives.

A step finds the best vectors in the span of X, of the preconditioned residuals W and of the last directions P, blocks
of p vectors each. It makes W orthogonal to X and P, and orthonormal by the eigenvectors of its Gram matrix, twice
(Stathopoulos and Wu 2002): this drops directions that depend on others, where Cholesky factors would fail. Then it
multiplies W by A. X and P of the next step are combinations of the three blocks with orthonormal coefficients, and A·X
and A·P are combinations with the same ones, so that no rounding error is enlarged.

Traffic of a step in vectors of n: p products and p uses of M, and about 60·p for the combinations.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis, within
from solvers.core import arguments, operators
from solvers.core.iterate import tell_end
from solvers.core.operators import preconditioner
from solvers.core.program import Entry
from solvers.core.scaling import Map, scaled
from solvers.core.space import exponent, norm
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, ratio
from solvers.eigenpairs import NEAREST, EigenSolution, Limits, Pairs, eigenpairs, eigenproblem, limits
from solvers.eigsh import TRUE
from solvers.pencil import Pencil
from solvers.solution import Status

GUARDS = 3  # vectors beyond k
SIGNS = {"SA": 1, "LA": -1}
LOST = 100  # times eps: a direction whose eigenvalue of the Gram matrix is at most this is rounding
CLAIM = TRUE // 2  # the residual norm, in units of eps·‖A‖, at which the recursion counts as converged
REFRESHED = 20  # steps after which true products replace A·X and A·P, which gather rounding errors


@arguments.door
def lobpcg(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    which: str = "SA",
    X0: Any = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    progress: Any = None,
) -> EigenSolution:
    """k eigenvalues at an end of the spectrum of a symmetric (Hermitian) A, and their eigenvectors.

    With an M such as `precond.multigrid(A)` it finds the smallest eigenvalues of a discretised differential operator in
    a few steps, where `eigsh` is slow. It finds copies of an eigenvalue like any other eigenvalue. Works inside jit and
    vmap, and is differentiable as `eigsh` is.

    Args:
      A, k: as in `eigsh`; a function needs X0.
      M: a positive definite approximation of A⁻¹, or of (A − σ)⁻¹ with σ below the wanted values: anything with `@`,
        or a function r -> M·r. None: the identity.
      which: "SA" smallest, "LA" largest.
      X0: [n, p] to start from, p ≥ k, with parts along the wanted vectors; None draws k + 3 vectors, the same at every
        call. Vectors beyond k make the others converge faster.
      maxiter: most steps, each of p products and uses of M; None allows 1000.
      tol: as in `eigsh`.
      progress: as in `eigsh`, after each step.

    The `EigenSolution` and the errors are those of `eigsh`; steps count as iterations.

    Examples:
      >>> js.lobpcg(A, 2, M=js.precond.jacobi(A)).eigenvalues.round(3).tolist()
      [0.764, 1.764]
    """
    check_choice("which", which, SIGNS, NEAREST)
    A, basis, k, X0 = eigenproblem(A, k, X0, "X0", (GUARDS,))
    n, p = X0.shape
    if not k <= p <= n:
        raise ValueError(f"X0 has {p} columns; k = {k} and n = {n} need from {k} to {n}")
    M = preconditioner(M, X0[:, 0], "make X0 complex")
    ends = limits(tol, maxiter)
    basis.agree(lambda: {"k": k, "which": which, "tol": tol, "maxiter": maxiter, "M": M})
    watcher = arguments.watcher(progress)
    return _solve((k, SIGNS[which], watcher), (A, M), basis, X0, ends, calls=watcher is not None)


def _in_basis(plan: Any, maps: tuple[Any, Any], basis: Basis, X0: Array, limits: Limits) -> EigenSolution:
    A, M = maps
    # Noise follows X0, which may be zero or of dependent columns.
    V = basis.enter(jnp.concatenate([X0, basis.noise(X0.shape, X0.real.dtype)], axis=1)).T
    M = None if M is None else operators.traced(within(M, basis).__matmul__, V[0])
    return eigenpairs(Pairs(_run, plan), basis, Pencil(A), V[0], (V, limits, M))


_solve = Entry(_in_basis, lambda _, X0: (X0[:, 0], X0[:, 0]))


# -------------------------------------------------------------------------------------------------------- the loop


class State(NamedTuple):
    """Vectors are rows; a row of zeros is a dropped direction."""

    V: Array  # [2·p, n] orthonormal: X, and the last directions P
    AV: Array
    values: Array  # [p] of X, ascending
    norm: Array  # ‖A‖₂, from below
    worst: Array  # largest ratio of a true residual norm to the allowed one, when the recursion last met the tolerance
    defect: Array  # what the last step found wrong with A or M: RUNNING for nothing, or a Status
    code: Array
    steps: Array
    products: Array

    @property
    def residuals(self) -> Array:
        p = self.values.size
        return self.AV[:p] - self.values[:, None] * self.V[:p]


def _run(
    k: int, sign: int, watcher: Any, pencil: Pencil, V: Array, limits: Limits, M: Map | None
) -> tuple[EigenSolution, Array]:
    """The smallest k pairs of A (sign 1) or the largest (−1) from V [2·p, n], p ≥ k, and ‖A‖₂ from below."""
    A, p, norms = pencil.A, V.shape[0] // 2, jax.vmap(norm)
    e_A = exponent(A(V[-1]))

    def products(V: Array) -> Array:
        return sign * jax.vmap(lambda v: scaled(A(v), -e_A))(V)

    def excess(state: State, units: int) -> Array:
        """Residual norms in units of those that are allowed."""
        return ratio(norms(state.residuals), limits.allowed(state.values, state.norm, units))

    def watched(state: State) -> tuple[Array, ...]:
        allowed = limits.allowed(state.values, state.norm, TRUE)
        return tuple(scaled(a[:k], e_A) for a in (norms(state.residuals),) * 2 + (allowed,))

    def fresh(state: State) -> State:
        V = _orthonormal(state.V)
        values, C, _ = _ritz(V, AV := products(V))
        A_norm = jnp.maximum(state.norm, jnp.max(norms(AV)))
        V, AV = matmul(C.T, V), matmul(C.T, AV)
        return state._replace(V=V, AV=AV, values=values[:p], norm=A_norm, products=state.products + 2 * p)

    def judge(state: State) -> State:
        """Sets the code, by true residuals wherever the recursion meets the tolerance."""
        claims = jnp.all(excess(state, CLAIM)[:k] <= 1)
        due = claims | (state.defect != RUNNING) | (state.steps >= limits.maxiter) | (state.steps % REFRESHED == 0)
        state = lax.cond(due, fresh, lambda state: state, state)
        worst = jnp.max(excess(state, TRUE)[:k])
        code = status_of(
            (~jnp.isfinite(worst) | ~jnp.all(jnp.isfinite(state.values)), Status.NON_FINITE),
            (state.defect == Status.NOT_SYMMETRIC, Status.NOT_SYMMETRIC),
            (due & (worst <= 1), Status.CONVERGED),
            (state.defect != RUNNING, state.defect),
            (claims & (worst > state.worst / 2), Status.STAGNATION),
            (state.steps >= limits.maxiter, Status.MAXITER),
        )
        if watcher is not None:
            jax.debug.callback(watcher, state.steps, *watched(state))
        return state._replace(code=code, worst=jnp.where(claims, worst, state.worst))

    def advance(state: State) -> State:
        R = state.residuals
        W = R if M is None else jax.vmap(M)(R).astype(R.dtype)
        W = jax.vmap(lambda w: scaled(w, -exponent(w)))(W)
        indefinite = jnp.any(jnp.sum(jnp.conj(R) * W, axis=1).real < 0)
        W = jnp.where((excess(state, CLAIM) > 1)[:, None], W, 0)  # a converged pair stays in X and adds no direction
        W = _orthonormal(W, state.V)
        A_norm = jnp.maximum(state.norm, jnp.max(norms(AW := products(W))))
        S, AS = jnp.concatenate([state.V, W]), jnp.concatenate([state.AV, AW])
        values, C, gap = _ritz(S, AS)
        C = C[:, :p].T
        # What the new X has outside the old one, made orthogonal to it, in coordinates of S.
        C = jnp.concatenate([C, _orthonormal(C.at[:, :p].set(0), C)])
        defects = (limits.unsymmetric(gap, A_norm), Status.NOT_SYMMETRIC), (indefinite, Status.NOT_POSITIVE_DEFINITE)
        counts = state.code, state.steps + 1, state.products + p
        return State(matmul(C, S), matmul(C, AS), values[:p], A_norm, state.worst, status_of(*defects), *counts)

    def trip(state: State) -> State:
        state = judge(state)
        return lax.cond(state.code == RUNNING, advance, lambda state: state, state)

    real, zero, running = jnp.finfo(V.dtype).dtype, jnp.int32(0), jnp.int32(RUNNING)
    scalars = jnp.zeros(p, real), jnp.zeros((), real), jnp.array(jnp.inf, real), running, running, zero, zero
    # Zeros count as converged, so that the first `judge` replaces them by true products.
    state = mesh_axes.varying(State(V, jnp.zeros_like(V), *scalars), V)
    state = lax.while_loop(lambda state: state.code == RUNNING, trip, state)

    if watcher is not None:
        _, compared, allowed = watched(state)
        tell_end(watcher, state.steps, compared, allowed, state.code)
    pairs = scaled(sign * state.values, e_A), state.V, scaled(norms(state.residuals), e_A)
    values, X, found = (a[:k][::sign] for a in pairs)
    return EigenSolution(values, X.T, state.code, state.steps, state.products, found), scaled(state.norm, e_A)


def _orthonormal(Z: Array, others: Array | None = None) -> Array:
    """Orthonormal rows, orthogonal to `others`, with the span of Z's; zeros where those depend on one another."""

    def trip(_: Any, Z: Array) -> Array:
        Z = _unit(Z)
        if others is not None:
            Z = _unit(Z - matmul(matmul(Z, jnp.conj(others).T), others))
        weights, U = jnp.linalg.eigh(matmul(jnp.conj(Z), Z.T), symmetrize_input=False)
        held = weights > LOST * jnp.finfo(Z.dtype).eps
        return matmul(jnp.where(held, U / jnp.sqrt(jnp.where(held, weights, 1)), 0).T, Z)

    return lax.fori_loop(0, 2, trip, Z)


def _ritz(S: Array, AS: Array) -> tuple[Array, Array, Array]:
    """Ritz values, ascending, and their vectors in coordinates of S; those of rows of zeros last; A's asymmetry."""
    H = matmul(jnp.conj(S), AS.T)
    gap = jnp.max(jnp.abs(H - jnp.conj(H.T)))
    dead = jnp.sum(jnp.abs(S) ** 2, axis=1) < 0.5
    last = 4 * jnp.max(jnp.sum(jnp.abs(H), axis=1)) + 1
    H = jnp.where(dead[:, None] | dead, 0, H) + jnp.diag(jnp.where(dead, last, 0))
    return *jnp.linalg.eigh(H), gap


def _unit(Z: Array) -> Array:
    """Rows of length 1, or 0."""
    return ratio(Z, jax.vmap(norm)(Z)[:, None])
