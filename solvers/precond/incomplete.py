"""Incomplete Cholesky and LU factors without fill as preconditioners, applied without a triangular solve.

A ≈ (I + N)·D·(I + V) with N strictly lower and V strictly upper triangular on the pattern of A, where both sides
agree: IC(0) or ILU(0), which the host computes by elimination from A scaled to a diagonal of 1. A triangular system
(I + N)·y = r is solved by s sweeps of Jacobi's method, y ← r − N·y from y = r (Anzt, Chow and Dongarra 2015, Iterative
sparse triangular solves for preconditioning), that is by P(N) = I − N + N² − … ± Nˢ:

    M = P(V)·D⁻¹·P(N)

an operator of 2s products with strictly triangular matrices. For a Hermitian A, V = Nᴴ, so M = P(N)ᴴ·D⁻¹·P(N) is
positive definite for any s as soon as D is: P(N) is triangular with a diagonal of 1. The solve would be exact for
s = n − 1.
"""

import dataclasses
import functools
import warnings
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array, lax

from jaxsparse_fmt._types import concrete, pytree, standard_promotion
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers.core import arguments
from solvers.core.diagonal import operand, rows_scaled
from solvers.precond import _checks as checks

# A pivot below this, relative to the diagonal of A, has broken down.
SMALLEST_PIVOT = 1e-3
# After a breakdown α is FIRST_SHIFT, then doubled, for SHIFTS tries in all (Manteuffel 1980, Math. Comp. 34).
FIRST_SHIFT, SHIFTS = 1e-2, 20
FAR = 1.0  # an α beyond which A + α·diag(A) has little of A


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Incomplete:
    """M = P(V)·D⁻¹·P(N) as an operator: `M @ r` for r of [n] or [n, k]. 2·solve_sweeps triangular products.

    Attributes:
      lower: N, strictly lower triangular; L = I + N.
      upper: V, strictly upper triangular; U = D·(I + V).
      inverse_pivots: [n], 1/D.
      shift: α, where A + α·diag(A) was factored; 0 if A's own factors exist.
      ptr, col: [n + 1] and [nnz], the pattern of A in CSR, for `refreshed`; None in transposes.
      first_shift: the first α to try.
      solve_sweeps: s.
      hermitian: V = Nᴴ and D is real.
    """

    lower: Any
    upper: Any
    inverse_pivots: Array
    shift: Array
    ptr: Array | None
    col: Array | None
    first_shift: Array
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
        return dataclasses.replace(self, lower=lower, upper=upper, ptr=None, col=None)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, self.inverse_pivots, 1)
        r = r.astype(jnp.result_type(self.dtype, r.dtype))
        y = rows_scaled(self.inverse_pivots, _solved(self.lower, r, self.solve_sweeps))
        return _solved(self.upper, y, self.solve_sweeps)

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
        maker = _maker(self.hermitian)
        checks.renewing(self, A)
        S = _pattern(A)
        what = f"A has {A.nnz} entries, and the one of M {self.col.size}" if A.nnz != self.col.size else ""
        if not what and S is not None and not arguments.is_traced(self):
            same = np.array_equal(S.indptr, self.ptr) and np.array_equal(S.indices, self.col)
            what = "" if same else "some entries of A lie elsewhere"
        if what:
            raise ValueError(
                f"M.refreshed(A) takes a matrix of the pattern that M was made of, but {what}; make M anew with "
                f"{maker}(A)"
            )
        if S is None or arguments.is_traced(self, A):
            return _traced(self, A.data)
        settings = self.hermitian, self.solve_sweeps, self.dtype
        return _with(self, *jax.device_put(_factored(*settings, self.ptr, self.col, S.data, self.first_shift)))


