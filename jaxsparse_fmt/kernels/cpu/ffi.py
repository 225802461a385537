"""Calls of the Numba kernels (`numba_kernels.py`) from XLA's programs for the CPU.

A kernel is linked from the file in which `objects.py` keeps it, in a few milliseconds. Where there is none, Numba
compiles the kernel in one to three seconds, after half a second to import Numba.

XLA loads a program that another process has compiled (`jax.experimental.serialize_executable`) only if the handler is
registered, and no function of this library need have run before. So the import of this module registers a jump, which
llvmlite compiles in 25 ms. At first the jump goes to `_first_call`, which links the handler; after that it goes to the
handler. The handler links a kernel that only another process has called.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.cpu.abi import (
    COMPILE,
    HANDLER,
    INTERNAL,
    KEYS,
    MESSAGE,
    METADATA,
    NUMBERS,
    SIZES,
    TABLE,
    TARGET,
)

Array = jax.Array

MISSING = np.frombuffer(b"Numba cannot compile a kernel for the CPU that this program calls\0", np.uint8)


def call(
    kind: str,
    operands: tuple[Array, Array],  # [b, ...] each
    index: tuple[Array | None, ...],
    shape: tuple[int, ...],
    scratch: int = 0,
    **sizes: int,
) -> Array | None:
    """The result of the kernel `kind`; None where there is none for these dtypes, or after a warning that Numba failed.

    Args:
      operands: those of 16 bits are widened first, since no CPU of Numba computes with them.
      index: what all members of the batch share, in the order in which the kernel reads it; the second are pointers,
        int32 or int64. None for what the kernel does not read.
      shape: of the result, whose dtype is that to which the operands promote.
      scratch: numbers of that dtype that each piece has to itself while it runs.
      sizes: those of `SIZES` that the arrays do not give and that are not 0.
    """
    (a, b), (columns, ptr, third, *_) = (v.astype(accumulator(v.dtype)) for v in operands), index
    assert columns is not None and ptr is not None
    number = NUMBERS.get((kind, np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(ptr.dtype)))
    if number is None or not _ready(number):
        return None
    batch = a.shape[0]
    sizes |= {"kernel": number, "batch": batch, "n_a": a.size // batch, "n_b": b.size // batch}
    sizes |= {"n_index": columns.size, "n_ptr": ptr.size, "n_perm": 0 if third is None else third.size}
    assert sizes.keys() <= set(SIZES)
    words = np.array([sizes.get(name, 0) for name in SIZES], np.int64)
    given = (jnp.zeros(1, jnp.int32) if i is None else i for i in index)
    out = jax.ShapeDtypeStruct(shape, jnp.result_type(a, b))
    outs = [out, jax.ShapeDtypeStruct((sizes["pieces"], scratch), out.dtype)] if scratch else [out]
    return jax.ffi.ffi_call(TARGET, outs)(a, b, *given, sizes=words)[0].astype(jnp.result_type(*operands))


# ----------------------------------------------------------------------------------------------------------- compiling

_lock = threading.RLock()
_broken: list[Exception] = []
_table = np.zeros(HANDLER + 1, np.int64)
_table[MESSAGE] = MISSING.ctypes.data
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def _ready(number: int) -> bool:
    """Whether the kernel is in the table, after compiling it if it was not."""
    with _lock:
        if _broken:
            return False
        try:
            table = _registered()
            if table[number] == 0:
                kind, a, b, ptr = KEYS[number - 1]
                table[number] = _compiled("kernel", "void(int64, int64)", kind, a, b, np.result_type(a, b), ptr)
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
    """The table of addresses, [kernels + 4] int64, with the handler that reads it."""
    from llvmlite import binding

    binding.add_symbol(TABLE, _table.ctypes.data)
    _table[0] = _compiled("task", "void(int64)")
    _table[HANDLER] = _compiled("handler", "int64(int64)")
    return _table


def _compiled(name: str, signature: str, *constants: Any) -> int:
    """The address of the C function that NAME(*constants) of `xla_call` or `xla_kernels` returns."""

    def make() -> Any:
        from jaxsparse_fmt.kernels.cpu import xla_call, xla_kernels

        return getattr(xla_kernels if name == "kernel" else xla_call, name)(*constants)

    from jaxsparse_fmt.kernels.cpu import objects

    return objects.address(make, signature, name, *map(str, constants), symbols=(TABLE,))


# -------------------------------------------------------------------------------------- what XLA's threads call


@_FUNCTION
def _address_of(number: int) -> int:
    """The address of a kernel that a program calls, compiled if it was not; 0 if Numba cannot compile it."""
    try:
        return int(_table[number]) if _ready(number) else 0
    except BaseException:  # no exception may pass through XLA; `_ready` has warned
        return 0


@_FUNCTION
def _first_call(frame: int) -> int:
    """Stands in for the handler of `xla_call.py` until that is compiled: (frame) -> error, or 0."""
    extension, api = _word(frame, 1), _word(frame, 2)
    if extension.value and _word(extension.value, 1).value & 0xFFFFFFFF == METADATA:
        _word(_word(extension.value, 3).value, 3).value = _word(api.value, 4).value
        return 0
    try:
        with _lock:
            address = int(_registered()[HANDLER])
        return _FUNCTION(address)(frame)
    except BaseException:
        error = (ctypes.c_int64 * 4)(32, 0, MISSING.ctypes.data, INTERNAL)
        return _FUNCTION(_word(api.value, 6).value)(ctypes.addressof(error))


def _word(address: Any, k: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(getattr(address, "value", address) + 8 * k)


def _register() -> None:
    """Registers the jump to the handler's address in the table."""
    try:
        from llvmlite import ir

        from jaxsparse_fmt.kernels.cpu import objects
    except ImportError:  # without it there is no Numba, and no program calls a kernel
        return
    word = ir.IntType(64)
    module = ir.Module(TARGET)
    jump = ir.Function(module, ir.FunctionType(word, [word]), TARGET)
    builder = ir.IRBuilder(jump.append_basic_block())
    where = builder.inttoptr(word(_table[HANDLER:].ctypes.data), word.as_pointer())
    builder.ret(builder.call(builder.inttoptr(builder.load(where), jump.type), jump.args, tail=True))
    engine = objects.engine(module)
    _table[COMPILE], _table[HANDLER] = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (_address_of, _first_call))
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    jax.ffi.register_ffi_target(TARGET, capsule(engine.get_function_address(TARGET), None, None), platform="cpu")


_register()
