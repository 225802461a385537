"""Models of the bytes that a format holds and a product moves, of which all that choose or build formats make use.

`row_lengths` are entries a row, integers [n_rows] in storage order. No function loops over rows. "Places" are stored
entries with padding, `n_stored` of a format.
"""

from typing import Any

import numpy as np

from jaxsparse_fmt._types import Csr


def longest_by_slice(row_lengths: np.ndarray, slice_size: int) -> np.ndarray:
    """The longest of the rows in each slice, int64 [n_slices]; allocates nothing larger."""
    if len(row_lengths) == 0:
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(row_lengths, np.arange(0, len(row_lengths), slice_size)).astype(np.int64)


def bytes_moved(storage: int, shape: tuple[int, int], vector_bytes: int, copied: int = 0) -> int:
    """The least bytes that y = A·x moves: `storage` bytes of A, x read once and y written once.

    Args:
      copied: entries of x that are first copied into another order.
    """
    return storage + vector_bytes * (sum(shape) + 2 * copied)


def csr_bytes(csr: Csr, value_bytes: int) -> int:
    """Bytes of a matrix in CSR with values of `value_bytes` bytes and 32-bit indices and pointers."""
    return csr.nnz * (value_bytes + 4) + 4 * (csr.shape[0] + 1)


def sliced_places(row_lengths: np.ndarray, slice_size: int) -> int:
    """Places of HLL (Barbieri et al., §3.2), and for sorted rows of pJDS, b_r = slice_size (Kreutzer et al., §II.A).

    The last slice is as tall as the others.
    """
    return slice_size * int(longest_by_slice(row_lengths, slice_size).sum())


def hyb_width(row_lengths: Any, rule: str) -> int:
    """K, the columns of HYB's ELL part (Bell and Garland 2009; Wang and Gu, §2.3.4).

    Args:
      row_lengths: an array of NumPy or of another library that follows the array API standard.
      rule: "third", the largest K that at least a third of the rows reach; or "mean", the mean length, rounded.
    """
    n_rows = row_lengths.shape[0]
    if n_rows == 0:
        return 0
    if rule == "mean":
        return round(int(row_lengths.sum()) / n_rows)
    xp = row_lengths.__array_namespace__()
    return int(xp.sort(row_lengths)[n_rows - -(-n_rows // 3)])
