"""Incomplete Cholesky and LU factors without fill as preconditioners.

A ≈ (I + N)·D·(I + V) with N strictly lower and V strictly upper triangular on the pattern of A, where both sides
agree: IC(0) or ILU(0), which the host computes by elimination from A scaled to a diagonal of 1. M is the inverse of the
right side, by two triangular solves. In place of a solve, s sweeps of Jacobi's method, y ← r − N·y from y = r, take s
products (Anzt, Chow and Dongarra 2015, Iterative sparse triangular solves for preconditioning). For a Hermitian A,
V = Nᴴ, so that M is positive definite as soon as D is, for any number of sweeps.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax

from jaxsparse_fmt._pytrees import brief, exportable, pytree
from jaxsparse_fmt._tracing import concrete, is_on_cpu, is_traced, standard_promotion
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.triangular import Triangle
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers import factors
from solvers.core import arguments
from solvers.host_calls import call
from solvers.precond import _checks as checks

SMALLEST_PIVOT = 1e-3  # relative to the diagonal of A: a pivot below it has broken down
# After a breakdown α is FIRST_SHIFT, then doubled, for SHIFTS tries in all (Manteuffel 1980, Math. Comp. 34).
FIRST_SHIFT, SHIFTS = 1e-2, 20
GROWTH = 1e3  # of a random vector in a triangular solve, at most
FAR = 1.0  # an α beyond which A + α·diag(A) has little of A
CHOLESKY, LU = "incomplete_cholesky", "incomplete_lu"
Choice = tuple[tuple[int | None, float], ...]
# Sweeps to try in turn, with the part of an error that they may leave; None: exact solves, without a part. Cholesky's M
# is positive definite after any number of sweeps; M of a nonsymmetric matrix may have little of its factors before the
# errors are small. A sweep takes a GPU 8 µs, and each of hundreds of levels 4 µs.
HALF, LITTLE = 0.5, 0.05
EXACTLY, TRACED = ((None, 0.0),), ((3, HALF),)
BY_SWEEPS = {
    CHOLESKY: (*((s, HALF) for s in range(1, 11)), *EXACTLY),
    LU: (*((s, LITTLE) for s in range(1, 11)), (10, HALF), *EXACTLY),
}


@exportable
@pytree
class Swept:
    """I + N for a strictly triangular matrix N, solved by a number of sweeps, each a product with N."""

    N: Any
    sweeps: int = dataclasses.field(metadata={"static": True})

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, N=self.N.T)

    def solve(self, r: Array) -> Array:
        # Unrolled, since a turn of a loop takes a GPU as long as a product.
        return lax.fori_loop(0, self.sweeps, lambda _, y: (r - self.N @ y).astype(r.dtype), r, unroll=10)


@exportable
@brief
@pytree
class Incomplete(factors.Inverse):
    """M = (I + V)⁻¹·D⁻¹·(I + N)⁻¹ as an operator: `M @ r` for r of [n] or [n, k].

    Attributes:
      factors: I + N and I + V, as `Triangle` or `Swept`, and 1/D.
      recipe: the maker's name and its `solve_sweeps`.
      shift: α, where A + α·diag(A) was factored; 0 if A itself has factors.
      ptr, col: [n + 1] and [nnz], the pattern of A in CSR, for `refreshed`; None in transposes.
    """

    shift: Array
    ptr: Array | None
    col: Array | None

    @property
    def T(self) -> Self:
        """For real Cholesky factors M itself."""
        if self.recipe[0] == CHOLESKY and not jnp.issubdtype(self.dtype, jnp.complexfloating):
            return self
        return dataclasses.replace(self, factors=self.factors.T, ptr=None, col=None)

    @standard_promotion
    def refreshed(self, A: Any) -> "Incomplete":
        """The preconditioner of another matrix with the same pattern and settings; inside jit by a call of the host.

        Args:
          A: [n, n] with the pattern of the matrix from which M was made, in any format. Its values are cast to M's
            dtype. Of a traced pattern only the number of entries is compared.

        Raises:
          ValueError: another shape or pattern, a matrix that `incomplete_cholesky` or `incomplete_lu` refuses, or an M
            that is a transpose. Inside jit, where values cannot be checked, `M @ r` is NaN instead, which a solver
            reports as NON_FINITE. TypeError: not a matrix of jaxsparse_fmt, or a complex one where M is real.
        """
        if self.ptr is None or self.col is None:
            raise ValueError(
                "a transposed preconditioner cannot be refreshed, since it does not store the pattern of A; refresh M "
                "and transpose the result, M.refreshed(A).T"
            )
        maker = self.recipe[0]
        checks.renewing(self, A)
        S = _pattern(A, maker)
        what = f"A has {A.nnz} entries, and the one of M {self.col.size}" if A.nnz != self.col.size else ""
        if not what and S is not None and not is_traced(self):
            same = np.array_equal(S.indptr, self.ptr) and np.array_equal(S.indices, self.col)
            what = "" if same else "some entries of A lie elsewhere"
        if what:
            raise ValueError(
                f"M.refreshed(A) takes a matrix of the pattern that M was made of, but {what}; make M anew with "
                f"{maker}(A)"
            )
        if S is None or is_traced(self, A):
            return _traced(self, A.data)
        return _with(self, *jax.device_put(_renewed(self.recipe, self.dtype, self.ptr, self.col, S.data)))


@arguments.door
def incomplete_cholesky(A: Any, *, solve_sweeps: int | None = None) -> Incomplete:
    """The preconditioner of incomplete Cholesky factors without fill, IC(0); symmetric (Hermitian) positive definite.

    Factors of A need not exist, even where A is positive definite; those of A + α·diag(A) do once α is large enough
    (Manteuffel 1980). α is the first of 0, 0.01, 0.02, 0.04, … for which pivots are positive, no entry of the Cholesky
    factor exceeds what the diagonal of its row allows, and no solve with a factor makes a random vector 1000 times
    larger. The host factors, in a number of steps that is the number of entries times that of a row. Derivatives take M
    as constant, which the implicit derivatives of a solve allow.

    Args:
      A: [n, n] symmetric (Hermitian) positive definite jaxsparse matrix; only its lower triangle and the real part
        of its diagonal are used, and the upper one may be missing. M has at least 32 bits. Inside jit its pattern must
        be known: the function closes over the matrix, perhaps with other values, `A.with_data(data)`. A matrix that is
        an argument is traced whole: make M outside, pass M too, and use `M.refreshed(A)`.
      solve_sweeps: a number s takes s products in place of each triangular solve, and α so large that they halve the
        error of random systems. None applies the factors exactly on a CPU. On a GPU it takes the least s up to 10 that
        halves the errors, else exact solves by levels, which are many times slower; and 3 for traced values.

    Raises:
      ValueError: A is not square or not symmetric, holds a NaN or an infinity, or has a diagonal entry that is not
        positive; or no α was large enough. For traced values `M @ r` is NaN instead, which a solver reports as
        NON_FINITE. TypeError: not a matrix of jaxsparse_fmt, or one whose pattern is traced.

    Warns:
      RuntimeWarning: α exceeds 1, so that M may be worse than none.

    Examples:
      >>> js.cg(A, b, M=js.precond.incomplete_cholesky(A)).success
      True
    """
    return _incomplete(A, CHOLESKY, solve_sweeps)


@arguments.door
def incomplete_lu(A: Any, *, solve_sweeps: int | None = None) -> Incomplete:
    """The preconditioner of incomplete LU factors without fill, ILU(0), for any square matrix.

    Where a pivot falls below 0.001 of the diagonal, an entry grows beyond 1000, in A scaled to a diagonal of 1, or a
    solve with a factor makes a random vector 1000 times larger, it takes the factors of A + α·diag(A), with α doubled
    from 0.01 until none of these conditions holds.

    Args:
      A: [n, n] jaxsparse matrix without a zero on its diagonal; inside jit as with `incomplete_cholesky`.
      solve_sweeps: as in `incomplete_cholesky`, but None on a GPU takes the least s up to 10 that leaves a twentieth of
        the errors, else 10 if these halve them, else exact solves by levels.

    Raises, warns: as `incomplete_cholesky`, but the diagonal need not be positive, only nonzero.

    Examples:
      >>> js.gmres(A, b, M=js.precond.incomplete_lu(A)).success
      True
    """
    return _incomplete(A, LU, solve_sweeps)


def _incomplete(A: Any, maker: str, sweeps: int | None) -> Incomplete:
    n = checks.square(A, maker)
    if checks.is_transpose(A):
        return _incomplete(A.T, maker, sweeps).T
    dtype, traced = jnp.promote_types(A.dtype, jnp.float32), is_traced(A)
    on_cpu = jax.default_backend() == "cpu" if traced else is_on_cpu(jax.tree.leaves(A)[0])
    choice = EXACTLY if on_cpu else TRACED if traced else BY_SWEEPS[maker]
    if sweeps is not None:
        choice = ((arguments.int_at_least(sweeps, "solve_sweeps", 0), HALF),)
    with concrete():  # a jitted function may close over A
        S = _pattern(A, maker)
        if S is None:
            raise TypeError(
                f"{maker} needs a known pattern, and this one is traced: make M outside jit, pass it, and use "
                "M.refreshed(A) inside; or close over A and pass only its values, for A.with_data(data)"
            )
        if S.nnz >= 2**31:
            raise ValueError(f"an incomplete factorization counts entries in 32 bits; A has {S.nnz}")
        ptr, col = S.indptr.astype(np.int32), S.indices.astype(np.int32)
        if traced:
            row = _rows(ptr)
            N, V = (patterns.masked(S, side)[0] for side in (row > col, row < col))
            N, V = (patterns.with_data(T, np.ones(T.nnz, dtype)) for T in (N, N.T.tocsr() if maker == CHOLESKY else V))
            pivots: Any = np.ones(n, dtype)
            alpha, sweeps = np.zeros((), jnp.finfo(dtype).dtype), choice[0][0]
        else:
            N, V, pivots, alpha, sweeps = _factored(maker, choice, dtype, ptr, col, S.data)
        made: Any = [Triangle.of(T, T is V) if sweeps is None else Swept(from_scipy(T), sweeps) for T in (N, V)]
        found, alpha, ptr, col = jax.device_put((factors.Factors(pivots, *made), alpha, ptr, col))
    M = Incomplete(None, found, (maker, sweeps), alpha, ptr, col)
    return _traced(M, A.data) if traced else M


def _pattern(A: Any, maker: str) -> Any:
    """A in SciPy's CSR, traced values as ones; None if its pattern is traced."""
    checks.on_one_device(A, maker)
    if is_traced(A):
        A = dataclasses.replace(A, values=np.ones(A.values.shape, A.dtype))
    with concrete():
        return None if is_traced(A) else A.to_scipy()


