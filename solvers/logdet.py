"""Determinants, entries of inverses and samples by sparse factors, with derivatives to second order.

The derivative of log|det A| by an entry (i, j) is the entry (j, i) of A⁻¹, which a recurrence over the factors finds
without the rest of the inverse (Erisman and Tinney 1975). The derivative of such entries along W are those of
−A⁻¹·W·A⁻¹, a block of the inverse of [[A, 0], [W, A]], so that the same recurrence finds them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax

from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows
from solvers.core.program import interruptible
from solvers.factors import entries
from solvers.host import column_counts, filled
from solvers.host_calls import by_factors
from solvers.precond import _checks as checks
from solvers.superlu import LU, OnHost


@standard_promotion
@interruptible
def logdet(A: Any) -> Array:
    """log|det A| of a sparse matrix, differentiable twice with respect to A's values, in any mode.

    The gradient holds entries of A⁻¹, on A's pattern, and costs some four factorizations; a second derivative along a
    direction costs as much of a matrix of twice the size. The host computes, by SuperLU; a jitted function calls it.

    Args:
      A: [n, n] jaxsparse matrix on one device, in any format; its values may be traced. Its entries are independent
        variables, also where A is symmetric.

    Returns:
      A scalar: −∞ of a singular matrix, NaN of one that holds a NaN. For the sign see `factorized(A).logdet()`.

    Raises:
      ValueError: A is not square, or sharded. TypeError: not a matrix of jaxsparse_fmt.

    Examples:
      >>> np.allclose(js.logdet(A), np.linalg.slogdet(S.toarray()).logabsdet)
      True
    """
    return slogdet(A)[1]


@interruptible
def slogdet(A: Any) -> tuple[Array, Array]:
    """det A / |det A| and log|det A|. Errors as of `logdet`."""
    return _determinant(*_entries(A, "logdet"))


@interruptible
def inverse_entries(A: Any) -> Array:
    """[nnz], the entries of A⁻¹ at the places of A's entries, in the order of A.data; differentiable once more."""
    n, row, col, values = _entries(A, "inverse_entries")
    return _inverse(n, row, col, A.row_ids, A.col_ids, values)  # a transpose has entries in its own order


@interruptible
def sample(A: Any, z: Array) -> Array:
    """R·z with R·Rᴴ = A⁻¹; linear in z, and without derivatives in A. NaN unless A is positive definite."""
    n, row, col, values = _entries(A, "sample")
    values, z = (a.astype(jnp.result_type(values, z)) for a in (_constant(values), z))

    def rooted(way: str, z: Array) -> Array:
        return by_factors(root, n, ("cholesky",), (row, col, values), (z,), (z,), way)[0]

    return lax.custom_linear_solve(lambda v: v, z, lambda _, v: rooted("N", v), lambda _, v: rooted("T", v))


def _entries(A: Any, maker: str) -> tuple[int, Array, Array, Array]:
    """n, and rows, columns and values of A's entries, in 32 bits at least."""
    n, (row, col, values) = checks.square(A, maker), entries(A, maker)
    return n, row, col, values.astype(jnp.promote_types(A.dtype, jnp.float32))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _determinant(n: int, row: Array, col: Array, values: Array) -> tuple[Array, Array]:
    likes = [jax.ShapeDtypeStruct((), dtype) for dtype in (values.dtype, jnp.finfo(values.dtype).dtype)]
    sign, logarithm = by_factors(determinant, n, LU, (row, col, values), (), likes)
    return sign, logarithm


@_determinant.defjvp
def _determinant_jvp(n: int, primals: Any, tangents: Any) -> tuple[Any, Any]:
    row, col, values = primals
    sign, logarithm = _determinant(n, row, col, values)
    along = jnp.sum(_inverse(n, row, col, col, row, values) * tangents[2])
    d_sign = 1j * along.imag * sign if jnp.iscomplexobj(values) else jnp.zeros_like(sign)
    return (sign, logarithm), (d_sign, along.real)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse(n: int, row: Array, col: Array, i: Array, j: Array, values: Array) -> Array:
    """[nnz], the entries (i, j) of A⁻¹."""
    like = jax.ShapeDtypeStruct(i.shape, values.dtype)
    return by_factors(entries_of_inverse, n, LU, (row, col, values), (i, j), (like,))[0]


