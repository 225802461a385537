"""Shifts, scalings and slices of matrices, and the public functions that make new patterns."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.core import Tracer

from jaxsparse_fmt._arguments import as_floating, is_number, number, real_number, whole_number
from jaxsparse_fmt._dtypes import check_keeps_imaginary, requested_dtype
from jaxsparse_fmt.algebra import by_scipy, indexing, on_device, patterns, plans
from jaxsparse_fmt.algebra.assembly import assembly, checked_shape
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import OPERATORS
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.layout.address import expand_ptr


def _scaled(A: Any, d: Any, axis: int) -> Any:
    name = ("scale_rows", "scale_cols")[axis]
    patterns.check(name, A)
    d = as_floating(d, "d")
    if d.shape != (A.shape[axis],):
        raise ValueError(f"{name}(d) takes d of shape ({A.shape[axis]},), got {d.shape}")
    return A.with_data(A.data * d[A.row_ids if axis == 0 else A.col_ids])


def _shifted(A: Any, s: Any) -> SparseMatrix:
    patterns.check("shift", A)
    n = A.shape[0]
    if n != A.shape[1]:
        raise ValueError(f"shift needs a square matrix, got shape {A.shape}")
    s = number(s) if is_number(s) else as_floating(s, "s", A.dtype)
    s = jnp.asarray(s, jnp.result_type(A.dtype, s))
    if s.ndim != 0 and s.shape != (n,):
        raise ValueError(f"shift(s) takes a number or an array of shape ({n},), got shape {s.shape}")
    return plans.combined("A.shift(s)", A, diags(jnp.broadcast_to(s, (n,))), operator.add, patterns.format_of(A))


def _with_diagonal(A: Any, values: Any, k: int) -> SparseMatrix:
    patterns.check("setdiag", A)
    k, values = whole_number("k", k, None), as_floating(values, "values")
    row, col = max(-k, 0), max(k, 0)  # of the diagonal's first place
    n = min(A.shape[0] - row, A.shape[1] - col)
    if n <= 0 or values.ndim > 1:
        raise ValueError(
            f"setdiag takes a number or one array of them, and a diagonal of a matrix of shape {A.shape}; got values "
            f"of shape {values.shape}, k={k}"
        )
    check_keeps_imaginary(values.dtype, A.dtype)
    n = min(n, values.size) if values.ndim else n
    place, values = np.arange(n), (values[:n] if values.ndim else jnp.full(n, values)).astype(A.dtype)
    D = assembly(row + place, col + place, A.shape, "csr")(values)
    is_set = (A.col_ids - A.row_ids == k) & (A.row_ids < row + n)
    others = A.with_data(jnp.where(is_set, 0, A.data))
    return plans.combined("A.setdiag(values)", others, D, operator.add, patterns.format_of(A))


OPERATORS |= {
    "combined": plans.combined,
    "item": indexing.item,
    "product": plans.product,
    "scaled": _scaled,
    "shifted": _shifted,
    "with_diagonal": _with_diagonal,
}


# ------------------------------------------------------------------------------------------------------ public names


def eye(m: int, n: int | None = None, *, dtype: Any = None, format: str = "csr") -> SparseMatrix:
    """The identity matrix [m, n], with ones on the diagonal.

    Raises:
      ValueError: a size below 0. TypeError: a dtype of whole numbers.

    Examples:
      >>> js.eye(2).todense().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    m = whole_number("m", m)
    n = m if n is None else whole_number("n", n)
    building.check_result(min(m, n), (m, n))
    dtype = requested_dtype(jax.dtypes.canonicalize_dtype(dtype or float))
    return patterns.matrix(scipy.sparse.csr_array(scipy.sparse.eye_array(m, n)), format, "auto", dtype=dtype)


