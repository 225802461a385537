"""The thick-restart Lanczos loop (Wu and Simon 2000, Algorithm 1), with Ritz or harmonic Ritz vectors.

The loop holds a Krylov decomposition: rows V of an orthonormal basis and a small real symmetric T, also for a complex
Hermitian A, with

    A·Vₘ = Vₘ·T + v·bᵀ        Vₘ the first m rows as columns, v the row after them, b its coupling

which m products fill and a restart shrinks. Any p vectors whose residuals are multiples of one vector may be kept, and
that one goes on as the next: Ritz vectors, whose residuals are multiples of v (§2), or harmonic Ritz vectors (Morgan
1991, §2; Morgan and Zeng 2006, §3), which find eigenvalues inside the spectrum, where Ritz vectors mix several.

Traffic of a step, in vectors of n: the product, and 4·(m + 1) to make its result orthogonal to the basis, twice. A
restart reads the basis and writes it into a second one. Memory: 2·(m + 1) vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt.vectors import normal
from solvers._iterate import RUNNING, Map, _exponent, _scaled, norm
from solvers.solution import Status

Array = jax.Array

# Orthogonalisation and restarts in full precision: TF32, a GPU's default for float32, would leave 3 digits.
EXACT = lax.Precision.HIGHEST
# In units of eps·‖A‖: what a step leaves of a vector that lies in the basis already; what the loop takes for converged;
# and what the true residual may be then, besides a unit for each restart.
BREAKDOWN, ESTIMATE, TRUE = 10, 20, 100
# The pair after the wanted ones is known once its residual is this part of its distance from them.
SETTLED = 0.1
# Harmonic vectors are found for a σ that is this part of the mean spacing of Ritz values away from all of them.
NEAREST = 0.1


class Options(NamedTuple):
    """Static options. `which`: "SA", "LA", "LM", or "nearest" to sigma."""

    k: int
    which: str
    ncv: int


class Limits(NamedTuple):
    """Traced, so that changing them does not recompile."""

    tol: Array
    maxiter: Array
    sigma: Array  # 0 where there is none


class End(NamedTuple):
    """How it ended, without the pairs."""

    code: Array
    cycles: Array
    products: Array
    residual_norms: Array  # [k], true
    norm: Array  # ‖A‖₂, from below


class State(NamedTuple):
    V: Array  # [ncv + 1, n] orthonormal rows, zero after row `size`
    T: Array  # [ncv + 1, ncv + 1] real symmetric; row and column ncv hold the coupling b
    size: Array  # rows whose product is in T
    fresh: Array  # row `size` is zero: the rows before it span an invariant space, and it must be drawn
    Y: Array  # [ncv, k] the wanted vectors in coordinates of V
    norm: Array  # ‖A‖₂, from below
    keys: Array  # [k] of the pairs that were found before others were looked for
    checking: Array  # whether it looks for others
    code: Array
    cycles: Array
    products: Array


class Ritz(NamedTuple):
    """Approximate pairs in coordinates, in no order."""

    values: Array  # [ncv]
    Y: Array  # [ncv, ncv], columns of length 1
    residual_norms: Array  # [ncv]
    keys: Array  # [ncv], small where a pair is wanted, as far as is known before it converges
    direction: Array  # [ncv + 1], of all their residuals


def run(options: Options, A: Map, v0: Array, limits: Limits) -> tuple[Array, Array, End]:
    """k pairs of A: eigenvalues [k] ascending, eigenvectors [k, n] as rows, and how it ended.

    A is scaled by a power of two, from its product with v0: exact, and no square under- or overflows.
    """
    v0 = _scaled(v0, -_exponent(v0))
    length = norm(v0)
    v0 = v0 / jnp.where(length == 0, 1, length)
    exponent = _exponent(A(v0))
    scaled = lambda v: _scaled(A(v), -exponent)  # noqa: E731
    limits = limits._replace(sigma=_scaled(limits.sigma.astype(length.dtype), -exponent))
    cycle = lambda state: _cycle(options, scaled, limits, state)  # noqa: E731
    state = lax.while_loop(lambda s: s.code == RUNNING, cycle, _start(options, v0))
    values, X, norms = _extract(scaled, state)

    finite = jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(X)) & jnp.all(jnp.isfinite(norms))
    ends = [
        (~finite | (state.code == Status.NON_FINITE), Status.NON_FINITE),
        (state.code == Status.MAXITER, Status.MAXITER),
        (jnp.all(norms <= _allowed(values, limits, state.norm, TRUE + state.cycles)), Status.CONVERGED),
    ]
    code = jnp.select([c for c, _ in ends], [jnp.int32(s) for _, s in ends], jnp.int32(Status.STAGNATION))
    values, X = jnp.where(finite, values, 0), jnp.where(finite, X, 0)
    products = state.products + 1 + options.k
    norms, A_norm = _scaled(norms, exponent), _scaled(state.norm, exponent)
    return _scaled(values, exponent), X, End(code, state.cycles, products, norms, A_norm)


def _start(options: Options, v0: Array) -> State:
    m, k, n = options.ncv, options.k, v0.shape[0]
    real = jnp.finfo(v0.dtype).dtype
    zero = jnp.int32(0)
    return State(
        V=jnp.zeros((m + 1, n), v0.dtype).at[0].set(v0),
        T=jnp.zeros((m + 1, m + 1), real),
        size=zero,
        fresh=~jnp.any(v0 != 0),
        Y=jnp.zeros((m, k), real),
        norm=jnp.zeros((), real),
        keys=jnp.full(k, jnp.inf, real),
        checking=jnp.bool(False),
        code=jnp.int32(RUNNING),
        cycles=zero,
        products=zero,
    )


def _allowed(values: Array, limits: Limits, A_norm: Array, units: int | Array) -> Array:
    """What residual norm is small enough: tol·|λ − sigma|, but no less than what rounding leaves."""
    relative = limits.tol.astype(values.dtype) * jnp.abs(values - limits.sigma)
    return jnp.maximum(relative, units * jnp.finfo(values.dtype).eps * A_norm)


# ----------------------------------------------------------------------------------------------------------- steps


def _cycle(options: Options, A: Map, limits: Limits, state: State) -> State:
    """Steps until the basis is full or invariant; a full one is judged and shrunk."""
    state = lax.cond(state.fresh, _draw, lambda s: s, state)
    state = lax.while_loop(lambda s: (s.size < options.ncv) & ~s.fresh, lambda s: _step(A, s), state)
    restart = lambda s: _restart(options, limits, s)  # noqa: E731
    return lax.cond(state.size == options.ncv, restart, lambda s: s, state)


def _step(A: Map, state: State) -> State:
    """One product, made orthogonal to the basis."""
    j = state.size
    w = A(state.V[j])
    A_norm = jnp.maximum(state.norm, norm(w))
    w, h = _orthogonal(state.V, w)
    beta = norm(w)
    invariant = beta <= BREAKDOWN * jnp.finfo(beta.dtype).eps * A_norm
    beta = jnp.where(invariant, 0, beta)
    v = jnp.where(invariant, 0, w / jnp.where(invariant, 1, beta))
    return state._replace(
        V=state.V.at[j + 1].set(v),
        T=state.T.at[j, j].set(h[j].real).at[j + 1, j].set(beta).at[j, j + 1].set(beta),
        size=j + 1,
        fresh=invariant,
        norm=A_norm,
        products=state.products + 1,
    )


def _orthogonal(V: Array, w: Array) -> tuple[Array, Array]:
    """w less its components in V's rows, and those: by classical Gram-Schmidt, twice (Giraud et al. 2005)."""
    h = jnp.zeros(V.shape[0], V.dtype)
    for _ in range(2):
        part = jnp.conj(_matmul(V, jnp.conj(w)))
        w = w - _matmul(part, V)
        h = h + part
    return w, h


