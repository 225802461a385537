"""The kernels for the CPU as functions of XLA's call frame and a piece: arrays in the frame, a range of rows or lanes.

`xla_call.py` describes the frame and calls these functions; the sizes are those of `abi.SIZES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from jaxsparse_fmt.kernels.cpu import numba_kernels as kernels
from jaxsparse_fmt.kernels.cpu import spgemm_kernels, tile_kernels
from jaxsparse_fmt.kernels.cpu.abi import CHUNKS, FACES, SIZES
from jaxsparse_fmt.kernels.cpu.chunk_kernels import KERNELS, Chunks
from jaxsparse_fmt.kernels.cpu.numba_kernels import Diagonals, Operands, U
from jaxsparse_fmt.kernels.cpu.xla_call import _data, _pointer, _sizes, _word

carray: Any = numba.carray  # pyright: ignore[reportPrivateImportUsage]

PIECES, BATCH, N_A, N_B, N_OUT, N_ROWS, N_COLS, P, LANES, N_INDEX, N_PTR, N_PERM, MASKED = range(1, 14)
BLOCK_ROWS, BLOCK_COLUMNS, ENTRIES, MIXED = range(14, len(SIZES))
TILES = {"product tiles": tile_kernels.WIDE_PRODUCT, "product narrow-tiles": tile_kernels.NARROW_PRODUCT}


@numba.njit(error_model="numpy", nogil=True)
def _array(frame, group, k, start, n, dtype, itemsize):
    """n numbers from `start` on of argument or result k."""
    return carray(_pointer(_data(frame, group, k) + start * itemsize), (n,), dtype)


def kernel(kind: str, a: Any, b: Any, out: Any, ptr: Any) -> Callable:
    """(frame, piece) -> nothing, for operands of dtypes `a` and `b`, a result of `out`, and pointers of `ptr`.

    Args:
      kind: one of `abi.KINDS`. The kernel of diagonals takes offsets, start and pattern, those of rows and lanes
        col_idx, ptr and perm, and those of chunks and tiles what the functions below read.
    """
    if kind.split()[1] in CHUNKS:
        face, chunks = kind.split()
        return _kernel_of_chunks(face, chunks, a, b, out, ptr)
    if kind.endswith("pairs"):
        return _kernel_of_pairs(kind.split()[0], a, b, out, ptr)
    if kind in TILES:
        return _kernel_of_tiles(TILES[kind], a, b, out, ptr)
    na, nb, no, ni = a.itemsize, b.itemsize, out.itemsize, ptr.itemsize
    int32, third = np.dtype(np.int32), np.dtype(np.uint8 if kind == "product diagonals" else np.int32)
    nt = third.itemsize

    def kernel(frame, piece):
        z = _sizes(frame)
        n_rows, n_cols, p, lanes = _word(z, N_ROWS), _word(z, N_COLS), _word(z, P), _word(z, LANES)
        pieces = _word(z, PIECES) // _word(z, BATCH)
        i, piece = piece // pieces, piece % pieces
        # Of a transposed product every piece has a result of its own.
        member = i * pieces + piece if kind == "transposed rows" or kind == "transposed lanes" else i
        first = _array(frame, 5, 0, i * _word(z, N_A), _word(z, N_A), a, na)
        second = _array(frame, 5, 1, i * _word(z, N_B), _word(z, N_B), b, nb)
        result = _array(frame, 10, 0, member * _word(z, N_OUT), _word(z, N_OUT), out, no)
        index = _array(frame, 5, 2, 0, _word(z, N_INDEX), int32, 4)
        pointers = _array(frame, 5, 3, 0, _word(z, N_PTR), ptr, ni)
        mask = _array(frame, 5, 4, 0, _word(z, N_PERM), third, nt)
        if kind == "product diagonals":
            diagonals = Diagonals(first, second, result, index, pointers, mask, n_cols, p, _word(z, MASKED))
            kernels.product_diagonals(diagonals, n_rows * piece // pieces, n_rows * (piece + 1) // pieces)
            return
        o = Operands(first, second, result, index, pointers, mask, U(n_rows), U(n_cols), U(p), U(lanes))
        if kind == "product rows" or kind == "transposed rows" or kind == "outer rows":
            begin = kernels.rows_before(pointers, n_rows, piece, pieces)
            end = kernels.rows_before(pointers, n_rows, piece + 1, pieces)
            if kind == "product rows":
                kernels.product_rows(o, begin, end)
            elif kind == "transposed rows":
                kernels.transposed_rows(o, begin, end)
            else:
                kernels.outer_rows(o, begin, end)
        else:
            begin = kernels.lanes_before(pointers, lanes, piece, pieces)
            end = kernels.lanes_before(pointers, lanes, piece + 1, pieces)
            if kind == "product lanes":
                kernels.product_lanes(o, begin, end)
            elif kind == "transposed lanes":
                kernels.transposed_lanes(o, begin, end)
            else:
                kernels.outer_lanes(o, begin, end)
        if (kind == "outer rows" or kind == "outer lanes") and piece == pieces - 1:
            result[pointers[_word(z, N_PTR) - 1] :] = 0  # behind the last row

    return kernel


def _kernel_of_chunks(face: str, chunks: str, a: Any, b: Any, out: Any, ptr: Any) -> Callable:
    """The same for a storage of `abi.CHUNKS`, which takes columns, ptr, perm, pattern, base, start and wide."""
    na, nb, no, ni = a.itemsize, b.itemsize, out.itemsize, ptr.itemsize
    int32, bits, column = (
        np.dtype(np.int32),
        np.dtype(np.uint8),
        np.dtype(np.uint16 if chunks == "deltas" else np.int32),
    )
    nc, run = column.itemsize, KERNELS[chunks][FACES.index(face)]

    def kernel(frame, piece):
        z = _sizes(frame)
        n_rows, lanes = _word(z, N_ROWS), _word(z, LANES)
        pieces = _word(z, PIECES) // _word(z, BATCH)
        i, piece = piece // pieces, piece % pieces
        member = i * pieces + piece if face == "transposed" else i
        pointers = _array(frame, 5, 3, 0, _word(z, N_PTR), ptr, ni)
        result = _array(frame, 10, 0, member * _word(z, N_OUT), _word(z, N_OUT), out, no)
        if chunks == "jagged":
            lanes = n_rows  # and the padding of the first chunk, the longest
            if len(pointers) > 1:
                lanes = max(lanes, np.int64(pointers[1]) - np.int64(pointers[0]))
        o = Chunks(
            _array(frame, 5, 0, i * _word(z, N_A), _word(z, N_A), a, na),
            _array(frame, 5, 1, i * _word(z, N_B), _word(z, N_B), b, nb),
            result,
            _array(frame, 5, 2, 0, _word(z, N_INDEX), column, nc),
            pointers,
            _array(frame, 5, 4, 0, _word(z, N_PERM), int32, 4),
            _array(frame, 5, 5, 0, 1, bits, 1),  # the lengths of the rest are not read
            _array(frame, 5, 6, 0, 1, int32, 4),
            _array(frame, 5, 7, 0, 1, ptr, ni),
            _array(frame, 5, 8, 0, 1, int32, 4),
            U(n_rows),
            U(_word(z, N_COLS)),
            U(_word(z, P)),
            U(lanes),
            U(_word(z, BLOCK_ROWS)),
            U(_word(z, BLOCK_COLUMNS)),
            U(_word(z, MASKED)),
            U(_word(z, MIXED)),
        )
        if chunks == "jagged":
            run(o, (0, lanes * piece // pieces), (0, lanes * (piece + 1) // pieces))
        else:
            run(
                o,
                kernels.lanes_before(pointers, lanes, piece, pieces),
                kernels.lanes_before(pointers, lanes, piece + 1, pieces),
            )
        if face == "outer" and piece == pieces - 1:
            result[pointers[_word(z, N_PTR) - 1] :] = 0  # behind the last chunk

    return kernel


def _kernel_of_tiles(run: Any, a: Any, b: Any, out: Any, ptr: Any) -> Callable:
    """The same for CSR5, which takes columns, start, lane_row, base and wide."""
    na, nb, no, ni, int32 = a.itemsize, b.itemsize, out.itemsize, ptr.itemsize, np.dtype(np.int32)
    column = np.dtype(np.uint16 if run is tile_kernels.NARROW_PRODUCT else np.int32)
    nc = column.itemsize

    def kernel(frame, piece):
        z = _sizes(frame)
        pieces, lanes = _word(z, PIECES) // _word(z, BATCH), _word(z, LANES)
        i, piece, n_tiles = piece // pieces, piece % pieces, _word(z, N_PERM) // lanes
        o = tile_kernels.Tiles(
            _array(frame, 5, 0, i * _word(z, N_A), _word(z, N_A), a, na),
            _array(frame, 5, 1, i * _word(z, N_B), _word(z, N_B), b, nb),
            _array(frame, 10, 0, i * _word(z, N_OUT), _word(z, N_OUT), out, no),
            _array(frame, 5, 2, 0, _word(z, N_INDEX), column, nc),
            _array(frame, 5, 3, 0, _word(z, N_PTR), ptr, ni),
            _array(frame, 5, 4, 0, _word(z, N_PERM), int32, 4),
            _array(frame, 5, 5, 0, 1, int32, 4),  # the lengths of the rest are not read
            _array(frame, 5, 6, 0, 1, int32, 4),
            U(_word(z, N_ROWS)),
            U(_word(z, N_COLS)),
            U(_word(z, P)),
            U(lanes),
            U(_word(z, ENTRIES)),
            U(_word(z, MIXED)),
        )
        run(o, n_tiles * piece // pieces, n_tiles * (piece + 1) // pieces, n_tiles)

    return kernel


def _kernel_of_pairs(face: str, a: Any, b: Any, out: Any, ptr: Any) -> Callable:
    """The same for two sparse matrices, which takes a_col, a_ptr, cuts, b_col, b_ptr, c_col and c_ptr.

    Piece k of n takes the rows from cuts[k·m // n] on, with m cuts.
    """
    na, nb, no, ni, int32 = a.itemsize, b.itemsize, out.itemsize, ptr.itemsize, np.dtype(np.int32)
    run = getattr(spgemm_kernels, f"{face}_pairs")

    def kernel(frame, piece):
        z = _sizes(frame)
        pieces, n_cols, cuts = _word(z, PIECES) // _word(z, BATCH), _word(z, N_COLS), _word(z, N_PERM) - 1
        rows = _array(frame, 5, 4, 0, cuts + 1, int32, 4)
        i, part = piece // pieces, piece % pieces
        member = piece if face == "transposed" else i
        o = spgemm_kernels.Pairs(
            _array(frame, 5, 0, i * _word(z, N_A), _word(z, N_A), a, na),
            _array(frame, 5, 1, i * _word(z, N_B), _word(z, N_B), b, nb),
            _array(frame, 10, 0, member * _word(z, N_OUT), _word(z, N_OUT), out, no),
            _array(frame, 10, 1, piece * n_cols, n_cols, out, no),
            _array(frame, 5, 3, 0, _word(z, N_PTR), ptr, ni),
            _array(frame, 5, 2, 0, _word(z, N_INDEX), int32, 4),
            _array(frame, 5, 6, 0, 1, ptr, ni),  # the lengths of the rest are not read
            _array(frame, 5, 5, 0, 1, int32, 4),
            _array(frame, 5, 8, 0, 1, ptr, ni),
            _array(frame, 5, 7, 0, 1, int32, 4),
        )
        run(o, np.int64(rows[U(cuts * part // pieces)]), np.int64(rows[U(cuts * (part + 1) // pieces)]))

    return kernel
