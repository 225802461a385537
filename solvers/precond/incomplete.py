"""Incomplete Cholesky and LU factors without fill as preconditioners, set up and applied without a triangular solve.

A ≈ (I + N)·D·(I + V) with N strictly lower and V strictly upper triangular on the pattern of A. The factors come from
sweeps over all entries at once (`_fine_grained`; Chow and Patel 2015, Algorithm 2) on A scaled to a diagonal of 1. A
triangular system (I + N)·y = r is solved by s sweeps of Jacobi's method, y ← r − N·y from y = r (Anzt, Chow and
Dongarra 2015, Iterative sparse triangular solves for preconditioning), that is by P(N) = I − N + N² − … ± Nˢ:

    M = P(V)·D⁻¹·P(N)

an operator of 2s products with strictly triangular matrices. For a Hermitian A it is V = Nᴴ, so M = P(N)ᴴ·D⁻¹·P(N) is
positive definite for any s as soon as D is: P(N) is triangular with a diagonal of 1. s = n − 1 would solve exactly.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt import from_coo
from jaxsparse_fmt._types import owned
from solvers import _arguments as arguments
from solvers.precond import _door as door
from solvers.precond._fine_grained import Pattern, factors, pattern_of

Array = jax.Array

# After a breakdown α is FIRST_SHIFT, then doubled, for SHIFTS tries in all (Manteuffel 1980, Math. Comp. 34).
FIRST_SHIFT, SHIFTS = 1e-2, 20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Incomplete:
    """M = P(V)·D⁻¹·P(N) as an operator: `M @ r` for r of [n] or [n, k]. 2·solve_sweeps triangular products.

    Attributes:
      lower: N, strictly lower triangular; L = I + N.
      upper: V, strictly upper triangular; U = D·(I + V).
      inverse_pivots: [n], 1/D.
      shift: α, where A + α·diag(A) was factored; 0 if A's own factors exist.
      solve_sweeps: s.
      hermitian: V = Nᴴ and D is real.
    """

    lower: Any
    upper: Any
    inverse_pivots: Array
    shift: Array
    solve_sweeps: int = dataclasses.field(metadata={"static": True})
    hermitian: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.lower.shape

    @property
    def dtype(self) -> np.dtype:
        return self.lower.dtype

    @property
    def T(self) -> Incomplete:
        """Of Cholesky factors: itself, conjugated. Else the views of both factors, whose products add by atomics."""
        lower, upper = self.upper.T, self.lower.T
        if self.hermitian:
            if not jnp.issubdtype(self.dtype, jnp.complexfloating):
                return self
            lower, upper = self.lower.H.T, self.upper.H.T
        return dataclasses.replace(self, lower=lower, upper=upper)

    def __matmul__(self, r: Array) -> Array:
        r = owned(r)
        r = r.astype(jnp.result_type(self.dtype, r.dtype))
        y = door.rows_scaled(self.inverse_pivots, _solved(self.lower, r, self.solve_sweeps))
        return _solved(self.upper, y, self.solve_sweeps)


def incomplete_cholesky(
    A: Any, *, sweeps: int = 5, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete Cholesky factors without fill, IC(0); symmetric (Hermitian) positive definite.

    Factors of A need not exist, even where A is positive definite; those of A + α·diag(A) do once α is large enough
    (Manteuffel 1980). α is 0, or from 0.01 doubled until pivots are positive, no entry of the Cholesky factor exceeds
    what the diagonal of its row allows, and `solve_sweeps` halve the error of a random triangular system: where the
    matrix is far from diagonally dominant they would make it grow, and no factors help.

    Args:
      A: [n, n] symmetric (Hermitian) positive definite jaxsparse_fmt matrix, outside jit; only its lower triangle and
        the real part of its diagonal are read. 16-bit values are factored in float32.
      sweeps: of the set-up. Few suffice; ever more lead to IC(0) itself, in the end exactly.
      solve_sweeps: s of each triangular solve; an application takes 2s products with half of A.
      shift: the first α to try.
      format, layout: of the triangular matrices, as in `jaxsparse_fmt.from_coo`.

    Raises:
      ValueError: A is not square, holds a NaN or an infinity, or has a diagonal entry that is not positive; or no α was
        large enough. TypeError: not a matrix of jaxsparse_fmt, or one traced by jit.
    """
    return _incomplete(A, True, sweeps, solve_sweeps, shift, {"format": format, **layout})


