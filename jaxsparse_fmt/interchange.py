"""From the arrays of CSR and CSC, to and from matrices of `jax.experimental.sparse`, and of CuPy on the device."""

import functools
import importlib
import types
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt import convert
from jaxsparse_fmt._arguments import of_jax_sparse
from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import concrete, is_on_cpu, is_traced
from jaxsparse_fmt._types import Array, CsrArrays
from jaxsparse_fmt.algebra.assembly import checked_shape
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats.canonical import check_compressed
from jaxsparse_fmt.kernels.layout.address import row_pointers

if TYPE_CHECKING:
    from jax.experimental.sparse import BCOO, BCSR


def from_csr(
    data: Any,
    indices: Any = None,
    indptr: Any = None,
    shape: Any = None,
    format: str = "auto",
    dtype: Any = None,
    **options,
) -> SparseMatrix:
    """A matrix from the three arrays of CSR; duplicates are summed, and rows need not be sorted.

    Inside jit, `data` may be traced, as in `from_coo`.

    Args:
      data, indices: values [k] and their columns [k].
      indptr: [n_rows + 1], where the rows begin in both.
      shape: (rows, columns); or SciPy's spelling, from_csr((data, indices, indptr), shape).
      format, dtype, **options: as in `from_scipy`.

    Raises:
      ValueError: lengths that do not fit, a pointer that falls, an index outside `shape`, or traced indices.
      TypeError: indices that are not integers, or a whole matrix.

    Examples:
      >>> js.from_csr([1.0, 2.0, 3.0], [0, 0, 1], [0, 1, 3], (2, 2)).todense().tolist()
      [[1.0, 0.0], [2.0, 3.0]]
    """
    data, major, minor, shape = _expanded("csr", data, indices, indptr, shape)
    return convert.from_coo(major, minor, data, shape, format, dtype, **options)


def from_csc(
    data: Any,
    indices: Any = None,
    indptr: Any = None,
    shape: Any = None,
    format: str = "auto",
    dtype: Any = None,
    **options,
) -> SparseMatrix:
    """A matrix from the three arrays of CSC: as `from_csr`, with rows in `indices` and columns that begin at `indptr`.

    Examples:
      >>> js.from_csc([1.0, 2.0, 3.0], [0, 1, 1], [0, 2, 3], (2, 2)).todense().tolist()
      [[1.0, 0.0], [2.0, 3.0]]
    """
    data, major, minor, shape = _expanded("csc", data, indices, indptr, shape)
    return convert.from_coo(minor, major, data, shape, format, dtype, **options)


def _expanded(kind: str, data: Any, indices: Any, indptr: Any, shape: Any) -> tuple[Any, Any, Any, tuple[int, int]]:
    """The values, the row or column that the pointer gives each, their indices, and the shape."""
    if isinstance(data, tuple) and len(data) == 3 and indptr is None:
        shape = indices if shape is None else shape
        data, indices, indptr = data
    convert.refuse_sparse(data, f"from_{kind} takes values, indices and pointers")
    if is_traced((indices, indptr)):
        raise ValueError(
            f"from_{kind} needs the indices themselves, which are traced here; make the matrix outside jit, and give "
            "it other values inside, by A.with_data(data)"
        )
    with concrete():
        indices, indptr, shape = np.asarray(indices), np.asarray(indptr), checked_shape(shape)
    data = data if isinstance(data, jax.Array) else np.asarray(data)
    if indices.ndim != 1 or indptr.ndim != 1 or data.shape != indices.shape:
        shapes = ", ".join(str(a.shape) for a in (data, indices, indptr))
        raise ValueError(
            f"from_{kind} takes data and indices of one length, and indptr, all one-dimensional; got shapes {shapes}"
        )
    if not np.issubdtype(indptr.dtype, np.integer):
        raise TypeError(f"indptr must hold integers, got dtype {indptr.dtype}")
    check_compressed(types.SimpleNamespace(format=kind, shape=shape, data=data, indices=indices, indptr=indptr))
    major = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return data[: major.size], major, indices[: major.size], shape


