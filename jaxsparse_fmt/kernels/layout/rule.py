"""A storage rule: an address rule and a column rule for a matrix of a given size; the coordinates of stored places."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels.layout.address import Address, Arrays, Jagged, take
from jaxsparse_fmt.kernels.layout.columns import ColumnRule, Explicit, unpack_pattern

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Rule:
    """A storage rule: static and hashable, so that matrices of one rule share compiled code."""

    shape: tuple[int, int]
    n_stored: int
    address: Address
    column: ColumnRule

    def col_idx(self, arrays: Arrays) -> Array:
        """The column of every stored place [n_stored]; n_cols or more in padding that has none."""
        if isinstance(self.address, Jagged) or isinstance(self.column, Explicit):
            return arrays["col_idx"]
        owner, _ = self.address.owners(jnp, arrays, self.n_stored)
        chunk = jnp.arange(owner.shape[0], dtype=index_dtype(owner.shape[0]))
        return self.column.of_chunks(arrays, self.address.lanes, chunk, owner, self.shape).reshape(-1)

    def places(self, arrays: Arrays) -> tuple[Array, Array, Array]:
        """Row in the matrix, column (n_cols in padding) and j in the row, of every stored place: [n_stored] each."""
        n_rows, n_cols = self.shape
        row, j = self.address.slots(jnp, arrays, self.n_stored)
        col_idx = self.col_idx(arrays)
        live = (row < n_rows) & (col_idx < n_cols)
        if "pattern" in arrays:
            live &= unpack_pattern(arrays["pattern"], self.n_stored)
        row = jnp.minimum(row, max(n_rows - 1, 0))
        return row if "perm" not in arrays else take(arrays["perm"], row), jnp.where(live, col_idx, n_cols), j
