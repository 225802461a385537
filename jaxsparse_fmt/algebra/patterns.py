"""Patterns of operands on the host, and the matrices of results."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Csr, Target, concrete, index_dtype
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.core.pattern import Absent
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR, threads_for

KEPT = 16  # plans that eager operations keep
_kept: dict[Any, tuple[Any, list[weakref.ref[Any]]]] = {}
_digests: dict[Any, tuple[Any, list[weakref.ref[Any]]]] = {}
_plans: dict[int, tuple[list[int], weakref.ref[Any]]] = {}  # by an array of the plan's result


def check(operation: str, *operands: Any) -> None:
    """Refuses anything but matrices of this library on one device.

    Raises:
      TypeError: names the type and the function that converts it.
    """
    for A in operands:
        if not isinstance(A, SparseMatrix | Transposed):
            raise TypeError(
                f"{operation} takes matrices of this library on one device, got {type(A).__name__}; convert SciPy's "
                "by from_scipy and a sharded one by from_scipy(A.to_scipy())"
            )


def index_arrays(A: Any) -> list[Any]:
    """The arrays of A's pattern, whose identities distinguish patterns."""
    stored = A.A if isinstance(A, Transposed) else A
    values = stored.values
    return [a for a in jax.tree.leaves(stored) if a is not values]


def is_traced(A: Any) -> bool:
    return any(isinstance(a, Tracer) for a in index_arrays(A))


def pattern_of(A: Any) -> Csr:
    """A's pattern in canonical order, on the host; do not read its data.

    Raises:
      ValueError: the pattern is traced.
    """
    if is_traced(A):
        raise ValueError(
            f"this operation needs the pattern of a matrix of shape {A.shape}, nnz={A.nnz}, which is traced here; "
            "let the jitted function take A.data as its argument and close over A, as in A.with_data(data), or make a "
            "plan outside and call it inside"
        )
    if isinstance(A, Transposed):
        return scipy.sparse.csr_array(pattern_of(A.A).T)
    with concrete():
        if type(A) is CSR:
            return csr(np.asarray(A.row_ptr), np.asarray(A.col_idx), A.shape)
        _, indices, indptr = A._each(lambda v: np.ones(v.shape, np.float32)).csr_arrays()
    return csr(np.asarray(indptr), np.asarray(indices), A.shape)


def csr(indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int]) -> Csr:
    """A pattern, with data that take no memory until somebody writes to them."""
    indptr = indptr.astype(index_dtype(indices.size), copy=False)
    return scipy.sparse.csr_array((np.empty(indices.size, np.int8), indices, indptr), shape=shape)


def numbered(S: Csr, before: int) -> Csr:
    """The pattern with the numbers of its entries as data, int64, from `before` + 1 up."""
    return scipy.sparse.csr_array((np.arange(before + 1, before + S.nnz + 1), S.indices, S.indptr), shape=S.shape)


def matrix(S: Csr, format: str, backend: str, max_bytes: float | None = None, **layout: Any) -> SparseMatrix:
    """A matrix of the pattern of S, without values; in "csr" where `format` would take far more memory."""
    if format == "csr" and not layout and max_bytes is None:
        with concrete():
            col_idx, row_ptr = map(building.on_device, (S.indices.astype(np.int32, copy=False), S.indptr))
        threads, absent = threads_for(S.nnz, S.shape[0]), Absent((S.nnz,))
        return CSR(absent, S.shape, S.nnz, backend, col_idx, row_ptr, threads)  # pyright: ignore[reportArgumentType]
    ones = scipy.sparse.csr_array((np.ones(S.nnz, np.float32), S.indices, S.indptr), shape=S.shape)
    with concrete():
        try:
            A = build(ones, format, Target(np.dtype(np.float32), backend, max_bytes), **layout)
        except building.TooLarge:
            if layout or max_bytes is not None:
                raise
            return matrix(S, "csr", backend)
    return A._with_values(Absent(A.values.shape))  # pyright: ignore[reportArgumentType]


