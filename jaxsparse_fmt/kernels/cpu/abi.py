"""Names and numbers that XLA's programs, the handler that they call (`handler.c`) and the kernels agree on."""

import itertools
from typing import Any

import numpy as np

TARGET = "jaxsparse_native"  # the handler's name in XLA, and in `handler.c`
# The sizes of every call, after a and b of [b, ...], columns, ptr and pattern, which the members of a batch share. The
# handler reads the first line: the kernel, the members of the batch, the pieces of a member, the bytes from one member
# to the next of the two operands and of the result, and the bytes from one piece of the result to the next; and it
# compares the last of `n_ptr` pointers with `most`, unless that is negative. The kernel reads the pieces and the last
# line, in the order of `numba_kernels.Operands`.
SIZES = (
    *("kernel", "batch", "pieces", "a_bytes", "b_bytes", "out_bytes", "piece_bytes", "most"),
    *("n_rows", "n_cols", "p", "n_ptr", "n_places", "masked"),
)

# "columns": the product with several right-hand sides.
KINDS = (
    *("product rows", "columns rows", "transposed rows", "outer rows", "product diagonals", "solved rows"),
    *("solved bands", "factored lanes", "solved lanes", "outer slices", "outer diagonals"),
    *("product coordinates", "transposed coordinates", "outer coordinates"),
    *("index diagonals", "taken places"),
)
INDICES = ("index diagonals",)  # kinds whose result is int32
LANES = 8  # systems that a kernel factors side by side: 64 bytes of float64, a line of the cache
FLOATS = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
POINTERS = tuple(map(np.dtype, ("int32", "int64")))
# Programs on disk contain these numbers, so a kernel has the same number in every process.
KEYS: tuple[tuple[Any, ...], ...] = tuple(itertools.product(KINDS, FLOATS, FLOATS, POINTERS))
NUMBERS = {key: i for i, key in enumerate(KEYS)}
