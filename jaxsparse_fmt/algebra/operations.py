"""The operations behind `A + B`, `A @ B`, `A[rows]` and their like: each makes or finds a plan, and calls it."""

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Array, as_floating, requested_dtype, whole_number
from jaxsparse_fmt.algebra import patterns, plans
from jaxsparse_fmt.algebra.assembly import assembly
from jaxsparse_fmt.algebra.patterns import entries_of_equal
from jaxsparse_fmt.algebra.plans import combined, product
from jaxsparse_fmt.core.matrix import SparseMatrix

__all__ = ["entries_of_equal", "product"]  # which `core.scipy_names` finds here with the functions below


def add(A: Any, B: Any) -> SparseMatrix:
    return combined("A + B", A, B, operator.add)


def subtract(A: Any, B: Any) -> SparseMatrix:
    return combined("A - B", A, B, operator.sub)


def multiply(A: Any, B: Any) -> SparseMatrix:
    return combined("A.multiply(B)", A, B, operator.mul, overlap=True)


def scale_rows(A: Any, d: Any) -> Any:
    patterns.check("scale_rows", A)
    return A.with_data(A.data * _diagonal(d, A.shape[0], "scale_rows")[A.row_ids])


def scale_cols(A: Any, d: Any) -> Any:
    patterns.check("scale_cols", A)
    return A.with_data(A.data * _diagonal(d, A.shape[1], "scale_cols")[A.col_ids])


def _diagonal(d: Any, n: int, name: str) -> Array:
    d = as_floating(d, "d")
    if d.shape != (n,):
        raise ValueError(f"{name}(d) takes d of shape ({n},), got {d.shape}")
    return d


def shift(A: Any, s: Any) -> SparseMatrix:
    n = _square(A, "shift")
    s = jnp.asarray(s, jnp.result_type(A.dtype, s))
    if s.ndim != 0 and s.shape != (n,):
        raise ValueError(f"shift(s) takes a number or an array of shape ({n},), got shape {s.shape}")
    return add(A, diags(jnp.broadcast_to(s, (n,))))


def set_diagonal(A: Any, d: Any) -> SparseMatrix:
    patterns.check("setdiag", A)
    n = _square(A, "setdiag")
    d = jnp.asarray(d)
    if d.ndim != 0 and d.shape != (n,):
        raise ValueError(f"setdiag(d) takes a number or an array of shape ({n},), got shape {d.shape}")
    D = diags(jnp.broadcast_to(d, (n,)), dtype=A.dtype)
    off = jnp.where(A.row_ids == A.col_ids, 0, A.data)
    return add(A.with_data(off), D)


def _square(A: Any, name: str) -> int:
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{name} needs a square matrix, got shape {A.shape}")
    return A.shape[0]


def triangle(A: Any, k: int, lower: bool) -> SparseMatrix:
    k = whole_number("k", k, None)
    choose = scipy.sparse.tril if lower else scipy.sparse.triu
    return plans.selected("tril" if lower else "triu", ("triangle", lower, k), lambda S: choose(S, k), A)


def item(A: Any, index: Any) -> Any:
    """A[index]: a matrix; with two integers a number."""
    if not isinstance(index, tuple):
        index = (index, slice(None))
    if len(index) != 2 or any(i is None or i is Ellipsis for i in index):
        raise IndexError(f"a matrix takes one index or two, rows and columns; got {index!r}")
    if any(isinstance(i, Tracer) for i in index):
        raise TypeError("an index of a sparse matrix must not be traced, since it decides the pattern; use A @ e")
    index = [i.item() if getattr(i, "ndim", None) == 0 else i for i in index]
    whole = [isinstance(i, int) and not isinstance(i, bool) for i in index]
    places = [[_in_range(i, n)] if one else _places(i, n) for i, one, n in zip(index, whole, A.shape, strict=True)]
    key = tuple(p if isinstance(p, slice) else tuple(p) if len(p) < 64 else None for p in places)
    key = None if None in key else ("item", *map(repr, key))
    part = plans.selected("A[...]", key, lambda S: S[places[0]][:, places[1]], A)
    return part.todense()[0, 0] if all(whole) else part


