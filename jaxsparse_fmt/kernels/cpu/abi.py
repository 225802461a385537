"""Names and numbers that XLA's programs, the handler that they call and the kernels must agree on."""

import itertools

import numpy as np

TARGET = "jaxsparse_native"  # the handler's name in XLA
N_OPERANDS = 9  # arrays that a kernel gets beside its result: a, b, and those of `numba_kernels.Operands`
# The numbers of every call. The handler reads the first line: the kernel, the members of the batch, the pieces of a
# member, the bytes from one member to the next of the two operands and of the result, and the bytes from one piece to
# the next of the result and of the scratch. It compares the last of `n_ptr` pointers with `most`, if that is not
# negative. The kernel reads the pieces and the rest.
SIZES = (
    *("kernel", "batch", "pieces", "a_bytes", "b_bytes", "out_bytes", "piece_bytes", "scratch_bytes"),
    *("n_rows", "n_cols", "p", "n_ptr", "masked", "n_places", "most", "n_perm", "block_rows", "block_columns"),
)

FACES = ("product", "transposed", "outer")
KINDS = (
    *(f"{face} rows" for face in FACES),
    "columns rows",  # the product with several right-hand sides
    "product diagonals",
)
FLOATS = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
POINTERS = tuple(map(np.dtype, ("int32", "int64")))
# Programs kept on disk contain these numbers, so a kernel has the same number in every process.
NUMBERS = {key: i for i, key in enumerate(itertools.product(KINDS, FLOATS, FLOATS, POINTERS))}
KEYS = tuple(NUMBERS)
# XLA's interface for which the handler is written, c_api.h of jaxlib 0.10.2: its version, the sizes in bytes of what
# the handler reads by place, and numbers of an extension, a stage, a dtype and kinds of errors.
API_VERSION = 0, 3
FRAME_BYTES, API_BYTES = 168, 152  # at least: fields may be added behind the last
ARGUMENTS_BYTES, RESULTS_BYTES, ATTRIBUTES_BYTES = 40, 40, 48  # exactly: parts of the frame
METADATA, EXECUTE, INT64 = 1, 3, 5
CANCELLED, INVALID, MISSING, EXHAUSTED = 1, 3, 5, 8
