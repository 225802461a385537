"""COO, coordinates (Barbieri et al., §2.1; Wang and Gu, §2.1), in canonical order: by row, then by column.

         ⎡ 1 . 2 . ⎤      values   [1 2 3 4 5 6]      [nnz]
         ⎢ . 3 . . ⎥      row_idx  [0 0 1 2 2 2]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      col_idx  [0 2 1 0 2 3]      [nnz] int32
         ⎣ . . . . ⎦

Bytes: nnz·(value + 8). A product adds as CSR's product does, after a pass that makes row pointers: atomics would add
in no fixed order. On a CPU no pass is needed.
"""

from typing import Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, ColumnIndex, RowIndex, storage_format
from jaxsparse_fmt.formats.csr import csr_product
from jaxsparse_fmt.kernels import spmv_cpu
from jaxsparse_fmt.kernels.layout.address import row_pointers


@storage_format
class COO(SparseMatrix):
    row_idx: RowIndex
    col_idx: ColumnIndex

    name = "coo"
    _sized_by_nnz = True
    _in_order = True

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        row_ptr = row_pointers(self.row_idx, self.shape[0])
        return csr_product(values, x, row_ptr, self.col_idx, self.shape, backend)

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        return spmv_cpu.of_rows(face, a, b, self.row_idx, self.col_idx, self.shape, "coordinates")

    def entries(self) -> tuple[Array, Array, Array, Array]:
        return self.row_idx, self.col_idx, jnp.arange(self.n_stored, dtype=index_dtype(self.nnz)), self.values

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        return tuple(map(np.asarray, (self.row_idx, self.col_idx, self.values)))

    @classmethod
    def from_csr(cls, csr: Csr, target: Target) -> Self:
        building.check_memory(cls.name, csr.nnz, csr, target, index=8)
        values, col_idx, _ = building.csr_arrays(csr, target.dtype)
        row_idx, _ = building.entries(csr)
        return building.made(cls, csr, target, values, row_idx=row_idx, col_idx=col_idx)
