"""What storages take, by the formulas at the head of each format's file: counted in NumPy from the entries alone."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp


def stated_bytes(S: sp.csr_array, format: str, layout: Mapping[str, Any], value: int) -> int:
    """Bytes of S in a format.

    Args:
      S: canonical; stored zeros are entries.
      layout: all layout options that decide sizes, as `SparseMatrix.layout` has them.
      value: bytes of a value.
    """
    (n, n_cols), nnz, lengths = S.shape, S.nnz, np.diff(S.indptr).astype(np.int64)
    longest, entry = int(lengths.max(initial=0)), value + 4
    warps = -(-n // 32)
    pitch = max(warps, 1) * 32
    match format:
        case "coo":
            return nnz * (value + 8)
        case "csr":
            return nnz * entry + 4 * (n + 1)
        case "csr5":
            return _csr5(S, lengths, layout, value)
        case "csc":
            return nnz * entry + 4 * (n_cols + 1)
        case "ell":
            return longest * n * entry + 4 * n
        case "ellr":
            return longest * pitch * entry + 4 * n
        case "ellrt":
            T = layout["threads_per_row"]
            return -(-longest // T) * T * pitch * entry + 4 * n
        case "pellr":
            return longest * pitch * entry + 4 * n + 4 * (n if layout["lengths_per"] == "row" else warps)
        case "jds" | "pjds":
            return _jagged_places(lengths, layout.get("block_size")) * entry + 4 * (longest + 1) + 8 * n
        case "biell" | "bijad":
            rows = _order(lengths, 32 if format == "biell" else n)
            return _bisected_places(lengths[rows]) * entry + 24 * warps + 4 + 8 * n
        case "hyb":
            return layout["width"] * n * entry + int(np.maximum(lengths - layout["width"], 0).sum()) * (entry + 4)
        case "hll":
            C, sigma = layout["slice_size"], layout["sigma"]
            widths = _longest(lengths[_order(lengths, sigma)], C)
            return C * int(widths.sum()) * entry + 4 * n + _pointers(n, C, sigma)
        case "sell":
            return _sell(S, lengths, layout, value)
        case "dia" | "hdia":
            C, sigma = (layout["slice_size"], layout["sigma"]) if format == "hdia" else (max(n, 1), 1)
            n_stored, inside = _diagonals(S, lengths, C, sigma)
            pointers = _pointers(n, C, sigma) if format == "hdia" else 4 * n_stored // C
            return n_stored * value + 4 * n_stored // C + pointers + _pattern(S, n_stored, inside)
        case "bsr":
            return _bsr(S, layout["block_shape"], value)
    raise NotImplementedError(f"say here how many bytes {format} takes")


def _rows(S: sp.csr_array) -> np.ndarray:
    """The row of every entry."""
    return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))


def _order(lengths: np.ndarray, sigma: int) -> np.ndarray:
    """Which row is stored first, second, …: the longest first inside windows of sigma, rows of one length as before."""
    n = lengths.size
    return np.lexsort((np.arange(n), -lengths, np.arange(n) // min(sigma, max(n, 1))))


def _longest(lengths: np.ndarray, rows: int) -> np.ndarray:
    """Of every group of so many rows the longest."""
    return np.pad(lengths, (0, -lengths.size % rows)).reshape(-1, rows).max(axis=1, initial=0)


def _pointers(n: int, C: int, sigma: int) -> int:
    """`slice_ptr`, and `perm` where rows are sorted."""
    return 4 * (-(-n // C) + 1) + 4 * n * (sigma > 1)


def _jagged_places(lengths: np.ndarray, block_size: int | None) -> int:
    """Of every jagged diagonal the rows that reach it, in blocks; pJDS's last block ends with the matrix, JDS's not."""
    falling = np.sort(lengths)
    longer = lengths.size - np.searchsorted(falling, np.arange(lengths.max(initial=0)), side="right")
    if block_size is None:
        return int((-(-longer // 16) * 16).sum())
    return int(np.minimum(-(-longer // block_size) * block_size, lengths.size).sum())


def _bisected_places(lengths: np.ndarray) -> int:
    """32 places a column; group g takes 2ᵍ entries a row at a time, until its latter half has none left."""
    warps = np.pad(lengths, (0, -lengths.size % 32)).reshape(-1, 32)
    taken, columns = np.zeros(len(warps), np.int64), 0
    for threads in (1, 2, 4, 8, 16, 32):
        left = np.maximum(warps[:, 16 // threads] - taken, 0)
        columns += int((-(-left // threads)).sum())
        taken += -(-left // threads) * threads
    return 32 * columns


def _csr5(S: sp.csr_array, lengths: np.ndarray, layout: Mapping[str, Any], value: int) -> int:
    """Two bytes of index a place, or four if a tile has columns 32767 apart or more, after the `hot` most used of them
    have come to the front.

    A row has a place for every entry, or one if it has none. If some row has more than 32 lanes or an eighth of a tile
    hold, those longer than a 32nd of a tile go on in pieces behind all rows. A row lies in the tile in whose share of
    all these places it begins, which leaves room for the longest.
    """
    if lengths.size == 0:
        return 0
    lanes, size, n_cols, hot = layout["tile_shape"][0], math.prod(layout["tile_shape"]), S.shape[1], layout["hot"]
    used = np.bincount(S.indices, minlength=n_cols)
    is_hot = np.isin(np.arange(n_cols), np.lexsort((np.arange(n_cols), -used))[:hot])
    col = np.empty(n_cols, np.int64)
    col[np.lexsort((np.arange(n_cols), -used * is_hot, ~is_hot))] = np.arange(n_cols)
    col = col[S.indices]
    most = size // 32 if lengths.max() > min(size // 8, 32 * size // lanes) else lengths.max(initial=1)
    pieces = -(-np.maximum(lengths - most, 0) // most)
    first_piece = lengths.size + np.cumsum(pieces) - pieces
    row, j = _rows(S), np.arange(S.nnz) - np.repeat(S.indptr[:-1], lengths)
    piece = np.where(j < most, row, first_piece[row] + j // most - 1)  # or row, of every entry
    places = np.maximum(np.bincount(piece, minlength=lengths.size + pieces.sum()), 1)
    tile = (np.cumsum(places) - places) // (size - places.max() + 1)
    n_tiles = int(tile[-1]) + 1
    least, largest = np.full(n_tiles, n_cols, np.int64), np.zeros(n_tiles, np.int64)
    np.minimum.at(least, tile[piece], col)
    np.maximum.at(largest, tile[piece], col)
    is_wide, n_long = bool(np.any(largest - least >= 32767)), int(np.sum(pieces > 0))
    index = n_tiles * (size * 4 if is_wide else size * 2 + 4)
    index += (4 * n_long + 4 * (n_long + 1)) * (n_long > 0) + 4 * n_cols * (hot > 0)
    return n_tiles * (size * value + 4 * (lanes + 1)) + index


def _sell(S: sp.csr_array, lengths: np.ndarray, layout: Mapping[str, Any], value: int) -> int:
    """Two bytes of index a place, or four if a slice has a column of places 65535 apart or more."""
    n, C, sigma = lengths.size, layout["slice_size"], layout["sigma"]
    order = _order(lengths, sigma)
    widths = _longest(lengths[order], C)
    chunks = int(widths.sum())
    in_slice = np.empty(n, np.int64)  # the slice that holds a row
    in_slice[order] = np.arange(n) // C
    row, j = _rows(S), np.arange(S.nnz) - np.repeat(S.indptr[:-1], lengths)
    col = S.indices.astype(np.int64)
    chunk = (np.cumsum(widths) - widths)[in_slice[row]] + j
    least, largest = np.full(chunks, S.shape[1], np.int64), np.zeros(chunks, np.int64)
    np.minimum.at(least, chunk, col)
    np.maximum.at(largest, chunk, col)
    if np.any(largest - least >= 65535):
        return C * chunks * (value + 4) + _pointers(n, C, sigma)
    return C * chunks * (value + 2) + 4 * chunks + _pointers(n, C, sigma)


def _diagonals(S: sp.csr_array, lengths: np.ndarray, C: int, sigma: int) -> tuple[int, int]:
    """Places in all, and those of them whose column lies in the matrix, with the diagonals of every slice."""
    (n, n_cols), order, row = S.shape, _order(lengths, sigma), _rows(S)
    span = n + n_cols + 1
    in_slice = np.empty(n, np.int64)
    in_slice[order] = np.arange(n) // C
    slice_, diagonal = np.divmod(np.unique(in_slice[row] * span + S.indices - row + n), span)
    offset = diagonal - n
    # Rows of a slice whose column on a diagonal is 0 to n_cols − 1, counted in (slice, row) pairs in rising order.
    pairs = np.sort(in_slice * span + np.arange(n))
    first, end = np.maximum(-offset, 0), np.minimum(n_cols - offset, n)
    inside = np.searchsorted(pairs, slice_ * span + end) - np.searchsorted(pairs, slice_ * span + first)
    return C * slice_.size, int(np.maximum(inside, 0).sum())


def _bsr(S: sp.csr_array, block_shape: tuple[int, int], value: int) -> int:
    """Slices of lcm(r, 128) rows, or of all where those are fewer, as wide as their widest row of blocks."""
    r, c = block_shape
    n, n_cols = S.shape
    down, across = -(-n // r), max(-(-n_cols // c), 1)
    i, k = np.divmod(np.unique(_rows(S) // r * across + S.indices // c), across)
    rows = min(math.lcm(r, 128), max(down, 1) * r)  # of a slice
    n_stored = rows * c * int(_longest(np.bincount(i, minlength=down), rows // r).sum())
    inside = int((np.minimum(n - r * i, r) * np.minimum(n_cols - c * k, c)).sum())
    pointers = 4 * (-(-down * r // rows) + 1)
    return n_stored * value + 4 * n_stored // (r * c) + pointers + _pattern(S, n_stored, inside)


def _pattern(S: sp.csr_array, n_stored: int, inside: int) -> int:
    """Of `pattern`, which tells the entries from the other places inside the matrix."""
    return -(-n_stored // 8) if inside > S.nnz else 0
