"""Incomplete Cholesky and LU factors without fill as preconditioners, set up and applied without a triangular solve.

A ≈ (I + N)·D·(I + V) with N strictly lower and V strictly upper triangular on the pattern of A. The factors come from
sweeps over all entries at once (`_fine_grained`; Chow and Patel 2015, Algorithm 2) on A scaled to a diagonal of 1. A
triangular system (I + N)·y = r is solved by s sweeps of Jacobi's method, y ← r − N·y from y = r (Anzt, Chow and
Dongarra 2015, Iterative sparse triangular solves for preconditioning), that is by P(N) = I − N + N² − … ± Nˢ:

    M = P(V)·D⁻¹·P(N)

an operator of 2s products with strictly triangular matrices. For a Hermitian A, V = Nᴴ, so M = P(N)ᴴ·D⁻¹·P(N) is
positive definite for any s as soon as D is: P(N) is triangular with a diagonal of 1. The solve would be exact for
s = n − 1.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import concrete, pytree, standard_promotion
from jaxsparse_fmt.convert import from_coo
from solvers.core import arguments
from solvers.core.diagonal import operand, rows_scaled
from solvers.precond import _checks as checks
from solvers.precond._fine_grained import FactorPattern, factor_pattern, factored

# Faults in the values; 0: none.
OTHER_PATTERN, BAD_VALUES, NO_FACTORS, OVERFLOW = 1, 2, 3, 4


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Incomplete:
    """M = P(V)·D⁻¹·P(N) as an operator: `M @ r` for r of [n] or [n, k]. 2·solve_sweeps triangular products.

    Beside the factors it holds the pattern that they were computed on, some 5 int32 numbers an entry, so that
    `refreshed` takes new values without the host.

    Attributes:
      lower: N, strictly lower triangular; L = I + N.
      upper: V, strictly upper triangular; U = D·(I + V).
      inverse_pivots: [n], 1/D.
      shift: α, where A + α·diag(A) was factored; 0 if A's own factors exist.
      pattern: None in transposes, which cannot be refreshed.
      first_shift: the first α to try.
      sweeps: of the set-up.
      solve_sweeps: s.
      hermitian: V = Nᴴ and D is real.
    """

    lower: Any
    upper: Any
    inverse_pivots: Array
    shift: Array
    pattern: FactorPattern | None
    first_shift: Array
    sweeps: int = dataclasses.field(metadata={"static": True})
    solve_sweeps: int = dataclasses.field(metadata={"static": True})
    hermitian: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.lower.shape

    @property
    def dtype(self) -> np.dtype:
        return self.lower.dtype

    @property
    def T(self) -> Self:
        """For Cholesky factors M itself, conjugated; else views of both factors, whose products add by atomics."""
        lower, upper = self.upper.T, self.lower.T
        if self.hermitian:
            if not jnp.issubdtype(self.dtype, jnp.complexfloating):
                return self
            lower, upper = self.lower.H.T, self.upper.H.T
        return dataclasses.replace(self, lower=lower, upper=upper, pattern=None)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, self.inverse_pivots, 1)
        r = r.astype(jnp.result_type(self.dtype, r.dtype))
        y = rows_scaled(self.inverse_pivots, _solved(self.lower, r, self.solve_sweeps))
        return _solved(self.upper, y, self.solve_sweeps)

    @standard_promotion
    def refreshed(self, A: Any) -> "Incomplete":
        """The preconditioner of another matrix with the same pattern and settings; inside jit too, all on the device.

        It compiles only the lookup of A's entries. Differentiable in A's values.

        Args:
          A: [n, n] with the pattern and form (a transposed view or not) of the matrix from which M was made, in any
            format. Its values are cast to M's dtype.

        Raises:
          ValueError: another shape or pattern, a matrix that `incomplete_cholesky` or `incomplete_lu` refuses, or an M
            that is a transpose. Inside jit, where values cannot be checked, `M @ r` is NaN instead, which a solver
            reports as NON_FINITE. TypeError: not a matrix of jaxsparse_fmt, or a complex one where M is real.
        """
        if self.pattern is None:
            raise ValueError(
                "a transposed preconditioner cannot be refreshed, since it does not store the pattern of A; refresh M "
                "and transpose the result, M.refreshed(A).T"
            )
        maker = _maker(self.hermitian)
        stored = _untransposed(A)
        checks.renewing(self, A.shape, A.dtype)
        if stored.nnz != self.pattern.nnz:
            raise ValueError(_elsewhere(f"A has {stored.nnz} entries, and the one of M {self.pattern.nnz}", maker))
        M, fault = _with_values(self, *_looked_up(self.pattern, A))
        return M if arguments.is_traced(fault) else _checked(M, int(fault), A)


@standard_promotion
def incomplete_cholesky(
    A: Any, *, sweeps: int = 5, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete Cholesky factors without fill, IC(0); symmetric (Hermitian) positive definite.

    Factors of A need not exist, even where A is positive definite; those of A + α·diag(A) do once α is large enough
    (Manteuffel 1980). α is the first of 0, 0.01, 0.02, 0.04, … for which pivots are positive, no entry of the Cholesky
    factor exceeds what the diagonal of its row allows, and `solve_sweeps` halve the error of a random triangular
    system: if the matrix is far from diagonally dominant, these sweeps would make the error grow, whatever the factors.
    The derivative of `M @ r` with respect to A's values is that of the sweeps with this α.

    Args:
      A: [n, n] symmetric (Hermitian) positive definite jaxsparse_fmt matrix; only its lower triangle and the real part
        of its diagonal are read. 16-bit values are factored in float32. Inside jit its pattern must be known: the
        function closes over the matrix, perhaps with other values, `A.with_data(data)`. A matrix that is an argument is
        traced whole: make M outside, pass M too, and use `M.refreshed(A)`.
      sweeps: of the set-up. A few suffice; with more, the factors approach IC(0) and finally equal it.
      solve_sweeps: s of each triangular solve; an application takes 2s products with half of A.
      shift: the first α to try.
      format, layout: of the triangular matrices, as in `jaxsparse_fmt.from_coo`.

    Raises:
      ValueError: A is not square, holds a NaN or an infinity, or has a diagonal entry that is not positive; or no α was
        large enough. For traced values `M @ r` is NaN instead, which a solver reports as NON_FINITE. TypeError: not a
        matrix of jaxsparse_fmt, or one whose pattern is traced.
    """
    return _incomplete(A, True, sweeps, solve_sweeps, shift, {"format": format, **layout})


