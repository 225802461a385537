"""CSC, compressed sparse columns (Barbieri et al., §2): CSR of the transpose.

         ⎡ 1 . 2 . ⎤      values   [1 4 3 2 5 6]      [nnz], by column, then by row
         ⎢ . 3 . . ⎥      row_idx  [0 2 1 0 2 2]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      col_ptr  [0 2 3 5 6]        [n_cols + 1] int32, int64 from 2³¹ entries
         ⎣ . . . . ⎦

Bytes: nnz·(value + 4) + 4·(n_cols + 1). Its transposed product runs CSR's kernel and is
bit-reproducible; its product scatters, on a CPU as CSR's transposed product does.
"""

from typing import Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, Pointer, RowIndex, storage_format
from jaxsparse_fmt.formats.csr import csr_product
from jaxsparse_fmt.kernels import coordinates, spmv_cpu
from jaxsparse_fmt.kernels.cpu import csr_operations
from jaxsparse_fmt.kernels.layout.address import expand_ptr, when_run


@storage_format
class CSC(SparseMatrix):
    row_idx: RowIndex
    col_ptr: Pointer

    name = "csc"
    _transposes = True
    _sized_by_nnz = True

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        n_rows, n_cols = self.shape
        col_idx = expand_ptr(jnp, self.col_ptr, self.n_stored)
        return coordinates.product_reference(values, x, self.row_idx, col_idx, n_rows=n_rows, n_cols=n_cols)

    def _transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        return csr_product(values, y, self.col_ptr, self.row_idx, self.shape[::-1], backend)

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        """By CSR's kernels of the transpose."""
        a, b = (b, a) if face == "outer" else (a, b)
        face = {"product": "transposed", "transposed": "product", "outer": "outer"}[face]
        return spmv_cpu.of_rows(face, a, b, self.col_ptr, self.row_idx, self.shape[::-1])

    @standard_promotion
    def entries(self) -> tuple[Array, Array, Array, Array]:
        # The entries already rise by column, so that a stable sort by row gives the canonical order.
        places = jnp.arange(self.n_stored, dtype=index_dtype(self.nnz))
        order = jnp.argsort(when_run(self.row_idx), stable=True)
        entry = jnp.zeros_like(places).at[order].set(places, unique_indices=True)
        return self.row_idx, expand_ptr(jnp, self.col_ptr, self.n_stored), entry, self.values

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        row, ptr, values = map(np.asarray, (self.row_idx, self.col_ptr, self.values))
        return row, expand_ptr(np, ptr, self.n_stored), values

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        building.check_pointers(csr.shape[1], "columns", csr.nnz, target)
        building.check_memory(cls.name, csr.nnz, csr, target)
        if building.namespace(csr.data) is np:
            csc = csr_operations.transposed(csr) if csr_operations.serves(csr) else csr.tocsc()
            values, row_idx, col_ptr = csc.data, csc.indices, csc.indptr
        else:
            values, row_idx, col_ptr = entry_index.transposed(csr)[0]
        arrays = (values, target.dtype), (row_idx, np.int32), (col_ptr, index_dtype(csr.nnz))
        values, row_idx, col_ptr = (a.astype(dtype, copy=False) for a, dtype in arrays)
        return building.made(cls, csr, target, values, row_idx=row_idx, col_ptr=col_ptr)
