"""What each format would hold of a matrix, in bytes, places and threads' steps, before anything is stored."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxsparse_fmt import features, traffic
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.formats import bsr, csr5, split
from jaxsparse_fmt.formats.csr import threads_for
from jaxsparse_fmt.formats.sell import best_cut
from jaxsparse_fmt.kernels import dialect
from jaxsparse_fmt.kernels.column_rule import PADDING
from jaxsparse_fmt.kernels.tiles import NARROW_PADDING

# Slices and sort windows, rows. The GPU's kernels work on 128 rows; a CPU's columns want to be long.
SLICES = {"gpu": ((128, 1), (32, 1), (128, 512), (128, 2048)), "cpu": ((1024, 1),)}
WORTH_SORTING = 1.1  # places an entry in slices of 128 rows, from which sorting may pay
MOST_PADDING = 3.0  # places an entry; no diagonal or block is worth more
L1_ROWS = 512  # neighbouring rows whose x the L1 cache of a multiprocessor holds, as it works on several blocks
SECTOR = 32  # bytes that the L1 cache asks the L2 for
HOT_BYTES = 2**18  # of x that CSR5 gathers in front: what the L1 cache of an H100 or H200 holds
SMALL_X = 2**20  # bytes of an x too small to be worth that, or what follows
# Of an entry's x, from which CSR5 does not miss the part of the L1 cache that sums take. By hand on an H200: 0.9 to 1.0
# of the time of sums written one by one from 0.40 on, but 2.3 times as much at 0.05, where all of x could be there.
KEPT_MISSES = 0.35
KEPT_ROWS = dialect.LAUNCH.most_kept * 2 // 3  # of a tile, on average, so that in all likelihood no tile has too many
UNROLL = 4  # entries whose loads a thread of the GPU's kernels issues together


@dataclasses.dataclass(frozen=True)
class Tail:
    """What rows have beyond a width, in pieces that are rows to CSR's kernel; or only their sums, which are added.

    Attributes:
      entries, nbytes: in the pieces, where they are not counted with the rows.
      rows: that are cut.
      pieces: [n_pieces], the entries of each.
    """

    entries: int
    nbytes: int
    rows: int
    pieces: np.ndarray


NO_TAIL = Tail(0, 0, 0, np.zeros(0, np.int64))


@dataclasses.dataclass(frozen=True)
class Storage:
    """What a format would hold of a matrix.

    Attributes:
      nbytes: read by a product, the tail's too.
      places: stored in the main part, padding included.
      walked: places that XLA goes over by columns, all slices to the end of the longest.
      trips: rounds of loads that the thread of the longest row makes.
      rows: of a slice.
      idle: places that the GPU's threads pass over to keep step with others, where that moves no bytes.
      by_columns: whether XLA goes by columns (`kernels/columns_reference.py`).
      rate: key of `SHARE`.
      sorted: by length, in windows.
      misses: of an entry's x in the L1 cache, 0 to 1; not known for a CPU.
      written: rows that are written one by one, as their sums are done.
      hops: of all tiles of CSR5, as of tiles of 512 lanes: of smaller ones more run beside each other.
      copied: numbers of x that are copied into another order before the product, by a kernel of its own.
      words: what is peculiar, for the reason.
    """

    format: str
    layout: dict[str, Any]
    nbytes: int
    places: int
    walked: int
    trips: int
    rate: str
    rows: int
    tail: Tail = NO_TAIL
    idle: int = 0
    by_columns: bool = True
    sorted: bool = False
    misses: float = 0.0
    written: int = 0
    hops: int = 0
    copied: int = 0
    words: tuple[str, ...] = ()


def storages(csr: Csr, dtype: Any, platform: str, shares_memory: bool = False) -> Iterator[Storage]:
    """What every format that may be worth it would hold.

    Args:
      shares_memory: whether there is a dialect in which the lanes of a block do.
    """
    on_gpu, a_sector = platform == "gpu", SECTOR // max(dtype.itemsize, 4)

    @functools.cache
    def misses(block: int, sigma: int) -> float:
        return features.misses(csr, block, sigma, a_sector)

    def keeps() -> bool:
        return shares_memory and misses(L1_ROWS, 1) >= KEPT_MISSES

    for storage in _storages(csr, dtype, platform, keeps):
        if on_gpu:
            of = (storage.rows, storage.layout["sigma"]) if storage.sorted else (L1_ROWS, 1)
            hot = storage.layout.get("hot", 0)
            left = features.missed_beside(csr, L1_ROWS, a_sector, hot) if hot else 1.0
            storage = dataclasses.replace(storage, misses=left * misses(*of))
        yield storage


def _storages(csr: Csr, dtype: Any, platform: str, keeps: Callable[[], bool]) -> Iterator[Storage]:
    lengths, itemsize, on_gpu = np.diff(csr.indptr), dtype.itemsize, platform == "gpu"
    yield _csr(csr, lengths, itemsize)
    if on_gpu:
        yield from _csr5(csr, itemsize, keeps)
    yield _ell(lengths, itemsize)
    uneven = features.slice_widths(lengths, 128).sum() * 128 > WORTH_SORTING * csr.nnz
    for slice_size, sigma in SLICES[platform]:
        if sigma == 1 or (uneven and sigma <= csr.shape[0]):
            C = min(slice_size, max(csr.shape[0], 1))
            widths = features.slice_widths(lengths, C, sigma)
            yield _hll(csr, widths, C, sigma, itemsize)
            if sigma == 1:  # sorted, the rows of a block read an x too wide for the L1 cache: up to three times as long
                yield _sell(csr, lengths, widths, C, itemsize)
    for width in _hyb_widths(lengths):
        yield _hyb(lengths, width, itemsize)
    zeros = functools.cache(lambda: not np.all(csr.data.astype(dtype, copy=False)))
    yield from _dia(csr, itemsize, zeros, on_gpu)
    if on_gpu:  # a CPU runs these far below the others
        yield from _hdia(csr, itemsize, zeros)
        yield from _bsr(csr, lengths, itemsize, zeros)


def _csr(csr: Csr, lengths: np.ndarray, itemsize: int) -> Storage:
    threads, longest = threads_for(csr.nnz, csr.shape[0]), int(lengths.max(initial=0))
    very_long = csr.nnz >= dialect.LAUNCH.very_long_rows * csr.shape[0]
    rate = "csr 1" if threads == 1 else "csr long" if very_long else "csr"
    return Storage(
        "csr",
        {"threads_per_row": threads},
        traffic.csr_bytes(csr, itemsize),
        csr.nnz,
        csr.nnz,
        _trips(longest, threads) + (threads > 1),  # one to add the threads' sums
        rate,
        1,
        idle=walked_together(lengths, threads) - csr.nnz,
        by_columns=False,
        words=(f"rows of up to {longest} entries",),
    )


def _csr5(csr: Csr, itemsize: int, keeps: Callable[[], bool]) -> Iterator[Storage]:
    lanes, depth = shape = csr5.tile_for(csr.nnz, csr.shape[0])
    size, rows = lanes * depth, csr5.rows_of(csr, shape)
    places = rows.tiles(size) * size
    n_tiles, n_rows = places // size, rows.lengths.shape[0]
    in_tile = lambda k: max(round(k / max(n_tiles, 1)), 1)  # noqa: E731
    hops = int((features.slice_widths(rows.lengths, in_tile(n_rows)) // depth).sum()) * lanes // 512
    tail = NO_TAIL
    if rows.cut is not None:
        tail = Tail(0, 0, rows.cut.size, np.zeros(n_rows - csr.shape[0], np.int64))
    n_cols, number = csr.shape[1], max(itemsize, 4)  # values of 16 bits multiply an x of 32
    large = n_cols * number >= SMALL_X
    for hot in (0, min(HOT_BYTES // number, n_cols // 4)) if large else (0,):
        # Beside hot columns, which lie in front, hardly any others are near enough for 16 bits.
        wide = 1.0 if hot else features.wide_blocks(csr, in_tile(csr.shape[0]), NARROW_PADDING)
        index = (2 + 2 * wide) * places + 4 * n_tiles * (lanes + 1 + (wide < 1) + (0 < wide < 1))
        index += (0 if rows.cut is None else 8 * rows.cut.size + 4) + (4 * n_cols if hot else 0)
        words = f"the {hot} most used columns first" if hot else f"{1 - wide:.0%} of tiles in 16 bits"
        storage = Storage(
            "csr5",
            {"tile_shape": shape, "hot": hot, "keep_sums": False},
            round(places * itemsize + index),
            places,
            places,
            depth // 8 + 2,  # and for the heads
            "csr5",
            1,
            tail,
            by_columns=False,
            hops=hops,
            written=n_rows,
            copied=n_cols if hot else 0,
            words=(words,),
        )
        yield storage
        if large and not hot and KEPT_ROWS * n_tiles >= n_rows and keeps():
            layout, words = storage.layout | {"keep_sums": True}, (words, "sums written together")
            yield dataclasses.replace(storage, layout=layout, written=0, words=words)


def _ell(lengths: np.ndarray, itemsize: int) -> Storage:
    places, longest = traffic.ell_places(lengths), int(lengths.max(initial=0))
    return Storage("ell", {}, places * (itemsize + 4), places, places, _trips(longest), "ell", lengths.size)


def _hll(csr: Csr, widths: np.ndarray, C: int, sigma: int, itemsize: int) -> Storage:
    places, longest = int(widths.sum()) * C, int(widths.max(initial=0))
    return Storage(
        "hll",
        {"slice_size": C, "sigma": sigma},
        places * (itemsize + 4) + _pointers(widths.size, places) + _permutation(csr, sigma),
        places,
        longest * widths.size * C,
        _trips(longest),
        "hll 32" if C == 32 else "hll",
        C,
        by_columns=_even(widths),
        sorted=sigma > 1,
    )


def _sell(csr: Csr, lengths: np.ndarray, widths: np.ndarray, C: int, itemsize: int) -> Storage:
    cut = best_cut(csr, widths, C)
    widths, tail = np.minimum(widths, cut), _tail(lengths, cut, itemsize)
    columns, longest = int(widths.sum()), int(widths.max(initial=0))
    places, wide = columns * C, features.wide_share(csr, C, max(cut, 1), PADDING)
    index = 4 * places  # of 32 bits, or of 16 with a base for each column of a slice
    if wide < 1:
        index = round((2 + 2 * wide) * places) + 4 * columns + (4 * widths.size if wide else 0)
    return Storage(
        "sell",
        {"slice_size": C, "sigma": 1, "max_width": max(cut, 1)},
        places * itemsize + index + _pointers(widths.size, places) + tail.nbytes,
        places,
        longest * widths.size * C,
        _trips(longest),
        ("sell" if wide < 1 else "hll") + (" 32" if C == 32 else ""),
        C,
        tail,
        by_columns=_even(widths),
        words=(f"{1 - wide:.0%} of columns in 16 bits",),
    )


def _hyb_widths(lengths: np.ndarray) -> list[int]:
    """What a quarter and a half of the rows do not pass, and the rules of `traffic.hyb_width`."""
    if lengths.size == 0:
        return [0]
    quantiles = np.partition(lengths, (lengths.size // 4, lengths.size // 2))[[lengths.size // 4, lengths.size // 2]]
    return sorted({*map(int, quantiles), *(traffic.hyb_width(lengths, rule) for rule in traffic.HYB_RULES)})


def _hyb(lengths: np.ndarray, width: int, itemsize: int) -> Storage:
    places, tail = width * lengths.size, _tail(lengths, width, itemsize)
    nbytes = places * (itemsize + 4) + tail.nbytes
    return Storage("hyb", {"width": width}, nbytes, places, places, _trips(width), "hyb", lengths.size, tail)


def _dia(csr: Csr, itemsize: int, zeros: Callable[[], bool], on_gpu: bool) -> Iterator[Storage]:
    n_rows = max(csr.shape[0], 1)
    counted = features.diagonals(csr, int(MOST_PADDING * csr.nnz / n_rows))
    if counted is not None:
        words = f"{counted.indices} diagonals"
        yield _implied("dia", {}, counted, n_rows, 0, itemsize, zeros, counted.indices, words)
        bits = counted.holes > 0 and zeros()  # kernels would read them for both entries of a place: no gain
        if on_gpu and not bits and counted.indices > 1 and features.is_mirrored(csr):
            stored = (counted.indices + 1) // 2
            half = features.Counted(stored * n_rows, 2 * counted.indices, counted.holes // 2)
            words += f", {counted.indices - stored} of them mirrored"
            yield _implied("sdia", {}, half, n_rows, 0, itemsize, zeros, counted.indices, words)


def _hdia(csr: Csr, itemsize: int, zeros: Callable[[], bool], C: int = 128) -> Iterator[Storage]:
    counted = features.diagonals_by_slice(csr, C)
    if counted.places <= MOST_PADDING * csr.nnz:
        n_slices = -(-csr.shape[0] // C)
        layout, mean = {"slice_size": C, "sigma": 1}, counted.indices / max(n_slices, 1)
        pointers, words = _pointers(n_slices, counted.places), f"{mean:.3g} diagonals a slice"
        yield _implied("hdia", layout, counted, C, pointers, itemsize, zeros, mean, words)


def _bsr(csr: Csr, lengths: np.ndarray, itemsize: int, zeros: Callable[[], bool]) -> Iterator[Storage]:
    (r, c) = shape = bsr.best_block(csr, itemsize)
    C = bsr.slice_rows(csr.shape[0], r)
    if r * c == 1:
        return
    counted = features.blocks(csr, shape, C)
    if counted.places <= MOST_PADDING * csr.nnz:
        pointers, words = _pointers(-(-csr.shape[0] // C), counted.places), f"dense blocks of {r} × {c}"
        longest = lengths.max(initial=0) / max(c / UNROLL, 1)  # a thread loads its row of a block whole
        yield _implied("bsr", {"block_shape": shape}, counted, C, pointers, itemsize, zeros, longest, words)


def _implied(
    name: str,
    layout: dict[str, Any],
    counted: features.Counted,
    rows: int,
    pointers: int,
    itemsize: int,
    zeros: Callable[[], bool],
    longest: float,
    words: str,
) -> Storage:
    """A storage without an index for each place, whose pattern tells holes from entries."""
    pattern = -(-counted.places // 8) if counted.holes > 0 and zeros() else 0  # else it is not read
    nbytes = counted.places * itemsize + 4 * counted.indices + pattern + pointers
    return Storage(name, layout, nbytes, counted.places, counted.places, _trips(longest), name, rows, words=(words,))


def _tail(lengths: np.ndarray, width: int, itemsize: int) -> Tail:
    pieces = traffic.pieces(lengths, width, split.PIECE)
    entries, n_rows = int(pieces.sum()), int(np.count_nonzero(lengths > width))
    return Tail(entries, traffic.tail_bytes(entries, n_rows, pieces.size, itemsize), n_rows, pieces)


def walked_together(lengths: np.ndarray, threads: int) -> int:
    """Places that CSR's threads pass over, where all rows of a tile wait for its longest."""
    return threads * traffic.sliced_places(-(-lengths // threads), dialect.LAUNCH.rows // threads)


def _trips(entries: float, threads: int = 1) -> int:
    return math.ceil(entries / (threads * UNROLL))


def _pointers(n_slices: int, places: int) -> int:
    return (n_slices + 1) * (4 if places < 2**31 else 8)


def _permutation(csr: Csr, sigma: int) -> int:
    return 4 * csr.shape[0] if sigma > 1 else 0


def _even(widths: np.ndarray) -> bool:
    return widths.size == 0 or bool(widths.max() <= 2 * (widths.sum() // widths.size))
