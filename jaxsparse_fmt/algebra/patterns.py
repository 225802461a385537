"""Patterns of operands, and the matrices of results.

A pattern is SciPy's on the host; for operands on an accelerator it is a `CsrArrays` (`on_device.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import concrete, device_of, is_traced
from jaxsparse_fmt._types import Array, Csr, CsrArrays, Target
from jaxsparse_fmt.algebra import by_scipy, on_device
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.conversions import times_asked
from jaxsparse_fmt.core.entry_index import at_hand, sorted_on_host
from jaxsparse_fmt.core.faces import Absent
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.core.scipy_names import OnOneDevice
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.formats import building

_kept, _digests = Kept(16, "patterns of sums and products"), Kept(1024, "digests of patterns")
FULL = 2**20  # products of two entries, from which a list takes longer to make than a program to compile
DENSE_TERMS = 128  # of a dense product, which take the time of one product of a list


def check(operation: str, *operands: Any) -> None:
    """Refuses anything but matrices of this library on one device, by a TypeError that names the cure."""
    for A in operands:
        if not (isinstance(A, OnOneDevice) and isinstance(A._stored, SparseMatrix)):
            raise TypeError(
                f"{operation} takes matrices of this library on one device, got {type(A).__name__}; convert SciPy's "
                "by from_scipy and a sharded one, or its transpose, by from_scipy(A.to_scipy()); with a dense array "
                "take A.todense(); A + s·I is A.shift(s)"
            )


def lie_on_device(*operands: Any) -> bool:
    """Whether the pattern of an operation on these matrices is found on their accelerator."""
    return on_device.lies(sum(A.nnz for A in operands), *index_arrays(*operands))


def index_arrays(*operands: Any) -> list[Any]:
    """The arrays of the operands' patterns, whose identities distinguish patterns."""
    return [a for A in operands for a in entry_index.index_arrays(A)]


def are_same(A: Any, B: Any) -> bool:
    """Whether two matrices have one pattern: the same arrays of JAX, or equal ones that are at hand on a CPU."""
    if A is not A._stored or B is not B._stored or A.n_stored != B.n_stored:
        return False
    (a, tree), (b, other) = (jax.tree.flatten(M._without_values) for M in (A, B))
    if tree != other:
        return False
    if any(isinstance(x, np.ndarray) for x in a):  # which may change
        return False
    others = [(x, y) for x, y in zip(a, b, strict=True) if x is not y]
    return not others or (at_hand(others) and all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in others))


def patterns_of(*operands: Any) -> list[Csr]:
    """The operands' patterns in canonical order, all on the host or all on their device; do not read their data."""
    for A in operands:
        if is_traced(index_arrays(A)):
            raise ValueError(
                f"this operation needs the pattern of a matrix of shape {A.shape}, nnz={A.nnz}, which is traced here; "
                "let the jitted function take A.data as its argument and close over A, as in A.with_data(data), or "
                "make a plan outside and call it inside"
            )
    find = on_device.pattern_of if lie_on_device(*operands) else _pattern_on_host
    with concrete():
        return [find(A) for A in operands]


def _pattern_on_host(A: Any) -> Csr:
    if isinstance(A, Transposed):
        return scipy.sparse.csr_array(_pattern_on_host(A.A).T)
    S = A._each(lambda v: np.ones(v.shape, np.float32)).to_scipy()
    return csr(S.indptr, S.indices, S.shape)


def are_new(*operands: Any) -> bool:
    """Whether matrices of these sizes lie on JAX's accelerator for the first time: its programs would compile."""
    if not lie_on_device(*operands) or device_of(operands) != device_of():
        return False
    return not times_asked(tuple((type(A), A.shape, A.nnz) for A in operands))


def csr(indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int]) -> Csr:
    """A pattern, with data that take no memory until somebody writes to them."""
    indptr = indptr.astype(index_dtype(indices.size), copy=False)
    return scipy.sparse.csr_array((np.empty(indices.size, np.int8), indices, indptr), shape=shape)


def matrix(
    S: Csr, format: str, backend: str, max_bytes: float | None = None, *, dtype: Any = None, **layout: Any
) -> SparseMatrix:
    """A matrix of the pattern of S, in "csr" if `format` would take far more memory.

    Args:
      dtype: of the values, which are then those of S; None: without values.
    """
    target = Target(np.dtype(dtype or np.float32), backend, max_bytes)
    if dtype is None:
        S = with_data(S, building.namespace(S.indptr).ones(S.nnz, np.float32))
    try:
        A = build(S, format, target, **layout)
    except building.TooLarge:
        if layout or max_bytes is not None or format == "csr":
            raise
        A = build(S, "csr", target)
    return A if dtype is not None else A._with_values(Absent(A.values.shape))  # pyright: ignore[reportArgumentType]


