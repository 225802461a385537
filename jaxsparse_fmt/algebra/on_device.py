"""Patterns of results, found on the accelerator that holds the operands; `patterns.py` calls these functions.

Row and column make one key, which one radix sort brings into canonical order; two patterns in that order are merged by
searching the rows of one for the entries of the other. Each operation runs a program before the size of its result is
known and one after it; only sizes come to the host.
"""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import is_concrete, is_on_cpu, is_traced
from jaxsparse_fmt._types import Array, Csr, CsrArrays
from jaxsparse_fmt.core.faces import Absent
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.layout.address import expand_ptr, prefix_length, row_pointers, take

SORTED = 40  # bytes that sorting or merging takes per coordinate


def lies(entries: int, *arrays: Any) -> bool:
    """Whether the pattern of an operation on `entries` entries is found here: its arrays lie on one accelerator."""
    return entries >= building.FEW and all(map(on_accelerator, arrays))


def on_accelerator(a: Any) -> bool:
    """Whether an array lies on one accelerator."""
    return not is_traced(a) and not is_on_cpu(a) and len(a.devices()) == 1


def pattern(indices: Array, indptr: Array, shape: tuple[int, int]) -> CsrArrays:
    """A pattern without data."""
    absent: Any = Absent(indices.shape)
    return CsrArrays(absent, indices, indptr, shape)


def pattern_of(A: Any) -> CsrArrays:
    """A's pattern in canonical order."""
    S = A._each(lambda v: v if is_concrete(v) else jnp.zeros(v.shape, bool)).csr_arrays()
    return pattern(S.indices, S.indptr, S.shape)


def grouped(row: Array, col: Array, shape: tuple[int, int]) -> tuple[Csr, Array, Array]:
    """As `patterns.grouped`."""
    check_list(row.size, "coordinates")
    with _wide(shape):
        key, order, n = _ordered(row, col, shape)
        return *_first_of_each(key, shape, int(n)), order


def united(a: Csr, b: Csr, shared: bool) -> tuple[Csr, Array, Array]:
    """As `patterns.united`."""
    check_list(a.nnz + b.nnz, "entries of both")
    position, before, n = _met(a, b)
    if shared:
        S, left = _masked(a, before[1:] > before[:-1], int(n))
        return S, left, take(position, left)
    return _merged(a, b, position, before, a.nnz + b.nnz - int(n))


def listed(a: Csr, b: Csr, multiplies: bool = False) -> tuple[Csr, Array, Array, Array]:
    """As `patterns.listed`; if it `multiplies`, with zeros and the products [products] in place of their factors."""
    with jax.enable_x64(True):
        products = int(n_products(a, b))
    check_list(products, "products of two entries")
    shape = a.shape[0], b.shape[1]
    with _wide(shape):
        key, left, right, n = _listed(a, b, products, multiplies)
        return *_first_of_each(key, shape, int(n)), left, right


def masked(S: Csr, mask: Array) -> tuple[Csr, Array]:
    """The pattern of the entries that `mask` selects, and their numbers."""
    return _masked(S, mask, int(jnp.sum(mask, dtype=np.int32)))


# ----------------------------------------------------------------------------------------------------------- programs


def check_list(n: int, what: str) -> None:
    """Refuses a list that the memory cannot hold, or whose length exceeds 32 bits."""
    building.check_free(SORTED * n, f"the list of the {n} {what}", "take some of the rows at a time")
    building.check_bound(what, n)


def _bits(shape: tuple[int, int]) -> tuple[int, int]:
    """Bits of a row number and of a column number."""
    return max(shape[0] - 1, 0).bit_length(), max(shape[1] - 1, 0).bit_length()


def _wide(shape: tuple[int, int]) -> contextlib.AbstractContextManager[Any]:
    """The context in which JAX holds the keys of a matrix of this shape."""
    return jax.enable_x64(True) if _key_dtype(shape) is np.uint64 else contextlib.nullcontext()


def _key_dtype(shape: tuple[int, int]) -> Any:
    """An unsigned dtype: XLA leaves a sort of such keys with int32 numbers to CUB."""
    return np.uint32 if sum(_bits(shape)) <= 32 else np.uint64


def sorted_keys(
    row: Array, col: Array, shape: tuple[int, int], values: Array | None = None
) -> tuple[Array, Array, Array]:
    """Keys in rising order, their `values` [k] (None: 0 to k - 1), and the number of distinct keys."""
    dtype = _key_dtype(shape)
    key = (row.astype(dtype) << dtype(_bits(shape)[1])) | col.astype(dtype)
    if values is None or values.dtype.itemsize > 8:  # more than CUB moves
        key, order = lax.sort((key, lax.iota(np.int32, key.shape[0])), num_keys=1)
        in_order = order if values is None else take(values, order)
    else:
        key, in_order = lax.sort((key, values), num_keys=1)
    return key, in_order, jnp.sum(flags(key), dtype=np.int32)


