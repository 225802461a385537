"""HYB (Bell and Garland; Wang and Gu, §2.3.4): ELL of width K for the first entries of rows, and a tail for the rest.

         ⎡ 1 . 2 . ⎤      K = 1
         ⎢ . 3 . . ⎥      values     [1 3 4 ·  |  2 5 6]      [K·n_rows + n_tail]: ELL, then the rest by row
         ⎢ 4 . 5 6 ⎥      col_idx    [0 1 0 4]                [K·n_rows] int32, 4 = n_cols: padding
         ⎣ . . . . ⎦      tail_col   [2 2 3]                  [n_tail] int32
                          tail_rows  [0 2]                    [n_long] int32
                          tail_ptr   [0 1 3]                  [n_pieces + 1] int32
                          piece_ptr  None                     [n_long + 1] int32, where rows have several pieces

The rest is sorted COO with one row index a row; `long_rows.py` describes its sum, without atomics. K is the largest
number that at least a third of the rows reach (`width="third"`, cuSPARSE's choice), the mean row length
(`width="mean"`), or a given number.

Bytes: K·n_rows·(value + 4) + n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1) [+ 4·(n_long + 1)].
"""

import dataclasses
from typing import Any, Self

import numpy as np

from jaxsparse_fmt._types import Csr, Target, index_dtype
from jaxsparse_fmt.formats import building, footprint, long_rows
from jaxsparse_fmt.formats.base import ColumnIndex, storage_format
from jaxsparse_fmt.kernels.layout.address import Slices
from jaxsparse_fmt.models import traffic


@storage_format
class HYB(long_rows.Split):
    """HYB with an ELL part of `width` columns."""

    col_idx: ColumnIndex
    width: int

    name = "hyb"
    layout_options = ("width",)

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, *, width: int | str = "third") -> Self:
        """Splits the rows.

        Args:
          width: K, a number of columns from 0 up, "third" or "mean".
        """
        rows, address = building.rows_of(csr), Slices(csr.shape[0], max(csr.shape[0], 1))
        K = _width(width, rows.lengths)
        rows = dataclasses.replace(rows, lengths=rows.lengths.clip(max=K))
        n_head = int(rows.lengths.sum(dtype=index_dtype(csr.nnz)))
        n_stored = K * csr.shape[0] + csr.nnz - n_head
        building.check_memory(cls.name, n_stored, csr, target)
        values, col_idx = building.fill(csr, rows, address, {}, K * csr.shape[0], target.dtype)
        values, tail = long_rows.with_tail(values, csr, K)
        return building.made(cls, csr, target, values, **tail, col_idx=col_idx, width=K)

    @classmethod
    def footprints(cls, pattern: footprint.PatternCounts) -> footprint.Storages:
        lengths, itemsize = pattern.lengths, pattern.itemsize
        for K in _widths(lengths):
            places, tail = K * lengths.size, footprint.tail(lengths, K, itemsize, long_rows.PIECE)
            nbytes = places * (itemsize + 4) + tail.nbytes
            yield footprint.Storage(cls.name, {"width": K}, nbytes, places, footprint.trips(K), lengths.size, tail)


def _widths(lengths: np.ndarray) -> list[int]:
    """The first quartile and the median of the row lengths, and the widths by the rules of `traffic.hyb_width`."""
    if lengths.size == 0:
        return [0]
    quantiles = np.partition(lengths, (lengths.size // 4, lengths.size // 2))[[lengths.size // 4, lengths.size // 2]]
    return sorted({*map(int, quantiles), *(traffic.hyb_width(lengths, rule) for rule in traffic.HYB_RULES)})


def _width(width: Any, lengths: Any) -> int:
    if isinstance(width, str):
        if width not in traffic.HYB_RULES:
            raise ValueError(f"width must be a number of columns, 'third' or 'mean'; got {width!r}")
        return traffic.hyb_width(lengths, width)
    return building.positive("width", width, "column", least=0)
