"""Tuning constants of the kernels, and the shapes of blocks that follow from them."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launch parameters of the kernels, from the sweeps in `benchmarks/results`; a few were tuned by hand, as noted."""

    rows: int = 128  # lanes of one block; Mosaic GPU works in warpgroups, so a multiple of 128 there
    very_short_rows: int = 4  # mean entries below which rows are very short
    long_rows: int = 32  # mean entries from which rows are long
    very_long_rows: int = 256  # mean entries from which each lane of a row that lanes share has many
    warp: int = 32  # threads
    stages: int = 2
    columns_a_lane: int = 4  # right-hand sides that a lane has in registers, and the most that it loads at once
    pack_bytes: int = 16  # of right-hand sides that a lane loads at once: the longest load
    lanes_a_row: int = 8  # the most neighbouring lanes that share a row's right-hand sides; beyond, A is read again
    columns_alone: int = 8  # right-hand sides of a lane if neighbouring lanes do not share them
    most_kept: int = 2**12  # sums that a block keeps in shared memory until it has them all
    # Bytes of sums for which a lane of such a block loads entries before it uses the first. By hand: 16 sums of 4 bytes
    # and 8 of 8 bytes were the fastest on most of nine matrices.
    kept_loads: int = 64
    stream: bool = True  # Triton: evict what is read once, the matrix, before what is read again, x
    # Lanes of one thread, and entries of a lane that are loaded before the first is used, by what a lane loads in
    # addition to its values. If that is little, one lane per thread keeps too few bytes in flight.
    loads: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=lambda: {
            "full": (1, 4),  # a 4-byte index, or its own bounds
            "permuted": (1, 8),  # the same if a 4-byte sum goes to its row through a permutation
            "deltas": (2, 4),  # a 2-byte index in a slice
            "long deltas": (2, 8),
            "very short deltas": (2, 2),
            "whole diagonals": (1, 4),  # from the first row to the last
            "narrow whole diagonals": (2, 4),  # the same for sums of 4 bytes or fewer
            "blocks": (1, 9),  # whole blocks, of 9 entries at most: one index for several values
            "diagonals": (2, 8),  # of a slice: no index, and short rows that one trip covers
            "shared": (4, 4),  # neighbouring lanes share a row of CSR
            "very long shared": (4, 8),
            "tiles": (1, 8),  # CSR5: a lane has entries of several rows
            "columns": (1, 4),  # tiles and shared rows, if a lane has several right-hand sides to itself
        }
    )
    # In Mosaic GPU a thread has one lane, since more lanes cost registers, and so threads; these are exceptions.
    mosaic_loads: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=lambda: {
            "permuted": (1, 4),
            "blocks": (1, 4),
            "diagonals": (4, 2),  # measured on 2026-11-23
            "very short deltas": (2, 3),
            "very long shared": (1, 12),  # by hand: float32 gained 4%; with 16 float64 lost 2%
        }
    )
    # Triton: lanes of a block of whole diagonals, which finds x and values of earlier rows in the L1 cache; fewer lanes
    # if there would be fewer blocks than `least_blocks`, two for each multiprocessor of an H200.
    diagonal_rows: int = 512
    least_blocks: int = 264
    update_rows: int = 1024  # lanes of a block of updates (`lane_updates.py`); fewer for more blocks, as above
    least_update_rows: int = 512
    sweep_rows: int = 1024  # elements of each vector that a block of a pass over vectors takes at a time
    sweep_blocks: int = 512  # the most blocks of such a pass; each leaves 4 partial sums
    most_parts: int = 4096  # the most partial sums, since every block of a later pass adds them up for itself
    # The CPU.
    serial_entries: int = 2**15  # a product of fewer, 10 µs of work, is not worth waking a thread for
    piece_entries: int = 2**15  # entries that a thread takes at a time, at least
    long_piece: int = 2**18  # and at most, unless `most_pieces` are not enough
    most_pieces: int = 64
    most_copies: int = 8  # copies of the result, into which pieces of a transposed product add
    entries_a_copy: int = 4  # least entries of a piece, times n_cols, since each copy is written and read


LAUNCH = Launch()


@dataclasses.dataclass(frozen=True)
class Block:
    """The shape of one block: lanes, lanes of one thread, and entries that a lane loads before it uses the first."""

    rows: int
    lanes_per_thread: int
    unroll: int


def block(dialect: str, load: str, slice_size: int) -> Block:
    """The block for a storage, by a key of `LAUNCH.loads` and the lanes of a slice; of whole diagonals all rows.

    It is a whole slice, whose bounds are scalars, if the slice size is a power of two that fits.
    """
    per_thread, unroll = LAUNCH.loads[load]
    if dialect == "mosaic":
        per_thread, unroll = LAUNCH.mosaic_loads.get(load, (1, unroll))
        return Block(LAUNCH.rows * per_thread, per_thread, unroll)
    rows = LAUNCH.diagonal_rows if load.endswith("whole diagonals") else LAUNCH.rows
    while rows > LAUNCH.rows and slice_size < rows * LAUNCH.least_blocks:
        rows //= 2
    fits = LAUNCH.warp * per_thread <= slice_size <= rows and slice_size & (slice_size - 1) == 0
    return Block(slice_size if fits else rows, per_thread, unroll)


def tile_block(lanes: int, p: int, kept_bytes: int = 0) -> Block:
    """The block for a tile of `lanes` and p right-hand sides; `kept_bytes`: of a sum, if the block keeps its sums.

    In Mosaic GPU it may have several warpgroups. A sum or maximum over lanes would cover one warpgroup, so the kernel
    has none, and lanes exchange sums through scratch and barriers.
    """
    per_thread, unroll = LAUNCH.loads["tiles" if p == 1 else "columns"]
    return Block(lanes, per_thread, LAUNCH.kept_loads // kept_bytes if kept_bytes else unroll)


def columns_block(dialect: str, load: str, lanes_a_row: int) -> Block:
    """The block for several right-hand sides: at least a warp of rows, and in Mosaic GPU one warpgroup."""
    rows = max(LAUNCH.warp * lanes_a_row, LAUNCH.rows)
    return Block(rows, rows // LAUNCH.rows if dialect == "mosaic" else 1, LAUNCH.loads[load][1])


def lanes_block(blocks: int) -> Block:
    """The block for updates of systems in lanes, of which there are `blocks`."""
    rows = LAUNCH.update_rows if blocks <= LAUNCH.least_blocks else LAUNCH.least_update_rows
    return Block(rows, 1, 2)


def sweep_block(dialect: str) -> Block:
    """The block of a pass over vectors: eight entries per lane in Mosaic GPU, four lanes per thread in Triton."""
    rows = LAUNCH.sweep_rows
    return Block(LAUNCH.rows, 1, rows // LAUNCH.rows) if dialect == "mosaic" else Block(rows, 4, 1)
