"""Eigenpairs at an end of a Hermitian matrix's spectrum, with a preconditioner: LOBPCG (Knyazev 2001), in a basis that
stays orthonormal (Hetmaniuk and Lehoucq 2006). `eigsh` has the result and the derivatives.

A step finds the best vectors in the span of X, of the preconditioned residuals W and of the last directions P, blocks
of p vectors each. It makes W orthogonal to X and P, and orthonormal by the eigenvectors of its Gram matrix, twice
(Stathopoulos and Wu 2002): this drops directions that depend on others, where Cholesky factors would fail. Then it
multiplies W by A. X and P of the next step are combinations of the three blocks with orthonormal coefficients, and A·X
and A·P are combinations with the same ones, so that no rounding error is enlarged. For A·x = λ·B·x vectors are
orthonormal in the product xᴴ·B·y. Constraints Y are no concern of the loop: it gets Pᴴ·A·P + σ·B·Y·(B·Y)ᴴ in place of
A, with the projection P = 1 − Y·(B·Y)ᴴ, whose pairs are those of A orthogonal to Y, and Y with σ at the other end.

Traffic of a step in vectors of n: p products and p uses of M, 2·p products with B, and about 60·p for the combinations.
"""

import dataclasses
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
from solvers.core.space import Map, exponent, length, norm
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, ratio, scaled
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
    B: Any = None,
    Y: Any = None,
    which: str = "SA",
    X0: Any = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    progress: Any = None,
) -> EigenSolution:
    """k eigenvalues at an end of the spectrum of a symmetric (Hermitian) A, or of A·x = λ·B·x, and their eigenvectors.

    With an M such as `precond.multigrid(A)` it finds the smallest eigenvalues of a discretised differential operator in
    a few steps, where `eigsh` is slow. It finds copies of an eigenvalue like any other eigenvalue. Works inside jit and
    vmap, and is differentiable as `eigsh` is.

    Args:
      A, k: as in `eigsh`; a function needs X0.
      M: a positive definite approximation of A⁻¹, or of (A − σ)⁻¹ with σ below the wanted values: anything with `@`,
        or a function r -> M·r. None: the identity.
      B: [n, n] mass matrix, positive definite, or a function v -> B·v: only products, no factors. xᴴ·B·x is 1 for the
        eigenvectors. `eigsh` calls it M. With many orders of magnitude in B the M of the method decides how many steps
        it takes.
      Y: [n, m], linearly independent vectors to which the eigenvectors are orthogonal, Yᴴ·B·x = 0, such as those
        found before. If Y does not span eigenvectors, the pairs are those of A on the vectors orthogonal to Y, and so
        are their residuals. Derivatives know of Y's.
      which: "SA" smallest, "LA" largest.
      X0: [n, p] to start from, p ≥ k, with parts along the wanted vectors; None draws k + 3 vectors, the same at every
        call. Vectors beyond k make the others converge faster.
      maxiter: most steps, each of p products and uses of M; None allows 1000.
      tol: as in `eigsh`.
      progress: as in `eigsh`, after each step.

    The `EigenSolution` and the errors are those of `eigsh`; steps count as iterations.

    Examples:
      >>> sol = js.lobpcg(A, 2, M=js.precond.jacobi(A))
      >>> sol.eigenvalues.round(3).tolist()
      [0.764, 1.764]
      >>> js.lobpcg(A, 1, Y=sol.eigenvectors).eigenvalues.round(3).tolist()  # the next one, a copy
      [1.764]
      >>> js.lobpcg(A, 2, B=2 * js.eye(A.shape[0])).eigenvalues.round(3).tolist()
      [0.382, 0.882]
    """
    check_choice("which", which, SIGNS, NEAREST)
    if jnp.ndim(k):
        raise TypeError("k is the number of pairs; vectors to start from are X0: lobpcg(A, k, X0=X)")
    A, basis, k, X0 = eigenproblem(A, k, X0, "X0", (GUARDS,))
    n, p = X0.shape
    if not k <= p <= n:
        raise ValueError(f"X0 has {p} columns; k = {k} and n = {n} need from {k} to {n}")
    if Y is not None:
        Y = arguments.vectors(Y, "Y")
        Y = Y[:, None] if Y.ndim == 1 else Y
        if Y.shape[0] != n or not 0 < Y.shape[1] <= n - k:
            raise ValueError(f"Y must be vectors [{n}, m] with m from 1 to n − k = {n - k}; got shape {Y.shape}")
        Y, X0 = basis.accept(Y), X0.astype(operators.promoted(X0.dtype, Y.dtype))
    B = None if B is None else operators.operator(B, n, "B")
    X0 = X0 if B is None else X0.astype(operators.promoted(X0.dtype, operators.product_dtype(B, X0, "B")))
    M = preconditioner(M, jax.ShapeDtypeStruct(X0.shape[:1], X0.dtype), "make X0 complex")
    ends = limits(tol, maxiter)
    basis.agree(lambda: {"k": k, "which": which, "tol": tol, "maxiter": maxiter, "M": M, "B": B})
    watcher = arguments.watcher(progress)
    return _solve((k, SIGNS[which], watcher), (A, B, M), basis, X0, ends, Y, calls=watcher is not None)


