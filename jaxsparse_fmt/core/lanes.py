"""L·U of many matrices with one pattern, without pivoting: equal entries of several systems lie side by side, in lanes.

The order of elimination and the pattern of L and U belong to the pattern alone (`Elimination`), so that a program has
no branch that depends on values, and all systems take the same steps. On a CPU a native kernel takes `LANES` systems at
once, column by column. Elsewhere updates are taken in chunks, by levels of the elimination tree: what a level needs,
lower ones have finished, and no two updates of a chunk change the same place, so that their order changes no bit. On a
GPU all chunks are one kernel (`lane_updates.py`), else a scan.

The factors of a tile of LANES systems are [places, LANES]: 1/D [n]; the columns of L below its diagonal of ones; the
rows of U beyond D, on the mirrored pattern.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.interpreters import batching

from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.vector_passes import platform_primitive
from jaxsparse_fmt.kernels import lane_updates, spmv_cpu
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.abi import LANES
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

LEAST_WIDTH = 64  # updates of a chunk, at least


class Elimination:
    """The elimination of matrices with one pattern; a parameter of programs, the same if it is the same object.

    Attributes:
      n, nnz: unknowns, and entries of the matrix.
      place: [nnz], where each entry is among the places; equal ones add up.
      order, rank: [n], the unknown that is eliminated k-th, and where each unknown is in that order.
      start, row: [n + 1] and [fill], the columns of L below the diagonal, increasing rows, by place in the order.
    """

    def __init__(self, row: np.ndarray, col: np.ndarray, order: np.ndarray, start: np.ndarray, below: np.ndarray):
        self.n, self.nnz, self.order = len(order), len(row), order.astype(np.int32)
        self.start, self.row, self.fill = start.astype(np.int32), below.astype(np.int32), len(below)
        self.column = np.repeat(np.arange(self.n), np.diff(start))
        self.rank = np.argsort(order)
        self.place = self._found(self.rank[row], self.rank[col])

    @property
    def places(self) -> int:
        return self.n + 2 * self.fill

    @functools.cached_property
    def _key(self) -> np.ndarray:
        return self.column * self.n + self.row

    def _found(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The places of the entries (i, j), which numbers in the order name."""
        at = np.searchsorted(self._key, np.minimum(i, j) * self.n + np.maximum(i, j))
        return np.where(i == j, i, self.n + at + np.where(i > j, 0, self.fill)).astype(np.int32)

    @functools.cached_property
    def updates(self) -> tuple[np.ndarray, ...]:
        """A[t] −= L[p]·U[q] for the entries p and q of column k: t, p, q and k, each [updates], k increasing."""
        count = np.diff(self.start).astype(np.int64)
        k = np.repeat(np.arange(self.n, dtype=np.int32), count**2)
        within = np.arange(len(k)) - np.repeat(np.cumsum(count**2) - count**2, count**2)
        p, q = ((self.start[k] + part).astype(np.int32) for part in (within // count[k], within % count[k]))
        return self._found(self.row[p].astype(np.int64), self.row[q]), p, q, k

    @functools.cached_property
    def for_cpu(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices that the native kernels read: those of a factorization, and those of a solve."""
        return np.append(self.place, self.updates[0]), np.append(self.order[self.row], self.order)

    @functools.cached_property
    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """[n] and [n]: how many unknowns must be eliminated one after the other before each; likewise from the end."""
        U = scipy.sparse.csr_array((np.ones(self.fill, np.int8), self.row, self.start), shape=(self.n, self.n))
        L = U.T.tocsr()
        heights, depths = np.zeros(self.n, np.int32), np.zeros(self.n, np.int32)
        for S, level, upper in ((L, heights, 0), (U, depths, 1)):
            over_rows(elimination.levels, self.n, 1, *(S.indptr, S.indices), level, upper, rows=self.n)
        return heights, depths

    @functools.cached_property
    def steps(self) -> tuple[Any, Any, Any]:
        """By levels: the updates of a factorization, those of a forward substitution and those of a backward one."""
        (heights, depths), (t, p, q, k) = self.levels, self.updates
        lower, upper, row, column = self.n + p, self.n + self.fill + q, self.order[self.row], self.order[self.column]
        entry = np.arange(self.fill)
        return (
            _steps(self.places, heights[k], t, lower, upper, k),
            _steps(self.n, heights[self.column], row, entry, column, self.column),
            _steps(self.n, depths[self.row], column, entry, row, self.row),
        )


def _steps(size: int, level: np.ndarray, target: np.ndarray, *sources: np.ndarray) -> tuple[np.ndarray, ...]:
    """Chunks of updates in the order of their levels: where each begins, [chunks + 1]; targets and sources, [updates].

    A chunk has no target twice.
    """
    by_target = np.lexsort((target, level))
    key = level[by_target].astype(np.int64) * size + target[by_target]
    first = np.append(True, key[1:] != key[:-1])[: len(key)]
    index = np.arange(len(key))
    nth = index - np.maximum.accumulate(np.where(first, index, 0))  # of the updates of a target in a level
    order = by_target[np.lexsort((target[by_target], nth, level[by_target]))]
    nth_of = np.empty(len(key), np.int64)
    nth_of[by_target] = nth
    group = level[order].astype(np.int64) * (nth.max(initial=0) + 1) + nth_of[order]
    begin = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    counts = np.diff(np.append(begin, len(group)))
    width = max(LEAST_WIDTH, 1 << (len(group) // max(len(counts), 1)).bit_length())
    chunks = -(-counts // width)
    before = np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    starts = np.append(np.repeat(begin, chunks) + width * before, len(group))
    return tuple(a.astype(np.int32) for a in (starts, *(a[order] for a in (target, *sources))))


def _scanned(step: Callable[..., Array], x: Array, chunks: tuple[np.ndarray, ...]) -> Array:
    """x after step(x, targets, *sources) of each chunk; targets beyond its end lie beyond x's places."""
    starts, *tables = chunks
    if len(starts) == 1:
        return x
    width, size = int(np.max(np.diff(starts))), x.shape[1]
    tables = [jnp.asarray(np.pad(a, (0, width))) for a in tables]
    each = jnp.arange(width, dtype=starts.dtype)

    def chunk(x: Array, bounds: tuple[Array, Array]) -> tuple[Array, None]:
        target, *sources = (lax.dynamic_slice(a, (bounds[0],), (width,)) for a in tables)
        return step(x, jnp.where(each < bounds[1] - bounds[0], target, size + each), *sources), None

    return lax.scan(chunk, x, (jnp.asarray(starts[:-1]), jnp.asarray(starts[1:])))[0]


def factored(
    plan: Elimination,
    values: Array,  # [batch, nnz]
) -> Array:
    """[tiles, places, LANES], the factors; infinities and NaN in the lane of a system that meets a pivot of 0."""
    padded = jnp.pad(values, ((0, -len(values) % LANES), (0, 0)), "edge")
    return _bind(factored_p, padded.reshape(-1, LANES, plan.nnz), plan=plan)


def solved(
    plan: Elimination,
    F: Array,  # [tiles, places, LANES]
    r: Array,  # [batch, p, n]
    is_transposed: bool,
) -> Array:
    """A⁻¹·r, or A⁻ᵀ·r, of every system."""
    batch, p, n = r.shape
    r = jnp.pad(r, ((0, -batch % LANES), (0, 0), (0, 0)))
    tiles = r.reshape(-1, LANES, p, n).transpose(0, 3, 2, 1)
    x = _bind(solved_p, F, tiles.astype(jnp.result_type(F, r)), plan=plan, is_transposed=is_transposed)
    return x.transpose(0, 3, 2, 1).reshape(-1, p, n)[:batch]


def _bind(primitive: Any, *operands: Array, **static: Any) -> Array:
    operands = mesh_axes.varying(operands, operands)
    return primitive.bind(*operands, backend=selection.in_use.value, **static)[0]


def _factored(values: Array, *, plan: Elimination, backend: str) -> Array:
    if backend == "numba":
        F = spmv_cpu.of_lanes(values, None, plan.for_cpu[0], plan.start, plan.n, plan.nnz, plan.places)
        if F is not None:
            return F
    F = mesh_axes.varying(gathered(jnp.moveaxis(values, 1, 2), plan.place, plan.places), values)
    if selection.is_pallas(backend):
        F = lane_updates.updated(F, tuple(map(jnp.asarray, plan.steps[0])), backend)
    else:

        def step(F: Array, target: Array, p: Array, q: Array, k: Array) -> Array:
            return F.at[:, target].add(-F[:, p] * (F[:, q] / F[:, k]), mode="drop", unique_indices=True)

        F = _scanned(step, F, plan.steps[0])
    inverse, end = 1 / F[:, : plan.n], plan.n + plan.fill
    return jnp.concatenate([inverse, F[:, plan.n : end] * inverse[:, plan.column], F[:, end:]], 1)


def gathered(
    values: Array,  # [batch, nnz, ...]
    place: np.ndarray,  # [nnz]
    size: int,
) -> Array:  # [batch, size, ...]
    """The sum of the values of each place. Where no two have one place, a gather: a GPU scatters by atomic sums."""
    source = np.full(size, len(place), np.int32)
    source[place] = np.arange(len(place), dtype=np.int32)
    if np.count_nonzero(source < len(place)) < len(place):
        return jnp.zeros((len(values), size, *values.shape[2:]), values.dtype).at[:, place].add(values)
    return values.at[:, source].get(mode="fill", fill_value=0)


def _solved(F: Array, r: Array, *, plan: Elimination, is_transposed: bool, backend: str) -> Array:
    if backend == "numba":
        x = spmv_cpu.of_lanes(F, r, plan.for_cpu[1], plan.start, plan.n, plan.fill, 0, is_transposed)
        if x is not None:
            return x
    n, fill = plan.n, plan.fill
    inverse = F[:, :n]
    _, forward, backward = plan.steps
    in_order = inverse[:, plan.rank, None]

    def swept(x: Array, first: int, chunks: tuple[np.ndarray, ...], scaled: bool) -> Array:
        """Substitution by the entries from `first` on; `scaled`: by D⁻¹ times what is found."""

        def step(x: Array, target: Array, entry: Array, source: Array, k: Array) -> Array:
            weight = entries[:, entry] * inverse[:, k] if scaled else entries[:, entry]
            return x.at[:, target].add(-weight[:, :, None] * x[:, source], mode="drop", unique_indices=True)

        if selection.is_pallas(backend):
            x = lane_updates.updated(x, tuple(map(jnp.asarray, chunks)), backend, F, first, scaled)
        else:
            entries = F[:, first : first + fill]
            x = _scanned(step, x, chunks)
        return x * in_order if scaled else x

    x = mesh_axes.varying(r, (F, r))
    if is_transposed:
        return swept(swept(x, n + fill, forward, True), n, backward, False)
    return swept(swept(x, n, forward, False), n + fill, backward, True)


def _batch(primitive: Any, operands: Any, dims: Any, *, backend: str, **static: Any) -> Any:
    """More systems are more tiles."""
    del backend
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)

    def merged(o: Array, d: int | None) -> Array:
        o = jnp.broadcast_to(o, (size, *o.shape)) if d is None else jnp.moveaxis(o, d, 0)
        return o.reshape(-1, *o.shape[2:])

    out = _bind(primitive, *map(merged, operands, dims), **static)
    return [out.reshape(size, -1, *out.shape[1:])], [0]


factored_p = platform_primitive("factor_lanes", _factored)
solved_p = platform_primitive("solve_lanes", _solved)
for _primitive in (factored_p, solved_p):
    batching.primitive_batchers[_primitive] = standard_promotion(functools.partial(_batch, _primitive))