def filled(indptr: Any, indices: Any, first: Any, shape: tuple[int, int], nnz_max: int) -> tuple[np.ndarray, ...]:
    """The pattern and its lists, with `nnz_max` entries: free places, spread over the rows, get empty lists.

    Raises:
      ValueError: the pattern has more entries, or the matrix fewer places.
    """
    (n_rows, n_cols), missing = shape, nnz_max - indices.size
    if missing < 0 or nnz_max > n_rows * n_cols:
        raise ValueError(
            f"nnz_max={nnz_max} must be at least the {indices.size} different places of the coordinates, and at most "
            f"the {n_rows * n_cols} places of a matrix of shape {shape}"
        )
    free = n_cols - np.diff(indptr)
    more = np.minimum(free, missing // max(n_rows, 1))
    left = free - more
    more += np.clip(missing - more.sum() - np.cumsum(left) + left, 0, left)
    row = np.repeat(np.arange(n_rows), more)
    number = np.arange(missing) - np.repeat(np.cumsum(more) - more, more)  # of the place among the free ones of its row
    row_of = np.repeat(np.arange(n_rows), np.diff(indptr))
    free_before = row_of * (n_cols + 1) + indices - (np.arange(indices.size) - indptr[:-1][row_of])
    passed = np.searchsorted(free_before, row * (n_cols + 1) + number, side="right") - indptr[:-1][row]
    keys = np.concatenate([row_of * n_cols + indices, row * n_cols + number + passed])
    order = np.argsort(keys, kind="stable")
    lengths = np.concatenate([np.diff(first), np.zeros(missing, np.int64)])[order]
    added = np.concatenate([[0], np.cumsum(more)])
    return indptr + added, (keys[order] % n_cols).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])


def format_of(*operands: Any) -> str:
    """The format of the operands, if it is the same for all, else "csr"."""
    names = {getattr(A, "name", "csr") for A in operands}
    name = names.pop()
    return name if not names and name in FORMATS else "csr"


def backend_of(*operands: Any) -> str:
    return (operands[0].A if isinstance(operands[0], Transposed) else operands[0]).backend


def kept(make: Callable[[], Any], key: Any, *operands: Any, table: Any = _kept, most: int = KEPT) -> Any:
    """`make()`, or what an earlier call made for the same key and the same index arrays; the last `most` are kept."""
    arrays = [a for A in operands for a in index_arrays(A)]
    if not arrays or any(isinstance(a, Tracer) or not isinstance(a, jax.Array) for a in arrays):
        return _at_once(make)
    kinds = [(type(A), type(getattr(A, "A", None)), A.shape, A.nnz) for A in operands]
    key = (key, *kinds, *map(id, arrays))
    found = table.pop(key, None)
    if found is None or any(isinstance(a, jax.Array) and a.is_deleted() for a in jax.tree.leaves(found[0])):  # donated
        forget = lambda _: table.pop(key, None)  # noqa: E731
        found = _at_once(make), [weakref.ref(a, forget) for a in arrays]
        while len(table) >= most:
            table.pop(next(iter(table)))
    table[key] = found  # the newest last
    return found[0]


def _at_once(make: Callable[[], Any]) -> Any:
    """`make()`, whose arrays are constants where jit traces the caller."""
    with concrete():
        return make()


# ------------------------------------------------------------------------------------------------- equal patterns


def digest(A: Any) -> int:
    """A hash of A's pattern, whatever the format, for comparisons in this process; kept with the pattern."""

    def make() -> int:
        S = pattern_of(A)
        return hash((S.shape, S.indptr.astype(np.int64).tobytes(), S.indices.astype(np.int32).tobytes()))

    return kept(make, "digest", A, table=_digests, most=1024)


def remember(plan: Any, *operands: Any) -> Any:
    """`plan`, whose calls from now on compare the patterns of their operands with those given here."""
    array = index_arrays(plan.result)[0]
    key, found = id(array), [digest(A) for A in operands]
    _plans[key] = found, weakref.ref(array, lambda _: _plans.pop(key, None))
    return plan


def check_same(result: SparseMatrix, operands: Any) -> None:
    """Compares the patterns of operands that are not traced with those of the plan whose result this is.

    Raises:
      ValueError: another pattern.
    """
    expected, _ = _plans.get(id(index_arrays(result)[0]), ((), None))
    for number, (A, wanted) in enumerate(zip(operands, expected, strict=False)):
        if not is_traced(A) and digest(A) != wanted:
            raise ValueError(
                f"operand {number} of the plan, of shape {A.shape} with {A.nnz} entries, has these entries in other "
                "places than the matrix for which the plan was made; make a plan for this pattern"
            )


def entries_of_equal(A: Any, B: Any) -> jax.Array:
    """The entries of B, a matrix of the same pattern as A.

    Raises:
      ValueError: another pattern, or a traced one.
    """
    check("with_data", A, B)
    if A.shape != B.shape or A.nnz != B.nnz or digest(A) != digest(B):
        raise ValueError(
            f"with_data takes the entries of a matrix of the same pattern; A has shape {A.shape} and {A.nnz} entries, "
            f"and the other matrix shape {B.shape} and {B.nnz}, not all in the same places; A + B and A.multiply(B) "
            "combine matrices of different patterns"
        )
    return B.data
