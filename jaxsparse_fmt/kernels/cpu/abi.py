"""Names and numbers that XLA's programs, the handler that they call and the table of kernels must agree on."""

import itertools

import numpy as np

TARGET = "jaxsparse_native"  # the handler's name in XLA
TABLE = "jaxsparse_native_kernels"  # the symbol of the table of kernels' addresses
# The numbers of every call: the kernel, pieces, members of the batch, lengths of the two operands and of the result of
# one member (of one piece in a transposed product), and what the kernels need.
SIZES = (
    *("kernel", "pieces", "batch", "n_a", "n_b", "n_out"),
    *("n_rows", "n_cols", "p", "lanes", "n_index", "n_ptr", "n_perm", "masked"),
    *("block_rows", "block_columns", "entries", "mixed"),
)

FACES = ("product", "transposed", "outer")
CHUNKS = ("deltas", "offsets", "blocks", "jagged")  # the storages of `chunk_kernels.py`
KINDS = (
    *("product rows", "product lanes", "product diagonals"),
    *("transposed rows", "transposed lanes", "outer rows", "outer lanes"),
    *(f"{face} {chunks}" for chunks in CHUNKS for face in FACES),
    *("product tiles", "product narrow-tiles"),
    *(f"{face} pairs" for face in FACES),  # of two sparse matrices, `spgemm_kernels.py`
)
FLOATS = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
POINTERS = tuple(map(np.dtype, ("int32", "int64")))
# A kernel has the same number in every process, since programs are kept on disk. 0 is the task that threads run.
NUMBERS = {key: 1 + i for i, key in enumerate(itertools.product(KINDS, FLOATS, FLOATS, POINTERS))}
KEYS = tuple(NUMBERS)
# Behind the kernels the table holds the addresses of an error message, of `ffi._address_of` and of the handler.
MESSAGE = 1 + len(NUMBERS)
COMPILE = 1 + MESSAGE
HANDLER = 1 + COMPILE
METADATA, INTERNAL = 1, 13  # XLA's numbers of a type of extension and of a kind of error
