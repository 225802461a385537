"""Conversion into storages whose columns are implied: by the diagonals, or the blocks, that groups of rows touch.

A slice of C rows has `across` groups of rows side by side: one in HDIA, its rows of blocks in BSR. A group stores each
diagonal or block that holds one of its entries, in rising order, and a slice is as wide as its widest group.

On the host SciPy counts blocks, and NumPy sorts diagonals and what would take too much memory as blocks. On a device
rows are merged and searched, and no array of nnz numbers is sorted. The columns of a row rise, and so do the diagonals
and the blocks of its entries. `distinct` merges the rows of a group: the least of the rows' next indices is the group's
next index. Then `place` searches for the entry of every place in the place's row. In a row with an entry at every
place, bounds narrow the search to one entry.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, statistics
from jaxsparse_fmt.kernels.cpu.over_rows import in_pieces
from jaxsparse_fmt.kernels.layout.address import Arrays, Chunked, Slices, prefix_length, take
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal, Rule, pack_pattern

STEPS = 8  # indices of a group found before the host checks for more
MOST_AT_ONCE = 4  # times `STEPS`, before the host's first check
MOST_STEPS = 1024  # passes over the rows, after which the host takes over
NONE = np.iinfo(np.int32).max  # no further index
HOLE, OUTSIDE = -1, -2  # in place of an entry: a place inside the matrix without one, and a place outside


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of rows of a matrix."""

    csr: Csr
    column: Diagonal | Blocked
    lanes: int  # C
    across: int  # groups that a slice has side by side
    words: str  # the name of what groups touch, for the message of a refusal
    perm: Any = None  # the row of the matrix at each place of storage; None: as in the matrix

    @property
    def rows(self) -> int:
        """Rows of a group, or all of the matrix if those are fewer."""
        return min(self.lanes // self.across, max(self.csr.shape[0], 1))

    @property
    def places(self) -> int:
        """Places that share an index."""
        return self.lanes // self.across * self.column.unit

    def store(self, cls: type[building.Format], target: Target, **fields: Any) -> building.Format:
        """The matrix in the format `cls`; `fields` are those that do not follow from the groups."""
        csr, merged = self.csr, distinct(self.csr, self.perm, self.rows, self.column)
        if merged is not None:
            build = functools.partial(self._built_on_device, merged)
        else:
            build = self._built_of_blocks if self._are_blocks_small(target) else self._built_on_host
        index, values, present = build(cls.name, target)
        pattern, n_holes = pack_pattern(present)
        index |= {"pattern": pattern, "reads_pattern": n_holes > 0 and building.has_zeros(csr, target.dtype)}
        return building.made(cls, csr, target, values, **index, **fields)

    def _rule(self, name: str, touched: np.ndarray, target: Target) -> tuple[np.ndarray, Rule]:
        """`slice_ptr` and the rule for `touched` diagonals or blocks of each group. TooLarge: too little memory."""
        counts = building.longest_by_slice(touched, self.across) * self.lanes * self.column.unit
        cause = f"its {self.csr.nnz} entries touch {int(touched.sum())} {self.words}"
        building.check_memory(name, int(counts.sum()), self.csr, target, 4 / self.places, cause)
        ptr, shape = building.pointers(counts), self.csr.shape
        return ptr, Rule(shape, int(ptr[-1]), Slices(shape[0], self.lanes), self.column)

    def _in_slots(self, name: str, count: np.ndarray, touched: np.ndarray, target: Target) -> tuple[Any, ...]:
        """The rule, the slot of each index that the groups touch, group by group, and the index arrays."""
        ptr, rule = self._rule(name, count, target)
        group, unit = np.repeat(np.arange(count.size), count), self.column.unit
        owner, lane = np.divmod(group, self.across)
        k = np.arange(group.size) - (np.cumsum(count) - count)[group]
        slot = (ptr[owner] // (self.lanes * unit) + k) * self.across + lane
        index = np.full(rule.n_stored // self.places, -(-self.csr.shape[1] // unit), np.int32)
        index[slot] = touched
        return rule, slot, self._index(index, ptr)

    def _index(self, touched: Any, slice_ptr: Any) -> dict[str, Any]:
        return {"offsets" if isinstance(self.column, Diagonal) else "block_col": touched, "slice_ptr": slice_ptr}

    def _built_on_device(self, merged: jax.Array, name: str, target: Target) -> tuple[dict[str, Any], Any, Any]:
        """The index arrays, `values`, and which places hold an entry or lie outside the matrix; as `_built_on_host`."""
        ptr, rule = self._rule(name, np.asarray(counts(merged)), target)
        ptr = jnp.asarray(ptr)
        index = self._index(_in_slices(merged, ptr, rule, self.across, self.places), ptr)
        return index, *place(self.csr, rule, index | {"perm": self.perm}, target.dtype)

    def _are_blocks_small(self, target: Target) -> bool:
        """Whether the blocks, at most one for each run of entries in a row, fit in memory if SciPy makes them."""
        csr, column = self.csr, self.column
        if self.perm is not None or not isinstance(column, Blocked) or csr.nnz == 0:
            return False
        block = column.index_of(None, np.asarray(csr.indices))
        runs = csr.shape[0] + np.count_nonzero(block[1:] != block[:-1])
        allowed = building.limit(csr.nnz * (target.dtype.itemsize + 4), target.max_bytes)
        return runs * self.places * csr.data.dtype.itemsize <= allowed

    def _built_of_blocks(self, name: str, target: Target) -> tuple[dict[str, Any], Any, Any]:
        """As `_built_on_host`, of the blocks that SciPy makes."""
        csr, r, c = building.on_host(self.csr), self.lanes // self.across, self.column.unit
        (n_rows, n_cols), index = csr.shape, csr.indices.dtype
        n_groups, n_blocks = -(-n_rows // r), -(-n_cols // c)
        indptr = np.pad(csr.indptr, (0, n_groups * r - n_rows), mode="edge")

        def blocks(data: np.ndarray) -> Any:
            S = scipy.sparse.csr_array((data, csr.indices, indptr), shape=(n_groups * r, n_blocks * c))
            S = S.tobsr((r, c))
            S.sort_indices()
            return S

        B = blocks(csr.data)
        rule, slot, arrays = self._in_slots(name, np.diff(B.indptr), B.indices, target)
        stored = np.full(rule.n_stored // self.places, -1, index)  # the block in each slot
        stored[slot] = np.arange(B.indices.size)

        def in_slots(a: np.ndarray, padding: Any) -> np.ndarray:
            """The blocks [blocks, r, c] in the order of storage [n_stored]."""

            def some(stored: np.ndarray) -> tuple[np.ndarray]:
                found = np.take(a, stored, axis=0, mode="clip")
                found[stored < 0] = padding
                return (found.transpose(0, 3, 1, 2),)

            return in_pieces(some, stored.reshape(-1, self.across))[0].reshape(-1)

        values = in_slots(B.data.astype(target.dtype, copy=False), 0)
        if B.data.size == csr.nnz:  # no holes
            return arrays, values, np.ones(0, bool)
        present = blocks(np.ones(csr.nnz, bool)).data
        present[B.indptr[-2] :, n_rows - (n_groups - 1) * r :] = True
        present[B.indices == n_blocks - 1, :, n_cols - (n_blocks - 1) * c :] = True
        return arrays, values, in_slots(present, True)

    def _built_on_host(self, name: str, target: Target) -> tuple[dict[str, Any], Any, Any]:
        csr, perm = building.on_host(self.csr), None if self.perm is None else np.asarray(self.perm)
        (n_rows, n_cols), lengths, unit = csr.shape, np.diff(csr.indptr), self.column.unit
        row = np.repeat(np.arange(n_rows), lengths)
        storage_row = row if perm is None else np.argsort(perm)[row]
        group = storage_row // self.rows
        touched = self.column.index_of(row, csr.indices).astype(np.int64) + n_rows  # from 1 on
        of_group, found = statistics.distinct(group, touched, n_rows + n_cols, lengths)
        number = np.searchsorted(of_group * (n_rows + n_cols) + found, group * (n_rows + n_cols) + touched)
        count = np.bincount(of_group, minlength=-(-n_rows // self.rows))
        rule, slot, arrays = self._in_slots(name, count, found - n_rows, target)
        chunk = slot // self.across * unit  # the first that an index stands for
        place = (chunk[number] + csr.indices % unit) * self.lanes + storage_row % self.lanes
        values = np.zeros(rule.n_stored, target.dtype)
        values[place] = csr.data

        def outside(owner: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray]:
            row = owner[:, None] * self.lanes + np.arange(self.lanes)
            named = arrays if perm is None else arrays | {"perm": perm}
            return ((row >= n_rows) | (self.column.of_chunks(named, self.lanes, chunk, owner, csr.shape) >= n_cols),)

        owner, _ = Slices(n_rows, self.lanes).owners(np, arrays, rule.n_stored)
        present = in_pieces(outside, owner, np.arange(owner.size))[0].reshape(-1)
        present[place] = True
        return arrays, values, present


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _in_slices(merged, slice_ptr, rule, across, places):
    """The diagonals or blocks of each group, in the order of storage; one past the last in padding."""
    address, arrays = Slices(merged.shape[1], across), {"slice_ptr": slice_ptr // places}
    group, k = address.slots(jnp, arrays, rule.n_stored // places)
    found = merged.at[k, group].get(mode="fill", fill_value=NONE)
    return jnp.minimum(found, -(-rule.shape[1] // rule.column.unit))


def distinct(csr: Csr, perm: Any, group: int, column: Diagonal | Blocked) -> jax.Array | None:
    """The diagonals, or columns of blocks, that each `group` rows touch: [W, n_groups] int32, rising, then `NONE`.

    `perm` has the row of the matrix at each place of the groups, which need not be all rows. None if the host must find
    them: it has the matrix, or a group touches too many, or so many more than the mean that the result would be far
    larger than the matrix.
    """
    if building.namespace(csr.data) is np:
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
