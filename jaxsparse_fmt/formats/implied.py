"""Conversion into storages whose columns are implied: by the diagonals, or the blocks, that groups of rows touch.

A slice of C rows has `across` groups of rows side by side: one in HDIA, its rows of blocks in BSR. A group stores each
diagonal or block that holds one of its entries, in rising order, and a slice is as wide as its widest group. On a
device `merging.py` finds them; on the host, and where a group touches too many for that, NumPy sorts.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building, merging, statistics
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Blocked, Diagonal, Rule, pack_pattern


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of rows of a matrix.

    Attributes:
      lanes, across: C, and the groups that a slice has side by side.
      words: what the groups touch, for the message of a refusal.
      perm: the row of the matrix at each place of storage; None: as in the matrix.
    """

    csr: Csr
    column: Diagonal | Blocked
    lanes: int
    across: int
    words: str
    perm: Any = None

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
        build = self._built_on_host if merged is None else functools.partial(self._built_on_device, merged)
        index, values, present = build(cls.name, target)
        pattern, n_holes = pack_pattern(present)
        index |= {"pattern": pattern, "reads_pattern": n_holes > 0 and building.has_zeros(csr, target.dtype)}
        return building.made(cls, csr, target, values, **index, **fields)

    def _rule(self, name: str, touched: np.ndarray, target: Target) -> tuple[np.ndarray, Rule]:
        """`slice_ptr` and the rule, if the groups touch so many [n_groups], after the check that they fit in memory."""
        counts = building.longest_by_slice(touched, self.across) * self.lanes * self.column.unit
        cause = f"its {self.csr.nnz} entries touch {int(touched.sum())} {self.words}"
        building.check_memory(name, int(counts.sum()), self.csr, target, 4 / self.places, cause)
        ptr, shape = building.pointers(counts), self.csr.shape
        return ptr, Rule(shape, int(ptr[-1]), Slices(shape[0], self.lanes), self.column)

    def _index(self, touched: Any, slice_ptr: Any) -> dict[str, Any]:
        return {"offsets" if isinstance(self.column, Diagonal) else "block_col": touched, "slice_ptr": slice_ptr}

    def _built_on_device(self, merged: jax.Array, name: str, target: Target) -> tuple[dict[str, Any], Any, Any]:
        """The index arrays, `values`, and which places hold an entry or lie outside the matrix; as `_built_on_host`."""
        ptr, rule = self._rule(name, np.asarray(merging.counts(merged)), target)
        ptr = jnp.asarray(ptr)
        index = self._index(_in_slices(merged, ptr, rule, self.across, self.places), ptr)
        return index, *merging.place(self.csr, rule, index | {"perm": self.perm}, target.dtype)

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
        ptr, rule = self._rule(name, count, target)

        owner, lane = np.divmod(of_group, self.across)
        k = np.arange(found.size) - (np.cumsum(count) - count)[of_group]
        chunk = ptr[owner] // self.lanes + k * unit  # the first that an index stands for
        index = np.full(rule.n_stored // self.places, -(-n_cols // unit), np.int32)
        index[chunk // unit * self.across + lane] = found - n_rows
        place = (chunk[number] + csr.indices % unit) * self.lanes + storage_row % self.lanes
        values = np.zeros(rule.n_stored, target.dtype)
        values[place] = csr.data
        arrays = self._index(index, ptr)

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
    """What each group touches, in the order of storage; one past the last in padding."""
    address, arrays = Slices(merged.shape[1], across), {"slice_ptr": slice_ptr // places}
    group, k = address.slots(jnp, arrays, rule.n_stored // places)
    found = merged.at[k, group].get(mode="fill", fill_value=merging.NONE)
    return jnp.minimum(found, -(-rule.shape[1] // rule.column.unit))