def flags(key: Array) -> Array:
    """Which of the sorted keys differ from the one before."""
    return jnp.concatenate([jnp.ones(key[:1].shape, bool), key[1:] != key[:-1]])


def _places(flags: Array, n: int) -> Array:
    """The places of the n flags that are set."""
    number = jnp.cumsum(flags, dtype=np.int32) - 1
    place = lax.iota(np.int32, flags.shape[0])
    return jnp.zeros(n, np.int32).at[jnp.where(flags, number, n)].set(place, mode="drop", unique_indices=True)


def coordinates(key: Array, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Row and column of each key."""
    shift = key.dtype.type(_bits(shape)[1])
    return (key >> shift).astype(np.int32), (key & key.dtype.type((1 << int(shift)) - 1)).astype(np.int32)


_ordered = jax.jit(sorted_keys, static_argnums=2)


@jax.jit
def _met(a: Csr, b: Csr) -> tuple[Array, Array, Array]:
    """Where each entry of a would stand among b's; how many of those before it b has too, [a.nnz + 1]; and of all."""
    row, _ = building.entries(a)
    cols = jnp.append(b.indices, b.shape[1])
    first, count = take(b.indptr, row), take(jnp.diff(b.indptr), row)
    rank = prefix_length(jnp, lambda i: take(cols, first + i) < a.indices, count, b.shape[1])
    has = (rank < count) & (take(cols, first + rank) == a.indices)
    before = building.starts(jnp, has, np.int32)
    return first + rank, before, before[-1]


@functools.partial(jax.jit, static_argnums=4)
def _merged(a: Csr, b: Csr, position: Array, before: Array, n: int) -> tuple[CsrArrays, Array, Array]:
    """The n entries of a or b, from what `_met` returns: all but those of a are entries of b alone, in their order."""
    place = lax.iota(np.int32, a.nnz) + position - before[:-1]
    of_a = jnp.zeros(n, bool).at[place].set(True, unique_indices=True)
    reached = building.starts(jnp, of_a, np.int32)
    left = reached[:-1]
    right = lax.iota(np.int32, n) - left + take(before, left)
    alone = of_a & (take(before, reached[1:]) == take(before, left))
    col = take(jnp.concatenate([a.indices, b.indices]), jnp.where(of_a, left, a.nnz + right))
    S = pattern(col, a.indptr + b.indptr - take(before, a.indptr), a.shape)
    return S, jnp.where(of_a, left, a.nnz), jnp.where(alone, b.nnz, right)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _first_of_each(key: Array, shape: tuple[int, int], n: int) -> tuple[CsrArrays, Array]:
    """The pattern of n keys without their repetitions, and where each begins, with the end [n + 1]."""
    first = _places(flags(key), n)
    row, col = coordinates(take(key, first), shape)
    return pattern(col, row_pointers(row, shape[0]), shape), jnp.append(first, np.int32(key.shape[0]))


@jax.jit
def n_products(a: Csr, b: Csr) -> Array:
    """How many products of two entries a @ b adds up."""
    return jnp.sum(_lengths(a, b), dtype=np.int64)


def _lengths(a: Csr, b: Csr) -> Array:
    """The products of each entry of a; none of those past the last pointer, which are padding."""
    return jnp.where(lax.iota(a.indptr.dtype, a.nnz) < a.indptr[-1], take(jnp.diff(b.indptr), a.indices), 0)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _listed(a: Csr, b: Csr, products: int, multiplies: bool) -> tuple[Array, ...]:
    row, col, left, right = expanded(a, b, products)
    terms = take(a.data, left) * take(b.data, right) if multiplies else None
    key, terms, n = sorted_keys(row, col, (a.shape[0], b.shape[1]), terms)
    return (key, jnp.zeros_like(left), terms, n) if multiplies else (key, take(left, terms), take(right, terms), n)


def expanded(a: Csr, b: Csr, products: int) -> tuple[Array, ...]:
    """Row and column of each product of two entries, and the entry of a and of b; past them the row after the last."""
    ptr = building.starts(jnp, _lengths(a, b), np.int32)
    number = lax.iota(np.int32, products)
    starts = jnp.where(ptr < ptr[-1], ptr, products)  # padding would add up at one place, by atomics
    left = expand_ptr(jnp, starts, products)
    right = number + take(take(b.indptr, a.indices).astype(np.int32) - ptr[:-1], left)
    right = jnp.minimum(right, b.nnz - 1)
    row = jnp.where(number < ptr[-1], take(building.entries(a)[0], left), a.shape[0])
    return row, take(b.indices, right), left, right


@functools.partial(jax.jit, static_argnums=2)
def _masked(S: Csr, mask: Array, n: int) -> tuple[CsrArrays, Array]:
    entry = _places(mask, n)
    indptr = jnp.searchsorted(entry, S.indptr).astype(index_dtype(n))
    return pattern(take(S.indices, entry), indptr, S.shape), entry