def _draw(state: State) -> State:
    """A random direction outside an invariant space: row `size`, coupled to nothing."""
    V, j = state.V, state.size
    key = jax.random.fold_in(jax.random.key(1), state.products)
    w, _ = _orthogonal(V, normal(key, V.shape[1:], V.dtype))
    return state._replace(V=V.at[j].set(w / norm(w)), fresh=jnp.bool(False))


# -------------------------------------------------------------------------------------------------------- restarts


def _restart(options: Options, limits: Limits, state: State) -> State:
    """Judges the pairs, and keeps the best: `keep` of them and the direction of their residuals, or the k wanted alone.

    A Krylov space has one vector of each eigenspace. So the wanted pairs are checked once they have converged: a search
    starts from a random vector outside them, and when the best pair there is known to be no better, they are all. One
    pair at an end of the spectrum needs no check, and neither does a basis of the whole space.
    """
    m, k, n = options.ncv, options.k, state.V.shape[1]
    keep = k + (m - k) // 2
    T = jnp.where(jnp.isfinite(state.T), state.T, 0)
    key = KEYS[options.which]
    ritz = _harmonic(T, limits.sigma, state.norm) if options.which == "nearest" else _plain(T, key)
    A_norm = jnp.maximum(state.norm, jnp.max(jnp.abs(ritz.values)))
    allowed = _allowed(ritz.values, limits, A_norm, ESTIMATE)
    converged = ritz.residual_norms <= allowed
    keys = jnp.where(converged, key(ritz.values - limits.sigma), ritz.keys)
    order = jnp.argsort(keys)
    keys, allowed, converged, residual_norms = (a[order] for a in (keys, allowed, converged, ritz.residual_norms))
    Y = ritz.Y[:, order]

    found = jnp.all(converged[:k])
    same = state.checking & ~jnp.any(jnp.abs(keys[:k] - state.keys) > allowed[:k])
    if m == n or (k == 1 and options.which != "nearest"):
        checked = jnp.bool(True)
    else:
        checked = same & (residual_norms[k] <= jnp.maximum(allowed[k], SETTLED * (keys[k] - keys[k - 1])))
    check = found & ~same

    cycles = state.cycles + 1
    ends = [
        (~jnp.all(jnp.isfinite(state.T)), Status.NON_FINITE),
        (found & checked, Status.CONVERGED),
        (cycles >= limits.maxiter, Status.MAXITER),
    ]
    code = jnp.select([c for c, _ in ends], [jnp.int32(s) for _, s in ends], jnp.int32(RUNNING))

    Q = jnp.zeros((m + 1, keep + 1), T.dtype).at[:m, :keep].set(Y[:, :keep]).at[:, keep].set(ritz.direction)
    Q, _ = jnp.linalg.qr(Q)
    Q = jnp.where(check & (jnp.arange(keep + 1) >= k), 0, Q)
    Q = jnp.zeros_like(T).at[:, : keep + 1].set(Q)
    T = _matmul(Q.T, _matmul(T, Q))
    return State(
        V=_matmul(jnp.where(code == RUNNING, Q, jnp.eye(m + 1, dtype=T.dtype)).T, state.V),  # in the end that of Y
        T=(T + T.T) / 2,
        size=jnp.where(check, k, keep).astype(jnp.int32),
        fresh=check,
        Y=Y[:, :k],
        norm=A_norm,
        keys=jnp.where(check, keys[:k], state.keys),
        checking=check | state.checking,
        code=code,
        cycles=cycles,
        products=state.products,
    )


