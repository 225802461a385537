"""Slices of matrices, submatrices, and single entries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import device_of
from jaxsparse_fmt.algebra import by_scipy, patterns, plans
from jaxsparse_fmt.core.entry_index import take_or_zero


def item(A: Any, index: Any) -> Any:
    """A[index]: a matrix; with two integers a number."""
    index = index if isinstance(index, tuple) else (index,)
    axes = [axis for axis, i in enumerate(index) if i is Ellipsis]
    if axes:
        index = (*index[: axes[0]], *[slice(None)] * (3 - len(index)), *index[axes[0] + 1 :])
    index = (*index, *[slice(None)] * (2 - len(index)))
    if len(index) > 2 or any(i is None or i is Ellipsis for i in index):
        raise IndexError(f"a matrix takes one index or two, rows and columns; got {index!r}")
    if any(isinstance(i, Tracer) for i in index):
        raise TypeError("an index of a sparse matrix must not be traced, since it decides the pattern; use A @ e")
    rows, columns = index
    pairs = np.ndim(rows) == np.ndim(columns) == 1
    if np.shape(rows)[1:] == (1,) and np.ndim(columns) and np.shape(columns)[:-1] in ((), (1,)):
        index = np.ravel(rows), np.ravel(columns)  # of numpy.ix_, or rows[:, None]
    index = [i.item() if isinstance(i, np.ndarray | np.generic | jax.Array) and i.ndim == 0 else i for i in index]
    whole = [isinstance(i, int) and not isinstance(i, bool) for i in index]
    places = [[_in_range(i, n)] if one else _places(i, n) for i, one, n in zip(index, whole, A.shape, strict=True)]
    if pairs:
        return _at_pairs(A, *places)
    at_hand = by_scipy.at_hand(A, fetched=True)
    if at_hand is not None:
        part = plans.made(by_scipy.crossing(*at_hand, *places), None, A)
        device = device_of(A)
        part = part if device == device_of() else jax.device_put(part, device)
    else:
        key = tuple(p if isinstance(p, slice) else tuple(p) if len(p) < 64 else None for p in places)
        key = None if None in key else ("item", *map(repr, key))
        part = plans.selected("A[...]", key, lambda S: patterns.crossed(S, *places), A)
    return part.todense()[0, 0] if all(whole) else part


def _at_pairs(A: Any, rows: Any, columns: Any) -> Any:
    """The numbers of A at pairs of a row and a column [k]; one row or column serves all."""
    if rows.size != columns.size and 1 not in (rows.size, columns.size):
        raise IndexError(
            f"two arrays list pairs of a row and a column, and have {rows.size} and {columns.size} numbers; for a "
            "submatrix take A[rows][:, columns]"
        )
    S = patterns.patterns_of(A)[0]
    number = np.arange(1, A.nnz + 1, dtype=index_dtype(A.nnz + 1))
    S = by_scipy.with_data(patterns.csr(np.asarray(S.indptr), np.asarray(S.indices), S.shape), number)
    pairs = tuple(map(np.array, np.broadcast_arrays(rows, columns)))
    entry = np.asarray(S[pairs]) if pairs[0].size else number[:0]
    return take_or_zero(A.data, jnp.asarray(np.where(entry > 0, entry - 1, A.nnz)))


def _in_range(i: int, n: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of range for an axis of {n}")
    return int(i) % n


def _places(index: Any, n: int) -> Any:
    if isinstance(index, slice):
        return index
    index = np.asarray(index)
    if index.ndim != 1 or (index.dtype != bool and not np.issubdtype(index.dtype, np.integer) and index.size):
        raise IndexError(f"an index is an integer, a slice, or one axis of integers or booleans; got {index!r}")
    if index.dtype == bool:
        if index.size != n:
            raise IndexError(f"a mask for an axis of {n} must have {n} booleans, got {index.size}")
        return np.flatnonzero(index)
    index = index.astype(np.int64)
    if index.size and not (-n <= index.min() and index.max() < n):
        bad = index.max() if index.max() >= n else index.min()
        raise IndexError(f"index {bad} is out of range for an axis of {n}")
    return index % n if n else index
