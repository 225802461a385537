"""Eigenpairs at an end of a Hermitian matrix's spectrum, with a preconditioner: LOBPCG (Knyazev 2001), in a basis that
stays orthonormal (Hetmaniuk and Lehoucq 2006). `eigsh` has the result and the derivatives.

A step finds the best vectors in the span of X, of the preconditioned residuals W and of the last directions P, blocks
of p vectors each. It makes W orthogonal to X and P, and orthonormal by the eigenvectors of its Gram matrix, twice
(Stathopoulos and Wu 2002): this drops directions that depend on others, where Cholesky factors would fail. Then it
multiplies W by A. X and P of the next step are combinations of the three blocks with orthonormal coefficients, and A·X
and A·P are combinations with the same ones, so that no rounding error is enlarged.

Traffic of a step in vectors of n: p products and p uses of M, and about 60·p for the combinations.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._types import standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Basis
from solvers._lanczos import TRUE, End, Limits
from solvers.core import arguments, program
from solvers.core.program import Entry
from solvers.core.scaling import Map, exponent, scaled
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, norm, ratio
from solvers.eigsh import EigenSolution, eigenpairs, eigenproblem
from solvers.solution import Status

GUARDS, MAXITER = 3, 1000
SIGNS = {"SA": 1, "LA": -1}
LOST = 100  # times eps: a direction whose eigenvalue of the Gram matrix is at most this is rounding
CLAIM = TRUE // 2  # the residual norm, in units of eps·‖A‖, at which the recursion counts as converged
REFRESHED = 20  # steps after which true products replace A·X and A·P, which gather rounding errors


@standard_promotion
def lobpcg(
    A: Any,
    k: int = 6,
    *,
    M: Any = None,
    which: str = "SA",
    X0: Any = None,
    maxiter: int | None = None,
    tol: float = 0.0,
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
      X0: [n, p] to start from, p ≥ k; None draws k + 3 vectors, the same at every call. Vectors beyond k make the
        others converge faster.
      maxiter: most steps, each of p products and uses of M; None allows 1000.
      tol, the `EigenSolution` and the errors: as in `eigsh`; steps count as iterations.
    """
    if which not in SIGNS:
        raise ValueError(f"which must be one of {', '.join(SIGNS)}; got {which!r}")
    own, basis, k, X0 = eigenproblem(A, k, X0, "X0", (GUARDS,))
    n, p = X0.shape
    if not k <= p <= n:
        raise ValueError(f"X0 has {p} columns; k = {k} and n = {n} need from {k} to {n}")
    M = arguments.preconditioner(M, X0[:, 0], "make X0 complex")
    limits = Limits(arguments.tolerance(tol, "tol"), arguments.maxiter(maxiter, MAXITER))
    return _solve((k, SIGNS[which]), (own, M), basis, X0, limits)


def _in_basis(plan: Any, maps: tuple[Any, Any], basis: Basis, X0: Array, limits: Limits) -> EigenSolution:
    A, M = maps
    X = basis.enter(X0).T
    M = None if M is None else program.traced(arguments.entered(M, basis), X[0])
    return eigenpairs(functools.partial(_run, *plan), basis, A, X[0], (X, limits, M))


_solve = Entry(_in_basis, lambda _, X0: (X0[:, 0], X0[:, 0]))


# -------------------------------------------------------------------------------------------------------- the loop


class State(NamedTuple):
    """A block is [p, n], its vectors are rows; a row of zeros is a dropped direction."""

    X: Array  # orthonormal
    AX: Array
    P: Array  # orthonormal, and orthogonal to X
    AP: Array
    values: Array  # [p] ascending
    norm: Array  # ‖A‖₂, from below
    worst: Array  # largest ratio of a true residual norm to the allowed one, when the recursion last met the tolerance
    indefinite: Array  # whether M proved indefinite
    code: Array
    steps: Array
    products: Array


