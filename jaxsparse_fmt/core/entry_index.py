"""The index of the entries in a matrix's storage, by which `data` and `with_data` gather.

The first use computes the index, and a table keeps it as long as the pattern's arrays live: 4 bytes per entry and 4 per
stored place (8 from 2³¹ on). `data` and `with_data` are then one gather. Inside jit this holds for a matrix that the
function closes over; if the matrix is an argument, its pattern is traced, and the program computes the index.

On a CPU, NumPy computes what arrays at hand decide: XLA would take half a second to compile a program for every size.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxsparse_fmt._aligned import taken
from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._dtypes import index_dtype, scipy_dtype
from jaxsparse_fmt._tracing import by_size, concrete, is_concrete, is_on_cpu
from jaxsparse_fmt._types import Array, Csr, CsrArrays
from jaxsparse_fmt.core import conversions, mesh_axes, vector_passes
from jaxsparse_fmt.core.basis import Operator
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.backends import jax_versions, selection
from jaxsparse_fmt.kernels.layout.address import expand_ptr, row_pointers


class Index(NamedTuple):
    """The place of each entry, and the entry at each place; of `data` in the `data` of the transpose, too."""

    place: Array  # [nnz], the place in `values` of each entry of `data`
    entry: Array  # [n_stored], the entry of `data` at each place, nnz in padding
    unshared: Array | None = None  # if entries share a place, those [nnz] in which `with_data` puts them


_kept = Kept(4096, "places of entries")
MANY = 2**20  # entries on diagonals that NumPy finds no sooner than XLA has compiled the call of a kernel


def of_values(A: Any) -> Index:
    """The index between A's `values` and its `data`."""
    return _of_pattern(_index, A)


def of_transpose(A: Any) -> Index:
    """The index between A's `data` and that of its transpose."""
    return _of_pattern(_transpose_index, A)


def ids(A: Any) -> tuple[Array, Array]:
    """Row and column [nnz] int32 of each entry of `data`; kept with the pattern, in 8 bytes per entry."""
    return _of_pattern(_ids, A)


def at_hand(*trees: Any) -> bool:
    """Whether all arrays are JAX's on one CPU of this process, and not traced: NumPy reads them without a copy."""
    arrays = [a for a in jax.tree.leaves(trees) if not isinstance(a, np.ndarray)]
    if not all([is_concrete(a) and is_on_cpu(a) and a.is_fully_addressable for a in arrays]):
        return False
    return len({d for a in arrays for d in a.devices()}) == 1


def put(a: np.ndarray, like: Array) -> Array:
    """`a`, which nobody changes afterwards, as an array of JAX on the device of `like`; compiles nothing."""
    with concrete():
        return jax.device_put(a, like.sharding if isinstance(like, jax.Array) and like.committed else None)


def index_arrays(A: Any) -> list[Any]:
    """The arrays whose identities distinguish A's pattern: not `values`, nor `start`, which new values may change."""
    A = getattr(A, "_stored", A)
    blocks = A.shards.blocks if hasattr(A, "shards") else (A,)
    own = {id(a) for block in blocks for a in (block.values, vars(block).get("start"))}
    return [a for a in jax.tree.leaves(A) if id(a) not in own]


def _of_pattern(make: Any, A: Any) -> Any:
    """make(A), or what an earlier call made for the same pattern."""
    (leaves, tree), values = jax.tree.flatten(A), vars(A).get("values")
    arrays = [a for a in leaves if a is not values] if make is _index else index_arrays(A)
    if not all(map(is_concrete, arrays)):
        return make(A)

    def make_of_pattern() -> Any:
        return make(jax.tree.unflatten(tree, [np.zeros(a.shape, bool) if a is values else a for a in leaves]))

    return _kept.get((make, tree), arrays, make_of_pattern)


