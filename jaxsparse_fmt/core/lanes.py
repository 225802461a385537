"""L·U of many matrices with one pattern, without pivoting: equal entries of several systems lie side by side, in lanes.

The order of elimination and the pattern of L and U belong to the pattern alone (`Elimination`), so that a program has
no branch that depends on values, and all systems take the same steps. On a CPU a native kernel takes `LANES` systems at
once, column by column. Elsewhere the steps are taken by levels of the elimination tree: what a level needs, lower ones
have finished, and no two updates of a step change the same place, so that their order changes no bit.

The factors of a tile of LANES systems are [places, LANES]: 1/D [n]; the columns of L below its diagonal of ones; the
rows of U beyond D, on the mirrored pattern.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.interpreters import batching

from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.vector_passes import platform_primitive
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu import elimination
from jaxsparse_fmt.kernels.cpu.abi import LANES
from jaxsparse_fmt.kernels.cpu.over_rows import over_rows

LEAST_WIDTH = 64  # updates of a step by levels, at least


class Elimination:
    """The elimination of matrices with one pattern; a parameter of programs, the same if it is the same object.

    Attributes:
      n, nnz: unknowns, and entries of the matrix.
      place: [nnz], where each entry is among the places; equal ones add up.
      order: [n], the unknown that is eliminated k-th.
      start, row: [n + 1] and [fill], the columns of L below the diagonal, increasing rows, by place in the order.
    """

    def __init__(self, row: np.ndarray, col: np.ndarray, order: np.ndarray, start: np.ndarray, below: np.ndarray):
        self.n, self.nnz, self.order = len(order), len(row), order.astype(np.int32)
        self.start, self.row, self.fill = start.astype(np.int32), below.astype(np.int32), len(below)
        self.column = np.repeat(np.arange(self.n), np.diff(start))
        to = np.empty(self.n, np.int64)
        to[order] = np.arange(self.n)
        self.place = self._found(to[row], to[col])

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
    """[steps, width] each, targets and sources of updates, in the order of their levels.

    A step has no target twice. Where it is not full, its targets lie beyond the `size` places.
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
    offset = np.arange(len(group)) - np.repeat(begin, counts)
    step = np.repeat(np.cumsum(chunks) - chunks, counts) + offset // width
    shape = int(chunks.sum()), width
    padding = np.broadcast_to(size + np.arange(width), shape), *(np.zeros(shape, np.int64) for _ in sources)
    tables = [np.array(a, np.int32) for a in padding]
    for table, values in zip(tables, (target, *sources), strict=True):
        table[step, offset % width] = values[order]
    return tuple(tables)


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
    F = jnp.zeros((values.shape[0], plan.places, LANES), values.dtype)
    F = F.at[:, plan.place].add(jnp.moveaxis(values, 1, 2))

    def step(F: Array, update: tuple[Array, ...]) -> tuple[Array, None]:
        target, p, q, k = update
        change = F[:, p] * (F[:, q] / F[:, k])
        return F.at[:, target].add(-change, mode="drop", unique_indices=True), None

    F = lax.scan(step, mesh_axes.varying(F, values), tuple(map(jnp.asarray, plan.steps[0])))[0]
    inverse = 1 / F[:, : plan.n]
    lower = slice(plan.n, plan.n + plan.fill)
    return F.at[:, : plan.n].set(inverse).at[:, lower].multiply(inverse[:, plan.column])


def _solved(F: Array, r: Array, *, plan: Elimination, is_transposed: bool, backend: str) -> Array:
    if backend == "numba":
        x = spmv_cpu.of_lanes(F, r, plan.for_cpu[1], plan.start, plan.n, plan.fill, 0, is_transposed)
        if x is not None:
            return x
    n, fill = plan.n, plan.fill
    inverse = F[:, :n]
    first, last = F[:, n : n + fill], F[:, n + fill :]
    _, forward, backward = plan.steps
    in_order = jnp.zeros_like(inverse).at[:, plan.order].set(inverse)[:, :, None]

    def swept(x: Array, entries: Array, steps: tuple[np.ndarray, ...], scaled: bool) -> Array:
        """Substitution by these entries; `scaled`: by D⁻¹ times what is found."""

        def step(x: Array, update: tuple[Array, ...]) -> tuple[Array, None]:
            target, entry, source, k = update
            weight = entries[:, entry] * inverse[:, k] if scaled else entries[:, entry]
            change = weight[:, :, None] * x[:, source]
            return x.at[:, target].add(-change, mode="drop", unique_indices=True), None

        x = lax.scan(step, x, tuple(map(jnp.asarray, steps)))[0]
        return x * in_order if scaled else x

    x = mesh_axes.varying(r, (F, r))
    if is_transposed:
        return swept(swept(x, last, forward, True), first, backward, False)
    return swept(swept(x, first, forward, False), last, backward, True)


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