def _run(k: int, sign: int, A: Map, X: Array, limits: Limits, M: Map | None) -> tuple[Array, Array, End]:
    """k eigenvalues of A [k] ascending, the smallest (sign 1) or largest (−1), their vectors [k, n], how it ended.

    Args:
      X: [p, n] to start from, p ≥ k.
    """
    X = _orthonormal(X)
    e_A = exponent(A(X[0]))
    block = lambda V: sign * jax.vmap(lambda v: scaled(A(v), -e_A))(V)  # noqa: E731
    p, eps = X.shape[0], jnp.finfo(X.dtype).eps

    def excess(state: State, units: int) -> tuple[Array, Array]:
        """Residuals, and the ratios of their norms to the allowed one: tol·|λ|, but no less than rounding leaves."""
        R = state.AX - state.values[:, None] * state.X
        relative = limits.tol.astype(state.norm.dtype) * jnp.abs(state.values)
        allowed = jnp.maximum(relative, units * eps * state.norm)
        return R, ratio(jax.vmap(norm)(R), allowed)

    def fresh(state: State) -> State:
        X = _orthonormal(state.X)
        both = block(jnp.concatenate([X, state.P]))
        values, C = _ritz(X, both[:p])
        X, AX = matmul(C.T, X), matmul(C.T, both[:p])
        size = jnp.maximum(state.norm, jnp.max(jax.vmap(norm)(AX)))
        return state._replace(X=X, AX=AX, AP=both[p:], values=values, norm=size, products=state.products + 2 * p)

    def judge(state: State) -> State:
        """Sets the code, by true residuals wherever the recursion meets the tolerance."""
        claims = jnp.all(excess(state, CLAIM)[1][:k] <= 1)
        ends = state.indefinite | (state.steps >= limits.maxiter)
        due = claims | ends | (state.steps % REFRESHED == 0)
        state = lax.cond(due, fresh, lambda state: state, state)
        worst = jnp.max(excess(state, TRUE)[1][:k])
        code = status_of(
            (~jnp.isfinite(worst) | ~jnp.all(jnp.isfinite(state.values)), Status.NON_FINITE),
            (due & (worst <= 1), Status.CONVERGED),
            (state.indefinite, Status.NOT_POSITIVE_DEFINITE),
            (claims & (worst > state.worst / 2), Status.STAGNATION),
            (state.steps >= limits.maxiter, Status.MAXITER),
        )
        return state._replace(code=code, worst=jnp.where(claims, worst, state.worst))

    def advance(state: State) -> State:
        R, over = excess(state, CLAIM)
        W = R if M is None else jax.vmap(M)(R).astype(R.dtype)
        W = jax.vmap(lambda w: scaled(w, -exponent(w)))(W)
        indefinite = jnp.any(jnp.sum(jnp.conj(R) * W, axis=1).real < 0) & jnp.all(jnp.isfinite(W))
        W = jnp.where((over > 1)[:, None], W, 0)  # a converged pair stays in X and adds no direction
        finite = jnp.all(jnp.isfinite(W))
        W = _orthonormal(W, jnp.concatenate([state.X, state.P]))
        AW = block(W)
        S, AS = jnp.concatenate([state.X, W, state.P]), jnp.concatenate([state.AX, AW, state.AP])
        values, C = _ritz(S, AS)
        C = C[:, :p]
        # What the new X has outside the old one, made orthogonal to it, in coordinates of S.
        D = _orthonormal(C.at[:p].set(0).T, C.T).T
        return state._replace(
            X=matmul(C.T, S),
            AX=matmul(C.T, AS),
            P=matmul(D.T, S),
            AP=matmul(D.T, AS),
            values=values[:p],
            norm=jnp.maximum(state.norm, jnp.max(jax.vmap(norm)(AW))),
            indefinite=indefinite,
            code=jnp.where(finite, state.code, Status.NON_FINITE).astype(jnp.int32),
            steps=state.steps + 1,
            products=state.products + p,
        )

    def trip(state: State) -> State:
        state = judge(state)
        return lax.cond(state.code == RUNNING, advance, lambda state: state, state)

    real, zero = jnp.finfo(X.dtype).dtype, jnp.int32(0)
    nothing, never = jnp.zeros_like(X), jnp.array(jnp.inf, real)
    numbers = jnp.zeros(p, real), jnp.zeros((), real), never, jnp.bool(False), jnp.int32(RUNNING), zero, zero
    # Zeros count as converged, so that the first `judge` replaces them by true products.
    state = mesh_axes.varying(State(X, nothing, nothing, nothing, *numbers), X)
    state = lax.while_loop(lambda state: state.code == RUNNING, trip, state)

    norms = jax.vmap(norm)(excess(state, TRUE)[0])[:k]
    values, X = sign * state.values[:k], state.X[:k]
    if sign < 0:
        values, X, norms = values[::-1], X[::-1], norms[::-1]
    end = End(state.code, state.steps, state.products, scaled(norms, e_A), scaled(state.norm, e_A))
    return scaled(values, e_A), X, end


def _orthonormal(Z: Array, others: Array | None = None) -> Array:
    """Orthonormal rows, orthogonal to `others`, with the span of Z's; zeros where those depend on one another."""
    for _ in range(2):
        Z = _unit(Z)
        if others is not None:
            Z = _unit(Z - matmul(matmul(Z, jnp.conj(others).T), others))
        weights, U = jnp.linalg.eigh(matmul(jnp.conj(Z), Z.T))
        held = weights > LOST * jnp.finfo(Z.dtype).eps
        Z = matmul(jnp.where(held, U / jnp.sqrt(jnp.where(held, weights, 1)), 0).T, Z)
    return Z


def _ritz(S: Array, AS: Array) -> tuple[Array, Array]:
    """Ritz values, ascending, and their vectors in coordinates of S; those of rows of zeros last."""
    H = matmul(jnp.conj(S), AS.T)
    H = (H + jnp.conj(H.T)) / 2
    dead = jnp.sum(jnp.abs(S) ** 2, axis=1) < 0.5
    last = 4 * jnp.max(jnp.sum(jnp.abs(H), axis=1)) + 1
    return jnp.linalg.eigh(jnp.where(dead[:, None] | dead, 0, H) + jnp.diag(jnp.where(dead, last, 0)))


def _unit(Z: Array) -> Array:
    """Rows of length 1, or 0."""
    return ratio(Z, jax.vmap(norm)(Z)[:, None])
