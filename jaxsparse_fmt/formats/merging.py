"""Into diagonals and blocks on a device: rows are merged and searched, and nothing as long as the entries is sorted.

The columns of a row rise, and so do the diagonals and the blocks in which they lie. `distinct` merges the rows of a
group: the least index that any of them has next is the group's next. A step reads one sector of every row, so that
rows of 7 entries are read 7 times. Then every place of the storage looks for its entry in its row (`place`), between
bounds that leave one entry to look at where the row has an entry at every place: a pass over the places that writes the
number of the entry, and one that gathers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats.storing import namespace
from jaxsparse_fmt.kernels.address import Arrays, Chunked, take
from jaxsparse_fmt.kernels.column_rule import Blocked, Diagonal, pack_pattern
from jaxsparse_fmt.kernels.rule import Rule

STEPS = 8  # indices of a group that are found before the host asks whether there are more
MOST_AT_ONCE = 4  # times that, before it asks first
MOST_STEPS = 1024  # after as many, each a pass over the rows, the host does it all
NONE = np.iinfo(np.int32).max  # no further index
HOLE, OUTSIDE = -1, -2  # instead of an entry: a place in the matrix, and one outside


def distinct(csr: Csr, perm: Any, group: int, column: Diagonal | Blocked) -> jax.Array | None:
    """The diagonals, or the columns of blocks, that each group of rows touches.

    Args:
      csr: on a device; of one on the host nothing is said.
      perm: the row of the matrix at each place of the groups, which need not be all rows; None: as in the matrix.
      group: rows of a group.
      column: whose index of an entry is meant.

    Returns:
      [W, n_groups] int32, rising, `NONE` behind the last of a group; None where that is for the host to find: where a
      group touches too many, or so many more than the mean that the result would dwarf the matrix.
    """
    if namespace(csr.data) is np:
        return None
    n_groups = -(-(csr.shape[0] if perm is None else perm.shape[0]) // group)
    if csr.nnz == 0:
        return jnp.zeros((0, n_groups), jnp.int32)
    # As many as rows have entries, and one more, are mostly all, and then the host asks once.
    first = min(-(-(csr.nnz // (max(csr.shape[0], 1) * column.unit) + 1) // STEPS), MOST_AT_ONCE)
    at, left, found, steps, ahead = None, True, [], 0, first * STEPS
    while left:
        steps += ahead
        if steps > MOST_STEPS or steps * n_groups > max(4 * csr.nnz, 2**20):
            return None
        at, left, indices = _merge(at, csr.indptr, csr.indices, perm, group, column, ahead)
        found.append(indices)
        ahead = STEPS
    return jnp.concatenate(found) if len(found) > 1 else found[0]


@jax.jit
def counts(merged):
    """How many indices each group has, [n_groups] int32."""
    return jnp.sum(merged != NONE, axis=0, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _merge(at, indptr, indices, perm, group, column, steps):
    """The next `steps` indices of every group, from the entries `at` [n_groups, group]; None: from the first."""
    n = indptr.shape[0] - 1 if perm is None else perm.shape[0]
    n_groups = -(-n // group)
    place = jnp.arange(n_groups * group, dtype=index_dtype(n_groups * group)).reshape(n_groups, group)
    row = jnp.minimum(place, n - 1).astype(jnp.int32)
    row = row if perm is None else take(perm, row)
    end = jnp.where(place < n, take(indptr, row + 1), 0)
    at = jnp.where(place < n, take(indptr, row), 0) if at is None else at

    def index(entry):
        return column.index_of(row, take(indices, jnp.minimum(entry, indices.shape[0] - 1)))

    def step(state, _):
        at, ahead = state
        least = jnp.min(ahead, axis=1)
        hit = ahead == least[:, None]
        at, more = at + (hit & (at < end)), column.unit - 1
        if more:
            with_it = _count(lambda i: index(at + i) == ahead, jnp.minimum(end - at, more), more)
            at += jnp.where(hit, with_it, 0)
        ahead = jnp.where(hit, jnp.where(at < end, index(at), NONE), ahead)
        return (at, ahead), least

    state = at, jnp.where(at < end, index(at), NONE)
    (at, _), found = lax.scan(step, state, None, length=steps, unroll=STEPS)
    return at, jnp.any(at < end), found


def _count(holds: Callable[[Any], Any], count: Any, most: int) -> Any:
    """How many of 0, 1, … count − 1 `holds` is true of, if it is of no number behind one of which it is not.

    `most` is no less than any count. Bit by bit, so that only one array is carried.
    """
    n = jnp.zeros_like(count)
    for bit in reversed(range(most.bit_length())):
        more = n + (1 << bit)
        n = jnp.where((more <= count) & holds(jnp.clip(more, 1, jnp.maximum(count, 1)) - 1), more, n)
    return n


def place(csr: Csr, rule: Rule, arrays: Arrays, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """`values` [n_stored] of a storage, and which of its places hold an entry or lie outside the matrix.

    Args:
      csr: on a device.
      rule: of the storage, whose places of a row rise by column.
      arrays: that the rule reads.
    """
    if csr.nnz == 0 or rule.n_stored == 0:
        return jnp.zeros(rule.n_stored, dtype), jnp.ones(rule.n_stored, bool)
    arrays = {name: a for name, a in arrays.items() if a is not None}
    most = int(_longest_search(csr.indptr, arrays, rule))
    entry = _find(csr.indptr, csr.indices, arrays, rule, (1 << most.bit_length()) - 1)
    # By themselves, since XLA would search anew for each of what is made of an entry.
    return _gather(csr.data, entry, np.dtype(dtype))


def pattern(csr: Csr, present: jax.Array, dtype: Any) -> jax.Array | None:
    """The pattern of a storage that has a place for every entry."""
    return pack_pattern(present, any_zero(csr.data, np.dtype(dtype)))


@functools.partial(jax.jit, static_argnums=1)
def any_zero(data, dtype):
    """Whether an entry is zero, once it is of that dtype."""
    return jnp.any(data.astype(dtype) == 0)


def _bounds(j: Any, length: Any, width: Any) -> tuple[Any, Any]:
    """The first and the last of a row's entries that place j of `width` can hold: j before it, width − 1 − j after."""
    return jnp.maximum(length - (width - j), 0), jnp.minimum(j, length - 1)


@functools.partial(jax.jit, static_argnums=2)
def _longest_search(indptr, arrays, rule):
    """Of all places the most entries between the bounds, without the last."""
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
    low, high = _bounds(j, length, width)

    def column(i):
        return take(indices, jnp.clip(first + low + i, 0, indices.shape[0] - 1))

    before = _count(lambda i: column(i) < col, high - low, most)
    found = (length > 0) & (column(before) == col)
    return jnp.where(found, first + low + before, jnp.where(col < rule.shape[1], HOLE, OUTSIDE))


@functools.partial(jax.jit, static_argnums=2)
def _gather(data, entry, dtype):
    return jnp.where(entry >= 0, take(data, jnp.maximum(entry, 0)).astype(dtype), 0), entry != HOLE
