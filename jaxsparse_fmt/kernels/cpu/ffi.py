"""Calls of the Numba kernels from XLA's programs for the CPU.

XLA loads a program that another process has compiled (`jax.experimental.serialize_executable`) only if the handler is
registered, possibly before any function of this library has run. So importing this module registers the handler, which
LLVM compiles in 6 ms. The handler links the kernels that only another process has called.
"""

import ctypes
import functools
import hashlib
import math
import threading
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt import machine_code
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.cpu.abi import FUSED, KEYS, NUMBERS, SIZES, SLOTS, TARGET

MISSING = np.frombuffer(b"Numba cannot compile a kernel for the CPU that this program calls\0", np.uint8)
UNLINKED = np.frombuffer(b'no native code for a part of a solver; jsf.use_backend("xla") needs none\0', np.uint8)


def call(
    kind: str,
    operands: tuple[Array, Array],  # [b, ...] each
    index: dict[str, Array | None],
    shape: tuple[int, ...],
    scratch: int = 0,
    **sizes: int,
) -> Array | None:
    """The result of the kernel `kind`; None if these dtypes have no kernel, or after a warning that Numba failed.

    Args:
      operands: those of 16 bits are widened first, since Numba does not compute with them on a CPU.
      index: the arrays that all members of the batch share, by their names in `numba_kernels.Operands`; at least
        columns, and ptr, int32 or int64.
      shape: of the result, in the dtype to which the operands promote: [b, ...], or [b, pieces, ...] for a transposed
        product, where every piece has a result of its own.
      scratch: numbers of that dtype that each piece has to itself while it runs.
      sizes: those of `SIZES` that the arrays do not give and that are not 0.
    """
    a, b = (v.astype(accumulator(v.dtype)) for v in operands)
    columns, ptr, perm = index["columns"], index["ptr"], index.get("perm")
    assert columns is not None and ptr is not None
    number = NUMBERS.get((kind, np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(ptr.dtype)))
    if number is None or not _ready(number):
        return None
    batch, out = a.shape[0], jax.ShapeDtypeStruct(shape, jnp.result_type(a, b))
    bytes_of = lambda v, axis: math.prod(v.shape[axis:]) * np.dtype(v.dtype).itemsize  # noqa: E731
    apart = kind.startswith("transposed")
    sizes |= {"kernel": number, "batch": batch, "a_bytes": bytes_of(a, 1), "b_bytes": bytes_of(b, 1)}
    sizes |= {"piece_bytes": bytes_of(out, 2)} if apart else {"out_bytes": bytes_of(out, 1)}
    sizes |= {"n_ptr": ptr.size, "n_perm": 0 if perm is None else perm.size}
    sizes |= {"scratch_bytes": scratch * np.dtype(out.dtype).itemsize}
    assert sizes.keys() <= set(SIZES)
    words = np.array([sizes.get(name, 0) for name in SIZES], np.int64)
    given = [index.get(name) for name in ("columns", "ptr", "perm", "pattern", "base", "start", "wide")]
    given = (columns if i is None else i for i in given)  # in place of None; no kernel reads it
    outs = [out, jax.ShapeDtypeStruct((batch * sizes["pieces"], scratch), out.dtype)] if scratch else [out]
    return jax.ffi.ffi_call(TARGET, outs)(a, b, *given, sizes=words)[0].astype(jnp.result_type(*operands))


def call_text(
    text: str, operands: Sequence[Any], results: Sequence[Any], pieces: int, aliases: dict[int, int]
) -> Sequence[Array]:
    """Calls a function of `fusion_code.text_of`; the program contains its text, so any process can run it.

    Args:
      aliases: for the number of an operand, the number of the result that may take its memory.
    """
    return jax.ffi.ffi_call(FUSED, results, input_output_aliases=aliases)(*operands, sizes=_words(text, pieces))


def _words(text: str, pieces: int) -> np.ndarray:
    packed = zlib.compress(text.encode(), 1)
    key = int.from_bytes(hashlib.blake2b(packed, digest_size=7).digest()) or 1
    content = np.frombuffer(packed.ljust(-(-len(packed) // 8) * 8, b"\0"), np.int64)
    return np.concatenate([np.array([key, pieces, len(packed)], np.int64), content])


# ----------------------------------------------------------------------------------------------------------- compiling

_lock = threading.RLock()
_broken: list[Exception] = []
_table = np.zeros(len(KEYS), np.int64)  # the addresses of the kernels


def _ready(number: int) -> bool:
    """Whether the kernel is in the table; compiles it first if it is missing."""
    with _lock:
        if _broken:
            return False
        try:
            if _table[number] == 0:
                _table[number] = _address_of(number)
        except Exception as error:
            _broken.append(error)
            warnings.warn(
                "Numba cannot compile the kernels for the CPU; products run as plain XLA, most of them several times "
                f"slower: {type(error).__name__}: {error}",
                stacklevel=2,
            )
            return False
        return True


def _address_of(number: int) -> int:
    kind, a, b, ptr = KEYS[number]

    def make() -> tuple[Any, str]:
        from jaxsparse_fmt.kernels.cpu.xla_kernels import kernel

        return kernel(kind, a, b, np.result_type(a, b), ptr)

    return machine_code.address(make, *map(str, KEYS[number]))


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def _compiled(number: int) -> int:
    """The address of a kernel that a program calls, compiled if it is missing; 0 if Numba cannot compile it."""
    try:
        return int(_table[number]) if _ready(number) else 0
    except BaseException:  # no exception may pass through XLA; `_ready` has warned
        return 0


_groups = np.zeros((SLOTS, 2), np.int64)  # keys, and the addresses of the functions


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
def _linked(sizes: int) -> int:
    """The address of the function of a group, from the text that its call contains; 0 if there is no room for it."""
    try:
        key, _, length = np.ctypeslib.as_array(ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)), (3,)).tolist()
        with _lock:
            at = next(i % SLOTS for i in range(key % SLOTS, key % SLOTS + SLOTS) if _groups[i % SLOTS, 0] in (0, key))
            if _groups[at, 0] == 0:
                if np.count_nonzero(_groups[:, 0]) >= SLOTS - 1:  # the search ends at an empty place
                    return 0
                text = zlib.decompress(ctypes.string_at(sizes + 24, length)).decode()
                own = f"group{key}"
                (address,) = machine_code.compiled(text.replace("@group", f"@{own}"), own)
                _publish()(_groups[at].ctypes.data, key, address)
            return int(_groups[at, 1])
    except BaseException:  # no exception may pass through XLA
        return 0


@functools.cache
def _handlers() -> list[int] | None:
    """The addresses of `TARGET`, `FUSED` and `publish`; None without llvmlite, when no program calls a kernel."""
    try:
        from jaxsparse_fmt.kernels.cpu import handler
    except ImportError:
        return None
    compiles, links = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (_compiled, _linked))
    addresses = _table.ctypes.data, compiles, MISSING.ctypes.data, _groups.ctypes.data, links, UNLINKED.ctypes.data
    # Without effort LLVM takes 6 ms instead of 17, at each import; the handlers only pass calls on.
    return machine_code.compiled(str(handler.module(*addresses)), TARGET, FUSED, "publish", effort=0)


@functools.cache
def _publish() -> Any:
    handlers = _handlers()
    assert handlers is not None
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(handlers[2])


def _register() -> None:
    handlers = _handlers()
    if handlers is None:
        return
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for target, address in zip((TARGET, FUSED), handlers[:2], strict=True):
        jax.ffi.register_ffi_target(target, capsule(address, None, None), platform="cpu")


_register()
