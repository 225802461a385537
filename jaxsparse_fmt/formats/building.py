"""Conversion of a canonical CSR matrix into a storage: first the sizes, then the entry of every place.

`csr` has `indptr`, `indices`, `data`, `shape` and `nnz`: SciPy's on the host, or `CsrArrays` on a device. The same code
runs in NumPy and in JAX. Only counts, which set the shapes, come from a device to the host; arrays of entries never do.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._aligned import aligned
from jaxsparse_fmt._arguments import whole_number
from jaxsparse_fmt._dtypes import index_dtype, x64_enabled
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import device_of, is_on_cpu
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.core import conversions
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import memory
from jaxsparse_fmt.kernels.cpu.over_rows import in_pieces, in_some_piece
from jaxsparse_fmt.kernels.layout.address import Address, Arrays, expand_ptr, namespace, take

# Padding beyond this multiple of CSR's bytes is refused, unless the storage is small.
MAX_PADDING, SMALL_CHANGE = 10, 64 * 2**20
Format = TypeVar("Format", bound=SparseMatrix)
FEW = 2**20  # entries with which the host is done before a device has compiled an operation's programs for their sizes
HELD = 6  # times the bytes of a matrix in CSR that a conversion on a device may hold
MAX_LANES = 2**31 - 2**16  # threads of a kernel, numbered in int32; the last block may reach beyond the last thread


class TooLarge(ValueError):
    """A storage would take far more memory than the matrix, more than `max_bytes`, or more than is free."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a CSR matrix in storage order."""

    lengths: Any  # [n_rows] int32
    perm: Any = None  # [n_rows] int32, storage row k is row perm[k]; None: the matrix's own order

    @property
    def longest(self) -> int:
        return int(self.lengths.max(initial=0))


pytree(Rows)