def diags(
    diagonals: Any, offsets: Any = 0, *, shape: tuple[int, int] | None = None, dtype: Any = None, format: str = "csr"
) -> SparseMatrix:
    """A matrix from its diagonals, which may be traced.

    Args:
      diagonals: an array, or a list of arrays, one for each offset: as long as the diagonal, or a number for all of it.
      offsets: an integer, or one for each diagonal; positive above the main diagonal.
      shape: None: square, as large as the first diagonal requires.

    Raises:
      ValueError: a diagonal of another length, an offset outside the matrix, or the same offset twice.

    Examples:
      >>> js.diags([[2.0, 2.0], [1.0]], [0, 1]).todense().tolist()
      [[2.0, 1.0], [0.0, 2.0]]
    """
    if np.ndim(offsets) == 0:
        offsets, diagonals = [offsets], [diagonals]
    offsets = [whole_number("offset", k, None) for k in offsets]
    given = [jnp.asarray(d) for d in diagonals]
    if len(offsets) != len(given) or not given or len(set(offsets)) != len(offsets):
        raise ValueError(f"diags takes one diagonal for each offset, each offset once; got {len(given)} for {offsets}")
    if shape is None:
        if given[0].ndim == 0:
            raise ValueError("diags of a single number needs shape=(rows, columns)")
        shape = (given[0].size + abs(offsets[0]),) * 2
    shape = checked_shape(shape)
    rows, cols, values = [], [], []
    for k, d in zip(offsets, given, strict=True):
        row, col = max(-k, 0), max(k, 0)  # of its first entry
        n = min(shape[0] - row, shape[1] - col)
        if n < 0 or (d.ndim and d.shape != (n,)):
            raise ValueError(
                f"the diagonal of offset {k} of a matrix of shape {shape} has {max(n, 0)} numbers, not {d.shape}"
            )
        building.check_result(n * len(given), shape, on_device.SORTED)
        rows.append(row + np.arange(n))
        cols.append(col + np.arange(n))
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

    Examples:
      >>> js.block([[A, None], [None, A]]).shape
      (32, 32)
    """
    rows = [list(row) for row in blocks]
    given = [A for row in rows for A in row if A is not None]
    patterns.check("block", *given)
    if not given:
        raise ValueError("block needs at least one matrix")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"every row needs the same number of blocks; got {[len(row) for row in rows]}")
    heights = [_common("rows", [A.shape[0] for A in row if A is not None]) for row in rows]
    widths = [_common("columns", [A.shape[1] for A in column if A is not None]) for column in zip(*rows, strict=True)]
    tops, lefts = ([*itertools.accumulate(sizes, initial=0)] for sizes in (heights, widths))
    corners = tuple((tops[i], lefts[j]) for i, row in enumerate(rows) for j, A in enumerate(row) if A is not None)
    return _placed("block", given, corners, (tops[-1], lefts[-1]), format)


def block_diag(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """The matrix with these blocks along its diagonal, each below and to the right of the one before.

    Args:
      matrices: one or more, of any shapes.
      format: as in `block`.

    Raises:
      ValueError: no matrix. TypeError: a block that is not a matrix of this library on one device.

    Examples:
      >>> js.block_diag([A, js.eye(2)]).shape
      (18, 18)
    """
    given = list(matrices)
    patterns.check("block_diag", *given)
    if not given:
        raise ValueError("block_diag needs at least one matrix")
    tops, lefts = ([*itertools.accumulate((A.shape[axis] for A in given), initial=0)] for axis in (0, 1))
    return _placed("block_diag", given, tuple(zip(tops, lefts, strict=True))[:-1], (tops[-1], lefts[-1]), format)


def _placed(name: str, given: list[Any], corners: Any, shape: tuple[int, int], format: str | None) -> SparseMatrix:
    """The matrix of blocks whose first row and column are given."""
    building.check_result(sum(A.nnz for A in given), shape, on_device.SORTED)

    def choose(*blocks: Any) -> Any:
        xp = building.namespace(blocks[0].indptr)
        row, col = _shifted_places(xp, [building.entries(S) for S in blocks], corners)
        return patterns.arranged(row, col, shape)

    return plans.selected(name, (corners, shape), choose, *given, format=format)


def _common(what: str, sizes: list[int]) -> int:
    if len(set(sizes)) > 1:
        raise ValueError(f"blocks of one row or column of blocks need the same number of {what}; got {sizes}")
    return sizes[0] if sizes else 0


@building.on_either(2)
def _shifted_places(xp: Any, blocks: Any, corners: Any) -> Any:
    """Row and column of all entries of blocks whose first row and column are given."""
    places = ((row + i, col + j) for (row, col), (i, j) in zip(blocks, corners, strict=True))
    return tuple(map(xp.concatenate, zip(*places, strict=True)))


def hstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices side by side, as `block([matrices])`, whose arguments and errors it has.

    Examples:
      >>> js.hstack([A, A]).shape
      (16, 32)
    """
    return block([matrices], format=format)


