"""Factors that the host keeps for programs, and the calls by which programs reach them."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from jaxsparse_fmt._caches import Recent
from jaxsparse_fmt.core import mesh_axes
from solvers import superlu
from solvers.core.program import interrupted_after
from solvers.host import Host, with_data
from solvers.solution import SolverError
from solvers.superlu import OnHost, Recipe

KEPT = 4  # factors that the host keeps for the programs that factor
SAMPLE = 64  # values, by which most others differ


class Pattern:
    """Places of entries, of which equal ones add up, and what all matrices with entries there share.

    Attributes:
      row, col: [m], copies.
      S: in CSC, the numbers of the entries; None: some places are equal.
      shared: as of `Host`.
    """

    def __init__(self, n: int, row: Any, col: Any):
        self.n, self.row, self.col = n, np.array(row), np.array(col)
        numbers = np.arange(self.row.size, dtype=np.int32)  # SuperLU counts entries in 32 bits
        S = scipy.sparse.csc_array((numbers, (self.row, self.col)), shape=(n, n))
        self.S = S if S.nnz == self.row.size else None
        self.shared: dict[str, Any] = {}

    def matrix(self, values: np.ndarray) -> Any:
        if self.S is None:
            return scipy.sparse.csc_array((values, (self.row, self.col)), shape=(self.n, self.n))
        return with_data(self.S, values[self.S.data])


class Factored(NamedTuple):
    """Factors, None where there are none, of values on a pattern, of which `sample` is a part."""

    pattern: Pattern
    recipe: Recipe
    sample: bytes
    values: np.ndarray
    found: OnHost | None


_factored = Recent(KEPT, "factors for programs")
_patterns = Recent(KEPT, "patterns of factors for programs")


def _pattern(n: int, row: Any, col: Any) -> Pattern:
    """The pattern of these entries, one object for equal ones."""

    def holds(one: Pattern) -> bool:
        return one.n == n and np.array_equal(one.row, row) and np.array_equal(one.col, col)

    with superlu.lock:
        return _patterns.find(holds) or _patterns.put(Pattern(n, row, col))


def kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, room: int = KEPT) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns.

    Args:
      room: how many factors stay, these among them.

    Raises:
      ValueError: the factors do not fit into the memory.
    """
    values = np.asarray(values)
    pattern = _pattern(n, np.asarray(row), np.asarray(col))
    key = pattern, recipe, values[:: values.size // SAMPLE + 1].tobytes()
    with superlu.lock:
        one = _factored.find(lambda one: one[:3] == key and np.array_equal(one.values, values))
    if one is not None:
        return one.found
    found = None
    if np.all(np.isfinite(values)):
        with contextlib.suppress(SolverError):
            found = superlu.factored(Host(pattern.matrix(values), pattern.shared), recipe, "A", False)
    with superlu.lock:
        _factored.put(Factored(*key, values.copy(), found), room)
    return found


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program calls on the host; equal ones share a program.

    Attributes:
      f: (factors or None, rows, columns and values of the entries, *arrays, *options) -> an array of `shape`.
      ndims: of the arrays.
      checks: as of `factored`.
    """

    f: Callable[..., Any]
    n: int
    recipe: Recipe
    options: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    ndims: tuple[int, ...]
    checks: bool

    def __call__(self, *given: Any) -> np.ndarray:
        batch, each = members(given, (1, 1, 1, *self.ndims))
        results = np.zeros((len(each), *self.shape), self.dtype)
        with interrupted_after():
            for k, (row, col, values, *arrays) in enumerate(each):
                # A batch of matrices, and that of their transposes.
                found = kept(self.n, self.recipe, row, col, values, 2 * len(each))
                if self.checks and found is not None:
                    found.repaired()
                results[k] = self.f(found, (row, col, values), *arrays, *self.options)
        return results.reshape(*batch, *self.shape)


def call(
    f: Callable[..., Any],
    n: int,
    recipe: Recipe,
    entries: tuple[Any, Any, Any],
    arrays: tuple[Any, ...],
    like: Any,
    options: tuple[Any, ...] = (),
    checks: bool = True,
) -> jax.Array:
    """The result of `Call` in a program, an array like `like`; also of a batch."""
    ndims = tuple(array.ndim for array in arrays)
    host = Call(f, n, recipe, options, like.shape, np.dtype(like.dtype), ndims, checks)
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    result = jax.pure_callback(host, shape, *entries, *arrays, vmap_method="expand_dims")
    return mesh_axes.varying(result, entries, arrays)  # which JAX takes for the same on all devices


def members(arrays: Any, ndims: tuple[int, ...]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of a batch, and its members: arrays of `ndims` axes, after others that are those of the batch or 1."""
    arrays = [np.asarray(a) for a in arrays]
    if all(a.ndim == ndim for a, ndim in zip(arrays, ndims, strict=True)):
        return (), [arrays]
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - ndim] for a, ndim in zip(arrays, ndims, strict=True)))
    whole = [np.broadcast_to(a, (*batch, *a.shape[a.ndim - k :])) for a, k in zip(arrays, ndims, strict=True)]
    return batch, [tuple(a[member] for a in whole) for member in np.ndindex(batch)]
