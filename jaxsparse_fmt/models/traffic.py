"""Performance models: warp iterations, code balance, stored places, bytes moved. NumPy only.

`row_lengths` are entries a row, integers [n_rows] in storage order; for a format that sorts its rows pass
`by_falling_length(row_lengths)`. No function loops over rows. "Places" are stored entries with padding, `n_stored` of a
format. Equation numbers are those of

    Wang and Gu, PELLR: a permuted ELLPACK-R format for SpMV on GPUs, 2020, §3
    Kreutzer et al., Sparse matrix-vector multiplication on GPGPU clusters, 2012, §II.B
"""

from typing import Any

import numpy as np

from jaxsparse_fmt._types import Csr

HYB_RULES = ("third", "mean")


def by_falling_length(row_lengths: np.ndarray) -> np.ndarray:
    """Row lengths in the order of PELLR, JDS and pJDS: the longest first."""
    return np.sort(row_lengths)[::-1]


def longest_by_slice(row_lengths: np.ndarray, slice_size: int) -> np.ndarray:
    """The longest of the rows in each slice, int64 [n_slices]; allocates nothing larger.

    Raises:
      ValueError: slice_size below 1.
    """
    if slice_size < 1:
        raise ValueError(f"a slice, block or warp has at least 1 row; got {slice_size}")
    if len(row_lengths) == 0:
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(row_lengths, np.arange(0, len(row_lengths), slice_size)).astype(np.int64)


def warp_iterations(row_lengths: np.ndarray, warp: int = 32) -> int:
    """N_iter: loop iterations of warps of `warp` threads, one row each; a warp waits for its longest row."""
    return int(longest_by_slice(row_lengths, warp).sum())  # Wang, eq. (1)


def work(row_lengths: np.ndarray) -> int:
    """N_p: multiplications and additions of a product, in any order of the rows.

    A row of b entries takes b products and b - 1 sums, an empty row nothing. Eq. (2) as printed counts -1 for an empty
    row and for each place of the last warp without a row; the two agree if there are none of either.
    """
    return int(2 * np.sum(row_lengths, dtype=np.int64) - np.count_nonzero(row_lengths))  # Wang, eq. (2)


def code_balance(row_length: float, alpha: float, value_bytes: int = 8, index_bytes: int = 4) -> float:
    """B_W: bytes moved a flop in a product with ELLPACK or pJDS, y read and written.

    Args:
      row_length: entries a row, N_nzr; above 0.
      alpha: the fraction of loads of x from memory: 1 without a cache, 1 / row_length with each element loaded once.
      value_bytes: of a value and of a vector element; the paper's doubles are 8.
    """
    moved = value_bytes + index_bytes + value_bytes * alpha + 2 * value_bytes / row_length
    return moved / 2  # Kreutzer, eq. (1)


def product_seconds(
    n_rows: int, row_length: float, alpha: float, bandwidth: float, value_bytes: int = 8, index_bytes: int = 4
) -> float:
    """T_MVM: seconds of a product at `bandwidth` bytes/s of the device's memory. The rest as in `code_balance`."""
    flops = 2 * n_rows * row_length
    return flops * code_balance(row_length, alpha, value_bytes, index_bytes) / bandwidth  # Kreutzer, eq. (2), left


def transfer_seconds(n_rows: int, bandwidth: float, value_bytes: int = 8) -> float:
    """T_PCI: seconds for moving x to the device and y back over a bus of `bandwidth` bytes/s."""
    return 2 * value_bytes * n_rows / bandwidth  # Kreutzer, eq. (2), right


def row_length_at(
    products: float,
    bandwidth_ratio: float,
    alpha: float | None = None,
    value_bytes: int = 8,
    index_bytes: int = 4,
    transferred: float = 2.0,
) -> float:
    """N_nzr at which a product takes `products` times as long as the transfers: T_MVM = products·T_PCI.

    For a halo between devices, `transferred` is its unknowns a row, and NVLink or a network takes the place of the bus.

    Args:
      products: 1 for eq. (3), where transfers cost half of the time; 10 for eq. (4), where they add a tenth.
      bandwidth_ratio: that of the device's memory over that of the bus, B_GPU / B_PCI.
      alpha: as in `code_balance`; None takes 1 / N_nzr, each element of x loaded once.
      transferred: vector elements a row that travel; the paper's 2 are x there and y back.

    Returns:
      Entries a row, not rounded; 0 or less if no row is short enough.
    """
    per_entry = 1 + index_bytes / value_bytes
    if alpha is None:  # then alpha·N_nzr = 1, and the equation is explicit
        return (transferred * products * bandwidth_ratio - 3) / per_entry
    return (transferred * products * bandwidth_ratio - 2) / (alpha + per_entry)  # Kreutzer, eqs. (3) and (4)