@standard_promotion
def incomplete_cholesky(
    A: Any, *, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete Cholesky factors without fill, IC(0); symmetric (Hermitian) positive definite.

    Factors of A need not exist, even where A is positive definite; those of A + α·diag(A) do once α is large enough
    (Manteuffel 1980). α is the first of 0, 0.01, 0.02, 0.04, … for which pivots are positive, no entry of the Cholesky
    factor exceeds what the diagonal of its row allows, and `solve_sweeps` halve the error of a random triangular
    system: if the matrix is far from diagonally dominant, these sweeps would make the error grow, whatever the factors.
    The host factors, in a number of steps that is the number of entries times that of a row. Derivatives take M as
    constant, which the implicit derivatives of a solve allow.

    Args:
      A: [n, n] symmetric (Hermitian) positive definite jaxsparse_fmt matrix; only its lower triangle and the real part
        of its diagonal are read. M has at least 32 bits. Inside jit its pattern must be known: the function closes over
        the matrix, perhaps with other values, `A.with_data(data)`. A matrix that is an argument is traced whole: make M
        outside, pass M too, and use `M.refreshed(A)`.
      solve_sweeps: s of each triangular solve; an application takes 2s products with half of A.
      shift: the first α to try.
      format, layout: of the triangular matrices, as in `jaxsparse_fmt.from_scipy`.

    Raises:
      ValueError: A is not square, holds a NaN or an infinity, or has a diagonal entry that is not positive; or no α was
        large enough. For traced values `M @ r` is NaN instead, which a solver reports as NON_FINITE. TypeError: not a
        matrix of jaxsparse_fmt, or one whose pattern is traced.

    Warns:
      RuntimeWarning: α exceeds 1, so that M may be worse than none.
    """
    return _incomplete(A, True, solve_sweeps, shift, {"format": format, **layout})


@standard_promotion
def incomplete_lu(
    A: Any, *, solve_sweeps: int = 3, shift: float = 0.0, format: str = "auto", **layout: Any
) -> Incomplete:
    """The preconditioner of incomplete LU factors without fill, ILU(0), for any square matrix.

    Where a pivot falls below 0.001 of the diagonal or an entry grows beyond 1000, in A scaled to a diagonal of 1, or
    where `solve_sweeps` do not halve the error of random triangular systems, it takes the factors of A + α·diag(A),
    with α doubled from 0.01 until none of these conditions holds.

    Args:
      A: [n, n] jaxsparse_fmt matrix without a zero on its diagonal; inside jit as with `incomplete_cholesky`.
      solve_sweeps, shift, format, layout: as in `incomplete_cholesky`.

    Raises, warns: as `incomplete_cholesky`, but the diagonal need not be positive, only nonzero.
    """
    return _incomplete(A, False, solve_sweeps, shift, {"format": format, **layout})


def _maker(hermitian: bool) -> str:
    return "incomplete_cholesky" if hermitian else "incomplete_lu"


def _incomplete(A: Any, hermitian: bool, solve_sweeps: int, shift: float, layout: dict[str, Any]) -> Incomplete:
    maker = _maker(hermitian)
    n = checks.square(A, maker)
    if checks.is_transpose(A):
        return _incomplete(A.T, hermitian, solve_sweeps, shift, layout).T
    solve_sweeps = arguments.int_at_least(solve_sweeps, "solve_sweeps", 0)
    first: Any = arguments.tolerance(shift, "shift")
    dtype = jnp.promote_types(A.dtype, jnp.float32)
    with concrete():  # a jitted function may close over A
        S = _pattern(A)
        if S is None:
            raise TypeError(
                f"{maker} needs a known pattern, and this one is traced: make M outside jit, pass it, and take "
                "M.refreshed(A) inside; or close over A and pass only its values, for A.with_data(data)"
            )
        if S.nnz >= 2**31:
            raise ValueError(f"an incomplete factorization counts entries in 32 bits; A has {S.nnz}")
        row = np.repeat(np.arange(n, dtype=np.int32), np.diff(S.indptr))
        below, above = ((row[at], S.indices[at]) for at in (row > S.indices, row < S.indices))
        if hermitian:
            order = np.lexsort(below)
            above = below[1][order], below[0][order]
        real = jnp.finfo(dtype).dtype
        made: Any = [np.ones(len(i), dtype) for i, _ in (below, above)]
        made += [np.ones(n, real if hermitian else dtype), np.zeros((), real)]
        ptr, col = S.indptr.astype(np.int32), S.indices.astype(np.int32)
        first = first.astype(real)
        if not arguments.is_traced(A, first):
            made = _factored(hermitian, solve_sweeps, dtype, ptr, col, S.data, first)
        lower, upper = (
            from_scipy(scipy.sparse.csr_array((values, at), shape=(n, n)), **layout)
            for values, at in zip(made[:2], (below, above), strict=True)
        )
        pivots, alpha, ptr, col = jax.device_put((*made[2:], ptr, col))
    M = Incomplete(lower, upper, pivots, alpha, ptr, col, first, solve_sweeps, hermitian)
    return _traced(M, A.data) if arguments.is_traced(A, first) else M


def _pattern(A: Any) -> Any:
    """A in SciPy's CSR, traced values as ones; None if its pattern is traced."""
    if not hasattr(A, "each_entry"):
        raise TypeError(
            f"an incomplete factorization takes a jaxsparse_fmt matrix, got {type(A).__name__}; convert it with "
            "jaxsparse_fmt.from_scipy or from_dense"
        )
    if arguments.is_traced(A) and "values" in vars(A):  # and not of shards
        A = dataclasses.replace(A, values=np.ones(A.values.shape, A.dtype))
    with concrete():
        return None if arguments.is_traced(A) else A.to_scipy()


def _with(M: Incomplete, lower: Array, upper: Array, pivots: Array, shift: Array) -> Incomplete:
    """M with these numbers."""
    lower, upper = M.lower.with_data(lower), M.upper.with_data(upper)
    return dataclasses.replace(M, lower=lower, upper=upper, inverse_pivots=pivots, shift=shift)


def _traced(M: Incomplete, data: Array) -> Incomplete:
    """M made from traced values of A, by a call of the host; a fault makes its numbers NaN."""
    entries = [jax.ShapeDtypeStruct((X.nnz,), M.dtype) for X in (M.lower, M.upper)]
    shapes = *entries, *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (M.inverse_pivots, M.shift))

    def host(*given: Any) -> Any:
        try:
            return _factored(M.hermitian, M.solve_sweeps, M.dtype, *given)
        except ValueError:
            return tuple(np.full(shape.shape, np.nan, shape.dtype) for shape in shapes)

    given = M.ptr, M.col, *lax.stop_gradient((data, M.first_shift))
    return _with(M, *jax.pure_callback(host, shapes, *given, vmap_method="sequential"))


