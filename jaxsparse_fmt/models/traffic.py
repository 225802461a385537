"""Performance models: warp iterations, code balance, stored places, bytes moved, cg over many devices. NumPy only.

`row_lengths` are entries a row, integers [n_rows] in storage order; for a format that sorts its rows pass
`by_falling_length(row_lengths)`. No function loops over rows. "Places" are stored entries with padding, `n_stored` of a
format. Equation numbers are those of

    Wang and Gu, PELLR: a permuted ELLPACK-R format for SpMV on GPUs, 2020, §3
    Kreutzer et al., Sparse matrix-vector multiplication on GPGPU clusters, 2012, §II.B
"""

import dataclasses
import math
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


# ------------------------------------------------------------------------------------------------ many devices

MODES = ("overlap", "naive", "vector")
# Vectors that a step of cg reads and writes: `solvers/cg.py`.
VECTORS, VECTORS_ONE_REDUCTION, VECTORS_PIPELINED = 10, 14, 15


@dataclasses.dataclass(frozen=True)
class Machine:
    """Bandwidths in bytes/s and latencies in s. The defaults are those of 8 H200 of one host, with NVLink.

    Source: a prototype of 7-point cg in f64 on such a machine (JAX 0.11.2, CUDA 13). A copy reached 4.0 TB/s; a step at
    4,096 unknowns, all launches, took 10 µs; two psums added 34 µs; a permute alone took 45 to 54 µs, and two in the
    loop, one beside the product, added 48 to 53 µs. 300 GB/s lies between larger faces in permutes (about 100) and in a
    gather (about 400). `benchmarks.scaling` measures all but the overlap anew. The product hides nearly all of an
    exchange (2026-11-25_overlap_2xh200.md); 0.5 leaves room for the kernels that pack what is sent and add what is
    received. The network is assumed, not measured: 400 Gb/s a device, and 10 µs for each doubling of the hosts.

    Attributes:
      memory: of a device, read and written.
      link: into a device, from others of its host.
      network: into a device, from other hosts.
      launches: of a step on one device.
      reduction: of a sum over the devices of a host, in the loop.
      collective: of an exchange of few bytes, by itself.
      hop: added for each doubling of the hosts.
      overlap: the fraction of an exchange that can run beside a product.
      per_host: devices of a host.
    """

    memory: float = 4.0e12
    link: float = 300e9
    network: float = 50e9
    launches: float = 10e-6
    reduction: float = 17e-6
    collective: float = 48e-6
    hop: float = 10e-6
    overlap: float = 0.5
    per_host: int = 8


@dataclasses.dataclass(frozen=True)
class Load:
    """The entries and the halo of each device: numbers, or arrays [parts].

    Attributes:
      parts: devices.
      rows, nnz: of a device.
      near, far: unknowns that a device receives from its host and from others, padding included.
      boundary: rows of a device that need any of these.
      collectives: in one exchange.
      among_all: whether all devices exchange with all, so that hops grow with the hosts; a permute takes one.
      entry_bytes: storage of an entry; 12 for CSR in doubles, 8 for diagonals.
      value_bytes: of a vector element.
    """

    parts: int
    rows: Any
    nnz: Any
    near: Any = 0
    far: Any = 0
    boundary: Any = 0
    collectives: int = 0
    among_all: bool = False
    entry_bytes: float = 12
    value_bytes: int = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds of a step, on the device that takes longest for each.

    Attributes:
      product: memory traffic of the product.
      vectors: memory traffic of the rest, and launches.
      exchange: of the halo.
      hidden: the part of the exchange that runs beside the product.
      reductions: sums over all devices, without those that run beside the product and the exchange.
    """

    product: float
    vectors: float
    exchange: float
    hidden: float
    reductions: float

    @property
    def seconds(self) -> float:
        return self.product + self.vectors + self.exchange - self.hidden + self.reductions

    @property
    def products(self) -> float:
        """Product over exchange: 1 in Kreutzer's condition (3), 10 in (4), with latency counted."""
        return self.product / self.exchange if self.exchange else math.inf


def cg_step(load: Load, machine: Machine, mode: str = "overlap", one_reduction: bool | str = False) -> Step:
    """The time of a step of cg; all devices wait for the slowest, in the product and in the exchange.

        product   (nnz·entry + 2·rows·value) / memory
        vectors   launches + (8, 12 or 13 vectors, and what the mode copies) / memory
        exchange  collectives·(collective + hops·hop) + value·(near / link + far / network)
        sums      2 or 1, each reduction + hop·log₂ hosts

    Copies by mode: "vector" [x | halo], "naive" a second y and the sum of both, "overlap" the rows on the boundary. In
    "vector" no part of the exchange is hidden. With one_reduction="pipelined" the sum runs beside product and exchange.

    Raises:
      ValueError: another mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    value, rows = load.value_bytes, np.asarray(load.rows, float)
    product = (load.nnz * load.entry_bytes + 2 * rows * value) / machine.memory
    alone, hosts = load.parts == 1, -(-load.parts // machine.per_host)
    is_pipelined = one_reduction == "pipelined"
    vectors = VECTORS_PIPELINED if is_pipelined else VECTORS_ONE_REDUCTION if one_reduction else VECTORS
    received = np.add(load.near, load.far)
    copied = {"vector": 2 * (rows + received), "naive": 4 * rows, "overlap": 4 * np.asarray(load.boundary)}[mode]
    moved = (vectors - 2) * rows + (copied if load.collectives else 0)
    hops = math.log2(hosts) if load.among_all else int(hosts > 1)
    exchange = load.collectives * (machine.collective + hops * machine.hop)
    exchange += value * np.max(np.add(np.divide(load.near, machine.link), np.divide(load.far, machine.network)))
    sums = 0 if alone else (1 if one_reduction else 2) * (machine.reduction + machine.hop * math.log2(hosts))
    longest = float(np.max(product))
    hidden = 0.0 if mode == "vector" else min(machine.overlap * float(exchange), longest)
    if is_pipelined:
        sums = max(0.0, sums - (longest + float(exchange) - hidden))
    return Step(
        longest, machine.launches + float(np.max(moved)) * value / machine.memory, float(exchange), hidden, sums
    )


def cheapest(loads: dict[str, Load], machine: Machine) -> tuple[str, dict[str, float]]:
    """The kind of exchange that takes the least time, and the seconds of each.

    The buffers and lists of some kinds grow with the devices. None is taken that brings a device more unknowns than it
    owns, and more than three times the fewest that any kind brings.
    """
    seconds = {kind: cg_step(load, machine, "vector").exchange for kind, load in loads.items()}
    received = {kind: float(np.max(np.add(load.near, load.far))) for kind, load in loads.items()}
    most = max(3 * min(received.values()), *(float(np.max(load.rows)) for load in loads.values()))
    return min((kind for kind in loads if received[kind] <= most), key=seconds.__getitem__), seconds