@_inverse.defjvp
def _inverse_jvp(n: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    row, col, i, j, values = primals
    fixed = _constant(values)

    def along(W_row: Array, W_col: Array, W: Array, i: Array, j: Array) -> Array:
        """The entries (i, j) of −A⁻¹·W·A⁻¹, those of the inverse of [[A, 0], [W, A]] below its diagonal."""
        rows = jnp.concatenate([row, row + n, W_row + n])
        cols = jnp.concatenate([col, col + n, W_col])
        return _inverse(2 * n, rows, cols, i + n, j, jnp.concatenate([fixed, fixed, W]))

    d_inverse = lax.custom_linear_solve(
        lambda W: W, tangents[4], lambda _, W: along(row, col, W, i, j), lambda _, u: along(j, i, u, col, row)
    )
    return _inverse(n, row, col, i, j, values), d_inverse


@jax.custom_jvp
def _constant(values: Array) -> Array:
    """The values, of which no derivative is known."""
    return values


@_constant.defjvp
def _constant_jvp(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "logdet has derivatives up to the second, inverse_entries up to the first, and sample none by A's values; "
        "use lax.stop_gradient(A)"
    )


# ---------------------------------------------------------------------- by SuperLU's factors on the host, or None


def determinant(found: OnHost | None, entries: Any) -> tuple[Any, Any]:
    """det A / |det A|, and log|det A|."""
    if found is None:
        return (0, -np.inf) if np.all(np.isfinite(entries[2])) else (np.nan, np.nan)
    D = found.made.U.diagonal()
    with np.errstate(all="ignore"):
        sign = np.prod(D / np.abs(D)) * np.prod([_parity(p) for p in found.places])
        return sign, np.sum(np.log(np.abs(D)))


def _parity(order: np.ndarray) -> int:
    """1 for an even permutation, −1 for an odd one."""
    from scipy.sparse import csgraph

    n = len(order)
    graph = scipy.sparse.csr_matrix((np.ones(n, np.int8), order, np.arange(n + 1)), shape=(n, n))
    cycles = csgraph.connected_components(graph, directed=True, connection="weak", return_labels=False)
    return -1 if (n - cycles) % 2 else 1


def entries_of_inverse(found: OnHost | None, entries: Any, i: Any, j: Any) -> np.ndarray:
    """[m], entries (i, j) of A⁻¹.

    It costs some four factorizations if each (j, i) is an entry of A. The recurrence takes L + U as symmetric, free of
    cancellation, and with the entries that are asked for, so that it finds whatever it needs.
    """
    if found is None:
        return np.full(i.shape, np.nan)
    n = found.made.shape[0]
    row, col, _ = entries
    rows, cols = (place.astype(np.int64) for place in found.places)  # SuperLU's 32 bits do not hold n² of the keys
    one, other = np.append(rows[row], cols[i]), np.append(cols[col], rows[j])
    ends = np.append(one, other), np.append(other, one)
    pattern = scipy.sparse.csr_array((np.ones(2 * len(one), bool), ends), shape=(n, n))
    _, counts, parent = column_counts(pattern, np.arange(n))
    start, below = filled(pattern, counts, parent)
    key = np.repeat(np.arange(n), np.diff(start)) * n + below

    def placed(T: Any) -> np.ndarray:
        """The entries below the diagonal of a matrix in CSC, by column and row."""
        column = np.repeat(np.arange(n), np.diff(T.indptr))
        inside = T.indices > column
        wanted = column[inside] * n + T.indices[inside]
        place = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        values = np.zeros(len(key), T.dtype)
        there = key[place] == wanted if len(key) else np.zeros(0, bool)
        values[place[there]] = T.data[inside][there]  # others are zeros that SuperLU stores
        return values

    U = found.made.U
    pivot = U.diagonal()
    column_of = np.repeat(np.arange(n), np.diff(start))
    lower, upper = placed(found.made.L), placed(U.T.tocsc()) / pivot[column_of]
    diagonal, left, right = (np.zeros(size, pivot.dtype) for size in (n, len(key), len(key)))
    over_rows(elimination.selected_inverse, n, n, start, below, pivot, lower, upper, diagonal, left, right, rows=n)
    a, b = cols[i], rows[j]
    if not len(key):
        return diagonal[a]
    place = np.minimum(np.searchsorted(key, np.minimum(a, b) * n + np.maximum(a, b)), len(key) - 1)
    return np.where(a == b, diagonal[a], np.where(a > b, left[place], right[place]))


def root(found: OnHost | None, entries: Any, z: np.ndarray, way: str) -> np.ndarray:
    """R·z with R·Rᴴ = A⁻¹, or with the way "T" Rᵀ·z, by factors without pivoting; NaN unless A is positive definite."""
    if found is None:
        return np.full_like(z, np.nan)
    n, made = found.made.shape[0], found.made
    D, (rows, cols) = made.U.diagonal(), found.places
    if not (np.all(D.real > 0) and np.array_equal(rows, cols) and found.host.symmetric):
        return np.full_like(z, np.nan)
    L, scale = made.L.tocsc(), np.sqrt(D.real)
    off = L.indices != np.repeat(np.arange(n), np.diff(L.indptr))
    upper = scipy.sparse.csr_array((L.data[off].conj(), L.indices[off], L.indptr - np.arange(n + 1)), shape=(n, n))
    y = z.astype(np.result_type(z, D), copy=True)
    T = upper if way == "N" else upper.T.tocsr()  # Lᴴ, or its transpose
    y = (y.T / scale).T if way == "N" else y[np.argsort(rows)]
    columns = [np.ascontiguousarray(c) for c in y.reshape(n, -1).T]
    for c in columns:
        over_rows(elimination.substitute, n, 1, T.indptr, T.indices, T.data, c, int(way == "N"), rows=n)
    y = np.stack(columns, axis=-1).reshape(y.shape)
    return y[rows] if way == "N" else (y.T / scale).T
