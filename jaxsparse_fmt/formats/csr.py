"""CSR, compressed sparse rows (Barbieri et al., §2.2; Wang and Gu, §2.2).

         ⎡ 1 . 2 . ⎤      values   [1 2 3 4 5 6]      [nnz]
         ⎢ . 3 . . ⎥      col_idx  [0 2 1 0 2 3]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      row_ptr  [0 2 3 6 6]        [n_rows + 1] int32, int64 from 2³¹ entries
         ⎣ . . . . ⎦

Bytes: nnz·(value + 4) + 4·(n_rows + 1). Each row is a slice by itself, so nothing is padded. On a GPU `threads_per_row`
neighbouring threads walk a row together, so that their loads coalesce (Wang and Gu's CSRV), and add their sums in the
warp. The loads of one thread a row (CSRS) do not coalesce.
"""

from typing import Self

import numpy as np
import scipy

from jaxsparse_fmt._types import Csr, CsrArrays, Target
from jaxsparse_fmt.core.entry_index import at_hand
from jaxsparse_fmt.formats import building, footprint
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, Pointer, storage_format
from jaxsparse_fmt.kernels import spmv, spmv_cpu
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.kernels.layout.columns import Explicit, Rule

THREADS = (1, 2, 4, 8, 16, 32)


@storage_format
class CSR(ByRule):
    col_idx: ColumnIndex
    row_ptr: Pointer
    threads_per_row: int

    name = "csr"
    _sized_by_nnz = True
    _in_order = True
    layout_options = ("threads_per_row",)
    _rule_of_rows = staticmethod(lambda n_rows, threads_per_row: Slices(n_rows, 1, threads_per_row))

    def _native_face(self, face: str, a: Array, b: Array) -> Array | None:
        return spmv_cpu.of_rows(face, a, b, self.row_ptr, self.col_idx, self.shape)

    def csr_arrays(self) -> CsrArrays:
        return CsrArrays(self.data, self.col_idx, self.row_ptr, self.shape)

    def _diagonal_on_host(self, k: int) -> np.ndarray:
        return self._read_only().diagonal(k).astype(self.dtype, copy=False)

    def _read_only(self) -> Csr:
        if self.dtype.itemsize == 2 or not at_hand(self):
            return self.to_scipy()
        return scipy.sparse.csr_array(tuple(map(np.asarray, self.csr_arrays())), shape=self.shape)

    def to_scipy(self) -> Csr:
        return self.csr_arrays().to_scipy()

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, threads_per_row: int | None = None) -> Self:
        """Takes the arrays of `csr` unchanged.

        Args:
          threads_per_row: 1, 2, 4, 8, 16 or 32, on a GPU; None: the most that a row of mean length keeps busy.
        """
        chosen = threads_for(csr.nnz, csr.shape[0]) if threads_per_row is None else threads_per_row
        chosen = building.threads(*THREADS)(chosen, csr.shape[0])
        building.check_memory(cls.name, csr.nnz, csr, target)
        values, col_idx, row_ptr = building.csr_arrays(csr, target.dtype)
        return building.made(cls, csr, target, values, col_idx=col_idx, row_ptr=row_ptr, threads_per_row=chosen)

    @classmethod
    def _footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        csr, longest = pattern.csr, pattern.longest
        threads = threads_for(csr.nnz, csr.shape[0])
        yield footprint.Storage(
            cls.name,
            {"threads_per_row": threads},
            footprint.csr_bytes(csr, pattern.dtype.itemsize),
            csr.nnz,
            footprint.trips(longest, threads) + (threads > 1),  # one to add the threads' sums
            by_columns=False,
            words=(f"rows of up to {longest} entries",),
        )


def csr_product(
    values: Array,  # [b, offset + nnz]
    x: Array,  # [b, n_cols, p]
    row_ptr: Array,  # [n_rows + 1], from `offset`
    col_idx: Array,  # [nnz]
    shape: tuple[int, int],
    backend: str,
    offset: int = 0,
) -> Array:  # [b, n_rows, p]
    """A·x by CSR's kernel, for other formats."""
    nnz = col_idx.shape[0]
    rule = Rule(shape, nnz, Slices(shape[0], 1, threads_for(nnz, shape[0])), Explicit(offset))
    return spmv.product(values, x, {"slice_ptr": row_ptr, "col_idx": col_idx}, rule=rule, backend=backend)


def threads_for(nnz: int, n_rows: int) -> int:
    """The largest power of two up to 32 that is at most the mean row length."""
    mean = max(nnz / max(n_rows, 1), 1)
    return max([t for t in THREADS if t <= mean and (t == 1 or t * n_rows < building.MAX_LANES)])
