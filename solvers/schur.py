"""Schur forms of small matrices H·Q = Q·T, in a wanted order, and eigenvectors of T; T is complex and triangular.

LAPACK computes them: inside a program on a CPU, by a call of the host elsewhere. The order is made by rotations of
neighbours (Bai and Demmel 1993), of which disjoint pairs turn at once.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import Array, lax

from solvers.core.vectors import matmul, ratio


def schur(H: Array) -> tuple[Array, Array, Array]:
    """T, Q and the eigenvalues on the diagonal of T, for a finite H [m, m].

    Those of a real H come in pairs of exact conjugates, neighbours, with the positive imaginary part first.
    """
    T, Q = lax.platform_dependent(H, cpu=lambda H: tuple(lax.linalg.schur(H)), default=_by_host)
    if jnp.iscomplexobj(H):
        return jnp.triu(T), Q, jnp.diagonal(T)
    # Blocks of two rows, [[a, b], [c, a]] with b·c < 0, on the diagonal hold pairs.
    below, above, on = jnp.diagonal(T, -1), jnp.diagonal(T, 1), jnp.diagonal(T)
    holds = below != 0
    part = jnp.where(holds, jnp.sqrt(jnp.abs(above)) * jnp.sqrt(jnp.abs(below)), 0)
    values = lax.complex(on, jnp.pad(part, (0, 1)) - jnp.pad(part, (1, 0)))
    return *_rotated(T, Q, holds, above, 1j * part), values


def _by_host(H: Array) -> tuple[Array, Array]:
    like = jax.ShapeDtypeStruct(H.shape, H.dtype)
    T, Q = jax.pure_callback(_lapack, (like, like), H, vmap_method="sequential")
    return T, Q


def _lapack(H: Any) -> tuple[np.ndarray, np.ndarray]:
    T, Q = scipy.linalg.schur(np.asarray(H), output="complex" if H.dtype.kind == "c" else "real")
    return T.astype(H.dtype, copy=False), Q.astype(H.dtype, copy=False)


def ordered(T: Array, Q: Array, values: Array, rank: Array, near: float = 0.0) -> tuple[Array, Array, Array]:
    """The Schur form with the eigenvalues in ascending order of `rank` [m]; equal ranks keep their order.

    Neighbours that are closer than near·max |T| keep theirs, too. Of copies of a conjugate pair rotations would turn
    the vectors of both conjugates by angles of their own, so that they would no longer span the space of a pair.
    """
    place, limit = jnp.arange(rank.size), near * jnp.max(jnp.abs(T))

    def is_open(carry: tuple[Any, ...]) -> Array:
        return jnp.any(carry[3][:-1] > carry[3][1:])

    def trip(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        T, Q, values, rank, odd = carry
        due = (rank[:-1] > rank[1:]) & (place[:-1] % 2 == odd)
        turns = due & ~(jnp.abs(values[:-1] - values[1:]) < limit)
        on = jnp.diagonal(T)
        T, Q = _rotated(T, Q, turns, jnp.diagonal(T, 1), on[1:] - on[:-1])
        rank, values = (a[place + _steps(flags)] for a, flags in ((rank, due), (values, turns)))
        return T, Q, values, rank, 1 - odd

    return lax.while_loop(is_open, trip, (T, Q, values, rank, jnp.int32(0)))[:3]


def _steps(swaps: Array) -> Array:
    """From each place to the one that it swaps with."""
    return jnp.pad(swaps, (0, 1)).astype(jnp.int32) - jnp.pad(swaps, (1, 0)).astype(jnp.int32)


def _rotated(T: Array, Q: Array, turns: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Gᴴ·T·G without what is below the diagonal, and Q·G.

    Where place i of `turns` [m − 1] is set, columns i and i + 1 of G begin with the vector (first, second) / length.
    """
    size = jnp.maximum(jnp.abs(first), jnp.abs(second))
    first, second = ratio(first, size), ratio(second, size)
    length = jnp.sqrt(jnp.abs(first) ** 2 + jnp.abs(second) ** 2)
    first, second = jnp.where(turns, ratio(first, length), 1), jnp.where(turns, ratio(second, length), 0)
    second = jnp.where(turns & (length == 0), 1, second)  # two copies without a coupling
    begins, ends = jnp.pad(first, (0, 1), constant_values=1), jnp.pad(jnp.conj(first), (1, 0), constant_values=1)
    G = jnp.diag(begins * ends) + jnp.diag(second, -1) - jnp.diag(jnp.conj(second), 1)
    G = G.astype(jnp.promote_types(T.dtype, jnp.complex64))
    return jnp.triu(matmul(matmul(jnp.conj(G.T), T.astype(G.dtype)), G)), matmul(Q.astype(G.dtype), G)


def eigenvectors(T: Array) -> Array:
    """[m, m], columns of length 1 with T·y = T[i, i]·y, by back-substitution.

    Where the diagonal has a number again, or almost, their distance counts as eps·‖T‖, as in LAPACK.
    """
    m, on, real = T.shape[0], jnp.diagonal(T), jnp.finfo(T.dtype)
    least = jnp.maximum(real.eps * jnp.max(jnp.abs(T)), real.tiny)
    place = jnp.arange(m)

    def row(step: Array, Y: Array) -> Array:
        i = m - 1 - step
        gap = on - on[i]
        gap = jnp.where(jnp.abs(gap) < least, least, gap)
        above = matmul(jnp.where(place > i, T[i], 0), Y)
        Y = Y.at[i].set(jnp.where(place > i, above / gap, jnp.where(place == i, 1, 0)))
        return Y / jnp.maximum(jnp.max(jnp.abs(Y), axis=0), 1)

    Y = lax.fori_loop(0, m, row, jnp.zeros_like(T))
    return Y / jnp.sqrt(jnp.sum(jnp.abs(Y) ** 2, axis=0))