def bytes_moved(storage: int, shape: tuple[int, int], vector_bytes: int = 8) -> int:
    """The least bytes that y = A·x moves: `storage` bytes of A, x read once and y written once."""
    return storage + vector_bytes * sum(shape)


def csr_bytes(csr: Csr, value_bytes: int) -> int:
    """Bytes of a matrix in CSR with values of `value_bytes` bytes and 32-bit indices and pointers."""
    return csr.nnz * (value_bytes + 4) + 4 * (csr.shape[0] + 1)


def ell_places(row_lengths: np.ndarray, alignment: int = 1) -> int:
    """Places of ELL, and of ELLPACK-R with columns at multiples of `alignment` rows: Barbieri et al., §2.4 and §3.1."""
    return int(np.max(row_lengths, initial=0)) * (-(-len(row_lengths) // alignment) * alignment)


def sliced_places(row_lengths: np.ndarray, slice_size: int) -> int:
    """Places of HLL (Barbieri et al., §3.2), and for sorted rows of pJDS, b_r = slice_size (Kreutzer et al., §II.A).

    The last slice is as tall as the others. One full row of N and a single entry in the rest take
    (b_r + 1)·N - b_r places in pJDS where b_r divides N.
    """
    return slice_size * int(longest_by_slice(row_lengths, slice_size).sum())


def hyb_width(row_lengths: Any, rule: str = "third") -> int:
    """K, the columns of HYB's ELL part (Bell and Garland 2009; Wang and Gu, §2.3.4).

    Args:
      row_lengths: an array of NumPy or of another library that follows the array API standard.
      rule: "third", the largest K that at least a third of the rows reach; or "mean", the mean length, rounded.

    Raises:
      ValueError: another rule.
    """
    if rule not in HYB_RULES:
        raise ValueError(f"the rule for HYB's width must be 'third' or 'mean', got {rule!r}")
    n_rows = row_lengths.shape[0]
    if n_rows == 0:
        return 0
    if rule == "mean":
        return round(int(row_lengths.sum()) / n_rows)
    xp = row_lengths.__array_namespace__()
    return int(xp.sort(row_lengths)[n_rows - -(-n_rows // 3)])


def pieces(row_lengths: np.ndarray, width: int, piece: int) -> np.ndarray:
    """Lengths, at most `piece`, of the pieces that hold a row's entries beyond `width` (`formats/long_rows.py`)."""
    rest = row_lengths[row_lengths > width].astype(np.int64) - width
    if rest.max(initial=0) <= piece:
        return rest
    count = -(-rest // piece)
    lengths = np.full(int(count.sum()), piece)
    lengths[np.cumsum(count) - 1] = rest - (count - 1) * piece
    return lengths


def tail_bytes(entries: int, n_rows: int, n_pieces: int, value_bytes: int) -> int:
    """Bytes of the `entries` that `n_rows` rows have in pieces."""
    if entries == 0:
        return 0
    return entries * (value_bytes + 4) + 4 * (n_rows + n_pieces + 1) + (4 * (n_rows + 1) if n_pieces > n_rows else 0)


def diagonals(csr: Csr, slice_size: int | None = None) -> int:
    """Diagonals of HDIA, summed over the slices, with `slice_size` places each; without a slice_size those of DIA.

    Barbieri et al., §2.4 and §3.3. A diagonal of DIA takes n_rows places. The function sorts the entries once.
    """
    n_rows, n_cols = csr.shape
    row = np.repeat(np.arange(n_rows), np.diff(csr.indptr))
    diagonal = n_rows + csr.indices - row
    if slice_size is not None:
        diagonal += row // slice_size * (n_rows + n_cols)
    return np.unique(diagonal).size
