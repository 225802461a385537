"""Calls of compiled kernels over the rows of arrays on the host, outside XLA's programs: set-ups and plans."""

import ctypes
import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxsparse_fmt import machine_code
from jaxsparse_fmt._types import CORES

ROWS = 16_384  # rows of a task by default
ALIGNED = 64  # bytes: XLA's own arrays for a CPU begin at a multiple of it
PLACES = 65_536  # places of a piece for NumPy
PIECES, SERIAL = 32, 2**15  # how many tasks of equal work; less work than SERIAL is one task


def over_rows(
    kernels: Callable[[], Any],
    name: Any,
    n_rows: int,
    n_marks: int,
    *arguments: Any,
    rows: int = ROWS,
    before: np.ndarray | None = None,
) -> None:
    """Calls a kernel (begin, end, marks, *arguments) for all rows, on all cores; each thread has marks of its own.

    A thread takes its tasks in the order of their rows, so a kernel can distinguish earlier rows' marks from its own.

    Args:
      kernels: imports and returns the module with the kernel, which lies in this folder.
      name: of the kernel; or a pair, the name of the function that makes the kernel, and its argument.
      n_marks: how many marks a thread has, int64; they start at -1.
      arguments: contiguous arrays, integers and floats.
      rows: of a task, if `before` is None.
      before: [n_rows + 1], the work in the rows before; tasks then have about equal work.
    """
    if before is None:
        cuts = [*range(0, n_rows, max(rows, 1)), n_rows]
    else:
        cuts = equal_pieces(before, PIECES if before[-1] > SERIAL else 1).tolist()
    tasks = iter(list(itertools.pairwise(cuts)))

    def thread() -> None:
        marks = np.full(n_marks, -1, np.int64)
        for begin, end in tasks:
            call(kernels, name, begin, end, marks, *arguments)

    in_threads(thread, len(cuts) - 1)


def in_threads(thread: Callable[[], None], tasks: int) -> None:
    """Calls `thread` on every core, at most once for each task; the calls share the tasks."""
    threads = min(tasks, CORES)
    if threads <= 1:
        thread()
    else:
        list(_threads().map(lambda _: thread(), range(threads)))


def in_pieces(f: Callable[..., tuple[np.ndarray, ...]], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """f(*arrays), which computes row by row, for pieces on every core: NumPy keeps a piece in the cache of a core."""
    n, step = len(arrays[0]), max(PLACES // max(arrays[0][:1].size, 1), 1)
    found = tuple(np.empty((n, *a.shape[1:]), a.dtype) for a in f(*(a[:0] for a in arrays)))
    begins = iter(range(0, n, step))

    def thread() -> None:
        for begin in begins:
            here = slice(begin, begin + step)
            for whole, part in zip(found, f(*(a[here] for a in arrays)), strict=True):
                whole[here] = part

    in_threads(thread, -(-n // step))
    return found


def call(kernels: Callable[[], Any], name: Any, begin: int, end: int, marks: np.ndarray, *arguments: Any) -> None:
    """Calls a kernel for the rows from `begin` to `end`; arguments as in `over_rows`."""
    assert all(a.flags.c_contiguous for a in arguments if isinstance(a, np.ndarray))
    function = _function(kernels, name, tuple(map(_kind, arguments)))
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    function(begin, end, marks.ctypes.data, *values)


def equal_pieces(
    before: np.ndarray,  # [n_rows + 1], the work in the rows before
    count: int,
) -> np.ndarray:
    """The rows [count + 1] at which `count` pieces of about equal work begin and end."""
    cuts = np.searchsorted(before, before[-1] * np.arange(count + 1) // count)
    cuts[-1] = before.size - 1
    return cuts


def empty(n: int, dtype: Any) -> np.ndarray:
    """An array [n] at an address from which `jax.device_put` takes it without a copy, on a CPU."""
    spare = ALIGNED // np.dtype(dtype).itemsize
    room = np.empty(n + spare, dtype)
    start = -room.ctypes.data % ALIGNED // room.itemsize
    return room[start : start + n]


def _kind(a: Any) -> str:
    return f"CPointer({a.dtype})" if isinstance(a, np.ndarray) else "double" if isinstance(a, float) else "int64"


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES)


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


@functools.cache
def _function(kernels: Callable[[], Any], name: Any, kinds: tuple[str, ...]) -> Any:
    """The compiled kernel for arguments of these kinds behind the marks."""
    signature = f"void(int64, int64, CPointer(int64), {', '.join(kinds)})"

    def made() -> tuple[Any, str]:
        module = kernels()
        return getattr(module, name) if isinstance(name, str) else getattr(module, name[0])(name[1]), signature

    types = (ctypes.c_double if kind == "double" else ctypes.c_int64 for kind in kinds)
    address = machine_code.address(made, kernels.__module__, str(name), signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, *types)(address)
