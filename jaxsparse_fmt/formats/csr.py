"""CSR, compressed sparse rows (Barbieri et al., §2.2; Wang and Gu, §2.2).

         ⎡ 1 . 2 . ⎤      values   [1 2 3 4 5 6]      [nnz]
         ⎢ . 3 . . ⎥      col_idx  [0 2 1 0 2 3]      [nnz] int32
         ⎢ 4 . 5 6 ⎥      row_ptr  [0 2 3 6 6]        [n_rows + 1] int32, int64 from 2³¹ entries
         ⎣ . . . . ⎦

Bytes: nnz·(value + 4) + 4·(n_rows + 1). Each row is a slice by itself, so nothing is padded. On a GPU `threads_per_row`
neighbouring threads walk a row together, so that their loads coalesce (Wang and Gu's CSRV), and add their sums in the
warp; with one thread (CSRS) they do not.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, register
from jaxsparse_fmt.kernels.address import Slices
from jaxsparse_fmt.kernels.column_rule import ColumnRule
from jaxsparse_fmt.kernels.rule import Rule

THREADS = (1, 2, 4, 8, 16, 32)


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CSR(ByRule):
    col_idx: Array
    row_ptr: Array
    threads_per_row: int

    name = "csr"
    sized_by_nnz = True
    layout_options = ("threads_per_row",)

    @property
    def address(self) -> Slices:
        return Slices(self.shape[0], 1, self.threads_per_row)

    def csr_arrays(self) -> tuple[Array, Array, Array]:
        return self.values, self.col_idx, self.row_ptr

    @classmethod
    def from_csr(
        cls, csr: Csr, *, dtype: Any, backend: str, max_bytes: int | None, threads_per_row: int | None = None
    ) -> Self:
        """Takes the arrays as they are.

        Args:
          threads_per_row: 1, 2, 4, 8, 16 or 32, on a GPU; None: the largest that a row of mean length keeps busy.

        Raises:
          ValueError: another number of threads.
        """
        chosen = threads_for(csr.nnz, csr.shape[0]) if threads_per_row is None else threads_per_row
        chosen = storing.threads(chosen, THREADS, csr.shape[0])
        storing.check_memory(cls.name, csr.nnz, csr, dtype, max_bytes)
        values, col_idx, row_ptr = storing.csr_arrays(csr, dtype)
        return cls(values, csr.shape, csr.nnz, backend, col_idx, row_ptr, chosen)


def csr_rule(shape: tuple[int, int], nnz: int, column: ColumnRule) -> Rule:
    """The rule of CSR with `threads_for` its rows, for formats that borrow its kernel; `row_ptr` is its `slice_ptr`."""
    return Rule(shape, nnz, Slices(shape[0], 1, threads_for(nnz, shape[0])), column)


def threads_for(nnz: int, n_rows: int) -> int:
    """The largest power of two up to 32 that is at most the mean row length."""
    return max(t for t in THREADS if t <= max(nnz / max(n_rows, 1), 1) and (t == 1 or t * n_rows < storing.MAX_LANES))
