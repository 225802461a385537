"""Solves with a sparse triangular matrix, by rows in a native kernel on a CPU, elsewhere by levels."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax

from jaxsparse_fmt._arguments import as_vector
from jaxsparse_fmt._tracing import concrete, is_traced, standard_promotion
from jaxsparse_fmt.core.triangular import Triangle
from solvers.core.operators import rows_scaled
from solvers.precond import _checks as checks


@standard_promotion
def spsolve_triangular(
    A: Any, b: Any, lower: bool = True, *, unit_diagonal: bool = False, transposed: bool = False
) -> Array:
    """Solves A·x = b for a triangular A, as SciPy's function of this name. Differentiable to any order in A and b.

    Args:
      A: [n, n] jaxsparse matrix on one device, in any format. Inside jit its pattern must be known: the function
        closes over the matrix, perhaps with other values, `A.with_data(data)`.
      b: [n] or [n, k].
      lower: whether A is lower triangular, else upper.
      unit_diagonal: take the diagonal as 1, whatever A stores there.
      transposed: solve Aᵀ·x = b; `lower` still describes A.

    Returns:
      x, like b. For traced values a zero on the diagonal makes infinities or NaN.

    Raises:
      ValueError: A is not square, has entries on the other side of the diagonal, or a zero on it; or b has another
        shape. TypeError: not a matrix of jaxsparse_fmt, or one whose pattern is traced.

    Examples:
      >>> L = js.tril(A)
      >>> np.allclose(L @ js.spsolve_triangular(L, b), b)
      True
    """
    n = checks.square(A, "spsolve_triangular")
    if checks.is_transpose(A):
        return spsolve_triangular(A.T, b, not lower, unit_diagonal=unit_diagonal, transposed=not transposed)
    checks.on_one_device(A, "spsolve_triangular")
    b = as_vector(b, A, 0, "b must be")
    with concrete():
        row, col = A.row_ids, A.col_ids
    if is_traced(row, col):
        raise TypeError(
            "spsolve_triangular needs a known pattern, and this one is traced: close over A and pass only its values, "
            "for A.with_data(data); or use direct"
        )
    row, col = np.asarray(row), np.asarray(col)
    wrong = np.flatnonzero(row < col if lower else row > col)
    if wrong.size:
        at, side, cure = (int(row[wrong[0]]), int(col[wrong[0]])), *(("lower", "tril") if lower else ("upper", "triu"))
        raise ValueError(f"A is not {side} triangular: it has an entry at {at}; pass {cure}(A), or use direct")
    off = row != col
    N = scipy.sparse.csr_array((np.flatnonzero(off), (row[off], col[off])), shape=(n, n))
    data = A.data.astype(jnp.promote_types(A.dtype, jnp.float32))
    values, D = jnp.take(data, N.data), None
    if not unit_diagonal:
        on = np.full(n, -1)
        on[row[~off]] = np.flatnonzero(~off)
        zero = on < 0
        if not np.any(zero):
            D = jnp.take(data, on)
            zero = zero if is_traced(D) else np.asarray(D) == 0
        if np.any(zero):
            raise ValueError(f"A is singular: its diagonal is zero in row {np.argmax(zero)}")
    made = Triangle.of(N, not lower)
    rows = np.repeat(np.arange(n, dtype=np.int32), np.diff(N.indptr))
    return _solution(dataclasses.replace(made, values=values, is_transposed=transposed), D, rows, b)


@jax.jit
def _solution(
    T: Triangle,  # with the values of A
    D: Array | None,  # [n] A's diagonal; None: ones
    rows: Array,  # [nnz]
    b: Array,  # [n] or [n, k]
) -> Array:
    dtype = jnp.result_type(T.values, b)
    to, source = (T.col_idx, rows) if T.is_transposed else (rows, T.col_idx)
    # A = D·(I + N) with the values of N divided by the diagonal of their rows.
    unit = T if D is None else dataclasses.replace(T, values=T.values / D[rows])

    def divided(r: Array) -> Array:
        return r if D is None else rows_scaled(1 / D, r)

    def A(v: Array) -> Array:
        products = rows_scaled(T.values, v[source]).astype(dtype)
        return (v if D is None else rows_scaled(D, v)).astype(dtype).at[to].add(products)

    def inverse(T: Triangle, r: Array) -> Array:
        return (divided(T.solve(r)) if T.is_transposed else T.solve(divided(r))).astype(dtype)

    return lax.custom_linear_solve(A, b.astype(dtype), lambda _, r: inverse(unit, r), lambda _, r: inverse(unit.T, r))
