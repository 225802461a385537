"""CSC, compressed sparse columns (Barbieri et al., §2): CSR of the transpose.

         ⎡ 1 . 2 . ⎤      values   [1 4 3 2 5 6]      [nnz], by column, then by row
         ⎢ . 3 . . ⎥      row_idx  [0 2 1 0 2 2]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      col_ptr  [0 2 3 5 6]        [n_cols + 1] int32, int64 from 2³¹ entries
         ⎣ . . . . ⎦

Bytes: nnz·(value + 4) + 4·(n_cols + 1). Its transposed product is CSR's product, kernel and all, and bit-reproducible;
its product scatters.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

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
class CSC(SparseMatrix):
    row_idx: Array
    col_ptr: Array

    name = "csc"
    transposes = True
    sized_by_nnz = True

    @property
    def faces(self) -> CscFaces:
        return CscFaces(self.shape, self.n_stored)

    @property
    def structure(self) -> tuple[Array, ...]:
        return self.row_idx, self.col_ptr

    def coordinates(self) -> tuple[Array, Array, Array]:
        # The canonical order is the stable order by row of entries that already rise by column.
        order = jnp.argsort(self.row_idx, stable=True)
        places = jnp.arange(self.nnz, dtype=index_dtype(self.nnz))
        entry = jnp.zeros_like(places).at[order].set(places, unique_indices=True)
        return self.row_idx, expand_ptr(jnp, self.col_ptr, self.nnz), entry

    @classmethod
    def from_csr(cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None) -> Self:
        storing.check_memory(cls.name, csr.nnz, csr, dtype, max_bytes)
        if storing.namespace(csr.data) is np:
            csc = csr.tocsc()
            arrays = jnp.asarray(csc.data, dtype), jnp.asarray(csc.indices, np.int32), jnp.asarray(csc.indptr)
        else:
            arrays = _by_column(csr.indptr, csr.indices, csr.data.astype(dtype), csr.shape[1])
        values, row_idx, col_ptr = arrays
        return cls(values, csr.shape, csr.nnz, backend, row_idx, col_ptr.astype(index_dtype(csr.nnz)))


@functools.partial(jax.jit, static_argnums=3)
def _by_column(indptr, indices, data, n_cols):
    row = expand_ptr(jnp, indptr, data.shape[0])
    order = jnp.argsort(indices, stable=True)
    ends = jnp.searchsorted(indices[order], jnp.arange(n_cols + 1, dtype=indices.dtype))
    return data[order], row[order], ends


@dataclasses.dataclass(frozen=True)
class CscFaces:
    """The three faces over compressed columns: those of the transpose in CSR, product and transposed exchanged."""

    shape: tuple[int, int]
    n_stored: int

    def _as_csr(self, structure) -> dict[str, Any]:
        """The transpose."""
        row, col_ptr = structure
        n_rows, n_cols = self.shape
        rule = csr_rule((n_cols, n_rows), self.n_stored, Explicit())
        return {"arrays": {"slice_ptr": col_ptr, "col_idx": row}, "rule": rule}

    def product(self, values, x, structure, backend):
        if backend == "numba":
            return columns.transposed(values, x, **self._as_csr(structure), backend=backend)
        (row, col_ptr), (n_rows, n_cols) = structure, self.shape
        col = expand_ptr(jnp, col_ptr, self.n_stored)
        return entries.product_reference(values, x, row, col, n_rows=n_rows, n_cols=n_cols)

    def transposed(self, values, y, structure, backend):
        return columns.product(values, y, **self._as_csr(structure), backend=backend)

    def outer(self, y, x, structure, backend):
        if backend == "numba":
            return columns.outer(x, y, **self._as_csr(structure), backend=backend)
        row, col_ptr = structure
        return entries.outer_reference(y, x, row, expand_ptr(jnp, col_ptr, self.n_stored), n_cols=self.shape[1])