def from_bcoo(B: Any, format: str = "auto", dtype: Any = None, **options: Any) -> SparseMatrix:
    """A matrix from one of `jax.experimental.sparse`; duplicates are summed, padding is left out.

    Inside jit the data may be traced and differentiated; the indices may not be traced. The format is then chosen as if
    all data were 1, at trace time.

    Args:
      B: BCOO or BCSR, [rows, columns] without batch and dense dimensions.
      format, dtype, **options: as in `from_scipy`.

    Raises:
      TypeError: not a BCOO or BCSR. ValueError: B has batch or dense dimensions, or its indices are traced. And as in
        `from_scipy`.

    Examples:
      >>> js.from_bcoo(js.to_bcoo(A)).nnz == A.nnz
      True
    """
    name = type(B).__name__
    if not of_jax_sparse(B) or name not in ("BCOO", "BCSR"):
        raise TypeError(f"from_bcoo takes a BCOO or BCSR of jax.experimental.sparse, got {name}")
    if B.n_batch or B.n_dense or len(B.shape) != 2:
        raise ValueError(
            f"from_bcoo takes a matrix without batch and dense dimensions; got shape {B.shape} with "
            f"n_batch={B.n_batch} and n_dense={B.n_dense}. Convert one member, and map over the data of all: "
            "jax.vmap(lambda d: A.with_data(d) @ x)(D)"
        )
    data = B.data
    is_bcsr = name == "BCSR"
    if is_traced(B.indices, B.indptr if is_bcsr else None):
        raise ValueError(
            f"the indices of this {name} are traced, so the sizes of a matrix are unknown. Make its indices outside "
            "jit, as JAX arrays (NumPy's become traced), and let the jitted function close over them; or make the "
            "matrix outside jit and pass that: its data may be replaced inside by A.with_data"
        )
    if not is_traced(data):
        if B.indices_sorted and B.unique_indices and not is_on_cpu(data):
            with concrete():
                return _on_device(_without_padding(B), format, dtype, **options)
        data = np.asarray(data)
    col = np.asarray(B.indices)
    if is_bcsr:
        row = np.searchsorted(np.asarray(B.indptr)[1:], np.arange(col.size), side="right")
    else:
        row, col = col.T
    live = np.flatnonzero((row < B.shape[0]) & (col < B.shape[1]))
    return convert.from_coo(row[live], col[live], data[live], B.shape, format, dtype, **options)


def from_bcsr(B: Any, format: str = "auto", dtype: Any = None, **options: Any) -> SparseMatrix:
    """A matrix from a BCSR; as `from_bcoo`, which accepts both.

    Examples:
      >>> js.from_bcsr(js.to_bcsr(A)).nnz == A.nnz
      True
    """
    return from_bcoo(B, format, dtype, **options)


def to_bcoo(A: SparseMatrix) -> "BCOO":
    """The matrix as a BCOO, its entries in the order of `A.data`, on the device of A.

    It works inside jit too: the data is differentiable, and if only A's values are traced, the indices are constants.

    Raises:
      TypeError: not a matrix on one device, or a transpose.

    Examples:
      >>> js.to_bcoo(A).shape
      (16, 16)
    """
    from jax.experimental.sparse import BCOO

    rows, cols = _ids(A, "to_bcoo")
    with concrete(rows):
        indices = jnp.stack([rows, cols], 1)
    return BCOO((A.data, indices), shape=A.shape, indices_sorted=_sorted(rows, cols), unique_indices=True)


def to_bcsr(A: SparseMatrix) -> "BCSR":
    """The matrix as a BCSR; as `to_bcoo`.

    Examples:
      >>> js.to_bcsr(A).nse == A.nnz
      True
    """
    from jax.experimental.sparse import BCSR

    rows, cols = _ids(A, "to_bcsr")
    with concrete(rows):
        indptr = row_pointers(rows, A.shape[0])
    return BCSR((A.data, cols, indptr), shape=A.shape, indices_sorted=_sorted(rows, cols), unique_indices=True)


def from_cupy(S: Any, format: str = "csr", dtype: Any = None, **options: Any) -> SparseMatrix:
    """A matrix from a CSR matrix of CuPy, or of any library whose arrays have `__dlpack__`, without a copy on the host.

    The arrays are shared where format, dtype and the library's strides allow: do not change S afterwards.

    Args:
      S: `data`, `indices`, `indptr` and `shape`, as `cupyx.scipy.sparse.csr_matrix`, with sorted rows and without
        duplicates.
      format: a name in `FORMATS`; "auto" and "tune" go through the host.
      dtype, **options: `backend`, `max_bytes` and the layout, as in `from_scipy`.

    Raises:
      TypeError: S is not in CSR. ValueError: rows that are not sorted, duplicates, an index out of range; and as in
        `from_scipy`.

    Examples:
      >>> C = cupyx.scipy.sparse.csr_matrix(S)  # doctest: +SKIP
      >>> A = js.from_cupy(C)  # doctest: +SKIP
    """
    if getattr(S, "format", "csr") != "csr" or not all(hasattr(S, a) for a in ("data", "indices", "indptr", "shape")):
        raise TypeError(f"from_cupy takes a matrix in CSR, got {type(S).__name__}; S.tocsr() makes one")
    data, indices, indptr = (jnp.from_dlpack(a) for a in (S.data, S.indices, S.indptr))
    return _on_device(CsrArrays(data, indices, indptr, tuple(S.shape)), format, dtype, **options)


