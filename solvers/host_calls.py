"""Calls of the host by programs, the factors that it keeps for them, and solves with these."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsparse_fmt._caches import Recent
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt.core import mesh_axes
from solvers import superlu
from solvers.batched import inverse_of, on_device, serves
from solvers.core.iterate import System
from solvers.core.program import interrupted_after
from solvers.core.stopping import End, Limits
from solvers.on_host import length, refined, reported
from solvers.patterns import SAMPLE, Pattern, pattern_of
from solvers.solution import SolverError, Status
from solvers.superlu import OnHost, Recipe

KEPT = 4  # factors that the host keeps for the programs that factor
LARGEST = 2**30  # bytes of further ones, of a batch, for its derivatives


_factored = Recent(KEPT, "factors for programs")  # with the values


def kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, room: int = KEPT) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns.

    Args:
      room: how many factors stay, these among them, if they take less than LARGEST.

    Raises:
      ValueError: the factors do not fit into the memory.
    """
    values, pattern = np.ascontiguousarray(values), pattern_of(n, row, col)
    bits = np.sum(values.view(np.int64 if values.nbytes % 8 == 0 else np.int32))
    key = pattern, recipe, values[:: values.size // SAMPLE + 1].tobytes(), int(bits)
    old, found = _factored.results.get(key, (None, None))
    if old is None or not np.array_equal(old, values):
        old, found = values.copy(), None
        if np.all(np.isfinite(values)):
            with contextlib.suppress(SolverError):
                found = superlu.factored(pattern.host(values), recipe, checks=False)
    size = values.nbytes if found is None else found.nbytes
    _factored.put(key, (old, found), min(room, LARGEST // max(size, 1)))
    return found


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program calls on the host; equal ones share a program.

    Attributes:
      f: (the arrays of each member of a batch, *static) -> results like `likes` for each.
      ndims: of a member's arrays.
    """

    f: Callable[..., Iterable[Any]]
    static: tuple[Any, ...]
    likes: tuple[jax.ShapeDtypeStruct, ...]
    ndims: tuple[int, ...]

    def __call__(self, *given: Any) -> tuple[np.ndarray, ...]:
        batch, each = members(given, self.ndims)
        results = [np.zeros((len(each), *like.shape), like.dtype) for like in self.likes]
        with interrupted_after():
            for k, found in enumerate(self.f(each, *self.static)):
                for result, a in zip(results, found, strict=True):
                    result[k] = a
        return tuple([a.reshape((*batch, *a.shape[1:])) for a in results])


def call(f: Callable[..., Iterable[Any]], static: tuple[Any, ...], arrays: Any, likes: Any) -> tuple[Array, ...]:
    """The results of `Call` in a program, arrays like `likes`; also of a batch."""
    shapes = tuple([jax.ShapeDtypeStruct(like.shape, like.dtype) for like in likes])
    host = Call(f, static, shapes, tuple(array.ndim for array in arrays))
    results = jax.pure_callback(host, shapes, *arrays, vmap_method="expand_dims")
    return mesh_axes.varying(results, arrays)  # which JAX takes for the same on all devices


def by_factors(
    f: Any, n: int, recipe: Recipe, entries: Any, arrays: Any, likes: Any, *options: Any, checks: bool = True
) -> tuple[Array, ...]:
    """f(factors or None, entries, *arrays, *options) on the host, arrays like `likes`.

    Args:
      f: its result is one array, or a tuple.
      entries: rows, columns and values.
      checks: as of `factored`.
    """
    return call(_each, (f, n, recipe, options, checks), (*entries, *arrays), likes)


def _each(each: list[Any], f: Any, n: int, recipe: Recipe, options: Any, checks: bool) -> Iterator[tuple[Any, ...]]:
    for row, col, values, *arrays in each:
        found = kept(n, recipe, row, col, values, 2 * len(each))  # a batch of matrices, and that of their transposes
        if found is not None and checks:
            with contextlib.suppress(SolverError):  # the residual judges what no pivots improve
                found = found.repaired()
        result = f(found, (row, col, values), *arrays, *options)
        yield result if isinstance(result, tuple) else (result,)


def members(arrays: Any, ndims: tuple[int, ...]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of a batch, and its members: arrays of `ndims` axes, after others that are those of the batch or 1."""
    arrays = [np.asarray(a) for a in arrays]
    if all(a.ndim == ndim for a, ndim in zip(arrays, ndims, strict=True)):
        return (), [arrays]
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - ndim] for a, ndim in zip(arrays, ndims, strict=True)))
    whole = [np.broadcast_to(a, (*batch, *a.shape[a.ndim - k :])) for a, k in zip(arrays, ndims, strict=True)]
    return batch, [tuple(a[member] for a in whole) for member in np.ndindex(batch)]


@pytree
class HostFactors:
    """Factors of a traced matrix: a solve calls the host, which keeps the factors of the last few matrices.

    A result is NaN where the matrix has no factors.

    Attributes:
      row, col, values: [nnz], the entries, of which equal places add up.
      known: their pattern, if a batch of matrices with it may be solved on the device.
    """

    row: Array
    col: Array
    values: Array
    n: int = dataclasses.field(metadata={"static": True})
    recipe: Recipe = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})
    known: Pattern | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        like, way = jax.ShapeDtypeStruct(r.shape, jnp.result_type(self.dtype, r)), "T" if self.is_transposed else "N"
        return by_factors(_solved, self.n, self.recipe, self.entries, (r,), (like,), way)[0]

    @property
    def entries(self) -> tuple[Array, Array, Array]:
        return self.row, self.col, self.values


def _solved(found: OnHost | None, _: Any, r: Any, way: str) -> Any:
    return np.nan if found is None else found.solve(r, way)


def whole(system: System, is_transposed: bool) -> tuple[Array, End]:
    """A solve by one call of the host, or on the device."""
    pattern = inverse_of(system)[0].factors.known
    by = _by_host if pattern is None or not serves(pattern) else on_device(pattern, _by_host)
    return by(system, is_transposed)


def _by_host(system: System, is_transposed: bool) -> tuple[Array, End]:
    (M, basis), limits = inverse_of(system), system.limits
    F, b = M.factors, basis.leave(system.b)
    arrays = b, *map(jnp.asarray, (limits.rtol, limits.atol, limits.maxiter))
    count, size = (jax.ShapeDtypeStruct(b.shape[1:], dtype) for dtype in (jnp.int32, jnp.finfo(b.dtype).dtype))
    way, likes = "N" if F.is_transposed == is_transposed else "T", (b, count, count, size, size)
    x, code, k, norm, Ax_norm = by_factors(_refined, F.n, F.recipe, F.entries, arrays, likes, way, checks=False)
    return basis.enter(x), End(k, norm, code, None, Ax_norm)


def _refined(found: OnHost | None, entries: Any, b: Any, rtol: Any, atol: Any, maxiter: Any, way: str) -> Any:
    """As `refined`, with the reason where there are no factors."""
    if found is not None:
        return refined(found, b, Limits._make((rtol, atol, maxiter, 0, None, None, None)), b.dtype, way)
    size, zero = length(b), np.zeros(b.shape[1:])
    is_finite = ~np.isnan(size) & np.all(np.isfinite(entries[2]))
    code = np.where(is_finite, np.where(size == 0, Status.CONVERGED, Status.SINGULAR), Status.NON_FINITE)
    with np.errstate(over="ignore"):
        return reported(np.zeros_like(b), code, zero, np.where(is_finite, size, np.nan), zero)