def _with(M: Incomplete, N: Array, V: Array, pivots: Array, shift: Array) -> Incomplete:
    """M with the values of N, V and 1/D, and with α."""
    lower, upper = (
        dataclasses.replace(T, **({"N": T.N.with_data(v)} if isinstance(T, Swept) else {"values": v}))
        for T, v in ((M.factors.lower, N), (M.factors.upper, V))
    )
    return dataclasses.replace(M, factors=factors.Factors(pivots, lower, upper), shift=shift)


def _renewed(recipe: factors.Recipe, dtype: Any, *arrays: Any) -> tuple[Any, ...]:
    """The arrays for `_with`, from pattern and values of A."""
    maker, sweeps = recipe
    N, V, pivots, shift, _ = _factored(maker, ((sweeps, HALF),), dtype, *arrays)
    return N.data, V.data, pivots, shift


def _each_renewed(each: Any, recipe: factors.Recipe, dtype: Any) -> Iterator[tuple[Any, ...]]:
    """As `_renewed`; NaN after a fault."""
    for arrays in each:
        try:
            yield _renewed(recipe, dtype, *arrays)
        except ValueError:
            yield np.nan, np.nan, np.nan, np.nan


def _traced(M: Incomplete, data: Array) -> Incomplete:
    """M made from traced values of A, by a call of the host."""
    values = [T.N.data if isinstance(T, Swept) else T.values for T in (M.factors.lower, M.factors.upper)]
    arrays = M.ptr, M.col, lax.stop_gradient(data)
    return _with(M, *call(_each_renewed, (M.recipe, M.dtype), arrays, (*values, M.factors.inverse_pivots, M.shift)))