def _index(A: Any) -> Index:
    by_kernel = A._shares_places and A.nnz > MANY and selection.native_importable()
    if by_kernel or not (A._stored._rises and at_hand(A)):
        leaves, tree = jax.tree.flatten(A._without_values)
        if mesh_axes.are_explicit(leaves) or A.nnz == 0:
            return _index_by_program(A)
        params = {"tree": tree, "backend": selection.active_backend(A.backend)}
        return Index(*index_p.bind(*mesh_axes.varying(leaves), **params))
    number = np.arange(A.n_stored, dtype=index_dtype(A.n_stored))
    own, (_, _, place) = _entries_on_host(A._with_values(number))
    entry = np.full(A.n_stored, A.nnz, index_dtype(A.nnz))
    entry[own] = np.arange(A.nnz)
    arrays = (place, entry, own) if A._shares_places else (place, entry)
    return Index(*_put_all(arrays, A))


def _entries_on_host(A: Any) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The place of each entry of `data`, and its row, column and value: [nnz] each."""
    found = A._places_on_host()
    live = np.flatnonzero(found[1] < A.shape[1]) if A.nnz < A.n_stored else np.arange(A.n_stored)
    own = live[sorted_on_host(found[0][live], A.shape[0])].astype(index_dtype(A.n_stored), copy=False)
    return own, tuple(a[own] for a in found)


def sorted_on_host(key: np.ndarray, n: int) -> np.ndarray:
    """The stable order of keys from 0 to n - 1. SciPy counts if n is small, else NumPy sorts."""
    number = np.arange(key.size + 1, dtype=index_dtype(key.size))
    if n > 8 * key.size:
        return np.argsort(key, kind="stable").astype(number.dtype)
    return scipy.sparse.csr_array((number[:-1], key, number), shape=(key.size, n)).tocsc().data


def _put_all(arrays: Any, A: Any) -> Any:
    like = next(a for a in jax.tree.leaves(A) if isinstance(a, jax.Array))
    return tuple(put(a, like) for a in arrays)


def _index_on(*leaves: Array, tree: Any, backend: str) -> Index:
    A = jax.tree.unflatten(tree, leaves)
    native = A._native_index() if backend == "numba" else None
    return _index_by_program(A) if native is None else native


index_p = vector_passes.platform_primitive("sparse_index", _index_on)


@by_size
def _index_by_program(A: Any) -> Index:
    numbered = _numbered(A)
    _, _, entry, place = numbered.entries()
    unshared = _by_entry(A, entry, numbered.values) if A._shares_places else None
    return Index(_by_entry(A, entry, place), entry, unshared)


def _by_entry(A: Any, entry: Array, a: Array) -> Array:
    """An array [n_stored] in the order of the entries [nnz], by the entry at each place."""
    return jnp.zeros(A.nnz, a.dtype).at[entry].set(a, mode="drop", unique_indices=True)


def _numbered(A: Any) -> Any:
    """A with the number of its place as each value."""
    return A._with_values(jnp.arange(A.n_stored, dtype=index_dtype(A.n_stored)))


def _transpose_index(A: Any) -> Index:
    _, col, ptr = A.csr_arrays()
    if not at_hand(col):
        return _transpose_index_by_sorting(col)
    place = by_column(np.asarray(col), np.asarray(ptr), A.shape).data
    entry = np.empty_like(place)
    entry[place] = np.arange(A.nnz)
    return Index(put(place, col), put(entry, col))


def by_column(indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> Any:
    """SciPy's CSC matrix of the numbers of CSR's entries: SciPy counts, where XLA would sort."""
    number = np.arange(indices.size, dtype=index_dtype(indices.size))
    return scipy.sparse.csr_array((number, indices, indptr), shape=shape).tocsc()


@by_size
def _transpose_index_by_sorting(col: Array) -> Index:
    number = jnp.arange(col.size, dtype=index_dtype(col.size))
    place = sorted_by(col, number)
    return Index(place, jnp.zeros_like(number).at[place].set(number, unique_indices=True))


@by_size
def transposed(csr: CsrArrays, place: Array | None = None) -> tuple[CsrArrays, Array]:
    """The transpose, and for each of its entries that of the matrix, `place` [nnz]."""
    data, indices, indptr = csr
    n_rows, n_cols = csr.shape
    if place is None:
        place = sorted_by(indices, jnp.arange(indices.size, dtype=indptr.dtype))
    row, col = take_or_zero(expand_ptr(jnp, indptr, indices.size), place), take_or_zero(indices, place)
    ptr = row_pointers(col, n_cols).astype(indptr.dtype)
    return CsrArrays(take_or_zero(data, place), row, ptr, (n_cols, n_rows)), place


def sorted_by(key: Array, order: Array) -> Array:
    """`order` by rising key; stable. On a GPU the sort of one key beside one array is CUB's."""
    return lax.sort((key, order), num_keys=1)[1]


