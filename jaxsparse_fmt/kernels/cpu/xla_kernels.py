"""The kernels for the CPU as C functions that Numba compiles, one for each kind and each set of dtypes."""

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu import chunk_kernels, numba_kernels
from jaxsparse_fmt.kernels.cpu.abi import FACES_OF_ROWS, SIZES
from jaxsparse_fmt.kernels.cpu.block_kernels import of_blocks
from jaxsparse_fmt.kernels.cpu.numba_kernels import Operands, U
from jaxsparse_fmt.kernels.cpu.tile_kernels import of_tiles

KERNELS = numba_kernels.KERNELS | chunk_kernels.KERNELS
PIECES, FIRST = SIZES.index("pieces"), SIZES.index("n_rows")


def kernel(kind: str, a: np.dtype, b: np.dtype, out: np.dtype, ptr: np.dtype) -> tuple[Any, str]:
    """The function of a kind of `abi.KINDS`, (operands, scratch, sizes, piece) -> nothing, and its signature."""
    face, storage = kind.split()
    zero = out.type(0)
    if storage.endswith("tiles"):
        run = of_tiles(face, storage == "narrow-tiles")
    elif storage.endswith("-blocks"):
        run = of_blocks(int(storage[0]))
    elif storage == "diagonals":
        run = numba_kernels.product_diagonals
    else:
        run = KERNELS[storage][FACES_OF_ROWS.index(face)]

    def kernel(a, b, out, columns, ptr, perm, pattern, base, start, wide, scratch, sizes, piece):
        numbers = (U(sizes[FIRST]), U(sizes[FIRST + 1]), U(sizes[FIRST + 2]), U(sizes[FIRST + 3]))
        more = (U(sizes[FIRST + 4]), U(sizes[FIRST + 5]), U(sizes[FIRST + 6]), U(sizes[FIRST + 7]))
        rest = (U(sizes[FIRST + 8]), U(sizes[FIRST + 9]), U(sizes[FIRST + 10]), U(sizes[FIRST + 11]))
        o = Operands(a, b, out, columns, ptr, perm, pattern, base, start, wide, *numbers, *more, *rest, zero)
        run(o, piece, sizes[PIECES])

    columns = "uint16" if storage in ("deltas", "narrow-tiles") else "int32"
    return kernel, _signature((a, b, out, columns, ptr, "int32", "uint8", "int32", ptr, "int32", out))


def _signature(of: tuple[Any, ...]) -> str:
    """The signature of a kernel that takes pointers to numbers of these dtypes, the sizes and the piece."""
    pointers = ", ".join(f"CPointer({dtype})" for dtype in (*of, "int64"))
    return f"void({pointers}, int64)"
