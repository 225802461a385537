"""The kernels for the CPU as C functions that Numba compiles, one for each kind and each set of dtypes."""

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu import numba_kernels
from jaxsparse_fmt.kernels.cpu.abi import SIZES
from jaxsparse_fmt.kernels.cpu.numba_kernels import Operands, U

PIECES, FIRST = SIZES.index("pieces"), SIZES.index("n_rows")


def kernel(kind: str, a: np.dtype, b: np.dtype, out: np.dtype, ptr: np.dtype) -> tuple[Any, str]:
    """The function of a kind of `abi.KINDS`, (operands, scratch, sizes, piece) -> nothing, and its signature."""
    face, storage = kind.split()
    zero = out.type(0)
    run = getattr(numba_kernels, f"{face}_{storage}")

    def kernel(a, b, out, columns, ptr, perm, pattern, base, start, wide, scratch, sizes, piece):
        numbers = (U(sizes[FIRST]), U(sizes[FIRST + 1]), U(sizes[FIRST + 2]), U(sizes[FIRST + 3]))
        more = (U(sizes[FIRST + 4]), U(sizes[FIRST + 5]))
        run(Operands(a, b, out, columns, ptr, pattern, *numbers, *more, zero), piece, sizes[PIECES])

    return kernel, _signature((a, b, out, "int32", ptr, "int32", "uint8", "int32", ptr, "int32", out))


def _signature(of: tuple[Any, ...]) -> str:
    """The signature of a kernel that takes pointers to numbers of these dtypes, the sizes and the piece."""
    pointers = ", ".join(f"CPointer({dtype})" for dtype in (*of, "int64"))
    return f"void({pointers}, int64)"
