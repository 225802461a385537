"""The thick-restart Lanczos loop (Wu and Simon 2000, Algorithm 1), with Ritz or harmonic Ritz vectors.

The loop holds a Krylov decomposition: rows V of an orthonormal basis and a small real symmetric T, also for a complex
Hermitian A, with

    A·Vₘ = Vₘ·T + v·bᵀ        Vₘ the first m rows as columns, v the row after them, b its coupling

which m products fill and a restart shrinks. A restart may keep any p vectors whose residuals are multiples of one
vector, which becomes the next: Ritz vectors, whose residuals are multiples of v (§2), or harmonic Ritz vectors (Morgan
1991, §2; Morgan and Zeng 2006, §3), which find eigenvalues inside the spectrum, where Ritz vectors mix several.

Traffic of a step, in vectors of n: the product, and 4·(m + 1) to make its result orthogonal to the basis, twice. A
restart reads the basis and writes it into a second one. Memory: 2·(m + 1) vectors.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.vector_passes import normal
from solvers.core.scaling import Map
from solvers.core.scaling import exponent as exponent_of
from solvers.core.scaling import scaled as scaled_by
from solvers.core.stopping import RUNNING, status_of
from solvers.core.vectors import matmul, norm, orthogonal, ratio
from solvers.solution import Status

# In units of eps·‖A‖: the length that remains, after a step, of a vector in the span of the basis; the residual norm
# that the loop accepts; and the true residual norm that is then allowed, plus a unit for each restart.
BREAKDOWN, ESTIMATE, TRUE = 10, 20, 100
# The pair after the wanted ones counts as known once its residual is this fraction of its distance from them.
SETTLED = 0.1
# σ for harmonic vectors is moved away from all Ritz values by this fraction of their mean spacing.
NEAREST = 0.1


class Wanted(NamedTuple):
    """The pairs to compute, and the size of the basis; static. `which`: "SA", "LA", "LM", or "nearest" to sigma."""

    k: int
    which: str
    ncv: int


class Limits(NamedTuple):
    """Traced numbers, so that changing them does not recompile."""

    tol: Array
    maxiter: Array
    sigma: Any = 0.0


class End(NamedTuple):
    """The result of the loop, without the pairs."""

    code: Array
    cycles: Array
    products: Array
    residual_norms: Array  # [k], true
    norm: Array  # ‖A‖₂, from below


class State(NamedTuple):
    V: Array  # [ncv + 1, n] orthonormal rows, zero after row `size`
    T: Array  # [ncv + 1, ncv + 1] real symmetric; row and column ncv hold the coupling b
    size: Array  # rows whose product is in T
    fresh: Array  # row `size` is zero and must be drawn: the rows before it span an invariant space
    Y: Array  # [ncv, k] the wanted vectors in coordinates of V
    norm: Array  # ‖A‖₂, from below
    keys: Array  # [k] of the pairs found before the search for others
    checking: Array  # whether the loop searches for others
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


def run(wanted: Wanted, A: Map, v0: Array, limits: Limits) -> tuple[Array, Array, End]:
    """k pairs of A: eigenvalues [k] ascending, eigenvectors [k, n] as rows, and how it ended.

    The loop scales A by a power of two, taken from the product of A with v0: this is exact, and no square under- or
    overflows.
    """
    v0 = scaled_by(v0, -exponent_of(v0))
    v0 = ratio(v0, norm(v0))
    exponent = exponent_of(A(v0))
    scaled = lambda v: scaled_by(A(v), -exponent)  # noqa: E731
    limits = limits._replace(sigma=scaled_by(limits.sigma.astype(v0.real.dtype), -exponent))
    cycle = lambda state: _cycle(wanted, scaled, limits, state)  # noqa: E731
    state = lax.while_loop(lambda s: s.code == RUNNING, cycle, mesh_axes.varying(_start(wanted, v0), v0))
    values, X, norms = _extract(scaled, state)

    code = status_of(
        (state.code == Status.NON_FINITE, Status.NON_FINITE),
        (state.code == Status.MAXITER, Status.MAXITER),
        (jnp.all(norms <= _allowed(values, limits, state.norm, TRUE + state.cycles)), Status.CONVERGED),
        otherwise=Status.STAGNATION,
    )
    products = state.products + 1 + wanted.k
    norms, A_norm = scaled_by(norms, exponent), scaled_by(state.norm, exponent)
    return scaled_by(values, exponent), X, End(code, state.cycles, products, norms, A_norm)


def _start(wanted: Wanted, v0: Array) -> State:
    m, k, n = wanted.ncv, wanted.k, v0.shape[0]
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
    """The largest residual norm that is small enough: tol·|λ − sigma|, but no less than rounding leaves."""
    relative = limits.tol.astype(values.dtype) * jnp.abs(values - limits.sigma)
    return jnp.maximum(relative, units * jnp.finfo(values.dtype).eps * A_norm)


# ----------------------------------------------------------------------------------------------------------- steps


def _cycle(wanted: Wanted, A: Map, limits: Limits, state: State) -> State:
    """Takes steps until the basis is full or invariant; judges and shrinks a full one."""
    state = lax.cond(state.fresh, _draw, lambda s: s, state)
    state = lax.while_loop(lambda s: (s.size < wanted.ncv) & ~s.fresh, lambda s: _step(A, s), state)
    restart = lambda s: _restart(wanted, limits, s)  # noqa: E731
    return lax.cond(state.size == wanted.ncv, restart, lambda s: s, state)


def _step(A: Map, state: State) -> State:
    """Adds one product to the basis, made orthogonal to it."""
    j = state.size
    w = A(state.V[j])
    A_norm = jnp.maximum(state.norm, norm(w))
    w, h = orthogonal(state.V, w, j)
    beta = norm(w)
    invariant = beta <= BREAKDOWN * jnp.finfo(beta.dtype).eps * A_norm
    beta = jnp.where(invariant, 0, beta)
    return state._replace(
        V=state.V.at[j + 1].set(ratio(w, beta)),
        T=state.T.at[j, j].set(h[j].real).at[j + 1, j].set(beta).at[j, j + 1].set(beta),
        size=j + 1,
        fresh=invariant,
        norm=A_norm,
        products=state.products + 1,
    )


def _draw(state: State) -> State:
    """A random direction outside an invariant space: row `size`, coupled to nothing."""
    V, j = state.V, state.size
    key = jax.random.fold_in(jax.random.key(1), state.products)
    w, _ = orthogonal(V, normal(key, V.shape[1:], V.dtype), j)
    return state._replace(V=V.at[j].set(w / norm(w)), fresh=mesh_axes.varying(jnp.bool(False), V))


# -------------------------------------------------------------------------------------------------------- restarts


def _restart(wanted: Wanted, limits: Limits, state: State) -> State:
    """Judges the pairs, and keeps the best: `keep` of them and the direction of their residuals, or the k wanted alone.

    A Krylov space has one vector of each eigenspace. So the loop checks the wanted pairs once they have converged: a
    search starts from a random vector outside them, and when the best pair there is known to be no better, the wanted
    pairs are complete. One pair at an end of the spectrum needs no check, and neither does a basis of the whole space.
    """
    m, k, n = wanted.ncv, wanted.k, state.V.shape[1]
    keep = k + (m - k) // 2
    T = jnp.where(jnp.isfinite(state.T), state.T, 0)
    key = KEYS[wanted.which]
    ritz = _harmonic(T, limits.sigma, state.norm) if wanted.which == "nearest" else _plain(T, key)
    A_norm = jnp.maximum(state.norm, jnp.max(jnp.abs(ritz.values)))
    allowed = _allowed(ritz.values, limits, A_norm, ESTIMATE)
    converged = ritz.residual_norms <= allowed
    keys = jnp.where(converged, key(ritz.values - limits.sigma), ritz.keys)
    order = jnp.argsort(keys)
    keys, allowed, converged, residual_norms = (a[order] for a in (keys, allowed, converged, ritz.residual_norms))
    Y = ritz.Y[:, order]

    found = jnp.all(converged[:k])
    same = state.checking & ~jnp.any(jnp.abs(keys[:k] - state.keys) > allowed[:k])
    if m == n or (k == 1 and wanted.which != "nearest"):
        checked = jnp.bool(True)
    else:
        checked = same & (residual_norms[k] <= jnp.maximum(allowed[k], SETTLED * (keys[k] - keys[k - 1])))
    check = found & ~same

    cycles = state.cycles + 1
    code = status_of(
        (~jnp.all(jnp.isfinite(state.T)), Status.NON_FINITE),
        (found & checked, Status.CONVERGED),
        (cycles >= limits.maxiter, Status.MAXITER),
    )

    Q = jnp.zeros((m + 1, keep + 1), T.dtype).at[:m, :keep].set(Y[:, :keep]).at[:, keep].set(ritz.direction)
    Q, _ = jnp.linalg.qr(Q)
    Q = jnp.where(check & (jnp.arange(keep + 1) >= k), 0, Q)
    Q = jnp.zeros_like(T).at[:, : keep + 1].set(Q)
    T = matmul(Q.T, matmul(T, Q))
    return State(
        V=matmul(jnp.where(code == RUNNING, Q, jnp.eye(m + 1, dtype=T.dtype)).T, state.V),  # in the end that of Y
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
    return Ritz(values, Y, jnp.abs(matmul(T[m, :m], Y)), key(values), last)


def _harmonic(T: Array, sigma: Array, A_norm: Array) -> Ritz:
    """Pairs with (A − σ)·V·y − μ·V·y orthogonal to (A − σ)·V (Morgan 1991, §2), whose |μ| is the key.

    In the basis of Ritz vectors T is diagonal, and with D = T − σ and S = [D; bᵀ] the condition is SᵀS·y = μ·D·y. From
    S = QR follows the symmetric problem R·D⁻¹·Rᵀ·z = μ·z for z = R·y, and the residuals are multiples of [−D⁻¹b; 1],
    which is orthogonal to S's range. The rounding is that of the largest |μ|, which is large where D is small. So σ
    moves away from such Ritz values; |μ| less the distance of that move is still a lower bound. Ritz values without
    coupling have converged, and take no part.
    """
    m = T.shape[0] - 1
    ritz, W = jnp.linalg.eigh(T[:m, :m])
    coupling = matmul(T[m, :m], W)
    aside = jnp.abs(coupling) <= BREAKDOWN * jnp.finfo(T.dtype).eps * A_norm
    size = jnp.where(A_norm == 0, 1, A_norm)
    distances = jnp.abs(ritz - sigma)
    spacing = jnp.sort(distances)[m // 2] / (m // 2 + 1)
    least = NEAREST * jnp.maximum(spacing, jnp.finfo(T.dtype).eps * size)
    away = jnp.where(jnp.any(~aside & (distances < least)), 2 * least, 0)
    d, b = jnp.where(aside, size, ritz - sigma - away), jnp.where(aside, 0, coupling)
    R = jnp.linalg.qr(jnp.concatenate([jnp.diag(d), b[None]]), mode="r")
    M = matmul(R / d, R.T)
    apart = jnp.max(jnp.abs(M)) * jnp.linspace(2, 4, m, dtype=T.dtype)  # values without coupling mix with nothing
    mu, Z = jnp.linalg.eigh(jnp.where(jnp.diag(aside), jnp.diag(apart), (M + M.T) / 2))
    Y = jax.scipy.linalg.solve_triangular(R, Z)
    Y = Y / jnp.linalg.norm(Y, axis=0)
    values = matmul(ritz, Y**2)
    residual_norms = jnp.hypot(jnp.linalg.norm((ritz[:, None] - values) * Y, axis=0), matmul(coupling, Y))
    direction = jnp.append(matmul(W, -b / d), 1)
    direction = direction / jnp.linalg.norm(direction)
    return Ritz(values, matmul(W, Y), residual_norms, jnp.maximum(jnp.abs(mu) - away, 0), direction)


def _extract(A: Map, state: State) -> tuple[Array, Array, Array]:
    """Rayleigh-Ritz with A itself on the span of the wanted vectors: values, vectors [k, n], true residual norms."""
    m = state.Y.shape[0]
    Q, _ = jnp.linalg.qr(state.Y)
    X = matmul(Q.T, state.V[:m])
    A_X = jax.vmap(A)(X)
    H = matmul(jnp.conj(X), A_X.T)
    values, U = jnp.linalg.eigh((H + jnp.conj(H.T)) / 2)
    X, A_X = matmul(U.T, X), matmul(U.T, A_X)
    return values, X, jax.vmap(norm)(A_X - values[:, None] * X)