def _solved(N: Any, r: Array, sweeps: int) -> Array:
    """P(N)·r, close to (I + N)⁻¹·r."""
    y, _ = lax.scan(lambda y, _: ((r - N @ y).astype(r.dtype), None), r, None, sweeps)
    return y


# -------------------------------------------------------------------------------------------------------- on the host


def _factored(
    hermitian: bool,
    solve_sweeps: int,
    dtype: Any,
    ptr: Any,  # [n + 1]
    col: Any,  # [nnz]
    data: Any,  # [nnz]
    first: Any,  # the first α to try
) -> tuple[np.ndarray, ...]:
    """N, V, 1/D and α. ValueError: values or factors that serve no preconditioner."""
    ptr, col, alpha, n, maker = np.asarray(ptr), np.asarray(col), float(first), len(ptr) - 1, _maker(hermitian)
    a: Any = np.asarray(data).astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    row: Any = np.repeat(np.arange(n, dtype=np.int32), np.diff(ptr))
    _check_values(row, col, a, n, hermitian)
    if hermitian:  # the lower triangle and its mirror image
        row, col, a = (of[row >= col] for of in (row, col, a))
        a = np.where(row == col, a.real, a)
        off = row > col
        row, col, a = np.append(row, col[off]), np.append(col, row[off]), np.append(a, a[off].conj())
        order = np.lexsort((col, row))
        row, col, a = row[order], col[order], a[order]
        ptr = np.searchsorted(row, np.arange(n + 1)).astype(np.int32)
    diagonal, left, right = np.flatnonzero(row == col), row > col, row < col
    scale = 1 / np.sqrt(np.abs(a[diagonal]))
    a = a * scale[row] * scale[col]
    triangles = [scipy.sparse.csr_array((a[at], (row[at], col[at])), shape=(n, n)) for at in (left, right)]
    with np.errstate(all="ignore"):
        for _ in range(SHIFTS):
            x = a.copy()
            x[diagonal] *= 1 + alpha
            over_rows(_kernels, "eliminate", n, n, ptr, col, diagonal, x, rows=n)
            D = x[diagonal].real if hermitian else x[diagonal]
            N, V = x[left], x[right] / D[row[right]]
            if hermitian:  # |lᵢⱼ|²·dⱼ is at most the diagonal
                bounded = np.all(D >= SMALLEST_PIVOT) and np.all(np.abs(N) ** 2 * D[col[left]] <= 1 + alpha)
            else:
                bounded = np.all(np.abs(D) >= SMALLEST_PIVOT) and np.all(np.abs(x) <= 1 / SMALLEST_PIVOT)
            if bounded and all(map(functools.partial(_solvable, solve_sweeps), triangles, (N, V))):
                break
            alpha = max(2 * alpha, FIRST_SHIFT)
        else:
            raise ValueError(
                f"{maker} found no factors of A + α·diag(A) for α up to {alpha / 2:g}: A's diagonal is small beside "
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
        N, V, D = N * scale[col[left]] / scale[row[left]], V * scale[row[right]] / scale[col[right]], scale**2 / D
        if hermitian:
            triangles[0].data = N
            V = triangles[0].conj().T.tocsr().data
        made = N.astype(dtype), V.astype(dtype), D.astype(np.finfo(dtype).dtype if hermitian else dtype)
    if not all(np.all(np.isfinite(of)) for of in made):
        raise ValueError(f"the factors overflow {dtype}: A's diagonal spans too many orders of magnitude; scale A")
    return *made, np.asarray(alpha, np.finfo(dtype).dtype)


def _solvable(sweeps: int, triangle: Any, values: Any) -> bool:
    """Whether that many sweeps of Jacobi's method halve the errors of two systems (I + N)·y = r, if there are any.

    The error after s sweeps from r is (−N)ˢ⁺¹·y. It vanishes after n sweeps, but grows first if the matrix is far from
    diagonally dominant. With one random y instead of two the norm of the error scatters by 20%.
    """
    y = e = np.random.default_rng(0).uniform(-1, 1, (triangle.shape[0], 2))
    N = scipy.sparse.csr_array((values, triangle.indices, triangle.indptr), shape=triangle.shape)
    for _ in range(sweeps + 1):
        e = N @ e
    return sweeps == 0 or bool(np.linalg.norm(e) <= 0.5 * np.linalg.norm(y))


def _check_values(row: Any, col: Any, data: Any, n: int, hermitian: bool) -> None:
    """ValueError: a number is not finite, or one on the diagonal is zero or missing, or for Cholesky not positive."""
    bad = np.flatnonzero(~np.isfinite(data))
    if bad.size:
        raise ValueError(f"{_maker(hermitian)} needs finite entries; A has {data[bad[0]]} in row {row[bad[0]]}")
    at = row == col
    diagonal = np.zeros(n, data.dtype)
    diagonal[row[at]] = data[at]
    bad = np.flatnonzero(diagonal.real <= 0 if hermitian else diagonal == 0)
    if bad.size and hermitian:
        raise ValueError(
            f"A is not positive definite: its diagonal is {diagonal[bad[0]]:g} in row {bad[0]}; use incomplete_lu"
        )
    if bad.size:
        raise ValueError(f"A has a zero on its diagonal in row {bad[0]}; reorder its rows, or use block_jacobi")


def _kernels() -> Any:
    from jaxsparse_fmt.kernels.cpu import elimination

    return elimination