def with_data(S: Csr, data: Any) -> Csr:
    """The pattern with these entries."""
    if building.namespace(S.indptr) is np:
        return by_scipy.with_data(S, data)
    return CsrArrays(data, S.indices, S.indptr, S.shape)


def grouped(row: Any, col: Any, shape: tuple[int, int]) -> tuple[Csr, Any, Any]:
    """The pattern of coordinates [k], which may repeat; and first [nnz + 1] and order [k].

    Entry n has the coordinates order[first[n]:first[n + 1]], in the order given.
    """
    if building.namespace(row) is not np:
        return on_device.grouped(row, col, shape)
    order = sorted_on_host(col, shape[1])
    order = order[sorted_on_host(row[order], shape[0])]
    row, col = row[order], col[order]
    new = np.ones(row.size, bool)
    new[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
    first = np.flatnonzero(new)
    indptr = np.searchsorted(row[first], np.arange(shape[0] + 1))
    return csr(indptr, col[first].astype(np.int32, copy=False), shape), np.append(first, row.size), order


def arranged(row: Any, col: Any, shape: tuple[int, int]) -> tuple[Csr, Any]:
    """Coordinates that all differ as a pattern, and the number of the coordinates of each entry."""
    if building.namespace(row) is not np:
        S, _, order = on_device.grouped(row, col, shape)
        return S, order
    number = np.arange(row.size, dtype=index_dtype(row.size))
    S = by_scipy.sorted_rows(scipy.sparse.coo_array((number, (row, col)), shape=shape))
    return S, S.data


def listed(a: Csr, b: Csr) -> tuple[Csr, Any, Any, Any]:
    """The pattern of a·b, with the entries that cancel; first [nnz + 1]; and left, right [products] int32.

    Entry n sums a[left[k]]·b[right[k]] for k from first[n] to first[n + 1], by rising column of a.
    """
    if building.namespace(a.indptr) is not np:
        return on_device.listed(a, b)
    lengths = np.diff(b.indptr)[a.indices]
    before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    products = int(before[-1])
    on_device.check_list(products, "products of two entries")
    left = np.repeat(np.arange(a.nnz, dtype=np.int32), lengths)
    right = np.arange(products, dtype=index_dtype(products))
    right += (b.indptr[a.indices] - before[:-1]).astype(right.dtype)[left]
    row = np.repeat(np.arange(a.shape[0], dtype=np.int32), np.diff(before[a.indptr]))
    c, first, order = grouped(row, b.indices[right], (a.shape[0], b.shape[1]))
    return c, first, left[order], right[order].astype(np.int32, copy=False)


def nearly_full(a: Csr, b: Csr) -> Csr | None:
    """The pattern of a·b, if dense arrays multiply in less time and memory than a list of products takes; on a host."""
    if building.namespace(a.indptr) is not np:
        return None
    products = int(np.sum(np.diff(b.indptr)[a.indices], dtype=np.int64))
    (n, k), m = a.shape, b.shape[1]
    if products < FULL or n * k * m > DENSE_TERMS * products or n * k + k * m + n * m > products:
        return None
    S = by_scipy.sorted_rows(with_data(a, np.ones(a.nnz, bool)) @ with_data(b, np.ones(b.nnz, bool)))
    return csr(S.indptr, S.indices, S.shape)


def united(a: Csr, b: Csr, shared: bool = False) -> tuple[Csr, Any, Any]:
    """The pattern of a + b, or with `shared` of the entries that both have; and left, right [nnz].

    Those are the entries of a and of b; a.nnz or b.nnz if it has none.
    """
    if building.namespace(a.indptr) is not np:
        return on_device.united(a, b, shared)
    bits = a.nnz.bit_length()
    # Numbers from 1 up, so that no sum is 0, which SciPy would drop.
    left, right = (with_data(S, np.arange(1, S.nnz + 1)) for S in (a, b))
    right.data <<= bits
    both = left + right
    left, right = both.data & ((1 << bits) - 1), both.data >> bits
    indptr, indices = both.indptr, both.indices
    if shared:
        in_both = (left > 0) & (right > 0)
        indptr = building.starts(np, in_both, index_dtype(in_both.size))[indptr]
        indices, left, right = indices[in_both], left[in_both], right[in_both]
    entries = (np.where(n > 0, n - 1, S.nnz).astype(index_dtype(S.nnz)) for n, S in ((left, a), (right, b)))
    return csr(indptr, indices, a.shape), *entries


shared = functools.partial(united, shared=True)


def kronecker(a: Csr, b: Csr) -> tuple[Csr, Any, Any]:
    """The pattern of the Kronecker product of a and b; and the entries of a and of b whose product each entry is."""
    shape = a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]
    xp = building.namespace(a.indptr)
    row, col = _kronecker_places(xp, building.entries(a), building.entries(b), *b.shape)
    S, order = arranged(row, col, shape)
    return S, *_halves(xp, order, max(b.nnz, 1))


