"""Machine code of functions that Numba compiles, kept on disk: Numba is imported only for what no file holds.

Numba's own cache needs Numba, which takes a second to import and to load a first function. A file here holds a digest
of its name and the rest, the name of the C function, and the object file that LLVM made, from which llvmlite links a
function in a few milliseconds. The file's name is a hash of the sources, the versions and the CPU.

    $NUMBA_CACHE_DIR/HASH.o, else __pycache__ beside this file, else kernels/ in the user's folder (`user_cache`)

The user's processes run such a file, and anybody can compute its name and digest. So files are linked and written only
in folders that nobody but the user and root can change (`exposed`); without one every process compiles. The digest
covers the name because others may have renamed files before the user closed a folder to them.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxsparse_fmt._files import exposed, make_private, read_private, user_cache, write_private

DIGEST = 16  # bytes
# What the code of a C function of Numba refers to besides Python's interface. Only an exception in a kernel would call
# Numba's own functions, and kernels raise none.
FROM_C = {"malloc", "free", "sched_yield", "memset", "memcpy", "memmove"}
FROM_NUMBA = {
    *("numba_gil_ensure", "numba_gil_release", "numba_do_raise", "numba_unpickle"),
    *("numba_runtime_build_excinfo_struct", "NRT_Free", "NRT_MemInfo_call_dtor", "NRT_incref", "NRT_decref"),
}

_owners: list[Any] = []  # of the code: functions of Numba, and engines of LLVM
_compiling: dict[str, Future[int]] = {}
_lock = threading.RLock()  # without it every thread that needs a new function would compile it
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
os.register_at_fork(after_in_child=_compiling.clear)  # which lacks the threads


def address(make: Callable[[], tuple[Any, str]], *key: str) -> int:
    """The address of a C function, linked from its file or compiled; the caller keeps it.

    Args:
      make: returns the Python function and its signature for Numba, such as "void(int64)". The sources of what Numba
        compiles must lie in the folder of `make`, since the hash covers the files of that folder.
      key: what distinguishes this function from others of the folder.
    """
    folder = Path(make.__code__.co_filename).parent
    name = hashlib.blake2b(repr((_machine(folder), key)).encode(), digest_size=DIGEST).hexdigest() + ".o"
    with _lock:
        for kept in _folders():
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # no file or another's, damaged, or not LLVM's
                return _linked(name, read_private(kept / name))
        return _apart(lambda: _compiled_anew(make, name), name)


def _compiled_anew(make: Callable[[], tuple[Any, str]], name: str) -> int:
    import numba

    function, signature = make()
    cfunc: Any = numba.cfunc  # whose types do not know all options
    compiled = cfunc(signature, nogil=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True)(function)
    _owners.append(compiled)
    with contextlib.suppress(Exception):  # Numba may change what `_content` reads; and no warning stops a product
        _keep(name, _content(name, compiled))
    return compiled.address


def _apart(f: Callable[[], int], name: str) -> int:
    """f() on a worker thread.

    On the main thread Ctrl-C could raise inside llvmlite's callbacks and leave LLVM without a result. After an
    interrupt the next caller of this name awaits the same f.
    """
    if threading.current_thread() is not threading.main_thread():
        return f()
    result = _compiling[name] = _compiling.get(name) or ThreadPoolExecutor(1).submit(f)
    try:
        return result.result()
    finally:
        if result.done():
            del _compiling[name]


def _keep(name: str, content: bytes) -> None:
    """Writes a file to the first folder that takes it; warns if none does because others can write to it."""
    reason = ""
    for folder in _folders():
        with contextlib.suppress(OSError):
            if folder.name == "__pycache__":
                folder.mkdir(mode=0o755, exist_ok=True)  # Python's own files lie there too, for all users
            else:
                make_private(folder)
            if why := exposed(folder):
                reason = why
                continue
            write_private(folder / name, content)
            return
    if reason:
        _warn(reason)


@functools.cache  # once a process, not once a kernel
def _warn(reason: str) -> None:
    warnings.warn(
        f"compiled kernels are not kept, and every process compiles them anew: {reason}; name a folder that only you "
        "can write to, by NUMBA_CACHE_DIR",
        stacklevel=2,
    )


def _content(name: str, compiled: Any) -> bytes:
    """The file, of this name, of a C function of Numba.

    Raises:
      ValueError: it refers to a name that `_linked` cannot resolve, which would end the process.
    """
    library = compiled._library
    module = library._final_module
    names = [d.name for d in (*module.functions, *module.global_variables) if d.is_declaration]
    unknown = [n for n in {*names} - FROM_C - FROM_NUMBA if not n.startswith(("Py", "_Py", "llvm."))]
    if unknown:
        raise ValueError(f"unknown names {unknown}")
    rest = compiled._wrapper_name.encode() + b"\0" + library._get_compiled_object()
    return _digest(name, rest) + rest


def _digest(name: str, rest: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + rest, digest_size=DIGEST).digest()  # names are of one length


def _linked(name: str, content: bytes) -> int:
    from llvmlite import binding

    digest, rest = content[:DIGEST], content[DIGEST:]
    if _digest(name, rest) != digest:
        raise ValueError("a damaged file, or one of another name")
    function, _, code = rest.partition(b"\0")
    stand_in = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for symbol in FROM_NUMBA:  # until Numba is imported, which adds its own
        if binding.address_of_symbol(symbol) is None:
            binding.add_symbol(symbol, stand_in)
    linked = _engine(2)
    linked.add_object_file(binding.ObjectFileRef.from_data(code))
    linked.finalize_object()
    return linked.get_function_address(function.decode())


def of_handler(name: str, table: int) -> int:
    """The address of a function of `handler.c`, whose table is at this address."""
    from llvmlite import binding

    with _lock:
        binding.add_symbol("jaxsparse_table", table)
        engine = _engine(0)  # without effort LLVM takes 6 ms instead of 17
        engine.add_module(binding.parse_assembly(Path(__file__).with_name("handler.ll").read_text(encoding="utf-8")))
        engine.finalize_object()
        return engine.get_function_address(name)


def _engine(effort: int) -> Any:
    """LLVM's engine without code, compiling with an effort from 0 to 3; kept, since it owns its code.

    Each module has its own engine, since modules may have functions of one name, and interrupts may leave modules.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    cpu, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(cpu, features, opt=effort)
    made = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    _owners.append(made)
    return made


@functools.cache
def _machine(folder: Path) -> tuple[Any, ...]:
    """The sources in a folder, as a digest, the versions and the CPU, on which their machine code depends."""
    from llvmlite import binding

    sources = b"".join(file.read_bytes() for file in (Path(__file__), *sorted(folder.glob("*.py"))))
    cpu = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    versions = sys.version, metadata.version("numba"), metadata.version("llvmlite")
    return hashlib.blake2b(sources, digest_size=DIGEST).hexdigest(), sys.platform, *versions, *cpu


def _folders() -> Iterator[Path]:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given)
        return
    yield Path(__file__).parent / "__pycache__"
    if base := user_cache():
        yield base / "kernels"