# -------------------------------------------------------------------------------------------------------- on the host


def _factored(
    maker: str,
    choice: Choice,
    dtype: Any,
    ptr: Any,  # [n + 1]
    col: Any,  # [nnz]
    data: Any,  # [nnz]
) -> tuple[Any, ...]:
    """N and V as matrices, 1/D, α and the first of `choice` that fits. ValueError: values or factors that do not do."""
    ptr, col, alpha, n, hermitian = np.asarray(ptr), np.asarray(col), 0.0, len(ptr) - 1, maker == CHOLESKY
    a: Any = np.asarray(data).astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    row = _rows(ptr)
    _check_values(row, col, a, n, maker)
    if hermitian:  # the lower triangle and its mirror image
        _check_hermitian(scipy.sparse.csr_array((a, col, ptr), shape=(n, n)), np.finfo(dtype).eps)
        row, col, a = (array[row >= col] for array in (row, col, a))
        off = row > col
        a = np.append(np.where(off, a, a.real), a[off].conj())
        S = scipy.sparse.csr_array((a, (np.append(row, col[off]), np.append(col, row[off]))), shape=(n, n))
        ptr, col, a = S.indptr, S.indices, S.data
        row = _rows(ptr)
    S, diagonal = patterns.csr(ptr, col, (n, n)), np.flatnonzero(row == col)
    (below, left), (above, right) = (patterns.masked(S, side) for side in (row > col, row < col))
    scale = 1 / np.sqrt(np.abs(a[diagonal]))
    a = a * scale[row] * scale[col]
    of_left, of_right = row[left], row[right]
    with np.errstate(all="ignore"):
        for _ in range(SHIFTS):
            x = a.copy()
            x[diagonal] *= 1 + alpha
            over_rows(elimination.eliminate, n, n, ptr, col, diagonal, x, rows=n)
            D = x[diagonal].real if hermitian else x[diagonal]
            N, V = x[left], x[right] / D[of_right]
            if hermitian:  # |lᵢⱼ|²·dⱼ is at most the diagonal
                bounded = np.all(D >= SMALLEST_PIVOT) and np.all(np.abs(N) ** 2 * D[below.indices] <= 1 + alpha)
            else:
                bounded = np.all(np.abs(D) >= SMALLEST_PIVOT) and np.all(np.abs(x) <= 1 / SMALLEST_PIVOT)
            triangles = patterns.with_data(below, N), patterns.with_data(above, V)
            if bounded and (sweeps := _fitting(choice, triangles)) is not ...:
                break
            alpha = max(2 * alpha, FIRST_SHIFT)
        else:
            raise ValueError(
                f"{maker} found no factors of A + α·diag(A) for α up to {alpha / 2:g}: A's diagonal is small against "
                "the rest of its rows; reorder or scale A, or use block_jacobi"
            )
        if alpha > FAR:
            warnings.warn(
                f"{maker} factored A + {alpha:g}·diag(A), so far from A that M may be worse than none; compare with "
                "jacobi or block_jacobi",
                RuntimeWarning,
                stacklevel=5,
            )
        # The values of A itself from those of scale·A·scale: no scaling is left to apply.
        N, D = N * scale[below.indices] / scale[of_left], scale**2 / D
        if hermitian:
            V = patterns.with_data(below, N).conj().T.tocsr().data
        else:
            V = V * scale[of_right] / scale[above.indices]
        N, V, D = made = N.astype(dtype), V.astype(dtype), D.astype(dtype)
    if not all(np.all(np.isfinite(array)) for array in made):
        raise ValueError(f"the factors overflow {dtype}: A's diagonal spans too many orders of magnitude; scale A")
    N, V = patterns.with_data(below, N), patterns.with_data(above, V)
    return N, V, D, np.asarray(alpha, np.finfo(dtype).dtype), sweeps