def _ids(A: Any) -> tuple[Array, Array]:
    if not (A._stored._rises and at_hand(A)):
        return _ids_by_program(A)
    _, (row, col, _) = _entries_on_host(A)
    return _put_all((a.astype(np.int32, copy=False) for a in (row, col)), A)


@by_size
def _ids_by_program(A: Any) -> tuple[Array, Array]:
    row, col, entry, _ = A.entries()
    return _by_entry(A, entry, row.astype(jnp.int32)), _by_entry(A, entry, col.astype(jnp.int32))


def data(A: Any) -> Array:
    """The entries [nnz] in canonical order."""
    index = of_values(A)
    if index.unshared is not None:
        if not at_hand(A.values, index):
            return take_or_zero(A.values, index.place)
        return put(taken(np.asarray(A.values), np.asarray(index.place)), A.values)
    return permuted(A.values, index.place, index.entry)


def stored(A: Any, data: Array) -> Array:
    """`data` [nnz] in the order of `A.entries`, with zeros in padding."""
    index = of_values(A)
    return permuted(data, index.entry, index.place if index.unshared is None else index.unshared)


def shared_out(A: Any) -> Any:
    """A of derivatives in `values`, each divided by the number of entries that a product reads at its place."""
    if not A._shares_places:
        return A
    _, _, entry, place = _numbered(A).entries()
    count = jnp.zeros(A.n_stored).at[jnp.where(entry < A.nnz, place, A.n_stored)].add(1, mode="drop")
    return A._with_values(A.values / jnp.maximum(count, 1).astype(A.dtype))


def csr_arrays(A: Any) -> CsrArrays:
    """As `SparseMatrix.csr_arrays`."""
    if not at_hand(A):
        return _csr_by_program(A)
    with concrete():
        S = A._read_only()
    arrays = S.data.astype(A.dtype, copy=False), S.indices, S.indptr.astype(index_dtype(A.nnz), copy=False)
    data, indices, indptr = _put_all(arrays, A)
    return CsrArrays(data, indices, indptr, A.shape)


@by_size
def _csr_by_program(A: Any) -> CsrArrays:
    row, col, entry, value = A.entries()
    if "perm" in vars(A):  # other formats do not renumber columns
        entry = _canonical(row, col, entry, A)
    n_rows = A.shape[0]
    index = index_dtype(A.nnz)
    counts = jnp.zeros(n_rows, index).at[jnp.where(entry < A.nnz, row, n_rows)].add(1, mode="drop")
    indptr = jnp.concatenate([jnp.zeros(1, index), jnp.cumsum(counts, dtype=index)])
    return CsrArrays(_by_entry(A, entry, value), _by_entry(A, entry, col.astype(jnp.int32)), indptr, A.shape)


def to_scipy(A: Any) -> Csr:
    """As `SparseMatrix.to_scipy`."""
    if not conversions.by_host(A, "SciPy's"):  # by programs a GPU sorts faster, and it sends no padding
        return A.csr_arrays().to_scipy()
    if A.n_stored == 0:
        return scipy.sparse.csr_array(A.shape, dtype=scipy_dtype(A.dtype))
    row, col, values = A._places_on_host()
    values = values.astype(scipy_dtype(A.dtype), copy=False)
    if A.nnz < A.n_stored:
        row, col, values = (a[col < A.shape[1]] for a in (row, col, values))
    return scipy.sparse.coo_array((values, (row, col)), shape=A.shape).tocsr()  # sorted: `in_basis` renumbers columns


def diagonal(A: Any, k: int) -> Array:
    """As `SparseMatrix.diagonal`."""
    if A.n_stored == 0 or not at_hand(A):
        return _diagonal_by_program(A, k)
    with concrete():
        return put(A._diagonal_on_host(k), A.values)