def on_either(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for f(xp, ...): NumPy runs f as it is, jax.numpy compiles it, for `static` arguments too."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(f, static_argnums=(0, *static))
        return functools.wraps(f)(lambda xp, *args: (f if xp is np else compiled)(xp, *args))

    return decorate


def rows_of(csr: Csr, sigma: int | None = 1) -> Rows:
    """The rows, sorted by falling length inside windows of `sigma` rows, stably; None sorts all of them."""
    xp, n_rows = namespace(csr.indptr), csr.shape[0]
    lengths = _lengths(xp, csr.indptr)
    if sigma == 1:
        return Rows(lengths)
    window = max(n_rows if sigma is None else min(sigma, n_rows), 1)
    one_key = (n_rows // window + 1) * (Rows(lengths).longest + 1) < 2**31
    return Rows(*_sorted(xp, lengths, window, one_key))


@on_either()
def _lengths(xp: Any, indptr: Any) -> Any:
    return xp.diff(indptr).astype(np.int32)


@on_either(3)
def _sorted(xp: Any, lengths: Any, window: int, one_key: bool) -> tuple[Any, Any]:
    """The sorted lengths, and their order. A GPU sorts by one key several times faster than by two."""
    of_window, longest = xp.arange(lengths.shape[0], dtype=np.int32) // window, lengths.max(initial=0)
    if one_key:
        perm = xp.argsort(of_window * (longest + 1) + (longest - lengths), stable=True)
    else:
        perm = xp.lexsort((-lengths, of_window))
    perm = perm.astype(np.int32)
    return take(lengths, perm), perm


def longest_by_slice(lengths: Any, slice_size: int) -> np.ndarray:
    """The length of the longest row of each slice, int64 [n_slices] on the host."""
    if not isinstance(lengths, np.ndarray):
        return np.asarray(_longest_on_device(lengths, slice_size)).astype(np.int64)
    if lengths.size == 0:
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(lengths, np.arange(0, lengths.size, slice_size)).astype(np.int64)


@functools.partial(jax.jit, static_argnums=1)
def _longest_on_device(lengths, slice_size):
    whole = jnp.pad(lengths, (0, -lengths.shape[0] % slice_size)).reshape(-1, slice_size)
    return jnp.max(whole, axis=1)


def longer_than(rows: Rows) -> np.ndarray:
    """The number of sorted rows that are longer than j, for every j below the longest row: int64 on the host."""
    xp = namespace(rows.lengths)
    j = xp.arange(rows.longest, dtype=np.int32)
    return rows.lengths.shape[0] - np.asarray(xp.searchsorted(rows.lengths[::-1], j, side="right")).astype(np.int64)


def pointers(counts: np.ndarray) -> np.ndarray:
    """[0, counts[0], counts[0] + counts[1], …], int32, or int64 from 2³¹ on."""
    total = int(counts.sum(dtype=np.int64))
    check_addressable(total)
    return starts(np, counts, index_dtype(total))


def starts(xp: Any, counts: Any, index: Any) -> Any:
    """`pointers` in the dtype `index`, on the host or the device, as `counts`."""
    return xp.concatenate([xp.zeros(1, index), xp.cumsum(counts, dtype=index)])


def check_bound(name: str, n: int) -> None:
    """Raises ValueError for more rows, columns or entries than 32-bit indices address."""
    if n >= 2**31:
        raise ValueError(f"{n} {name} exceed what 32-bit indices address, {2**31 - 1}; split the matrix")


def check_result(entries: int, shape: tuple[int, int] = (0, 0), each: int = 16) -> None:
    """Raises ValueError, before anything is allocated, for a result too large for the indices or the memory.

    Its making takes `each` bytes for an entry, and 8 for a row.
    """
    for name, n in (("rows", shape[0]), ("columns", shape[1]), ("entries", entries)):
        check_bound(name, n)
    what = f"a result of {entries} entries" + (f" in {shape[0]} rows" if shape[0] > entries else "")
    check_free(each * entries + 8 * shape[0], what, "make a part of it at a time")


def check_range(name: str, index: Any, bound: int) -> None:
    """Raises ValueError for an index of a "row" or "column" below 0, or of `bound` or more; on the host or a device."""
    if namespace(index) is np and not in_some_piece(lambda i: i.min() < 0 or i.max() >= bound, index):
        return
    low, high = map(int, _ends(namespace(index), index)) if index.size else (0, -1)
    if low < 0 or high >= bound:
        bad = low if low < 0 else high
        raise ValueError(f"{name} index {bad} is out of range for a matrix with {bound} {name}s; indices count from 0")


_ends = on_either()(lambda xp, a: (xp.min(a), xp.max(a)))


def check_addressable(n_stored: int) -> None:
    """Raises ValueError for more places than 32-bit JAX can count."""
    if n_stored >= 2**31 and not x64_enabled():
        raise ValueError(
            f"the format would store {n_stored} places, which needs 64-bit offsets; call "
            "jax.config.update('jax_enable_x64', True) first"
        )


def fill(csr: Csr, rows: Rows, address: Address, arrays: Arrays, n_stored: int, dtype: Any) -> tuple[Any, Any]:
    """`values` and `col_idx` [n_stored] of a storage, with 0 and n_cols in padding; on the host or device, as `csr`."""
    if not (csr.nnz and n_stored):
        return np.zeros(n_stored, dtype), np.full(n_stored, csr.shape[1], np.int32)
    return _filled(namespace(csr.data), csr, rows, arrays, address, n_stored, dtype)


@on_either(4, 5, 6)
def _filled(xp: Any, csr: Csr, rows: Rows, arrays: Arrays, address: Address, n_stored: int, dtype: Any):
    lengths = rows.lengths
    first = csr.indptr[:-1] if rows.perm is None else csr.indptr[:-1][rows.perm]

    def stored(row: Any, j: Any) -> tuple[Any, Any]:
        in_range = xp.minimum(row, lengths.shape[0] - 1)
        live = (row < lengths.shape[0]) & (j < take(lengths, in_range))
        entry = xp.where(live, take(first, in_range) + j, 0)
        values, columns = take(csr.data, entry), take(csr.indices, entry)
        return xp.where(live, values, 0).astype(dtype), xp.where(live, columns, csr.shape[1]).astype(np.int32)

    return in_pieces(stored, *address.slots(xp, arrays, n_stored))


def once(f: Callable[..., Any]) -> Callable[..., Any]:
    """f(csr, *args), kept in a `csr` that has `found`: the choice of a format asks, and then the conversion."""

    @functools.wraps(f)
    def asked(csr: Csr, *args: Any) -> Any:
        found = vars(csr).get("found", {})
        key = f, *args
        if key not in found:
            found[key] = f(csr, *args)
        return found[key]

    return asked


@once
def has_zeros(csr: Csr, dtype: Any) -> bool:
    """Whether some entry is zero in `dtype`."""
    if namespace(csr.data) is np:
        return in_some_piece(lambda data: not data.astype(dtype, copy=False).all(), csr.data)
    return bool(_any_zero(csr.data, np.dtype(dtype)))


@functools.partial(jax.jit, static_argnums=1)
def _any_zero(data: Any, dtype: Any) -> Any:
    return jnp.any(data.astype(dtype) == 0)


def csr_arrays(csr: Csr, dtype: Any) -> tuple[jax.Array, ...]:
    """On the device: values [nnz], col_idx [nnz] int32 and row_ptr [n_rows + 1]; copies of NumPy's, JAX's shared."""
    arrays = (csr.data, dtype), (csr.indices, np.int32), (csr.indptr, index_dtype(csr.nnz))
    if namespace(csr.data) is not np:
        return tuple(a if a.dtype == kind else jnp.asarray(a, kind) for a, kind in arrays)
    if puts_on_cpu():  # an array of JAX's on a CPU may share NumPy's memory
        return on_device([aligned(a, kind) for a, kind in arrays])
    return jax.block_until_ready(on_device([np.asarray(a, kind) for a, kind in arrays]))


def where_it_converts(A: Any, target: Target) -> Csr:
    """A, canonical CSR or a matrix of ours, where its format is chosen and made: the host, or a device with room for
    many entries.

    One from the host stays there: XLA would compile for its sizes, for ten times as long as the host takes.
    """
    is_ours = hasattr(A, "csr_arrays")
    if not is_ours and namespace(A.data) is np:
        return A
    free = memory.free()
    has_room = free is None or HELD * A.nnz * (target.dtype.itemsize + 4) <= free
    if A.nnz < conversions.FEW or not has_room or (is_ours and is_on_cpu(jax.tree.leaves(A)[0])):
        return A.to_scipy()
    return A.csr_arrays() if is_ours else A


def puts_on_cpu() -> bool:
    """Whether new arrays lie on a CPU."""
    return device_of().platform == "cpu"


def on_host(csr: Csr) -> Csr:
    """The matrix in NumPy arrays, for conversions that only the host can do (`implied.distinct` gives None)."""
    return csr if namespace(csr.data) is np else csr.to_scipy()


def entries(csr: Csr) -> tuple[Any, Any]:
    """Row and column of each entry, in NumPy or on the device, as `csr`."""
    return _rows(namespace(csr.indptr), csr.indptr, csr.nnz), csr.indices


_rows = on_either(2)(expand_ptr)


def on_device(a: Any) -> Any:
    """An array or list of arrays of NumPy, which nobody may change afterwards, as JAX's; others unchanged.

    `jax.device_put` compiles nothing. `jnp.asarray` compiles a program for every new shape (JAX 0.10.2), but under
    `jax.set_mesh` it places the array on all devices of the mesh, as products there need it.
    """
    if not isinstance(a, np.ndarray | list):
        return a
    if not jax.sharding.get_abstract_mesh().empty:
        return jax.tree.map(jnp.asarray, a)
    return jax.device_put(jax.tree.map(aligned, a) if puts_on_cpu() else a)


def made(cls: type[Format], csr: Csr, target: Target, values: Any, **fields: Any) -> Format:
    """`csr` in the format `cls`, from `values` and the other `fields`; all arrays on the device."""
    fields["values"] = values
    host = {name: a for name, a in fields.items() if isinstance(a, np.ndarray)}
    fields |= zip(host, on_device(list(host.values())), strict=True)
    return cls(fields.pop("values"), csr.shape, csr.nnz, target.backend, **fields)


def limit(in_proportion: float, max_bytes: float | None) -> float:
    """The most bytes to accept for a matrix that takes `in_proportion` itself."""
    return max(SMALL_CHANGE, MAX_PADDING * in_proportion) if max_bytes is None else max_bytes


def check_memory(
    name: str, n_stored: int, csr: Csr, target: Target, index: float = 4, cause: str | None = None
) -> None:
    """Raises TooLarge, before it is allocated, if a storage takes far more memory than the matrix, or than is free.

    A stored place has `index` bytes of index. The message names `cause`, or the longest row, and a format that fits.
    """
    itemsize, max_bytes = target.dtype.itemsize, target.max_bytes
    needed = int(n_stored * (itemsize + index))
    in_csr = csr.nnz * (itemsize + 4) + 4 * csr.shape[0]
    if needed <= limit(in_csr, max_bytes):
        check_addressable(n_stored)
        check_free(needed, f"format {name!r}")
        return
    if n_stored == csr.nnz:
        raise TooLarge(
            f"the matrix takes {readable_bytes(needed)} in {name!r}, without any padding; max_bytes={max_bytes} allows "
            "none"
        )
    lengths = np.diff(np.asarray(csr.indptr))
    hll = 32 * longest_by_slice(lengths, 32).sum() * (itemsize + 4)
    better = "hll" if name != "hll" and hll <= 3 * in_csr else "csr"
    mean, longest = csr.nnz / max(csr.shape[0], 1), int(lengths.max(initial=0))
    if cause is None and longest > MAX_PADDING * mean:
        cause = f"its longest row has {longest} entries where the mean is {mean:.1f}"
    raise TooLarge(
        f"format {name!r} would take {readable_bytes(needed)} for a matrix of {readable_bytes(in_csr)} in CSR, because "
        f"{cause or f'it would store {n_stored} places for {csr.nnz} entries'}; use "
        f"format={better!r}, or format='auto' of from_scipy, or pass max_bytes={needed} to insist"
    )


def check_pointers(n: int, what: str, nnz: int, target: Target) -> None:
    """Raises TooLarge, before pointers are allocated, if most of the `n` rows or columns have no entries."""
    pointers, entries, max_bytes = 4 * (n + 1), nnz * (target.dtype.itemsize + 4), target.max_bytes
    if pointers > limit(entries, None) and (max_bytes is None or pointers > max_bytes):
        raise TooLarge(
            f"pointers to {n} {what} would take {readable_bytes(pointers)} for {readable_bytes(entries)} of entries; "
            f"leave out {what} without entries and number the others, or pass max_bytes={pointers} to insist"
        )
    check_free(pointers, f"pointers to {n} {what}")


def check_free(needed: int, what: str, cure: str = "use format='auto' of from_scipy, a narrower dtype") -> None:
    """Raises TooLarge if more bytes are needed for `what` than are free."""
    free = memory.free() if needed > SMALL_CHANGE else None
    if free is not None and needed > free:
        raise TooLarge(
            f"{what} would take {readable_bytes(needed)}, where {readable_bytes(free)} of memory are free; {cure}, "
            "or a device with more memory"
        )


def positive(option: str, value: Any, unit: str = "row", least: int = 1) -> int:
    """A layout option as an int. TypeError: no integer. ValueError: below `least`."""
    try:
        number = whole_number(option, value, None)
    except TypeError:
        raise TypeError(f"{option} must be an integer, a number of {unit}s; got {value!r}") from None
    if number < least:
        raise ValueError(f"{option} must be at least {least} {unit if least == 1 else f'{unit}s'}; got {number}")
    return number


def slices(slice_size: Any, sigma: Any) -> tuple[int, int]:
    """The layout options of a sliced format. ValueError: not positive, or a sigma that would change no slice."""
    slice_size, sigma = positive("slice_size", slice_size), positive("sigma", sigma)
    if 1 < sigma < slice_size:
        raise ValueError(
            f"sigma={sigma} sorts inside windows smaller than a slice of {slice_size} rows, which changes no slice's "
            "width; use sigma=1, or at least slice_size"
        )
    return slice_size, sigma


def threads(*allowed: int) -> Callable[[Any, int], int]:
    """The check of the layout option `threads_per_row`, of its value and the number of rows.

    ValueError: not one of `allowed`, or more threads than a kernel counts.
    """

    def check(value: Any, n_rows: int) -> int:
        try:
            number = whole_number("threads_per_row", value)
        except (TypeError, ValueError):
            number = None
        if number not in allowed:
            raise ValueError(f"threads_per_row must be one of {', '.join(map(str, allowed))}; got {value!r}")
        if number > 1 and number * n_rows >= MAX_LANES:
            raise ValueError(f"threads_per_row={number} on {n_rows} rows makes 2³¹ threads or more; use fewer")
        return number

    return check
