"""Calls of the Numba kernels from XLA's programs for the CPU.

A kernel is linked, or compiled, when a program that calls it is lowered: no Python runs when XLA calls it. The first
such program registers the handler, which LLVM compiles in 6 ms. So a program that another process has compiled
(`jax.experimental.serialize_executable`) loads only after this process has compiled its function too.
"""

import ctypes
import functools
import math
import os
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.cpu import machine_code
from jaxsparse_fmt.kernels.cpu.abi import INDICES, KEYS, NUMBERS, SIZES, TARGET


def call(
    kind: str,
    a: Array,  # [b, ...]
    b: Array,  # [b, ...]
    columns: Array,  # int32
    ptr: Array,  # int32 or int64
    pattern: Array,  # uint8, or any array if no kernel reads it
    shape: tuple[int, ...],
    **sizes: int,
) -> Array | None:
    """The result of the kernel `kind`; None if these dtypes have no kernel, or after a warning that Numba failed.

    Operands of 16 bits are widened first, since Numba does not compute with them on a CPU.

    Args:
      shape: of the result, in the dtype to which a and b promote, or int32 of `INDICES`: [b, ...], or [b, pieces, ...]
        for a transposed product, in which every piece has its own result.
      sizes: those of `SIZES` that do not follow from the arrays and are not 0. `most`, the largest last element that
        ptr may have, is -1 by default: any.
    """
    result = np.dtype(np.int32) if kind in INDICES else jnp.result_type(a, b)
    a, b = (v.astype(accumulator(v.dtype)) for v in (a, b))
    number = NUMBERS.get((kind, np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(ptr.dtype)))
    if number is None or not _ready(number):
        return None
    out = jax.ShapeDtypeStruct(shape, result if kind in INDICES else jnp.result_type(a, b))
    sizes |= {"kernel": number, "batch": a.shape[0], "a_bytes": _bytes(a, 1), "b_bytes": _bytes(b, 1)}
    sizes |= {"piece_bytes": _bytes(out, 2)} if kind.startswith("transposed") else {"out_bytes": _bytes(out, 1)}
    sizes = {"n_ptr": ptr.size, "most": -1} | sizes
    assert sizes.keys() <= set(SIZES)
    words = np.array([sizes.get(name, 0) for name in SIZES], np.int64)
    # Flat, so that what XLA fuses with them are kernels of flat vectors, which it may have compiled already.
    flat = jax.ShapeDtypeStruct((math.prod(shape),), out.dtype)
    y = jax.ffi.ffi_call(TARGET, flat)(a.reshape(-1), b.reshape(-1), columns, ptr, pattern, sizes=words)
    return y.reshape(shape).astype(result)


def _bytes(array: Any, axis: int) -> int:
    """Bytes of one member, without the axes before `axis`."""
    return math.prod(array.shape[axis:]) * np.dtype(array.dtype).itemsize


# ----------------------------------------------------------------------------------------------------------- compiling

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_broken: list[Exception] = []


def _kept(table: np.ndarray) -> np.ndarray:
    """The table, which a program may still read when Python has freed all modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    return table


_table = _kept(np.zeros(len(KEYS), np.int64))  # the addresses of the kernels


def works() -> bool:
    """Whether programs may call native code: XLA takes the handler, and Numba has compiled all that it was given."""
    with _lock:
        return _registered() and not _broken


def _ready(number: int) -> bool:
    """Whether the kernel is in the table; compiles it first if it is missing."""
    with _lock:
        if not works():
            return False
        try:
            if _table[number] == 0:
                _table[number] = _address_of(number)
        except Exception as error:
            _fail("Numba cannot compile the kernels for the CPU", error)
            return False
        return True


def _fail(what: str, error: Exception) -> None:
    """Ends the use of native code in this process, with its one warning."""
    _broken.append(error)
    warnings.warn(
        f"{what}; products run as plain XLA, most of them several times slower: {type(error).__name__}: {error}",
        stacklevel=3,
    )


def _address_of(number: int) -> int:
    kind, a, b, ptr = KEYS[number]

    def make() -> tuple[Any, str]:
        from jaxsparse_fmt.kernels.cpu.c_functions import kernel

        return kernel(kind, a, b, np.dtype(np.int32) if kind in INDICES else np.result_type(a, b), ptr)

    return machine_code.address(make, *map(str, KEYS[number]))


def register_guarded(target: str, capsule: Any) -> None:
    """Registers a library's handler under a name for XLA: one float64 result, which is NaN where the handler fails.

    Where native code does not work it is the library's handler itself, whose failure ends the program with an error.
    """
    if works():
        name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
        name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        guarded = _kept(np.array([pointer_of(capsule, name_of(capsule))], np.int64))
        capsule = jax.ffi.pycapsule(machine_code.of_handler("guarded", guarded.ctypes.data))
    jax.ffi.register_ffi_target(target, capsule, platform="cpu")


@functools.cache
def _registered() -> bool:
    """Whether XLA has taken the handler; warns if it refuses it."""
    try:
        jax.local_devices(backend="cpu")  # else JAX would register later, and would not start if XLA refused
    except RuntimeError:  # JAX_PLATFORMS leaves out CPUs
        return False
    try:
        address = machine_code.of_handler(TARGET, _table.ctypes.data)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu")
    except Exception as error:
        _fail("this jaxlib does not call the kernels for the CPU", error)
        return False
    return True