def _in_range(i: int, n: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of range for an axis of {n}")
    return int(i) % n


def _places(index: Any, n: int) -> Any:
    if isinstance(index, slice):
        return index
    index = np.asarray(index)
    if index.ndim != 1 or (index.dtype != bool and not np.issubdtype(index.dtype, np.integer) and index.size):
        raise IndexError(f"an index is an integer, a slice, or one axis of integers or booleans; got {index!r}")
    if index.dtype == bool:
        if index.size != n:
            raise IndexError(f"a mask for an axis of {n} must have {n} booleans, got {index.size}")
        return np.flatnonzero(index)
    index = index.astype(np.int64)
    if index.size and not (-n <= index.min() and index.max() < n):
        bad = index.max() if index.max() >= n else index.min()
        raise IndexError(f"index {bad} is out of range for an axis of {n}")
    return index % n if n else index


def prune(A: Any, tol: float) -> SparseMatrix:
    patterns.check("prune", A)
    data = A.data
    if isinstance(data, Tracer):
        raise ValueError("prune drops entries by their values, which are traced here; call it outside jit")
    small = ~(np.abs(np.asarray(data)) <= tol)  # keeps NaN

    def keep(S: Any) -> Any:
        row = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))[small]
        return scipy.sparse.csr_array((S.data[small], (row, S.indices[small])), shape=S.shape)

    return plans.selected("prune", None, keep, A)


def total(A: Any, axis: int | None) -> Array:
    patterns.check("sum", A)
    axis = _axis(axis)
    if axis is None:
        return A.data.sum()
    return _by(A, axis, jnp.zeros((), A.dtype), "add")


def extreme(A: Any, axis: int | None, largest: bool) -> Array:
    patterns.check("max" if largest else "min", A)
    axis = _axis(axis)
    rows, cols = A.shape
    if rows == 0 or cols == 0:
        raise ValueError(f"an empty matrix of shape {A.shape} has no largest or smallest entry")
    if jnp.iscomplexobj(A.data):
        raise TypeError("complex numbers have no order; use abs(A)")
    how, start = ("max", -jnp.inf) if largest else ("min", jnp.inf)
    clip = jnp.maximum if largest else jnp.minimum
    if axis is None:
        best = getattr(A.data, how)(initial=start)
        return best if A.nnz == rows * cols else clip(best, 0)
    best = _by(A, axis, jnp.asarray(start, A.dtype), how)
    full = _by(A.with_data(jnp.ones(A.nnz, jnp.float32)), axis, jnp.zeros((), jnp.float32), "add")
    return jnp.where(full == A.shape[axis], best, clip(best, 0))


def norm(A: Any, ord: Any) -> Array:
    patterns.check("norm", A)
    size = jnp.abs(A.data)
    if ord is None or ord == "fro":
        scale = jnp.where(size.max(initial=0) > 0, size.max(initial=0), 1)
        return scale * jnp.sqrt(jnp.sum((size / scale) ** 2))
    if ord in (1, -1, np.inf, -np.inf):
        sums = _by(A.with_data(size), 0 if abs(ord) == 1 else 1, jnp.zeros((), size.dtype), "add")
        return sums.max(initial=0) if ord > 0 else sums.min()
    raise ValueError(f"ord must be 'fro', 1, -1, inf or -inf, got {ord!r}; for the 2-norm take eigsh or lobpcg of AᵀA")


def _axis(axis: int | None) -> int | None:
    if axis not in (None, 0, 1, -1, -2):
        raise ValueError(f"axis must be None, 0 or 1, got {axis!r}")
    return axis if axis is None else axis % 2


def _by(A: Any, axis: int, start: Array, how: str) -> Array:
    """The entries of every column (axis 0) or row (axis 1) added up, or the largest or smallest of them."""
    target, n = (A.col_ids, A.shape[1]) if axis == 0 else (A.row_ids, A.shape[0])
    return getattr(jnp.full(n, start).at[target], how)(A.data)


# ------------------------------------------------------------------------------------------------------ public names


