"""The index of the entries in a matrix's storage, by which `data` and `with_data` gather.

The first use computes the index, and a table keeps it as long as the pattern's arrays live: 4 bytes an entry and 4 a
stored place (8 from 2³¹ on). `data` and `with_data` are then one gather. Inside jit this holds for a matrix that the
function closes over; if the matrix is an argument, its pattern is traced, and the program computes the index.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._dtypes import index_dtype, scipy_dtype
from jaxsparse_fmt._tracing import is_on_cpu
from jaxsparse_fmt._types import Array, Csr, CsrArrays
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.kernels.backends import jax_versions
from jaxsparse_fmt.kernels.layout.address import expand_ptr, row_pointers


class Index(NamedTuple):
    """The place of each entry, and the entry at each place.

    Attributes:
      place: [nnz], the place in `values` of each entry of `data`.
      entry: [n_stored], the entry of `data` at each place, nnz in padding.
      own: where several entries share a place, the places [nnz] in which `with_data` puts them; else None.

    Between the `data` of a matrix and the `data` of its transpose both are [nnz].
    """

    place: Array
    entry: Array
    own: Array | None = None


_kept = Kept(4096)


def of(A: Any) -> Index:
    """The index between A's `values` and its `data`."""
    return _of_pattern(_index, A)


def turned(A: Any) -> Index:
    """The index between A's `data` and that of its transpose."""
    return _of_pattern(_turned, A)


def ids(A: Any) -> tuple[Array, Array]:
    """Row and column [nnz] int32 of each entry of `data`; kept with the pattern, in 8 bytes an entry."""
    return _of_pattern(_ids, A)


def _of_pattern(make: Any, A: Any) -> Any:
    """make(A), or what an earlier call made for the same pattern."""
    leaves, tree = jax.tree.flatten(A)
    values = vars(A).get("values")
    arrays = [a for a in leaves if a is not values]
    if not arrays or any(isinstance(a, Tracer) or not isinstance(a, jax.Array) for a in arrays):
        return make(A)
    stand_in = lambda: [jnp.zeros(a.shape, bool) if a is values else a for a in leaves]  # noqa: E731
    return _kept.get((make, tree), arrays, lambda: make(jax.tree.unflatten(tree, stand_in())))


@jax.jit
def _index(A: Any) -> Index:
    _, _, entry, place = _numbered(A).entries()
    of_entry = lambda a: jnp.zeros(A.nnz, a.dtype).at[entry].set(a, mode="drop", unique_indices=True)  # noqa: E731
    return Index(of_entry(place), entry, of_entry(_numbered(A).values) if A._shares_places else None)


def _numbered(A: Any) -> Any:
    """A with the number of its place as each value."""
    return A._with_values(jnp.arange(A.n_stored, dtype=index_dtype(A.n_stored)))


def _turned(A: Any) -> Index:
    _, col, ptr = A.csr_arrays()
    index = index_dtype(A.nnz)
    known = not isinstance(col, Tracer) and col.is_fully_addressable
    if jax.default_backend() == "cpu" and known:  # SciPy counts; XLA would sort
        number = np.arange(A.nnz, dtype=index)
        place = scipy.sparse.csr_array((number, np.asarray(col), np.asarray(ptr)), shape=A.shape).tocsc().data
        entry = np.empty_like(number)
        entry[place] = number
        return Index(jax.device_put(place), jax.device_put(entry))
    return _turned_by_sorting(col)


@jax.jit
def _turned_by_sorting(col: Array) -> Index:
    number = jnp.arange(col.size, dtype=index_dtype(col.size))
    place = sorted_by(col, number)
    return Index(place, jnp.zeros_like(number).at[place].set(number, unique_indices=True))


@jax.jit
def transposed(csr: CsrArrays, place: Array | None = None) -> tuple[CsrArrays, Array]:
    """The transpose, and `place` [nnz], the entry of the matrix that each of it is."""
    (data, indices, indptr), (n_rows, n_cols) = csr, csr.shape
    if place is None:
        place = sorted_by(indices, jnp.arange(indices.size, dtype=indptr.dtype))
    row, col = take(expand_ptr(jnp, indptr, indices.size), place), take(indices, place)
    ptr = row_pointers(col, n_cols).astype(indptr.dtype)
    return CsrArrays(take(data, place), row, ptr, (n_cols, n_rows)), place


def sorted_by(key: Array, order: Array) -> Array:
    """`order` by rising key; stable. On a GPU the sort of one key beside one array is CUB's."""
    return lax.sort((key, order), num_keys=1)[1]


@jax.jit
def _ids(A: Any) -> tuple[Array, Array]:
    row, col, entry, _ = A.entries()
    zeros = jnp.zeros(A.nnz, jnp.int32)
    rows, cols = (zeros.at[entry].set(a.astype(jnp.int32), mode="drop", unique_indices=True) for a in (row, col))
    return rows, cols


def data(A: Any) -> Array:
    """The entries [nnz] in canonical order."""
    index = of(A)
    return moved(A.values, index.place, index.entry) if index.own is None else take(A.values, index.place)


def stored(A: Any, data: Array) -> Array:
    """`data` [nnz] in the order of `A.entries`, with zeros in padding."""
    index = of(A)
    return moved(data, index.entry, index.place if index.own is None else index.own)


def shared_out(A: Any) -> Any:
    """A of derivatives in `values`, each divided by the number of entries that a product reads at its place."""
    if not A._shares_places:
        return A
    _, _, entry, place = _numbered(A).entries()
    count = jnp.zeros(A.n_stored).at[jnp.where(entry < A.nnz, place, A.n_stored)].add(1, mode="drop")
    return A._with_values(A.values / jnp.maximum(count, 1).astype(A.dtype))


