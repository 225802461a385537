"""HYB (Bell and Garland; Wang and Gu, §2.3.4): ELL of width K for the first entries of rows, and COO for the rest.

         ⎡ 1 . 2 . ⎤      K = 1
         ⎢ . 3 . . ⎥      values    [1 3 4 ·  |  2 5 6]      [K·n_rows + n_tail]: ELL, then the rest by row
         ⎢ 4 . 5 6 ⎥      col_idx   [0 1 0 4]                [K·n_rows] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      tail_row  [0 2 2]                  [n_tail] int32
                          tail_col  [2 2 3]                  [n_tail] int32

A product adds what ELL's and COO's products give, without atomics. K is the largest number that at least a third of the
rows reach (`width="third"`, cuSPARSE's choice), the mean row length (`width="mean"`), or a given number.

Bytes: K·n_rows·(value + 4) + n_tail·(value + 8).
"""

from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Csr, CsrArrays, Target
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, RowIndex, host_places, index_in_data, storage_format
from jaxsparse_fmt.formats.csr import csr_product
from jaxsparse_fmt.kernels import spmv
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.layout.address import Slices, expand_ptr, row_pointers
from jaxsparse_fmt.kernels.layout.columns import Rule


@storage_format
class HYB(ByRule):
    """HYB with an ELL part of `width` columns, to which its rules belong."""

    col_idx: ColumnIndex
    tail_row: RowIndex
    tail_col: ColumnIndex
    width: int

    name = "hyb"
    layout_options = ("width",)
    _transposed_face, _outer_face = SparseMatrix._transposed_face, SparseMatrix._outer_face

    @property
    def _n_main(self) -> int:
        """Places of the ELL part."""
        return self.n_stored - self.tail_col.shape[0]

    @property
    def _arrays(self) -> dict[str, Array]:
        return {"col_idx": self.col_idx}

    @property
    def _rule(self) -> Rule:
        return Rule(self.shape, self._n_main, self.address, self.column)

    @property
    def _sums(self) -> int:
        return 0

    def _product_face(self, values: Array, x: Array, backend: str) -> Array:
        n_main, n_tail = self._n_main, self.tail_col.shape[0]
        y: Any = 0
        # A slice of `values` would be a copy for a kernel; so a single matrix is passed whole, with an offset.
        whole = values.shape[0] == 1 and selection.is_pallas(spmv.supported(backend, values, x))
        head, tail, offset = (values, values, n_main) if whole else (values[:, :n_main], values[:, n_main:], 0)
        if n_main:
            y = spmv.product(head, x, self._arrays, rule=self._rule, backend=backend)
        if n_tail:
            start = row_pointers(self.tail_row, self.shape[0]).astype(index_dtype(offset + n_tail)) + offset
            y += csr_product(tail, x, start, self.tail_col, self.shape, backend, offset)
        return y

    @standard_promotion
    def entries(self) -> tuple[Array, Array, Array, Array]:
        main = self._rule.places(self._arrays)
        n_tail, tail_row = self.tail_col.shape[0], jnp.minimum(self.tail_row, max(self.shape[0] - 1, 0))
        ptr = row_pointers(self.tail_row, self.shape[0])
        j = (jnp.arange(n_tail, dtype=ptr.dtype) - ptr[tail_row]).astype(jnp.int32) + self.width
        parts = zip(main, (tail_row, self.tail_col, j), strict=True)
        row, col, j = (jnp.concatenate(pair) for pair in parts)
        return row, col, index_in_data(self, row, j, col < self.shape[1]), self.values

    def _places_on_host(self) -> tuple[np.ndarray, ...]:
        tail = np.asarray(self.tail_row), np.asarray(self.tail_col)
        parts = zip(host_places(self._arrays, self._rule), tail, strict=True)
        return *map(np.concatenate, parts), np.asarray(self.values)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, width: int | str = "third") -> Self:
        """Splits the rows.

        Args:
          width: K, a number of columns from 0 up, "third" or "mean".
        """
        xp, rows = building.namespace(csr.data), building.rows_of(csr)
        address = Slices(csr.shape[0], max(csr.shape[0], 1))
        K = _width(width, rows.lengths)
        main = building.Rows(rows.lengths.clip(max=K))
        tail = building.Rows(rows.lengths - main.lengths)
        ptr = building.starts(xp, tail.lengths, index_dtype(csr.nnz))
        n_main, n_tail = K * csr.shape[0], int(ptr[-1])
        building.check_memory(cls.name, n_main + n_tail, csr, target)
        values, col_idx = building.fill(csr, main, address, {}, n_main, target.dtype)
        beyond = CsrArrays(csr.data, csr.indices, csr.indptr + K, csr.shape)  # rows without their first K entries
        by_row = Slices(csr.shape[0], 1), {"slice_ptr": ptr}
        tail_values, tail_col = building.fill(beyond, tail, *by_row, n_tail, target.dtype)
        index = {"col_idx": col_idx, "tail_row": expand_ptr(xp, ptr, n_tail), "tail_col": tail_col}
        return building.made(cls, csr, target, xp.concatenate([values, tail_values]), **index, width=K)


def _width(width: Any, lengths: Any) -> int:
    if not isinstance(width, str):
        return building.positive("width", width, "column", least=0)
    if width not in ("third", "mean"):
        raise ValueError(f"width must be a number of columns, 'third' or 'mean'; got {width!r}")
    n_rows = lengths.shape[0]
    if n_rows == 0:
        return 0
    if width == "mean":
        return round(int(lengths.sum()) / n_rows)
    return int(building.namespace(lengths).sort(lengths)[n_rows - -(-n_rows // 3)])