def to_cupy(A: SparseMatrix) -> Any:
    """The matrix as CuPy's `csr_matrix` on the same GPU; its arrays are those of A.csr_arrays(), not copies.

    JAX's arrays must not change: do not write into the result.

    Raises:
      ImportError: CuPy is not installed. TypeError: not a matrix on one device.

    Examples:
      >>> C = js.to_cupy(A)  # doctest: +SKIP
      >>> C.data.device  # doctest: +SKIP
    """
    _ids(A, "to_cupy")
    cupy, sparse = map(importlib.import_module, ("cupy", "cupyx.scipy.sparse"))
    return sparse.csr_matrix(tuple(map(cupy.from_dlpack, A.csr_arrays())), shape=A.shape)


def _on_device(given: CsrArrays, format: str, dtype: Any, **options: Any) -> SparseMatrix:
    """A matrix from CSR arrays of JAX; only the result of one check comes to the host.

    Raises:
      ValueError: rows that are not sorted, duplicates, or a broken pointer or index.
    """
    data, indices, indptr, shape = given.data, given.indices, given.indptr, given.shape
    n, nnz = (int(a.shape[0]) for a in (indptr, indices))
    if n != shape[0] + 1 or data.shape != (nnz,) or not bool(_is_canonical(indices, indptr, shape[1])):
        raise ValueError(
            f"the arrays are not a CSR matrix of shape {shape} with sorted rows, without duplicates; "
            "S.sum_duplicates() sorts the rows and sums duplicates"
        )
    csr = CsrArrays(data, indices.astype(jnp.int32), indptr.astype(index_dtype(nnz)), shape)
    return convert.from_arrays(csr, format, dtype, **options)


def _without_padding(B: Any) -> CsrArrays:
    """The arrays of a BCOO or BCSR on its device, without the entries whose indices are out of range."""
    row, col, live, count = _rows_and_columns(B)
    data = B.data
    count = int(count)
    if count < data.shape[0]:
        data, row, col = _taken(count, live, data, row, col)
    return CsrArrays(data, col, row_pointers(row, B.shape[0]), B.shape)


@jax.jit
def _rows_and_columns(B: Any) -> tuple[Array, Array, Array, Array]:
    """Row and column of each entry, whether they lie in the matrix, and how many do."""
    if type(B).__name__ == "BCSR":
        number = jnp.arange(B.indices.shape[0], dtype=B.indptr.dtype)
        row = jnp.searchsorted(B.indptr[1:], number, side="right").astype(B.indices.dtype)
        col = B.indices
    else:
        row, col = B.indices[:, 0], B.indices[:, 1]
    live = (row < B.shape[0]) & (col < B.shape[1])
    return row, col, live, jnp.sum(live)


@functools.partial(jax.jit, static_argnums=0)
def _taken(count: int, live: Array, *arrays: Array) -> list[Array]:
    """The `count` numbers of each array that are `live`."""
    (index,) = jnp.nonzero(live, size=count)
    return [a[index] for a in arrays]


@functools.partial(jax.jit, static_argnums=2)
def _is_canonical(indices: Array, indptr: Array, n_cols: int) -> Array:
    nnz = indices.shape[0]
    pointers = jnp.all(indptr[1:] >= indptr[:-1]) & (indptr[0] == 0) & (indptr[-1] == nnz)
    if nnz == 0:
        return pointers
    first = jnp.zeros(nnz + 1, bool).at[indptr].set(True, mode="drop")[1:nnz]
    rises = jnp.all((indices[1:] > indices[:-1]) | first)
    return rises & pointers & jnp.all((indices >= 0) & (indices < n_cols))


def _ids(A: Any, name: str) -> tuple[Array, Array]:
    if not isinstance(A, SparseMatrix):
        raise TypeError(
            f"{name} takes a matrix of this library on one device, got {type(A).__name__}; from_scipy makes one, and "
            "A.T.asformat('csr') one of a transpose"
        )
    A._check_single()
    return A.row_ids, A.col_ids


def _sorted(rows: Array, cols: Array) -> bool:
    """Whether the columns of each row are known to rise: those of `A.in_basis` may not."""
    if is_traced(rows):
        return False
    with concrete():
        return bool(jnp.all((rows[1:] != rows[:-1]) | (cols[1:] > cols[:-1])))