def incomplete_lu(
    A: Any, *, sweeps: int = 5, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete LU factors without fill, ILU(0), for any square matrix.

    Where a pivot falls below 0.001 of the diagonal or an entry grows beyond 1000, in A scaled to a diagonal of 1, or
    where `solve_sweeps` do not halve the error of random triangular systems, it takes the factors of A + α·diag(A),
    with α from 0.01 doubled until none of these is so.

    Args:
      A: [n, n] jaxsparse_fmt matrix without a zero on its diagonal, outside jit. 16-bit values are factored in float32.
      sweeps, solve_sweeps, shift, format, layout: as in `incomplete_cholesky`.

    Raises:
      ValueError: A is not square, holds a NaN or an infinity, or has a zero on its diagonal; or no α was large enough.
        TypeError: not a matrix of jaxsparse_fmt, or one traced by jit.
    """
    return _incomplete(A, False, sweeps, solve_sweeps, shift, {"format": format, **layout})


def _incomplete(
    A: Any, hermitian: bool, sweeps: int, solve_sweeps: int, shift: float, layout: dict[str, Any]
) -> Incomplete:
    maker = "incomplete_cholesky" if hermitian else "incomplete_lu"
    n = door.square(A, "an incomplete", maker)
    sweeps, solve_sweeps = arguments.count(sweeps, "sweeps", 1), arguments.count(solve_sweeps, "solve_sweeps", 0)
    if door.is_traced(A):
        raise TypeError(
            f"{maker} cannot be called on traced values, whose pattern is unknown; make M outside jit and pass it"
        )
    with jax.ensure_compile_time_eval():  # a jitted function may close over A
        first = float(arguments.tolerance(shift, "shift"))
        row, col, data = _entries(A, maker)
        diagonal = _diagonal(row, col, data, n, hermitian)
        if hermitian:
            kept = row >= col
            row, col, data = row[kept], col[kept], np.where(row == col, np.real(data), data)[kept]
        scale = np.abs(diagonal) ** -0.5
        pattern, order = pattern_of(row, col, n, hermitian)
        scaled = jnp.asarray((data * scale[row] * scale[col])[order])
        entries, alpha = _factored(pattern, scaled, first, (sweeps, solve_sweeps), maker)
        n_values, v_values, pivots = _unscaled(pattern, entries, jnp.asarray(scale))
        inverse_pivots = 1 / pivots
        if not all(bool(jnp.all(jnp.isfinite(a))) for a in (n_values, v_values, inverse_pivots)):
            raise ValueError(
                f"the factors overflow {data.dtype}: A's diagonal spans too many orders of magnitude; scale A"
            )
        left, right = order[np.asarray(pattern.left)], order[np.asarray(pattern.right)]
        lower = from_coo(row[left], col[left], np.asarray(n_values), (n, n), **layout)
        upper_row, upper_col = (col[left], row[left]) if hermitian else (row[right], col[right])
        upper = from_coo(upper_row, upper_col, np.asarray(v_values), (n, n), **layout)
        return Incomplete(lower, upper, inverse_pivots, jnp.asarray(alpha, scale.dtype), solve_sweeps, hermitian)


def _factored(
    pattern: Pattern, scaled: Array, first: float, sweeps: tuple[int, int], maker: str
) -> tuple[Array, float]:
    """The entries of the factors of A + α·diag(A) for the first α that has sound ones, and that α."""
    alpha = first
    probe = jnp.asarray(np.random.default_rng(0).standard_normal(pattern.pivot.shape[0]), scaled.dtype)
    for _ in range(SHIFTS):
        entries, sound = factors(pattern, scaled, jnp.asarray(alpha, scaled.real.dtype), *map(jnp.int32, sweeps), probe)
        if sound:
            return entries, alpha
        alpha = max(2 * alpha, FIRST_SHIFT)
    raise ValueError(
        f"{maker} found no factors of A + α·diag(A) for α up to {alpha / 2:g}: A's diagonal is small beside the rest "
        "of its rows; reorder or scale A, or use block_jacobi"
    )


@jax.jit
def _unscaled(pattern: Pattern, x: Array, scale: Array) -> tuple[Array, Array, Array]:
    """The values of N and V and the pivots D of A itself from those of scale·A·scale: no scaling is left to apply."""
    row, col = scale[pattern.row], scale[pattern.col]
    pivots = x[pattern.pivot]
    pivots = pivots.real if pattern.hermitian else pivots
    lower = (x * col / row)[pattern.left]
    upper = jnp.conj(lower) if pattern.hermitian else (x * row / (pivots[pattern.row] * col))[pattern.right]
    return lower, upper, pivots / scale**2


def _entries(A: Any, maker: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of A's entries in canonical order, on the host.

    Raises:
      TypeError, ValueError: see `incomplete_lu`.
    """
    if not hasattr(A, "to_scipy"):
        raise TypeError(
            f"{maker} takes a jaxsparse_fmt matrix, got {type(A).__name__}; convert it with jaxsparse_fmt.from_scipy "
            "or from_dense"
        )
    csr = A.to_scipy()
    if csr.nnz >= 2**31:
        raise ValueError(f"{maker} counts entries in 32 bits; A has {csr.nnz}")
    row = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
    bad = np.flatnonzero(~np.isfinite(csr.data))
    if bad.size:
        raise ValueError(f"{maker} needs finite entries; A has {csr.data[bad[0]]} in row {row[bad[0]]}")
    return row, csr.indices.astype(np.int32), csr.data


def _diagonal(row: np.ndarray, col: np.ndarray, data: np.ndarray, n: int, hermitian: bool) -> np.ndarray:
    """[n]; every one of them is an entry.

    Raises:
      ValueError: one is zero, or for Cholesky not positive.
    """
    at = row == col
    diagonal = np.zeros(n, data.dtype)
    diagonal[row[at]] = data[at]
    bad = np.flatnonzero(np.real(diagonal) <= 0 if hermitian else diagonal == 0)
    if bad.size:
        k = bad[0]
        if hermitian:
            raise ValueError(
                f"A is not positive definite: its diagonal is {diagonal[k]:g} in row {k}; use incomplete_lu"
            )
        raise ValueError(f"A has a zero on its diagonal in row {k}; reorder its rows, or use block_jacobi")
    return np.real(diagonal) if hermitian else diagonal


def _solved(N: Any, r: Array, sweeps: int) -> Array:
    """P(N)·r, close to (I + N)⁻¹·r."""
    y, _ = lax.scan(lambda y, _: ((r - N @ y).astype(r.dtype), None), r, None, sweeps)
    return y
