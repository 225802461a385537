"""Patterns of results, found on the accelerator where the operands lie: `patterns.py` calls it for arrays there.

Row and column make one key, which one radix sort brings into canonical order. Each operation runs a program before the
size of its result is known and one after it; only sizes come to the host.
"""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxsparse_fmt._types import Array, Csr, CsrArrays, index_dtype, is_on_cpu, readable_bytes
from jaxsparse_fmt.core.pattern import Absent
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.kernels.layout.address import expand_ptr, row_pointers, take

SORTED = 40  # bytes that the sort takes for each coordinate


def few(*arrays: Any) -> bool:
    return sum(a.size for a in arrays) < building.FEW


def lies(*arrays: Any) -> bool:
    """Whether the pattern of an operation on these arrays is found here: they lie on one accelerator, and are large."""
    return not few(*arrays) and all(map(on_accelerator, arrays))


def on_accelerator(a: Any) -> bool:
    """Whether an array lies on one accelerator."""
    return not isinstance(a, Tracer) and not is_on_cpu(a) and len(a.devices()) == 1


def pattern(indices: Array, indptr: Array, shape: tuple[int, int]) -> CsrArrays:
    """A pattern without data."""
    absent: Any = Absent(indices.shape)
    return CsrArrays(absent, indices, indptr, shape)


def pattern_of(A: Any) -> CsrArrays:
    """A's pattern in canonical order."""
    S = A._each(lambda v: jnp.zeros(v.shape, bool)).csr_arrays()
    return pattern(S.indices, S.indptr, S.shape)


def grouped(row: Array, col: Array, shape: tuple[int, int]) -> tuple[Csr, Array, Array]:
    """As `patterns.grouped`."""
    _check_free(row.size, "coordinates")
    with _wide(shape):
        key, order, n = _ordered(row, col, shape)
        return *_first_of_each(key, shape, int(n)), order


def united(a: Csr, b: Csr, shared: bool) -> tuple[Csr, Array, Array]:
    """As `patterns.united`."""
    _check_free(a.nnz + b.nnz, "entries of both")
    with _wide(a.shape):
        key, order, n = _merged(a, b, shared)
        return _partners(key, order, a.shape, int(n), (a.nnz, b.nnz), shared)


def listed(a: Csr, b: Csr) -> tuple[Csr, Array, Array, Array]:
    """As `patterns.listed`."""
    products, shape = _checked(a, b), (a.shape[0], b.shape[1])
    with _wide(shape):
        key, order, left, right, n = _listed(a, b, products)
        return *_first_of_each(key, shape, int(n)), *_in_order(order, left, right)


def multiplied(a: Csr, b: Csr) -> tuple[Csr, Array, Array, Array]:
    """The pattern of a·b and, as in `listed`, the first product of each entry; zeros and the products [products]."""
    products, shape = _checked(a, b), (a.shape[0], b.shape[1])
    with _wide(shape):
        key, terms, n, zeros = _multiplied(a, b, products)
        return *_first_of_each(key, shape, int(n)), zeros, terms


def _checked(a: Csr, b: Csr) -> int:
    """The number of products of two entries. TooLarge, ValueError: more than the memory or int32 holds."""
    with jax.enable_x64(True):
        products = int(_n_products(a, b))
    _check_free(products, "products of two entries")
    return products


def masked(S: Csr, mask: Array) -> tuple[Csr, Array]:
    """The pattern of the entries where `mask`, and their numbers."""
    return _masked(S, mask, int(_count(mask)))


def crossed(S: Csr, rows: Any, columns: Any) -> tuple[Csr, Array]:
    """As `patterns.crossed`: products with matrices of one entry in each row, or column."""
    (m, n), entry = S.shape, lax.iota(np.int32, S.nnz)
    rows, columns = (_numbers(at, size) for at, size in ((rows, m), (columns, n)))
    if rows is not None:
        k = rows.size
        S, _, _, entry = listed(pattern(rows, lax.iota(np.int32, k + 1), (k, m)), S)
    if columns is not None:
        k = columns.size
        S, _, place, _ = listed(S, grouped(columns, lax.iota(np.int32, k), (n, k))[0])
        (entry,) = _in_order(place, entry)
    return S, entry


def _numbers(at: Any, n: int) -> Array | None:
    """The numbers that a slice of n numbers takes, or those given; None for all in their order."""
    if isinstance(at, slice):
        at = range(*at.indices(n))
        return None if at == range(n) else jnp.arange(at.start, at.stop, at.step, np.int32)
    return jax.device_put(np.asarray(at, np.int32))


# ----------------------------------------------------------------------------------------------------------- programs


def _check_free(n: int, what: str) -> None:
    """Refuses a list that the device cannot hold, or that numbers of 32 bits do not count."""
    takes = f"the list of the {n} {what} would take {readable_bytes(SORTED * n)}"
    building.check_free(SORTED * n, takes)
    building.check_bound(what, n)


def _bits(shape: tuple[int, int]) -> tuple[int, int]:
    """Bits of a row number and of a column number."""
    return max(shape[0] - 1, 0).bit_length(), max(shape[1] - 1, 0).bit_length()


def _wide(shape: tuple[int, int]) -> contextlib.AbstractContextManager[Any]:
    """The context in which JAX holds the keys of a matrix of this shape."""
    return jax.enable_x64(True) if _kind(shape) is np.uint64 else contextlib.nullcontext()