KEYS: dict[str, Callable[[Array], Array]] = {  # of an eigenvalue less sigma, small where it is wanted
    "SA": lambda d: d,
    "LA": lambda d: -d,
    "LM": lambda d: -jnp.abs(d),
    "nearest": jnp.abs,
}


def _plain(T: Array, key: Callable[[Array], Array]) -> Ritz:
    m = T.shape[0] - 1
    values, Y = jnp.linalg.eigh(T[:m, :m])
    last = jnp.zeros(m + 1, T.dtype).at[m].set(1)
    return Ritz(values, Y, jnp.abs(_matmul(T[m, :m], Y)), key(values), last)


def _harmonic(T: Array, sigma: Array, A_norm: Array) -> Ritz:
    """Pairs with (A − σ)·V·y − μ·V·y orthogonal to (A − σ)·V (Morgan 1991, §2), whose |μ| is the key.

    In the basis of Ritz vectors T is a diagonal, and with D = T − σ and S = [D; bᵀ] that is SᵀS·y = μ·D·y. From S = QR
    follows the symmetric problem R·D⁻¹·Rᵀ·z = μ·z for z = R·y, and the residuals are multiples of [−D⁻¹b; 1], which is
    orthogonal to S's range. The largest |μ| sets the rounding. It is large where D is small, and σ moves away from such
    values (|μ| less that way is still a lower bound); those without coupling, which have converged, stand aside.
    """
    m = T.shape[0] - 1
    ritz, W = jnp.linalg.eigh(T[:m, :m])
    coupling = _matmul(T[m, :m], W)
    aside = jnp.abs(coupling) <= BREAKDOWN * jnp.finfo(T.dtype).eps * A_norm
    size = jnp.where(A_norm == 0, 1, A_norm)
    distances = jnp.abs(ritz - sigma)
    spacing = jnp.sort(distances)[m // 2] / (m // 2 + 1)
    least = NEAREST * jnp.maximum(spacing, jnp.finfo(T.dtype).eps * size)
    away = jnp.where(jnp.any(~aside & (distances < least)), 2 * least, 0)
    d, b = jnp.where(aside, size, ritz - sigma - away), jnp.where(aside, 0, coupling)
    R = jnp.linalg.qr(jnp.concatenate([jnp.diag(d), b[None]]), mode="r")
    M = _matmul(R / d, R.T)
    apart = jnp.max(jnp.abs(M)) * jnp.linspace(2, 4, m, dtype=T.dtype)  # what stands aside mixes with nothing
    mu, Z = jnp.linalg.eigh(jnp.where(jnp.diag(aside), jnp.diag(apart), (M + M.T) / 2))
    Y = jax.scipy.linalg.solve_triangular(R, Z)
    Y = Y / jnp.linalg.norm(Y, axis=0)
    values = _matmul(ritz, Y**2)
    residual_norms = jnp.hypot(jnp.linalg.norm((ritz[:, None] - values) * Y, axis=0), _matmul(coupling, Y))
    direction = jnp.append(_matmul(W, -b / d), 1)
    direction = direction / jnp.linalg.norm(direction)
    return Ritz(values, _matmul(W, Y), residual_norms, jnp.maximum(jnp.abs(mu) - away, 0), direction)


def _extract(A: Map, state: State) -> tuple[Array, Array, Array]:
    """Rayleigh-Ritz with A itself on the span of the wanted vectors: values, vectors [k, n], true residual norms."""
    m = state.Y.shape[0]
    Q, _ = jnp.linalg.qr(state.Y)
    X = _matmul(Q.T, state.V[:m])
    A_X = jax.vmap(A)(X)
    H = _matmul(jnp.conj(X), A_X.T)
    values, U = jnp.linalg.eigh((H + jnp.conj(H.T)) / 2)
    X, A_X = _matmul(U.T, X), _matmul(U.T, A_X)
    return values, X, jax.vmap(norm)(A_X - values[:, None] * X)


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=EXACT)
