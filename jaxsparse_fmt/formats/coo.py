"""COO, coordinates (Barbieri et al., §2.1; Wang and Gu, §2.1), in canonical order: by row, then by column.

         ⎡ 1 . 2 . ⎤      values   [1 2 3 4 5 6]      [nnz]
         ⎢ . 3 . . ⎥      row_idx  [0 0 1 2 2 2]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      col_idx  [0 2 1 0 2 3]      [nnz] int32
         ⎣ . . . . ⎦

Bytes: nnz·(value + 8). A product finds where each row ends, in one pass over `row_idx`, and goes on as CSR: atomics
would add in no fixed order.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, register
from jaxsparse_fmt.formats.csr import csr_rule
from jaxsparse_fmt.kernels import columns, entries
from jaxsparse_fmt.kernels.address import expand_ptr
from jaxsparse_fmt.kernels.column_rule import Explicit
from jaxsparse_fmt.matrix import SparseMatrix


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class COO(SparseMatrix):
    row_idx: Array
    col_idx: Array

    name = "coo"
    sized_by_nnz = True

    @property
    def faces(self) -> CooFaces:
        return CooFaces(self.shape, self.n_stored)

    @property
    def structure(self) -> tuple[Array, ...]:
        return self.row_idx, self.col_idx

    def coordinates(self) -> tuple[Array, Array, Array]:
        return self.row_idx, self.col_idx, jnp.arange(self.nnz, dtype=index_dtype(self.nnz))

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        storing.check_memory(cls.name, csr.nnz, csr, dtype, max_bytes, index=8)
        values, col_idx, row_ptr = storing.csr_arrays(csr, dtype)
        return cls(values, csr.shape, csr.nnz, backend, expand_ptr(jnp, row_ptr, csr.nnz), col_idx)


def row_pointers(row: Array, n_rows: int) -> Array:
    """Where each row begins in sorted row indices [nnz], [n_rows + 1]: the last entry of a row says where it ends."""
    index = index_dtype(row.shape[0])
    last = jnp.concatenate([row[1:] != row[:-1], jnp.ones(1, bool)])
    ends = jnp.zeros(n_rows + 1, index).at[jnp.where(last, row + 1, n_rows + 1)]
    ends = ends.set(jnp.arange(1, row.shape[0] + 1, dtype=index), mode="drop")
    return lax.cummax(ends)


@dataclasses.dataclass(frozen=True)
class CooFaces:
    """The three faces over coordinates that are sorted by row."""

    shape: tuple[int, int]
    n_stored: int

    def _as_csr(self, structure) -> dict[str, Any]:
        row, col = structure
        arrays = {"slice_ptr": row_pointers(row, self.shape[0]), "col_idx": col}
        return {"arrays": arrays, "rule": csr_rule(self.shape, self.n_stored, Explicit())}

    def product(self, values, x, structure, backend):
        return columns.product(values, x, **self._as_csr(structure), backend=backend)

    def transposed(self, values, y, structure, backend):
        if backend == "numba":
            return columns.transposed(values, y, **self._as_csr(structure), backend=backend)
        return entries.transposed_reference(values, y, *structure, n_cols=self.shape[1])

    def outer(self, y, x, structure, backend):
        if backend == "numba":
            return columns.outer(y, x, **self._as_csr(structure), backend=backend)
        return entries.outer_reference(y, x, *structure, n_cols=self.shape[1])
