"""Calls of the kernels of `native.py` from programs of XLA for the CPU: compiled and registered when first asked for.

Nothing imports Numba before that: it takes half a second, and the first kernel of a process about as much again.
Compiling a kernel takes one to three seconds, once: Numba keeps it beside this file, or where that cannot be written in
its own folder of the user (NUMBA_CACHE_DIR names another), and does without where no folder can be.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import pathlib
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

TARGET = "jaxsparse_native"  # what XLA knows the handler as
TABLE = "jaxsparse_native_kernels"  # the symbol of the table of kernels' addresses
# The numbers that every call hands over: which kernel, in how many pieces, members of the batch, lengths of the two
# operands and the result of one member (in a transposed product of one piece), and what the kernels ask for.
SIZES = (
    *("kernel", "pieces", "batch", "n_a", "n_b", "n_out"),
    *("n_rows", "n_cols", "p", "lanes", "n_index", "n_ptr", "n_perm", "masked"),
)

KINDS = (
    *("product rows", "product lanes", "product diagonals"),
    *("transposed rows", "transposed lanes", "outer rows", "outer lanes"),
)
FLOATS = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
POINTERS = tuple(map(np.dtype, ("int32", "int64")))
# A kernel's number is the same in every process, since programs are kept on disk. 0 is the task that threads run.
NUMBERS = {key: 1 + i for i, key in enumerate(itertools.product(KINDS, FLOATS, FLOATS, POINTERS))}
MESSAGE = 1 + len(NUMBERS)  # where the table has the address of this
MISSING = np.frombuffer(b"a kernel for the CPU that only the process has which compiled this program\0", np.uint8)


def takes(*dtypes: Any) -> bool:
    """Whether there are kernels for operands of these dtypes."""
    return all(np.dtype(d) in FLOATS for d in dtypes)


def call(kind: str, a: Array, b: Array, index: tuple[Array, ...], shape: tuple[int, ...], **sizes: int) -> Array | None:
    """The kernel `kind` of operands a and b, or None where it cannot be compiled, of which a warning then has told.

    Args:
      index: int32, the second of them pointers of any kind.
      shape: of the result, of the operands' common dtype.
      sizes: those of `SIZES` that are not 0, but for the kernel.
    """
    out = jnp.result_type(a, b)
    number = NUMBERS[kind, np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(index[1].dtype)]
    if not _ready(kind, np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(out), np.dtype(index[1].dtype)):
        return None
    unknown = sizes.keys() - set(SIZES)
    assert not unknown, unknown
    words = np.array([number, *(sizes.get(name, 0) for name in SIZES[1:])], np.int64)
    return jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, out))(a, b, *index, sizes=words)


# ----------------------------------------------------------------------------------------------------------- compiling

_lock = threading.RLock()
_kept: list[Any] = []  # what XLA has addresses of
_broken: list[Exception] = []


def _ready(kind: str, a: np.dtype, b: np.dtype, out: np.dtype, ptr: np.dtype) -> bool:
    """Whether the kernel is in the table; compiles it if need be."""
    with _lock:
        if _broken:
            return False
        try:
            table = _registered()
            number = NUMBERS[kind, a, b, ptr]
            if table[number] == 0:
                table[number] = _compiled("kernel", "void(int64, int64)", kind, a, b, out, ptr)
        except Exception as error:
            _broken.append(error)
            warnings.warn(
                "Numba cannot compile the kernels for the CPU; products run as plain XLA, most of them several times "
                f"slower: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return False
        return True


@functools.cache
def _registered() -> np.ndarray:
    """The table of addresses, [kernels + 2] int64, after the handler that reads it has been registered."""
    import llvmlite.binding

    table = np.zeros(MESSAGE + 1, np.int64)
    table[MESSAGE] = MISSING.ctypes.data
    _kept.append(table)
    llvmlite.binding.add_symbol(TABLE, table.ctypes.data)
    table[0] = _compiled("task", "void(int64)")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address = _compiled("handler", "int64(int64)")
    jax.ffi.register_ffi_target(TARGET, capsule(address, None, None), platform="cpu")
    return table


def _compiled(name: str, signature: str, *constants: Any) -> int:
    """The address of the C function that a maker of `native_call.py` makes of these constants."""
    import numba

    from jaxsparse_fmt.kernels import native_call

    function = getattr(native_call, name)(*constants, _stamp())
    try:
        made = numba.cfunc(signature, nogil=True, error_model="numpy", cache=True)(function)
    except Exception:  # no folder can be written, or what is kept there is damaged
        made = numba.cfunc(signature, nogil=True, error_model="numpy")(function)
    _kept.append(made)
    assert made.address is not None
    return made.address


@functools.cache
def _stamp() -> int:
    """A number for the source of the kernels, so that what is kept of another version is not taken."""
    folder = pathlib.Path(__file__).parent
    digest = hashlib.blake2b(digest_size=4)
    for name in ("native.py", "native_call.py", "ffi.py"):
        digest.update((folder / name).read_bytes())
    return int.from_bytes(digest.digest())
