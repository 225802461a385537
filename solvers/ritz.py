"""The eigenpairs in the span of the basis that the loop of `eigs` ends with, and their true residuals."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt.core import mesh_axes
from solvers.core.space import Map, length
from solvers.core.vectors import matmul, ratio, scaled
from solvers.eigenpairs import Limits
from solvers.eigsh import ROUNDED, TRUE
from solvers.pencil import Pencil
from solvers.schur import eigenvectors, ordered, schur

ROUNDS = 2  # of inverse iteration at the end, with sigma


def by_operator(
    pencil: Pencil, apply: Map, e_A: Array, keys: Any, limits: Limits, state: Any, p: int
) -> tuple[Array, ...]:
    """The pairs in the span of the first p rows of the basis, their residual norms, the norm of A − λ·M, and which of
    the residual norms are small enough, and which those of rounding.
    """
    values, X, A_X = _ritz(apply, keys, state, p)
    norms, units = length(A_X - values * X), TRUE + state.cycles
    rounding = units * jnp.finfo(X.dtype).eps * state.norm
    judged = jnp.stack([norms <= limits.allowed(jnp.abs(values), state.norm, units), norms <= ROUNDED * rounding])
    values, norms, unit = (scaled(a, e_A) for a in (values, norms, state.norm))
    if pencil.M is None:
        return values, X, norms, unit, judged
    return values, X, length(pencil.residual(values, X)), unit * jnp.max(length(pencil.mass(X))), judged


def by_inverse(
    pencil: Pencil, apply: Map, e_A: Array, keys: Any, limits: Limits, state: Any, p: int
) -> tuple[Array, ...]:
    """As `by_operator`, after steps of inverse iteration where these help."""
    shift: Any = pencil.shift
    thetas, X, _ = _ritz(apply, keys, state, p)
    is_real, eps = not jnp.iscomplexobj(state.V), jnp.finfo(X.dtype).eps

    def pairs(X: Array) -> tuple[Array, ...]:
        MX, A_X = pencil.mass(X), pencil.A(X)
        size = length(MX)  # whose square may underflow
        values = ratio(jnp.sum(jnp.conj(ratio(MX, size)) * A_X, axis=0), size)
        values, X = _mirrored(is_real, thetas, values, X)
        X = ratio(X, length(X))
        return values, X, length(pencil.residual(values, X))

    def improved(X: Array) -> Array:
        MX = pencil.mass(X)
        A_X = pencil.operator(X)
        A_X = A_X + pencil.inverse(MX - pencil.residual(shift.sigma, A_X))  # pivots on the diagonal lose digits
        # Solves are inaccurate along the eigenvectors nearest to sigma, which are columns of X.
        XH = jnp.conj(X.T)
        parts = jnp.linalg.solve(matmul(XH, X) + eps * jnp.eye(p, dtype=X.dtype), matmul(XH, A_X))
        A_X = A_X - matmul(X, parts - jnp.diag(jnp.diagonal(parts)))
        return ratio(A_X, length(A_X))

    def trip(k: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        new = pairs(lax.cond(k > 0, improved, lambda X: X, found[1]))
        better = (new[2] < found[2]) | (k == 0)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), new, found)

    found = thetas, X, jnp.full(p, jnp.inf, thetas.real.dtype)
    found = lax.fori_loop(0, 1 + ROUNDS, trip, mesh_axes.varying(found, X))
    values, X, norms = found
    if is_real:  # of 1/(λ − sigma) the first value of a pair has Im > 0, and its λ has Im < 0
        values, X = jnp.conj(values), jnp.conj(X)
    scale = shift.scale(values)
    rounding = TRUE * eps * scale
    asked = limits.tol.astype(scale.dtype) * jnp.abs(values) * length(pencil.mass(X))
    judged = jnp.stack([norms <= jnp.maximum(rounding, asked), norms <= ROUNDED * rounding])
    return values, X, norms, jnp.max(scale), judged


def _ritz(apply: Map, keys: Any, state: Any, p: int) -> tuple[Array, Array, Array]:
    """The eigenvalues of the operator in the span of the first p rows of the basis, in order; vectors and images."""
    B, is_real = state.V[:p].T, not jnp.iscomplexobj(state.V)
    C = apply(B)
    G = matmul(jnp.conj(B.T), C)
    T, Q, values = schur(jnp.where(jnp.all(jnp.isfinite(G)), G, 0))
    none = jnp.all(B == 0, axis=0)  # the last row, unless the wanted ones cut a pair
    none = jnp.sum(jnp.where(none[:, None], jnp.abs(Q) ** 2, 0), axis=0) > 0.5
    order = jnp.argsort(jnp.where(none, jnp.inf, keys(values)), stable=True)
    T, Q, values = ordered(T, Q, values, jnp.argsort(order))
    Y = matmul(Q, eigenvectors(T))
    X, A_X = (matmul(a.astype(Y.dtype), Y) for a in (B, C))
    largest = jnp.take_along_axis(X, jnp.argmax(jnp.abs(X), axis=0)[None], axis=0)
    phase = jnp.conj(ratio(largest, jnp.abs(largest)))
    X, A_X = _mirrored(is_real, values, X * phase, A_X * phase)
    size = length(X)
    return values, ratio(X, size), ratio(A_X, size)


def _mirrored(is_real: bool, pairs: Array, *arrays: Array) -> tuple[Array, ...]:
    """Columns of a real operator: real of a real eigenvalue, conjugates of a pair. `pairs` [p]: the eigenvalues."""
    if not is_real:
        return arrays
    mirrored = (jnp.where(pairs.imag < 0, jnp.conj(jnp.roll(a, 1, axis=-1)), a) for a in arrays)
    return tuple(jnp.where(pairs.imag == 0, a.real, a) for a in mirrored)
