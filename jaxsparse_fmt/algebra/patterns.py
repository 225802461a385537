"""Patterns of operands on the host, and the matrices of results."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Csr, Target, concrete
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.core.pattern import Absent
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.formats.building import TooLarge

KEPT = 16  # plans that eager operations keep
_kept: dict[Any, tuple[Any, list[weakref.ref[Any]]]] = {}


def check(operation: str, *operands: Any) -> None:
    """Refuses what is no matrix of this library on one device.

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
    """The arrays of A's pattern, whose identities tell patterns apart."""
    stored = A.A if isinstance(A, Transposed) else A
    values = stored.values
    return [a for a in jax.tree.leaves(stored) if a is not values]


def is_traced(A: Any) -> bool:
    return any(isinstance(a, Tracer) for a in index_arrays(A))


def pattern_of(A: Any) -> Csr:
    """A's pattern in canonical order, on the host. The data are the numbers of the entries, from 1 up, int64.

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
        return _numbered(scipy.sparse.csr_array(pattern_of(A.A).T))
    with concrete():
        stand_in = A._each(lambda v: np.ones(v.shape, np.float32))
        _, indices, indptr = map(np.asarray, stand_in.csr_arrays())
    return _numbered(scipy.sparse.csr_array((np.empty(A.nnz, np.int8), indices, indptr), shape=A.shape))


def _numbered(S: Csr) -> Csr:
    numbers = np.arange(1, S.nnz + 1)
    return scipy.sparse.csr_array((numbers, S.indices, S.indptr), shape=S.shape)


def matrix(S: Csr, format: str, backend: str, max_bytes: float | None = None, **layout: Any) -> SparseMatrix:
    """A matrix of the pattern of S, without values; in "csr" where `format` would take far more memory."""
    ones = scipy.sparse.csr_array((np.ones(S.nnz, np.float32), S.indices, S.indptr), shape=S.shape)
    with concrete():
        try:
            A = build(ones, format, Target(np.dtype(np.float32), backend, max_bytes), **layout)
        except TooLarge:
            if layout or max_bytes is not None:
                raise
            A = build(ones, "csr", Target(np.dtype(np.float32), backend, max_bytes))
    return A._with_values(Absent(A.values.shape))  # pyright: ignore[reportArgumentType]


def format_of(*operands: Any) -> str:
    """The format of the operands, if it is the same for all, else "csr"."""
    names = {getattr(A, "name", "csr") for A in operands}
    name = names.pop()
    return name if not names and name in FORMATS else "csr"


def backend_of(*operands: Any) -> str:
    return (operands[0].A if isinstance(operands[0], Transposed) else operands[0]).backend


def kept(make: Callable[[], Any], key: Any, *operands: Any) -> Any:
    """`make()`, or what an earlier call made for the same key and the same index arrays; the last `KEPT` are kept."""
    arrays = [a for A in operands for a in index_arrays(A)]
    if not arrays or any(isinstance(a, Tracer) or not isinstance(a, jax.Array) for a in arrays):
        return make()
    kinds = [(type(A), type(getattr(A, "A", None)), A.shape, A.nnz) for A in operands]
    key = (key, *kinds, *map(id, arrays))
    found = _kept.pop(key, None)
    if found is None:
        forget = lambda _, table=_kept: table.pop(key, None)  # noqa: E731
        found = make(), [weakref.ref(a, forget) for a in arrays]
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
    _kept[key] = found  # the newest last
    return found[0]
