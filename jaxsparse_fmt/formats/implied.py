"""Conversion into storages whose columns are implied: by the diagonals, or the blocks, that groups of rows touch.

A slice of C rows has `across` groups of rows side by side: one in HDIA, its rows of blocks in BSR. A group stores each
diagonal or block that holds one of its entries, in rising order, and a slice is as wide as its widest group. On a
device `merging.py` finds them; on the host SciPy counts blocks, and NumPy sorts diagonals and what would take too much
memory as blocks.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, merging, statistics
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal, Rule, pack_pattern


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
        csr, merged = self.csr, merging.distinct(self.csr, self.perm, self.rows, self.column)
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
        ptr, rule = self._rule(name, np.asarray(merging.counts(merged)), target)
        ptr = jnp.asarray(ptr)
        index = self._index(_in_slices(merged, ptr, rule, self.across, self.places), ptr)
        return index, *merging.place(self.csr, rule, index | {"perm": self.perm}, target.dtype)

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

            return building.by_rows(np, some, stored.reshape(-1, self.across))[0].reshape(-1)

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
        present = building.by_rows(np, outside, owner, np.arange(owner.size))[0].reshape(-1)
        present[place] = True
        return arrays, values, present


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _in_slices(merged, slice_ptr, rule, across, places):
    """The diagonals or blocks of each group, in the order of storage; one past the last in padding."""
    address, arrays = Slices(merged.shape[1], across), {"slice_ptr": slice_ptr // places}
    group, k = address.slots(jnp, arrays, rule.n_stored // places)
    found = merged.at[k, group].get(mode="fill", fill_value=merging.NONE)
    return jnp.minimum(found, -(-rule.shape[1] // rule.column.unit))