@standard_promotion
def incomplete_lu(
    A: Any, *, sweeps: int = 5, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete LU factors without fill, ILU(0), for any square matrix.

    Where a pivot falls below 0.001 of the diagonal or an entry grows beyond 1000, in A scaled to a diagonal of 1, or
    where `solve_sweeps` do not halve the error of random triangular systems, it takes the factors of A + α·diag(A),
    with α doubled from 0.01 until none of these conditions holds.

    Args:
      A: [n, n] jaxsparse_fmt matrix without a zero on its diagonal; inside jit as with `incomplete_cholesky`. 16-bit
        values are factored in float32.
      sweeps, solve_sweeps, shift, format, layout: as in `incomplete_cholesky`.

    Raises:
      ValueError, TypeError: as `incomplete_cholesky`, but the diagonal need not be positive, only nonzero.
    """
    return _incomplete(A, False, sweeps, solve_sweeps, shift, {"format": format, **layout})


def _maker(hermitian: bool) -> str:
    return "incomplete_cholesky" if hermitian else "incomplete_lu"


def _incomplete(
    A: Any, hermitian: bool, sweeps: int, solve_sweeps: int, shift: float, layout: dict[str, Any]
) -> Incomplete:
    maker = _maker(hermitian)
    n = checks.square(A, maker)
    sweeps = arguments.int_at_least(sweeps, "sweeps", 1)
    solve_sweeps = arguments.int_at_least(solve_sweeps, "solve_sweeps", 0)
    first = arguments.tolerance(shift, "shift")
    stored = _untransposed(A)
    known = _of_ones(A, stored, maker) if arguments.is_traced(A) else A
    dtype = jnp.promote_types(A.dtype, jnp.float32)
    with concrete():  # a jitted function may close over A
        row, col, data = _entries(known)
        _check_values(row, col, data, n, hermitian)
        pattern = factor_pattern(row, col, n, hermitian)
        below, above = row > col, row < col
        below = row[below], col[below]
        above = below[::-1] if hermitian else (row[above], col[above])
        lower, upper = (from_coo(i, j, np.ones(len(i), dtype), (n, n), **layout) for i, j in (below, above))
        real = jnp.finfo(dtype).dtype
        pivots, alpha = jax.device_put((np.ones(n, real if hermitian else dtype), np.zeros((), real)))
        M = Incomplete(lower, upper, pivots, alpha, pattern, alpha, sweeps, solve_sweeps, hermitian)
        if known is A and not arguments.is_traced(first):
            M = dataclasses.replace(M, first_shift=jax.device_put(first.astype(real)))
            M, fault = _with_values(M, jax.device_put(data), np.True_)
            return _checked(M, int(fault), A)
    M = dataclasses.replace(M, first_shift=jnp.asarray(first, real))
    return _with_values(M, stored.data, np.True_)[0]


@jax.jit
def _looked_up(pattern: FactorPattern, A: Any) -> tuple[Array, Array]:
    """A.data [nnz], or A.T.data of a transposed view, and whether its entries lie at the places of the pattern."""
    stored = _untransposed(A)
    row, col, place = stored.unshared.coordinates()
    row, col = (row, col) if stored is A else (col, row)
    row, col = (jnp.zeros(stored.nnz, a.dtype).at[place].set(a, mode="drop")[pattern.entry] for a in (row, col))
    return stored.data, jnp.all(row == pattern.row) & jnp.all(col == pattern.col)


@jax.jit
def _with_values(M: Incomplete, data: Array, same: Any) -> tuple[Incomplete, Array]:
    """M made from other values, A.data [nnz], and 0 or the fault in these values; a fault makes the pivots of M NaN.

    Args:
      same: whether the values lie at the places of M's pattern.
    """
    pattern: Any = M.pattern
    a = data[pattern.entry].astype(M.dtype)
    d = a[pattern.pivot]
    if M.hermitian:
        a, d = a.at[pattern.pivot].set(d.real.astype(a.dtype)), d.real
    usable = jnp.all(jnp.isfinite(a)) & jnp.all(d > 0 if M.hermitian else d != 0)
    scale = 1 / jnp.sqrt(jnp.abs(d))
    row, col = scale[pattern.row], scale[pattern.col]
    x, shift, sound = factored(pattern, a * row * col, M.first_shift, M.sweeps, M.solve_sweeps)
    # The values of N and V and the pivots D of A itself from those of scale·A·scale: no scaling is left to apply.
    pivots = x[pattern.pivot]
    pivots = pivots.real if M.hermitian else pivots
    inverse_pivots = scale**2 / pivots
    lower = x * col / row
    upper = (jnp.conj(lower) if M.hermitian else x * row / (pivots[pattern.row] * col))[pattern.upper]
    lower = lower[pattern.left]
    finite = jnp.all(jnp.isfinite(inverse_pivots)) & jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.isfinite(upper))
    fault = jnp.where(usable, jnp.where(sound, jnp.where(finite, 0, OVERFLOW), NO_FACTORS), BAD_VALUES)
    fault = jnp.where(same, fault, OTHER_PATTERN)
    M = dataclasses.replace(
        M,
        lower=M.lower.with_data(lower),
        upper=M.upper.with_data(upper),
        inverse_pivots=jnp.where(fault == 0, inverse_pivots, jnp.nan),
        shift=shift,
    )
    return M, fault


def _checked(M: Incomplete, fault: int, A: Any) -> Incomplete:
    """M if `fault` is 0; else a ValueError that describes it."""
    maker = _maker(M.hermitian)
    if fault == OTHER_PATTERN:
        raise ValueError(_elsewhere("some entries of A lie elsewhere", maker))
    if fault == BAD_VALUES:
        row, col, data = _entries(A)
        _check_values(row, col, data, A.shape[0], M.hermitian)
    if fault == NO_FACTORS:
        raise ValueError(
            f"{maker} found no factors of A + α·diag(A) for α up to {float(M.shift):g}: A's diagonal is small beside "
            "the rest of its rows; reorder or scale A, or use block_jacobi"
        )
    if fault:
        raise ValueError(f"the factors overflow {M.dtype}: A's diagonal spans too many orders of magnitude; scale A")
    return M


def _elsewhere(what: str, maker: str) -> str:
    return f"M.refreshed(A) takes a matrix of the pattern that M was made of, but {what}; make M anew with {maker}(A)"


def _untransposed(A: Any) -> Any:
    """A, or the matrix of which A is a transposed view. TypeError: neither."""
    if hasattr(A, "coordinates"):
        return A
    if hasattr(getattr(A, "T", None), "coordinates"):
        return A.T
    raise TypeError(
        f"an incomplete factorization takes a jaxsparse_fmt matrix, got {type(A).__name__}; convert it with "
        "jaxsparse_fmt.from_scipy or from_dense"
    )


def _of_ones(A: Any, stored: Any, maker: str) -> Any:
    """The matrix with ones in place of its traced values. TypeError: its pattern is traced too."""
    known = stored
    if "values" in vars(stored):  # and not of shards
        known = dataclasses.replace(stored, values=np.ones(stored.values.shape, stored.dtype))
    if arguments.is_traced(known):
        raise TypeError(
            f"{maker} needs a known pattern, and this one is traced: make M outside jit, pass it, and take "
            "M.refreshed(A) inside; or close over A and pass only its values, for A.with_data(data)"
        )
    return known if stored is A else known.T


def _entries(A: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of A's entries on the host, in the order of `A.data`; of a view in that of `A.T.data`.

    ValueError: more entries than 32 bits count.
    """
    stored = _untransposed(A)
    csr = stored.to_scipy()
    if csr.nnz >= 2**31:
        raise ValueError(f"an incomplete factorization counts entries in 32 bits; A has {csr.nnz}")
    row = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
    col = csr.indices.astype(np.int32)
    return (row, col, csr.data) if stored is A else (col, row, csr.data)


def _check_values(row: np.ndarray, col: np.ndarray, data: np.ndarray, n: int, hermitian: bool) -> None:
    """ValueError: a number is not finite, or one on the diagonal is zero or missing, or for Cholesky not positive."""
    bad = np.flatnonzero(~np.isfinite(data))
    if bad.size:
        k = bad[np.argmin(row[bad])]
        raise ValueError(f"{_maker(hermitian)} needs finite entries; A has {data[k]} in row {row[k]}")
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


def _solved(N: Any, r: Array, sweeps: int) -> Array:
    """P(N)·r, close to (I + N)⁻¹·r."""
    y, _ = lax.scan(lambda y, _: ((r - N @ y).astype(r.dtype), None), r, None, sweeps)
    return y