def length_of_diagonal(shape: tuple[int, int], k: int) -> int:
    return max(min(shape[0] + min(k, 0), shape[1] - max(k, 0)), 0)


@functools.partial(by_size, static_argnums=1)
def _diagonal_by_program(A: Any, k: int) -> Array:
    row, col, _, value = A.entries()
    n = length_of_diagonal(A.shape, k)
    place = jnp.where(col - row == k, row + min(k, 0), n)
    return jnp.zeros(n, A.dtype).at[place].add(value, mode="drop")


@by_size
def places(A: Any) -> tuple[Array, Array, Array]:
    """Row, column and value of every stored place."""
    row, col, _, value = A.entries()
    return row, col, value


def _canonical(row: Array, col: Array, entry: Array, A: Any) -> Array:
    """`entry` numbered by row, then by column; unchanged unless `in_basis` has renumbered the columns."""
    nnz = A.nnz
    if nnz == 0:
        return entry
    rows, cols = _by_entry(A, entry, row), _by_entry(A, entry, col)

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
    if isinstance(data, Operator):
        raise TypeError("with_data takes entries [nnz]; those of a matrix B of the same pattern are B.data")
    data = as_floating(data, "data")
    if data.shape != (nnz,):
        raise ValueError(
            f"data must have shape ({nnz},), one number for each entry in canonical order; got {data.shape}"
        )
    return data


@by_size
def take_or_zero(a: Array, index: Array) -> Array:
    """a[index], and 0 where the index is past the end."""
    if a.shape[0] == 0:
        return jnp.zeros(index.shape, a.dtype)
    index = lax.optimization_barrier(index)  # else XLA folds the comparisons with a constant index, for seconds
    return a.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def permuted(a: Array, index: Array, back: Array) -> Array:
    """`take_or_zero`; the transpose gathers by `back`, the inverse of `index`, where XLA's would add by atomics.

    On a CPU, outside jit, NumPy gathers: it compiles nothing.
    """
    if mesh_axes.are_explicit(a, index, back) or a.shape[0] == 0:
        return take_or_zero(a, index)
    return permuted_p.bind(*mesh_axes.varying((a, index, back)))


permuted_p = Primitive("sparse_permuted")


@by_size
def _permuted(a: Array, index: Array, back: Array) -> Array:
    """Along the last axis, for a batch of arrays."""
    del back
    index = lax.optimization_barrier(index)
    return a.at[..., index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _permuted_at_once(a: Array, index: Array, back: Array) -> Array:
    return put(taken(np.asarray(a), np.asarray(index)), a) if at_hand(a, index) else _permuted(a, index, back)


def _permuted_jvp(primals, tangents):
    out = permuted_p.bind(*primals)
    tangent = tangents[0]
    return out, tangent if isinstance(tangent, ad.Zero) else permuted_p.bind(tangent, *primals[1:])


def _permuted_transpose(cotangent, a, index, back):
    zero = isinstance(cotangent, ad.Zero)
    return ad.Zero(a.aval) if zero else permuted_p.bind(cotangent, back, index), None, None


def _permuted_batch(operands, dims):
    a, *indices = operands
    if any(d is not None for d in dims[1:]):
        return jax.vmap(_permuted, dims)(*operands), 0
    return permuted_p.bind(jnp.moveaxis(a, dims[0], 0), *indices), 0


def _permuted_abstract(a, index, back):
    return jax_versions.abstract_like((a, index, back), (*a.shape[:-1], *index.shape), a.dtype)


def _permuted_on(a: Array, index: Array, back: Array, platform: str | None) -> Array:
    if platform == "cpu" and selection.in_use.value in ("auto", "numba") and selection.native_importable():
        found = spmv_cpu.taken(a.reshape(-1, a.shape[-1]), index)
        if found is not None:
            return found.reshape(*a.shape[:-1], -1)
    return _permuted(a, index, back)


vector_passes.lower_by_platform(permuted_p, _permuted_on)
permuted_p.def_impl(_permuted_at_once)
permuted_p.def_abstract_eval(_permuted_abstract)
ad.primitive_jvps[permuted_p] = _permuted_jvp
ad.primitive_transposes[permuted_p] = _permuted_transpose
batching.primitive_batchers[permuted_p] = _permuted_batch