def _fitting(choice: Choice, triangles: tuple[Csr, Csr]) -> Any:
    """The first number of sweeps in `choice`, or None, that serves for both triangles N; `...`: none of them.

    A random y shows it. After s sweeps from r = (I + N)·y the error is (−N)ˢ⁺¹·y. It vanishes after n sweeps, but grows
    first if the matrix is far from diagonally dominant. An exact solve must not make y grow beyond GROWTH (Chow and
    Saad 1997): recurrences over many rows would make more of a residual than A does.
    """
    y, products = np.random.default_rng(0).uniform(-1, 1, (triangles[0].shape[0], 2)), 0
    errors = [y, y]
    for sweeps, most in choice:
        if sweeps is None:
            found, y, most = [_solution(N, y[:, 0], N is triangles[1]) for N in triangles], y[:, 0], GROWTH
        else:
            for _ in range(sweeps + 1 - products):
                errors = [N @ e for N, e in zip(triangles, errors, strict=True)]
            found, products = errors, sweeps + 1
        if sweeps == 0 or all(np.linalg.norm(v) <= most * np.linalg.norm(y) for v in found):
            return sweeps
    return ...


def _solution(N: Csr, r: Any, upper: bool) -> Any:
    y, n = r.astype(N.dtype), len(r)
    over_rows(elimination.substitute, n, 1, N.indptr, N.indices, N.data, y, int(upper), rows=n)
    return y