def eye(m: int, n: int | None = None, *, dtype: Any = None, format: str = "csr") -> SparseMatrix:
    """The identity matrix [m, n], with ones on the diagonal.

    Raises:
      ValueError: a size below 0.
    """
    m = whole_number("m", m)
    n = m if n is None else whole_number("n", n)
    k = np.arange(min(m, n))
    return assembly(k, k, (m, n), format)(jnp.ones(k.size, dtype or float))


def diags(
    diagonals: Any,
    offsets: Any = 0,
    *,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    format: str = "csr",
) -> SparseMatrix:
    """A matrix from its diagonals, whose numbers may be traced.

    Args:
      diagonals: an array, or a list of arrays, one for each offset: as long as the diagonal, or a number for all of it.
      offsets: an integer, or one for each diagonal; positive above the main diagonal.
      shape: None: square, as large as the first diagonal requires.

    Raises:
      ValueError: a diagonal of another length, an offset outside the matrix, or the same offset twice.
    """
    if np.ndim(offsets) == 0:
        offsets, diagonals = [offsets], [diagonals]
    offsets, given = [whole_number("offset", k, None) for k in offsets], [jnp.asarray(d) for d in diagonals]
    if len(offsets) != len(given) or not given or len(set(offsets)) != len(offsets):
        raise ValueError(f"diags takes one diagonal for each offset, each offset once; got {len(given)} for {offsets}")
    if shape is None:
        if given[0].ndim == 0:
            raise ValueError("diags of a single number needs shape=(rows, columns)")
        shape = (given[0].size + abs(offsets[0]),) * 2
    rows, cols, values = [], [], []
    for k, d in zip(offsets, given, strict=True):
        first, n = (0, k) if k >= 0 else (-k, 0), min(shape[0] - max(-k, 0), shape[1] - max(k, 0))
        if n < 0 or (d.ndim and d.shape != (n,)):
            raise ValueError(
                f"the diagonal of offset {k} of a matrix of shape {shape} has {max(n, 0)} numbers, not {d.shape}"
            )
        rows.append(first[0] + np.arange(n))
        cols.append(first[1] + np.arange(n))
        values.append(jnp.broadcast_to(d, (n,)))
    data = as_floating(jnp.concatenate(values), "the diagonals")
    data = data if dtype is None else data.astype(requested_dtype(dtype))
    return assembly(np.concatenate(rows), np.concatenate(cols), shape, format)(data)


def block(blocks: Sequence[Sequence[Any]], *, format: str | None = None) -> SparseMatrix:
    """A matrix from blocks, None where a block is zero: `block([[A, B], [C, None]])`.

    Args:
      format: of the result; None: that of the blocks if it is the same for all, else "csr".

    Raises:
      ValueError: sizes that do not fit. TypeError: a block that is not a matrix of this library on one device.
    """
    rows = [list(row) for row in blocks]
    given = [A for row in rows for A in row if A is not None]
    patterns.check("block", *given)
    if not given:
        raise ValueError("block needs at least one matrix")
    key = "block", tuple(tuple(A is None for A in row) for row in rows)

    def choose(*numbered: Any) -> Any:
        left = iter(numbered)
        return scipy.sparse.block_array([[None if A is None else next(left) for A in row] for row in rows])

    return plans.selected("block", key, choose, *given, format=format)


def hstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices side by side, as `block([matrices])`."""
    return block([matrices], format=format)


def vstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices one below the other, as `block` of one column."""
    return block([[A] for A in matrices], format=format)


def kron(A: Any, B: Any, *, format: str | None = None) -> SparseMatrix:
    """The Kronecker product, whose block (i, j) is A[i, j]·B.

    Raises:
      TypeError: not a matrix of this library on one device.
    """

    def spread(left: bool) -> Any:
        def choose(a: Any, b: Any) -> Any:
            (b if left else a).data[:] = 1
            return scipy.sparse.kron(a, b, "csr")

        return plans.selected("kron", ("kron", left), choose, A, B, format=format)

    left, right = spread(True), spread(False)
    return left.with_data(left.data * right.data)