def _in_basis(plan: Any, maps: tuple[Any, ...], basis: Basis, X0: Array, limits: Limits, Y: Any) -> EigenSolution:
    A, B, M = maps
    # Noise follows X0, which may be zero or of dependent columns.
    V = basis.enter(jnp.concatenate([X0, basis.noise(X0.shape, X0.real.dtype)], axis=1)).T
    M = None if M is None else within(M, basis)
    e_B, mass = jnp.int32(0), None
    if B is not None:
        product = within(B, basis).__matmul__
        e_B = exponent(lax.stop_gradient(product(V[-1]))) // 2 * 2
        mass = operators.UserFunction(lambda v: scaled(product(v).astype(v.dtype), -e_B), B)
    if Y is not None:
        A, M, V = _constrained(plan[1], A, mass, M, V, basis.enter(Y).T.astype(V.dtype))
    M = None if M is None else operators.traced(M.__matmul__, V[0])
    sol = eigenpairs(Pairs(_run, plan), basis, Pencil(A, mass), V[0], (V, limits, M))
    if B is None:
        return sol
    values, X, norms = scaled(sol.eigenvalues, -e_B), scaled(sol.eigenvectors, -e_B // 2), sol.residual_norms
    return dataclasses.replace(sol, eigenvalues=values, eigenvectors=X, residual_norms=scaled(norms, -e_B // 2))


_solve = Entry(_in_basis, lambda _, X0: (X0[:, 0],) * 3)


def _constrained(sign: int, A: Any, mass: Any, M: Any, V: Array, Y: Array) -> tuple[Any, Any, Array]:
    """A, M and the start V [2·p, n] of the problem without the span of Y, [m, n] and not yet orthonormal."""
    images = (lambda V: V) if mass is None else jax.vmap(mass.__matmul__)
    Y = jax.vmap(lambda y: scaled(y, -exponent(y)))(Y)
    for _ in range(2):
        Y = _unit(Y)
        G = matmul(jnp.conj(Y), images(Y).T)
        L, least = jnp.linalg.cholesky(G), LOST * jnp.finfo(Y.dtype).eps * jnp.diagonal(G).real
        L = jnp.where(jnp.any(jnp.diagonal(L).real ** 2 <= least), jnp.nan, L)  # of dependent vectors
        Y = lax.linalg.triangular_solve(jnp.conj(L), Y, left_side=True, lower=True)
    BY = images(Y)

    def off(v: Array, Y: Array = Y, BY: Array = BY) -> Array:
        return v - matmul(matmul(jnp.conj(BY), v), Y)

    def product(v: Array) -> Array:
        w = off((A @ off(v)).astype(v.dtype), BY, Y)
        return w + matmul(matmul(jnp.conj(BY), v) * shift, BY)

    for _ in range(2):
        V = jax.vmap(off)(_unit(V))
    v = V[-1]
    shift = lax.stop_gradient(2 * sign * ratio(length(A @ v), length(v if mass is None else mass @ v)))
    within_span = None if M is None else operators.UserFunction(lambda r: off(M @ off(r, BY, Y)), M)
    return operators.UserFunction(product, A), within_span, V


# -------------------------------------------------------------------------------------------------------- the loop


class State(NamedTuple):
    """Vectors are rows; a row of zeros is a dropped direction."""

    V: Array  # [2·p, n] orthonormal in the product of B: X, and the last directions P
    AV: Array
    BV: Array | None  # None: V itself
    values: Array  # [p] of X, ascending
    norm: Array  # ‖A‖₂, from below
    mass_norm: Array  # ‖B‖₂, from below; 0 without a B
    worst: Array  # largest ratio of a true residual norm to the allowed one, when the recursion last met the tolerance
    defect: Array  # what the last step found wrong with A, B or M: RUNNING for nothing, or a Status
    code: Array
    steps: Array
    products: Array

    @property
    def mass(self) -> Array:
        """B·V."""
        return self.V if self.BV is None else self.BV

    @property
    def residuals(self) -> Array:
        p = self.values.size
        return self.AV[:p] - self.values[:, None] * self.mass[:p]


def _run(
    k: int, sign: int, watcher: Any, pencil: Pencil, V: Array, limits: Limits, M: Map | None
) -> tuple[EigenSolution, Array]:
    """The smallest k pairs of A (sign 1) or the largest (−1) from V [2·p, n], p ≥ k, and the norm of A − λ·B."""
    A, B, p, norms = pencil.A, pencil.M, V.shape[0] // 2, jax.vmap(norm)
    e_A, images = exponent(A(V[-1])), None if B is None else jax.vmap(B)

    def products(V: Array) -> Array:
        return sign * jax.vmap(lambda v: scaled(A(v), -e_A))(V)

    def grown(state: State, V: Array, AV: Array, BV: Array | None) -> State:
        gain = norms(AV) if B is None else ratio(norms(AV), norms(V))
        of_B = state.mass_norm if BV is None else jnp.maximum(state.mass_norm, jnp.max(ratio(norms(BV), norms(V))))
        return state._replace(norm=jnp.maximum(state.norm, jnp.max(gain)), mass_norm=of_B)

    def allowed(state: State, units: int) -> Array:
        if B is None:
            return limits.allowed(state.values, state.norm, units)
        of_mass = state.values * norms(state.mass[:p])
        return limits.allowed(of_mass, state.norm * norms(state.V[:p]) + jnp.abs(of_mass), units)

    def excess(state: State, units: int) -> Array:
        """Residual norms in units of those that are allowed."""
        return ratio(norms(state.residuals), allowed(state, units))

    def is_rounding(state: State) -> Array:
        """Whether errors of rounding in A and B, whose norms count, explain the residuals; graded ones leave more."""
        scale = (state.norm + jnp.abs(state.values) * state.mass_norm) * norms(state.V[:p])
        return jnp.all((norms(state.residuals) <= limits.allowed(state.values, scale, TRUE))[:k])

    def watched(state: State) -> tuple[Array, ...]:
        return tuple(scaled(a[:k], e_A) for a in (norms(state.residuals),) * 2 + (allowed(state, TRUE),))

    def fresh(state: State) -> State:
        V, BV, defect = _orthonormal(state.V, images)
        values, C, _ = _ritz(V, BV, AV := products(V))
        state = grown(state, V, AV, BV)._replace(values=values[:p], products=state.products + 2 * p)
        V, AV, BV = _combined(C.T, V, AV, BV)
        lacking = B is not None and jnp.any(_squared(V[:k], BV) < 0.5)
        defects = (state.defect, defect, jnp.where(lacking, Status.NOT_POSITIVE_DEFINITE, RUNNING))
        return state._replace(V=V, AV=AV, BV=BV, defect=status_of(*[(d != RUNNING, d) for d in defects]))

    def judge(state: State) -> State:
        """Sets the code, by true residuals wherever the recursion meets the tolerance."""
        claims = jnp.all(excess(state, CLAIM)[:k] <= 1)
        due = claims | (state.defect != RUNNING) | (state.steps >= limits.maxiter) | (state.steps % REFRESHED == 0)
        state = lax.cond(due, fresh, lambda state: state, state)
        worst = jnp.max(excess(state, TRUE)[:k])
        wrong = (state.defect == Status.NOT_SYMMETRIC) | (B is not None) & (state.defect != RUNNING)
        code = status_of(
            (~jnp.isfinite(worst) | ~jnp.all(jnp.isfinite(state.values)), Status.NON_FINITE),
            (wrong, state.defect),
            (due & (worst <= 1), Status.CONVERGED),
            (state.defect != RUNNING, state.defect),
            (jnp.bool_(B is not None) & due & (worst > state.worst / 2) & is_rounding(state), Status.ROUNDED),
            (claims & (worst > state.worst / 2), Status.STAGNATION),
            (state.steps >= limits.maxiter, Status.MAXITER),
        )
        if watcher is not None:
            jax.debug.callback(watcher, state.steps, *watched(state))
        return state._replace(code=code, worst=jnp.where(claims if B is None else due, worst, state.worst))

    def advance(state: State) -> State:
        R = state.residuals
        W = R if M is None else jax.vmap(M)(R).astype(R.dtype)
        W = jax.vmap(lambda w: scaled(w, -exponent(w)))(W)
        indefinite = jnp.any(jnp.sum(jnp.conj(R) * W, axis=1).real < 0)
        W = jnp.where((excess(state, CLAIM) > 1)[:, None], W, 0)  # a converged pair stays in X and adds no direction
        W, BW, defect = _orthonormal(W, images, state.V, state.mass)
        state = grown(state, W, AW := products(W), BW)
        S, AS = jnp.concatenate([state.V, W]), jnp.concatenate([state.AV, AW])
        BS = None if BW is None else jnp.concatenate([state.mass, BW])
        values, C, gap = _ritz(S, BS, AS)
        C = C[:, :p].T
        # What the new X has outside the old one, made orthogonal to it, in coordinates of S.
        C = jnp.concatenate([C, _orthonormal(C.at[:, :p].set(0), None, C, C)[0]])
        defect = status_of(
            (defect != RUNNING, defect),
            (limits.unsymmetric(gap, state.norm * (1 if B is None else jnp.max(norms(S)) ** 2)), Status.NOT_SYMMETRIC),
            (indefinite, Status.NOT_POSITIVE_DEFINITE),
        )
        V, AV, BV = _combined(C, S, AS, BS)
        counts = {"steps": state.steps + 1, "products": state.products + p}
        return state._replace(V=V, AV=AV, BV=BV, values=values[:p], defect=defect, **counts)

    def trip(state: State) -> State:
        state = judge(state)
        return lax.cond(state.code == RUNNING, advance, lambda state: state, state)

    real, zero, running = jnp.finfo(V.dtype).dtype, jnp.int32(0), jnp.int32(RUNNING)
    none = jnp.zeros((), real)
    scalars = jnp.zeros(p, real), none, none, jnp.array(jnp.inf, real), running, running, zero, zero
    # Zeros count as converged, so that the first `judge` replaces them by true products.
    start = State(V, jnp.zeros_like(V), None if B is None else jnp.zeros_like(V), *scalars)
    state = lax.while_loop(lambda state: state.code == RUNNING, trip, mesh_axes.varying(start, V))

    if watcher is not None:
        _, compared, permitted = watched(state)
        tell_end(watcher, state.steps, compared, permitted, state.code)
    pairs = scaled(sign * state.values, e_A), state.V, scaled(norms(state.residuals), e_A)
    values, X, found = (a[:k][::sign] for a in pairs)
    unit = state.norm + jnp.max(jnp.abs(state.values[:k])) * state.mass_norm
    return EigenSolution(values, X.T, state.code, state.steps, state.products, found), scaled(unit, e_A)


def _combined(C: Array, *blocks: Array | None) -> tuple[Any, ...]:
    return tuple(None if block is None else matmul(C, block) for block in blocks)


def _orthonormal(
    Z: Array, mass: Map | None, others: Array | None = None, images: Array | None = None
) -> tuple[Array, Array | None, Array]:
    """Orthonormal rows, orthogonal to `others`, with the span of Z's; zeros where those depend on one another.

    Args:
      mass: rows -> B times them; None: the identity.
      images: B times `others`.

    Returns:
      The rows, B times them (None for the identity), and RUNNING or what is wrong with B.
    """
    eps, BZ, running = jnp.finfo(Z.dtype).eps, None if mass is None else jnp.zeros_like(Z), jnp.int32(RUNNING)

    def trip(_: Any, carried: Any) -> Any:
        Z, BZ, defect = carried
        Z = _unit(Z)
        if others is not None and images is not None:
            Z = _unit(Z - matmul(matmul(Z, jnp.conj(images).T), others))
        if mass is not None:
            BZ = mass(Z)
            squared, rounding = _squared(Z, BZ), jax.vmap(norm)(BZ)
            indefinite = jnp.any(squared < -jnp.sqrt(eps) * rounding)
            length = jnp.sqrt(jnp.where(squared > LOST * eps * rounding, squared, 0))
            Z, BZ = ratio(Z, length[:, None]), ratio(BZ, length[:, None])
        G = matmul(jnp.conj(Z), Z.T if mass is None else BZ.T)
        weights, U = jnp.linalg.eigh(G, symmetrize_input=False)
        held = weights > LOST * eps
        C = jnp.where(held, U / jnp.sqrt(jnp.where(held, weights, 1)), 0).T
        if mass is not None:
            unequal = jnp.max(jnp.abs(G - jnp.conj(G.T))) > jnp.sqrt(eps) * jnp.max(ratio(rounding, length**2))
            defect = status_of(
                (defect != RUNNING, defect),
                (~jnp.all(jnp.isfinite(squared)), Status.NON_FINITE),
                (unequal, Status.NOT_SYMMETRIC),
                (indefinite, Status.NOT_POSITIVE_DEFINITE),
            )
        return *_combined(C, Z, BZ), defect

    return lax.fori_loop(0, 2, trip, mesh_axes.varying((Z, BZ, running), Z))


def _squared(V: Array, BV: Array | None) -> Array:
    """vᴴ·B·v of rows."""
    return jnp.sum(jnp.conj(V) * (V if BV is None else BV[: len(V)]), axis=1).real


def _ritz(S: Array, BS: Array | None, AS: Array) -> tuple[Array, Array, Array]:
    """Ritz values, ascending, and their vectors in coordinates of S; those of rows of zeros last; A's asymmetry."""
    H = matmul(jnp.conj(S), AS.T)
    gap = jnp.max(jnp.abs(H - jnp.conj(H.T)))
    dead = _squared(S, BS) < 0.5
    last = 4 * jnp.max(jnp.sum(jnp.abs(H), axis=1)) + 1
    H = jnp.where(dead[:, None] | dead, 0, H) + jnp.diag(jnp.where(dead, last, 0))
    return *jnp.linalg.eigh(H), gap


def _unit(Z: Array) -> Array:
    """Rows of length 1, or 0."""
    return ratio(Z, jax.vmap(norm)(Z)[:, None])
