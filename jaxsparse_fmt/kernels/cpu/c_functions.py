"""A C function of each Numba kernel, as `handler.c` calls it."""

from typing import Any

import numpy as np

from jaxsparse_fmt.kernels.cpu import band_kernels, coordinate_kernels, lane_kernels, numba_kernels
from jaxsparse_fmt.kernels.cpu.abi import SIZES
from jaxsparse_fmt.kernels.cpu.numba_kernels import U

PIECES, FIRST = SIZES.index("pieces"), SIZES.index("n_rows")


def kernel(kind: str, a: np.dtype, b: np.dtype, out: np.dtype, ptr: np.dtype) -> tuple[Any, str]:
    """The function of a kind of `abi.KINDS` for these dtypes, as `handler.c` calls it, and its signature for Numba."""
    modules = {"bands": band_kernels, "lanes": lane_kernels, "coordinates": coordinate_kernels}
    run = getattr(modules.get(kind.split()[-1], numba_kernels), kind.replace(" ", "_"))
    zero = out.type(0)

    def kernel(a, b, out, columns, ptr, pattern, sizes, piece):
        numbers = (U(sizes[FIRST]), U(sizes[FIRST + 1]), U(sizes[FIRST + 2]), U(sizes[FIRST + 3]))
        more = (U(sizes[FIRST + 4]), U(sizes[FIRST + 5]))
        run(numba_kernels.Operands(a, b, out, columns, ptr, pattern, *numbers, *more, zero), piece, sizes[PIECES])

    pointers = ", ".join(f"CPointer({dtype})" for dtype in (a, b, out, "int32", ptr, "uint8", "int64"))
    return kernel, f"void({pointers}, int64)"