@jax.jit
def csr_arrays(A: Any) -> CsrArrays:
    """As `SparseMatrix.csr_arrays`."""
    row, col, entry, value = A.entries()
    if hasattr(A, "perm"):  # other formats do not renumber columns
        entry = _canonical(row, col, entry, A.nnz)
    n_rows, index = A.shape[0], index_dtype(A.nnz)
    data = jnp.zeros(A.nnz, A.dtype).at[entry].set(value, mode="drop", unique_indices=True)
    indices = jnp.zeros(A.nnz, jnp.int32).at[entry].set(col, mode="drop", unique_indices=True)
    counts = jnp.zeros(n_rows, index).at[jnp.where(entry < A.nnz, row, n_rows)].add(1, mode="drop")
    return CsrArrays(data, indices, jnp.concatenate([jnp.zeros(1, index), jnp.cumsum(counts, dtype=index)]), A.shape)


def to_scipy(A: Any) -> Csr:
    """As `SparseMatrix.to_scipy`."""
    if not is_on_cpu(A.values):  # a GPU sorts faster, and sends no padding
        return A.csr_arrays().to_scipy()
    if A.n_stored == 0:
        return scipy.sparse.csr_array(A.shape, dtype=scipy_dtype(A.dtype))
    row, col, values = A._places_on_host()
    values = values.astype(scipy_dtype(A.dtype), copy=False)
    if A.nnz < A.n_stored:
        row, col, values = (a[col < A.shape[1]] for a in (row, col, values))
    return scipy.sparse.coo_array((values, (row, col)), shape=A.shape).tocsr()  # sorted: `in_basis` renumbers columns


@jax.jit
def places(A: Any) -> tuple[Array, Array, Array]:
    """Row, column and value of every stored place."""
    row, col, _, value = A.entries()
    return row, col, value


def _canonical(row: Array, col: Array, entry: Array, nnz: int) -> Array:
    """`entry` numbered by row, then by column; unchanged unless `in_basis` has renumbered the columns."""
    if nnz == 0:
        return entry

    def in_entry_order(a: Array) -> Array:
        return jnp.zeros(nnz, a.dtype).at[entry].set(a, mode="drop", unique_indices=True)

    rows, cols = in_entry_order(row), in_entry_order(col)

    def renumber() -> Array:
        number = jnp.arange(nnz, dtype=entry.dtype)
        by_column = sorted_by(cols, number)
        order = sorted_by(rows[by_column], by_column)
        rank = jnp.zeros(nnz, entry.dtype).at[order].set(number, unique_indices=True)
        return jnp.where(entry < nnz, rank[jnp.minimum(entry, nnz - 1)], nnz)

    falls = jnp.any((rows[1:] == rows[:-1]) & (cols[1:] < cols[:-1]))
    return lax.cond(falls, renumber, lambda: entry)


def checked(data: Any, nnz: int) -> Array:
    """New entries, as floats. ValueError: another shape than [nnz]. TypeError: a matrix."""
    if hasattr(data, "data_of"):
        raise TypeError("with_data takes entries [nnz]; those of a matrix B of the same pattern are B.data")
    data = as_floating(data, "data")
    if data.shape != (nnz,):
        raise ValueError(f"data must have shape ({nnz},), one number an entry in canonical order; got {data.shape}")
    return data


@jax.jit
def take(a: Array, index: Array) -> Array:
    """a[index], and 0 where the index is past the end."""
    if a.shape[0] == 0:
        return jnp.zeros(index.shape, a.dtype)
    index = lax.optimization_barrier(index)  # else XLA folds the comparisons with a constant index, for seconds
    return a.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def moved(a: Array, index: Array, back: Array) -> Array:
    """take(a, index); the transpose gathers by `back`, the inverse of `index`, where XLA's would add by atomics."""
    if mesh_axes.are_explicit(a, index, back) or a.shape[0] == 0:
        return take(a, index)
    return moved_p.bind(*mesh_axes.varying((a, index, back)))


moved_p = Primitive("sparse_moved")


@jax.jit
def _moved(a: Array, index: Array, back: Array) -> Array:
    """Along the last axis, for a batch of arrays."""
    del back
    index = lax.optimization_barrier(index)
    return a.at[..., index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _moved_jvp(primals, tangents):
    out, tangent = moved_p.bind(*primals), tangents[0]
    return out, tangent if isinstance(tangent, ad.Zero) else moved_p.bind(tangent, *primals[1:])


def _moved_transpose(cotangent, a, index, back):
    zero = isinstance(cotangent, ad.Zero)
    return ad.Zero(a.aval) if zero else moved_p.bind(cotangent, back, index), None, None


def _moved_batch(operands, dims):
    a, *indices = operands
    if any(d is not None for d in dims[1:]):
        return jax.vmap(_moved, dims)(*operands), 0
    return moved_p.bind(jnp.moveaxis(a, dims[0], 0), *indices), 0


def _moved_abstract(a, index, back):
    return jax_versions.abstract_like((a, index, back), (*a.shape[:-1], *index.shape), a.dtype)


def _moved_lower(ctx, *operands):
    return mlir.lower_fun(_moved, multiple_results=False)(jax_versions.bare(ctx), *operands)


moved_p.def_impl(_moved)
moved_p.def_abstract_eval(_moved_abstract)
ad.primitive_jvps[moved_p] = _moved_jvp
ad.primitive_transposes[moved_p] = _moved_transpose
batching.primitive_batchers[moved_p] = _moved_batch
mlir.register_lowering(moved_p, _moved_lower)