def _rows(ptr: Any) -> Any:
    return np.repeat(np.arange(len(ptr) - 1, dtype=np.int32), np.diff(ptr))


def _check_hermitian(S: Any, eps: float) -> None:
    """ValueError: neither Hermitian up to rounding nor lower triangular."""
    upper, mirrored = scipy.sparse.triu(S, 1), scipy.sparse.tril(S, -1).conj().T
    difference = abs(upper - mirrored).max() if upper.nnz else 0
    if difference > 10 * eps * np.max(np.abs(S.data)):
        raise ValueError(
            f"incomplete_cholesky needs a symmetric (Hermitian) matrix, and A differs by {difference:g} from its "
            "(conjugate) transpose; use incomplete_lu, or pass the lower triangle that you mean, tril(A)"
        )


def _check_values(row: Any, col: Any, data: Any, n: int, maker: str) -> None:
    """ValueError: a number is not finite, or one on the diagonal is zero or missing, or for Cholesky not positive."""
    hermitian = maker == CHOLESKY
    bad = np.flatnonzero(~np.isfinite(data))
    if bad.size:
        raise ValueError(f"{maker} needs finite entries; A has {data[bad[0]]} in row {row[bad[0]]}")
    on_diagonal = row == col
    diagonal = np.zeros(n, data.dtype)
    diagonal[row[on_diagonal]] = data[on_diagonal]
    bad = np.flatnonzero(diagonal.real <= 0 if hermitian else diagonal == 0)
    if bad.size:
        what = f"A is not positive definite: its diagonal is {diagonal[bad[0]]:g} in row {bad[0]}; use incomplete_lu"
        zero = f"A has a zero on its diagonal in row {bad[0]}; use precond.ilu(A), which pivots, or block_jacobi"
        raise ValueError(what if hermitian else zero)