@building.on_either()
def _kronecker_places(xp: Any, a: Any, b: Any, *sizes: int) -> Any:
    return tuple((i[:, None] * n + j[None]).reshape(-1) for i, j, n in zip(a, b, sizes, strict=True))


_halves = building.on_either()(lambda xp, order, n: xp.divmod(order, order.dtype.type(n) if xp is np else n))


def crossed(S: Csr, rows: Any, columns: Any) -> tuple[Csr, Any]:
    """The pattern of S[rows][:, columns], slices or arrays of integers, and the entries of S there, on the host."""
    number = np.arange(S.nnz, dtype=index_dtype(S.nnz))
    S = by_scipy.crossing(with_data(csr(np.asarray(S.indptr), np.asarray(S.indices), S.shape), number), rows, columns)
    return S, S.data


def masked(S: Csr, mask: Any) -> tuple[Csr, Any]:
    """The pattern of the entries of S that `mask` selects, and their numbers."""
    if building.namespace(S.indptr) is not np:
        return on_device.masked(S, mask)
    place = np.flatnonzero(mask)
    return csr(building.starts(np, mask, index_dtype(S.nnz))[S.indptr], S.indices[place], S.shape), place


def format_of(*operands: Any) -> str:
    """The format of the operands, if it is the same for all, else "csr"."""
    names = {A.name if isinstance(A, SparseMatrix) else "csr" for A in operands}
    name = names.pop()
    return name if not names and name in FORMATS else "csr"


def kept(make: Callable[[], Any], key: Any, *operands: Any, table: Kept = _kept) -> Any:
    """`make()`, or what an earlier call made for the same key and the same index arrays."""
    kinds = [(type(A), type(A._stored), A.shape, A.nnz) for A in operands]
    return table.get((key, *kinds), index_arrays(*operands), make)


# ------------------------------------------------------------------------------------------------- equal patterns


def digests(*operands: Any) -> Array:
    """A hash of each operand's pattern, [operands, 4] uint32: the same in any format, on any device, in any process."""

    def make() -> Array:
        return building.on_device(np.array([_digest(A) for A in operands], np.uint32))

    return kept(make, "digests", *operands, table=_digests)


def _digest(A: Any) -> list[int]:
    """The hash of A's pattern; kept with the pattern."""

    def make() -> list[int]:
        S = patterns_of(A)[0]
        return np.asarray(_hashes(building.namespace(S.indptr), S.indptr, S.indices)).tolist()

    return kept(make, "digest", A, table=_digests)


@building.on_either()
def _hashes(xp: Any, *arrays: Any) -> Any:
    """Two sums of hashes of an array's numbers and their places, modulo 2³²; the same on the host and a device."""
    sums = []
    for a in arrays:
        mixed = a.astype(np.uint32) + np.uint32(0x9E3779B9) * xp.arange(a.shape[0], dtype=np.uint32)
        for factor in (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)):
            mixed = (mixed ^ (mixed >> np.uint32(15))) * factor
            sums.append(xp.sum(mixed ^ (mixed >> np.uint32(13)), dtype=np.uint32))
    return xp.stack(sums)


def check_same(expected: Array, operands: Any) -> None:
    """Refuses operands whose patterns do not have these `digests`, unless one of the two is traced."""
    if is_traced(expected):
        return
    for number, (A, wanted) in enumerate(zip(operands, np.asarray(expected).tolist(), strict=False)):
        if not is_traced(index_arrays(A)) and _digest(A) != wanted:
            raise ValueError(
                f"operand {number} of the plan, of shape {A.shape} with {A.nnz} entries, has these entries in other "
                "places than the matrix for which the plan was made; make a plan for this pattern"
            )
