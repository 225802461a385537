"""Null spaces that the caller knows: a singular system as a regular one with the shortest solution.

With orthonormal Z of A·Z = 0 and L of Lᴴ·A = 0, and the projections P = 1 − Z·Zᴴ and Q = 1 − L·Lᴴ, the matrix

    B = Q·A·P + σ·L·Zᴴ

is regular, and B·x = Q·b has the solution x = A⁺·b, which is orthogonal to Z, for every σ but 0. So every method solves
it without knowing of Z, and A·dx = db − dA·x, with B in place of A, gives the derivatives of (Q·A·P)⁺·b by b, A, Z and
L. That is A⁺·b wherever A keeps both spaces. σ is about as large as A, with the sign of its spectrum: so B is
definite where A is semidefinite, and as well conditioned as A is apart from Z.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt.core.basis import Basis, Operator
from solvers.core import arguments, opaque, stopping
from solvers.core.program import Entry
from solvers.core.space import outside
from solvers.core.vectors import linear_combination, matmul, products, ratio
from solvers.solution import Solution, Status

KEYWORDS = ("nullspace", "left_nullspace")
ZERO = 1e-6  # of ‖A‖, at most A·z for a null vector z; in float32 100·eps is more


class Spaces(NamedTuple):
    """Both null spaces in the order of a basis.

    Attributes:
      Z, L: [m, n], orthonormal rows.
      shift: σ.
      pivots: [2], how far a vector is from the span of those before it, at least, for each space.
      strains: [2], ‖A·z‖ and ‖Aᴴ·l‖ over ‖A‖, estimated by one vector of each space.
    """

    Z: Array
    L: Array
    shift: Array
    pivots: Array
    strains: Array


@pytree
class Deflated(Operator):
    """Q·A·P + σ·L·Zᴴ; for a preconditioner P·M·Q + Z·Lᴴ/σ, with L for Z, Z for L and 1/σ for σ.

    Attributes:
      over: how vectors lie over devices; None: on one.
    """

    A: Any
    Z: Array  # [m, n]
    L: Array  # [m, n]
    shift: Any
    over: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def dtype(self) -> Any:
        return self.Z.dtype

    def __matmul__(self, v: Array) -> Array:
        along = _along(self.Z, v, self.over)
        w = self.A @ (v - linear_combination(self.Z, along))
        return w + linear_combination(self.L, self.shift * along - _along(self.L, w, self.over))

    def _partition(self, axis: Any) -> "Deflated | None":
        A, rows, same = self.A._partition(axis), PartitionSpec(None, axis), PartitionSpec()
        spec: Any = dataclasses.replace(self, A=A, Z=rows, L=rows, shift=same)
        return None if A is None else spec


def _along(V: Array, v: Array, over: Any = None) -> Array:
    """Vᴴ·v: [m] or [m, k]."""
    found = products(V.conj(), v)
    return lax.psum(found, over.axis) if over is not None and over.is_manual else found


def given(settings: Any, n: int, ravel: Any, self_adjoint: bool) -> list[Array]:
    """The bases of a null space, and of a left one if there is one, [n, m] each, as the user gave them in `Settings`.

    ValueError: not m < n vectors of n, or one space without the other. TypeError: not numeric.
    """
    Z, L = settings.nullspace, settings.left_nullspace
    if Z is None:
        raise ValueError("left_nullspace needs nullspace, the vectors that A itself takes to 0")
    if L is not None and self_adjoint:
        raise ValueError("left_nullspace is for A that is not symmetric: use gmres, bicgstab or idrs, or leave it out")
    if settings.adjoint == "unrolled":
        raise ValueError("adjoint='unrolled' takes no nullspace; leave adjoint out")
    both = [_columns(V, n, ravel, name) for V, name in zip((Z, L), KEYWORDS, strict=True) if V is not None]
    if both[0].shape != both[-1].shape:
        raise ValueError(
            f"nullspace has {both[0].shape[1]} vectors and left_nullspace {both[-1].shape[1]}: give as many"
        )
    return both


def _columns(V: Any, n: int, ravel: Any, name: str) -> Array:
    takes = f"{name} must be 'constant', an array ({n},) or ({n}, m) with m < {n}, or a list of vectors"
    if isinstance(V, str):
        if V != "constant":
            raise ValueError(f"{takes}; got {V!r}")
        V = np.ones(n)
    elif isinstance(V, list | tuple):
        vectors = [as_floating(v, name) if ravel is None else ravel.vector(v, name) for v in V]
        if not vectors or {v.shape for v in vectors} != {(n,)}:
            raise ValueError(f"{takes}; got a list of {[v.shape for v in vectors]}")
        V = jnp.stack(vectors, axis=1)
    V = as_floating(V, name)
    V = V[:, None] if V.ndim == 1 else V
    if V.ndim != 2 or V.shape[0] != n or not 0 < V.shape[1] < n:
        raise ValueError(f"{takes}; got {V.shape}")
    return V


def found(A: Any, basis: Basis, b: Array, spaces: list[Array]) -> Spaces:
    """The spaces orthonormal and in the order of the basis, and σ.

    ValueError, unless they are traced: a space is not finite, has dependent vectors, or A does not annihilate it.
    TypeError: it is complex, and the system is real.
    """
    for name, V in zip(KEYWORDS, spaces, strict=False):
        if jnp.iscomplexobj(V) and not jnp.iscomplexobj(b):
            raise TypeError(f"{name} is {V.dtype} in a system of {b.dtype}; make b complex")
    result = _examined(len(spaces), (A,), basis, b, [basis.placed(arguments.cast(V, b.dtype)) for V in spaces])
    numbers = arguments.still((result.pivots, result.strains))
    if is_traced(numbers):
        return result
    eps, (pivots, strains) = jnp.finfo(b.dtype).eps, map(np.asarray, numbers)
    for name, pivot in zip(KEYWORDS, pivots, strict=True):
        if not np.isfinite(pivot):
            raise ValueError(f"{name} has a NaN, an infinity, or a vector of zeros")
        if not pivot > 10 * eps**0.5:
            far = f"within {pivot:.1e} of their length; leave out those that are combinations of others"
            raise ValueError(f"the {len(result.Z)} vectors of {name} are linearly dependent, {far}")
    of_A, of_adjoint = (f"by {strain:.1e} of ‖A‖" if strain > _zero(b.dtype) else None for strain in strains)
    if of_A:
        cure = "give the vectors that A takes to 0, or leave nullspace out if A is regular"
        raise ValueError(f"A does not take nullspace to 0, but misses it {of_A}; {cure}")
    if of_adjoint and len(spaces) == 1:
        cure = "give left_nullspace=, the vectors that Aᴴ takes to 0, to gmres, bicgstab, idrs, solve or direct"
        raise ValueError(f"A is not symmetric: Aᴴ does not take nullspace to 0, but misses it {of_adjoint}; {cure}")
    if of_adjoint:
        raise ValueError(f"Aᴴ does not take left_nullspace to 0, but misses it {of_adjoint}; give vectors that it does")
    return result


def _zero(dtype: Any) -> float:
    return max(ZERO, 100 * float(jnp.finfo(dtype).eps))


def _examine(number: int, maps: tuple[Any], basis: Basis, b: Array, given: list[Array]) -> Spaces:
    del number
    A, space = lax.stop_gradient(maps[0]), outside(basis)
    found, pivots = zip(*[_orthonormal(basis.enter(V).T) for V in given], strict=True)
    Z, L = found[0], found[-1]
    weights = jnp.sqrt(2 + jnp.arange(Z.shape[0], dtype=Z.real.dtype)).astype(Z.dtype)  # in which nothing cancels
    weights = weights / jnp.linalg.norm(weights)
    v, z = space.probe(lax.stop_gradient(Z[0])), linear_combination(lax.stop_gradient(Z), weights)
    Av, Az = (A @ u for u in (v, z))
    of_A = ratio(space.length(Av), space.length(v))
    left = jnp.linalg.norm(_along(lax.stop_gradient(L), Av)) * b.shape[0] ** 0.5
    strains = jnp.stack([ratio(space.length(Az), of_A), ratio(left, space.length(Av))])
    shift = jnp.where(space.dot(v, Av / jnp.where(of_A == 0, 1, of_A)) < 0, -1, 1) * of_A
    if L is not Z:  # a rotation of L, with which Zᴴ·L has eigenvalues from 0 up
        U, _, V = jnp.linalg.svd(lax.stop_gradient(matmul(L.conj(), Z.T)))
        L = matmul(matmul(U, V).T, L)
    return Spaces(Z, L, shift.astype(v.real.dtype), jnp.stack([pivots[0], pivots[-1]]), strains)


_examined = Entry(_examine, lambda number, b: (b,))


def _orthonormal(V: Array) -> tuple[Array, Array]:
    """Orthonormal rows with the span of V's [m, n], and the least distance of a row of length 1 from those before.

    By Cholesky's factors of V·Vᴴ, twice (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015): over several devices only
    sums travel.
    """
    V = V / jnp.linalg.norm(V, axis=1, keepdims=True)
    is_finite, pivots = jnp.all(jnp.isfinite(V)), []
    for _ in range(2):
        C = jnp.linalg.cholesky(matmul(V.conj(), V.T))
        inverse = jax.scipy.linalg.solve_triangular(C.conj(), jnp.eye(len(C), dtype=C.dtype), lower=True)
        V, pivots = matmul(inverse, V), [*pivots, jnp.min(jnp.diagonal(C).real)]
    pivot = jnp.where(is_finite, jnp.nan_to_num(pivots[0]), jnp.nan)
    return jnp.nan_to_num(V), pivot


def deflated(A: Any, spaces: Spaces, over: Any, dtype: Any) -> Deflated | None:
    """B in place of A, for vectors of a dtype; None of None."""
    Z, L, shift = spaces.Z.astype(dtype), spaces.L.astype(dtype), spaces.shift.astype(jnp.finfo(dtype).dtype)
    return None if A is None else Deflated(A, Z, L, shift, over)


def between(M: Any, spaces: Spaces, over: Any, dtype: Any, positive: bool) -> Deflated | None:
    """P·M·Q + Z·Lᴴ/σ in place of a preconditioner M, or with 1/|σ| for a method that needs a positive definite one."""
    shift = ratio(jnp.ones_like(spaces.shift), jnp.abs(spaces.shift) if positive else spaces.shift)
    return deflated(M, spaces._replace(Z=spaces.L, L=spaces.Z, shift=shift), over, dtype)


def projected(V: Array, v: Array) -> Array:
    """v without its part in the span of the rows of V."""
    return v - linear_combination(V, _along(V, v))


def shortest(sol: Solution, A: Any, b: Array, spaces: Spaces, basis: Basis, limits: Any) -> Solution:
    """The solution without rounding in Z, and judged by A's own residual, LEAST_SQUARES if b is not in A's range.

    BREAKDOWN, with derivatives of NaN, if a space that was traced is none.
    """
    space, (code, norm) = outside(basis), lax.stop_gradient((sol.code, sol.residual_norm))
    is_wrong = ~(jnp.max(spaces.strains) <= _zero(b.dtype)) | ~(jnp.min(spaces.pivots) > 0)
    x = opaque.Withheld()((projected(spaces.Z, sol.x), is_wrong))
    still, b = lax.stop_gradient((x, b))
    b_norm, outer = space.length(b), jnp.linalg.norm(_along(lax.stop_gradient(spaces.L), b), axis=0)
    true = space.length(b - (lax.stop_gradient(A) @ still).astype(b.dtype))
    limit = jnp.maximum(limits.rtol * b_norm, limits.atol).astype(true.dtype)
    Ax_norm = jnp.abs(lax.stop_gradient(spaces.shift)) * space.length(still)
    is_rounding = stopping.within_rounding(true, Ax_norm, b_norm, limit, jnp.finfo(b.dtype).eps)
    missed = stopping.status_of(
        (outer > 10 * jnp.finfo(b.dtype).eps * b_norm, Status.LEAST_SQUARES),
        (is_rounding, Status.ROUNDED),
        otherwise=Status.STAGNATION,
    )
    code = jnp.where(~stopping.is_failure(code) & (true > limit), missed, code)
    code = jnp.where(is_wrong & (code != Status.NON_FINITE), jnp.int32(Status.BREAKDOWN), code)
    return dataclasses.replace(
        sol, x=x, code=code, residual_norm=sol.residual_norm + jnp.where(jnp.isfinite(norm), true - norm, 0)
    )