def _kind(shape: tuple[int, int]) -> Any:
    """The dtype of a key, without a sign: a sort of such keys beside int32 numbers XLA leaves to CUB."""
    return np.uint32 if sum(_bits(shape)) <= 32 else np.uint64


def _sorted(
    row: Array, col: Array, shape: tuple[int, int], shared: bool = False, beside: Array | None = None
) -> tuple[Array, Array, Array]:
    """Keys in rising order, what stands `beside` them in that order, and how many keys differ from those before.

    Args:
      shared: how many equal the next, instead.
      beside: None: their numbers.
    """
    kind = _kind(shape)
    key = (row.astype(kind) << kind(_bits(shape)[1])) | col.astype(kind)
    if beside is None or beside.dtype.itemsize > 8:  # more than CUB moves
        key, order = lax.sort((key, lax.iota(np.int32, key.shape[0])), num_keys=1)
        moved = order if beside is None else take(beside, order)
    else:
        key, moved = lax.sort((key, beside), num_keys=1)
    return key, moved, jnp.sum(_flags(key, shared), dtype=np.int32)


def _flags(key: Array, shared: bool) -> Array:
    equal, end = key[1:] == key[:-1], jnp.ones(key[:1].shape, bool)
    return jnp.concatenate([equal, ~end] if shared else [end, ~equal])


def _places(flags: Array, n: int) -> Array:
    """The places of the n flags that are set."""
    number = jnp.cumsum(flags, dtype=np.int32) - 1
    at = jnp.zeros(n, np.int32).at[jnp.where(flags, number, n)]
    return at.set(lax.iota(np.int32, flags.shape[0]), mode="drop", unique_indices=True)


def _pattern_of(key: Array, shape: tuple[int, int]) -> CsrArrays:
    shift = key.dtype.type(_bits(shape)[1])
    row, col = (key >> shift).astype(np.int32), (key & key.dtype.type((1 << int(shift)) - 1)).astype(np.int32)
    return pattern(col, row_pointers(row, shape[0]), shape)


_ordered = jax.jit(_sorted, static_argnums=2)


@functools.partial(jax.jit, static_argnums=2)
def _merged(a: Csr, b: Csr, shared: bool) -> tuple[Array, Array, Array]:
    row, col = (jnp.concatenate(both) for both in zip(building.entries(a), building.entries(b), strict=True))
    return _sorted(row, col, a.shape, shared)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _first_of_each(key: Array, shape: tuple[int, int], n: int) -> tuple[CsrArrays, Array]:
    """The pattern of n keys without their repetitions, and where each begins, with the end [n + 1]."""
    first = _places(_flags(key, False), n)
    return _pattern_of(take(key, first), shape), jnp.append(first, np.int32(key.shape[0]))


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _partners(key, order, shape, n, sizes, shared) -> tuple[CsrArrays, Array, Array]:
    at = _places(_flags(key, shared), n)
    after = jnp.minimum(at + 1, key.shape[0] - 1)
    one, two = take(order, at), take(order, after)
    both = (after > at) & (take(key, at) == take(key, after))
    left = jnp.minimum(one, sizes[0])
    right = jnp.where(one >= sizes[0], one, jnp.where(both, two, sum(sizes))) - sizes[0]
    return _pattern_of(take(key, at), shape), left, right


@jax.jit
def _n_products(a: Csr, b: Csr) -> Array:
    return jnp.sum(take(jnp.diff(b.indptr), a.indices), dtype=np.int64)


@functools.partial(jax.jit, static_argnums=2)
def _listed(a: Csr, b: Csr, products: int) -> tuple[Array, ...]:
    row, col, left, right = _expanded(a, b, products)
    key, order, n = _sorted(row, col, (a.shape[0], b.shape[1]))
    return key, order, left, right, n


@functools.partial(jax.jit, static_argnums=2)
def _multiplied(a: Csr, b: Csr, products: int) -> tuple[Array, ...]:
    row, col, left, right = _expanded(a, b, products)
    terms = take(a.data, left) * take(b.data, right)
    return *_sorted(row, col, (a.shape[0], b.shape[1]), beside=terms), jnp.zeros_like(left)


def _expanded(a: Csr, b: Csr, products: int) -> tuple[Array, ...]:
    """Row and column of each product of two entries, and the entry of a and of b."""
    first, lengths = take(b.indptr, a.indices), take(jnp.diff(b.indptr), a.indices)
    ends = jnp.cumsum(lengths, dtype=np.int32)
    left = expand_ptr(jnp, jnp.concatenate([jnp.zeros(1, np.int32), ends]), products)
    right = lax.iota(np.int32, products) + take(first.astype(np.int32) - (ends - lengths), left)
    return take(building.entries(a)[0], left), take(b.indices, right), left, right


@jax.jit
def _in_order(order: Array, *arrays: Array) -> tuple[Array, ...]:
    return tuple(take(a, order) for a in arrays)


@jax.jit
def _count(mask: Array) -> Array:
    return jnp.sum(mask, dtype=np.int32)


@functools.partial(jax.jit, static_argnums=2)
def _masked(S: Csr, mask: Array, n: int) -> tuple[CsrArrays, Array]:
    at = _places(mask, n)
    indptr = jnp.searchsorted(at, S.indptr).astype(index_dtype(n))
    return pattern(take(S.indices, at), indptr, S.shape), at