def vstack(matrices: Sequence[Any], *, format: str | None = None) -> SparseMatrix:
    """Matrices one below the other, as `block` of one column, whose arguments and errors it has.

    Examples:
      >>> js.vstack([A, A]).shape
      (32, 16)
    """
    return block([[A] for A in matrices], format=format)


def kron(A: Any, B: Any, *, format: str | None = None) -> SparseMatrix:
    """The Kronecker product, whose block (i, j) is A[i, j]·B.

    Raises:
      TypeError: not a matrix of this library on one device.

    Examples:
      >>> js.kron(js.eye(2), A).shape
      (32, 32)
    """
    patterns.check("kron", A, B)
    shape = A.shape[0] * B.shape[0], A.shape[1] * B.shape[1]
    building.check_result(A.nnz * B.nnz, shape, on_device.SORTED)
    at_hand = by_scipy.at_hand(A, B)
    if at_hand is not None:
        return plans.made(by_scipy.sorted_rows(scipy.sparse.kron(*at_hand, "csr")), format, A, B)
    return plans.paired(patterns.kronecker, "kron", format, A, B)(A, B, operator.mul)


def kronsum(A: Any, B: Any, *, format: str | None = None) -> SparseMatrix:
    """The Kronecker sum kron(I, A) + kron(B, I), as SciPy's: of two derivatives in one dimension that in two.

    Args:
      A, B: square, [m, m] and [n, n]; the result is [m·n, m·n].
      format: of the result; None: that of A and B if they have the same, else "csr".

    Raises:
      ValueError: a matrix that is not square. TypeError: not a matrix of this library on one device.

    Examples:
      >>> js.kronsum(A, js.eye(2)).shape
      (32, 32)
    """
    patterns.check("kronsum", A, B)
    if any(M.shape[0] != M.shape[1] for M in (A, B)):
        raise ValueError(f"kronsum needs two square matrices, got shapes {A.shape} and {B.shape}")
    left, right = kron(eye(B.shape[0], dtype=A.dtype), A), kron(B, eye(A.shape[0], dtype=B.dtype))
    return plans.combined("kronsum", left, right, operator.add, format or patterns.format_of(A, B))


def tril(A: Any, k: int = 0) -> SparseMatrix:
    """The entries of A on and below diagonal k.

    Args:
      A: [m, n], a matrix of this library on one device, or its transpose.
      k: 0 is the main diagonal; positive above it, negative below.

    Raises:
      TypeError: another A, or a k that is no whole number.

    Examples:
      >>> js.tril(A).nnz, js.tril(A, -1).nnz
      (40, 24)
    """
    return _triangle("tril", A, k)


def triu(A: Any, k: int = 0) -> SparseMatrix:
    """The entries of A on and above diagonal k; arguments and errors are those of `tril`.

    Examples:
      >>> js.triu(A).nnz, js.triu(A, 1).nnz
      (40, 24)
    """
    return _triangle("triu", A, k)


def _triangle(name: str, A: Any, k: int) -> SparseMatrix:
    patterns.check(name, A)
    k = min(max(whole_number("k", k, None), -A.shape[0]), A.shape[1])

    def choose(S: Any) -> Any:
        return patterns.masked(S, _on_side(building.namespace(S.indptr), S.indptr, S.indices, k, name == "tril"))

    return plans.selected(name, (name, k), choose, A)


@building.on_either(4)
def _on_side(xp: Any, indptr: Any, indices: Any, k: Any, below: bool) -> Any:
    offset = indices - expand_ptr(xp, indptr, indices.shape[0])
    return offset <= k if below else offset >= k


def prune(A: Any, tol: float = 0.0) -> SparseMatrix:
    """A without the entries of absolute value at most `tol`.

    Raises:
      ValueError: inside jit, where the values, and so the size of the result, are not known.

    Examples:
      >>> js.prune(A.with_data(A.data.at[0].set(0.0))).nnz == A.nnz - 1
      True
    """
    patterns.check("prune", A)
    data, tol = A.data, real_number("tol", tol)
    if isinstance(data, Tracer):
        raise ValueError("prune drops entries by their values, which are traced here; call it outside jit")

    def keep(S: Any) -> Any:
        xp = building.namespace(S.indptr)
        return patterns.masked(S, _above(xp, xp.asarray(data), tol))

    return plans.selected("prune", None, keep, A)


@building.on_either()
def _above(xp: Any, data: Any, tol: Any) -> Any:
    return ~(xp.abs(data) <= tol)  # keeps NaN
