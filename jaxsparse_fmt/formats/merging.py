"""Conversion into diagonals and blocks on a device, by merging and searching rows; no array of nnz numbers is sorted.

The columns of a row rise, and so do the diagonals and the blocks of its entries. `distinct` merges the rows of a group:
the least of the rows' next indices is the group's next index. Then `place` searches for the entry of every place in the
place's row. In a row with an entry at every place, bounds narrow the search to one entry.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats.building import namespace
from jaxsparse_fmt.kernels.layout.address import Arrays, Chunked, take
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal, Rule

STEPS = 8  # indices of a group found before the host checks for more
MOST_AT_ONCE = 4  # times `STEPS`, before the host's first check
MOST_STEPS = 1024  # passes over the rows, after which the host takes over
NONE = np.iinfo(np.int32).max  # no further index
HOLE, OUTSIDE = -1, -2  # in place of an entry: a place inside the matrix without one, and a place outside


def distinct(csr: Csr, perm: Any, group: int, column: Diagonal | Blocked) -> jax.Array | None:
    """The diagonals, or columns of blocks, that each `group` rows touch: [W, n_groups] int32, rising, then `NONE`.

    `perm` has the row of the matrix at each place of the groups, which need not be all rows. None if the host must find
    them: it has the matrix, or a group touches too many, or so many more than the mean that the result would be far
    larger than the matrix.
    """
    if namespace(csr.data) is np:
        return None
    n_groups = -(-(csr.shape[0] if perm is None else perm.shape[0]) // group)
    if csr.nnz == 0:
        return jnp.zeros((0, n_groups), jnp.int32)
    # Most groups have at most one index more than their rows have entries; then the host checks once.
    first = min(-(-(csr.nnz // (max(csr.shape[0], 1) * column.unit) + 1) // STEPS), MOST_AT_ONCE)
    entry, left, found = None, True, []
    steps, ahead = 0, first * STEPS
    while left:
        steps += ahead
        if steps > MOST_STEPS or steps * n_groups > max(4 * csr.nnz, 2**20):
            return None
        entry, left, indices = _merge(entry, csr.indptr, csr.indices, perm, group, column, ahead)
        found.append(indices)
        ahead = STEPS
    return jnp.concatenate(found) if len(found) > 1 else found[0]


@jax.jit
def counts(merged):
    """The number of indices of each group, [n_groups] int32."""
    return jnp.sum(merged != NONE, axis=0, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _merge(entry, indptr, indices, perm, group, column, steps):
    """The next `steps` indices of every group, from the entries `entry` [n_groups, group] on; None: the first."""
    n = indptr.shape[0] - 1 if perm is None else perm.shape[0]
    n_groups = -(-n // group)
    place = jnp.arange(n_groups * group, dtype=index_dtype(n_groups * group)).reshape(n_groups, group)
    row = jnp.minimum(place, n - 1).astype(jnp.int32)
    row = row if perm is None else take(perm, row)
    end = jnp.where(place < n, take(indptr, row + 1), 0)
    entry = jnp.where(place < n, take(indptr, row), 0) if entry is None else entry

    def index(entry):
        return column.index_of(row, take(indices, jnp.minimum(entry, indices.shape[0] - 1)))

    def step(state, _):
        entry, ahead = state
        least = jnp.min(ahead, axis=1)
        hit = ahead == least[:, None]
        entry, more = entry + (hit & (entry < end)), column.unit - 1
        if more:
            equal = prefix_length(jnp, lambda i: index(entry + i) == ahead, jnp.minimum(end - entry, more), more)
            entry += jnp.where(hit, equal, 0)
        ahead = jnp.where(hit, jnp.where(entry < end, index(entry), NONE), ahead)
        return (entry, ahead), least

    state = entry, jnp.where(entry < end, index(entry), NONE)
    (entry, _), found = lax.scan(step, state, None, length=steps, unroll=STEPS)
    return entry, jnp.any(entry < end), found


def prefix_length(xp: Any, holds: Callable[[Any], Any], count: Any, most: int) -> Any:
    """Length of the prefix of range(count) on which the monotone predicate `holds`; branch-free binary search.

    `most` is an upper bound of `count`. The search sets one bit of the result at a time and carries one array.
    """
    n = xp.zeros_like(count)
    for bit in reversed(range(most.bit_length())):
        more = n + (1 << bit)
        n = xp.where((more <= count) & holds(xp.clip(more, 1, xp.maximum(count, 1)) - 1), more, n)
    return n


def place(csr: Csr, rule: Rule, arrays: Arrays, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """`values` [n_stored] of a storage, and a bool mask of the places that hold an entry or lie outside the matrix.

    `csr` is on a device, and the rule orders the places of a row by column.
    """
    if csr.nnz == 0 or rule.n_stored == 0:
        return jnp.zeros(rule.n_stored, dtype), jnp.ones(rule.n_stored, bool)
    arrays = {name: a for name, a in arrays.items() if a is not None}
    most = int(_longest_search(csr.indptr, arrays, rule))
    entry = _find(csr.indptr, csr.indices, arrays, rule, (1 << most.bit_length()) - 1)
    # The search is a program of its own, since XLA would repeat it for each gathered array.
    return _gather(csr.data, entry, np.dtype(dtype))


@functools.partial(jax.jit, static_argnums=2)
def _longest_search(indptr, arrays, rule):
    """The most entries between the bounds of any place, not counting the last."""
    _, widths = rule.address.bounds(jnp, arrays, rule.n_stored)
    lengths = jnp.diff(indptr).astype(jnp.int32)
    lengths = lengths if "perm" not in arrays else take(lengths, arrays["perm"])
    width = take(widths, jnp.arange(lengths.shape[0], dtype=jnp.int32) // rule.address.lanes)
    return jnp.max(jnp.minimum(lengths - 1, width.astype(jnp.int32) - lengths), initial=0)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _find(indptr, indices, arrays, rule, most):
    """The entry of every place, `HOLE` or `OUTSIDE`: [n_stored]. No search goes over more than `most` entries."""
    assert isinstance(rule.address, Chunked)
    row, col, j = rule.places(arrays)
    owner, _ = rule.address.owners(jnp, arrays, rule.n_stored)
    _, widths = rule.address.bounds(jnp, arrays, rule.n_stored)
    width = take(widths, owner).astype(jnp.int32)[:, None]
    width = jnp.broadcast_to(width, (owner.shape[0], rule.address.lanes)).reshape(-1)
    first = take(indptr, row)
    length = (take(indptr, row + 1) - first).astype(jnp.int32)
    # The first and the last entry of its row that place j can hold, since width − 1 − j places follow the place.
    low, high = jnp.maximum(length - (width - j), 0), jnp.minimum(j, length - 1)

    def column(i):
        return take(indices, jnp.clip(first + low + i, 0, indices.shape[0] - 1))

    before = prefix_length(jnp, lambda i: column(i) < col, high - low, most)
    found = (length > 0) & (column(before) == col)
    return jnp.where(found, first + low + before, jnp.where(col < rule.shape[1], HOLE, OUTSIDE))


@functools.partial(jax.jit, static_argnums=2)
def _gather(data, entry, dtype):
    return jnp.where(entry >= 0, take(data, jnp.maximum(entry, 0)).astype(dtype), 0), entry != HOLE
