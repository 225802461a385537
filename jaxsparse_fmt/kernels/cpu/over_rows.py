"""Calls of compiled kernels over the rows of arrays on the host, outside XLA's programs: set-ups."""

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxsparse_fmt._types import CORES
from jaxsparse_fmt.kernels.cpu import machine_code

ROWS = 16_384  # rows of a task by default
PLACES = 2**18  # places of a piece for NumPy: with fewer, threads wait for Python's lock more than they compute
PIECES = 32  # of long arrays that are only read: each is a task, which takes Python's lock some times
# Threads of a pass by NumPy, whose short operations take Python's lock in turn: 16 threads burned 2.1 CPU seconds where
# one takes 0.13 (from_scipy of a million rows), and 32 were no faster.
FOR_NUMPY = 4


def over_rows(kernel: Callable[..., None], n_rows: int, n_marks: int, *arguments: Any, rows: int = ROWS) -> None:
    """Calls a kernel (begin, end, marks, *arguments) for all rows, on all cores; each thread has marks of its own.

    Args:
      kernel: for Numba to compile, from a module of this folder.
      n_marks: the number of a thread's marks, int64; they start at -1.
      arguments: contiguous arrays and integers.
      rows: of a task.
    """
    assert all(a.flags.c_contiguous for a in arguments if isinstance(a, np.ndarray))
    kinds = tuple(f"CPointer({a.dtype})" if isinstance(a, np.ndarray) else "int64" for a in arguments)
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    step = max(rows, 1)
    of_thread = threading.local()
    function: Any = _function(kernel, kinds) if n_rows else None

    def task(begin: int) -> None:
        if not hasattr(of_thread, "marks"):
            of_thread.marks = np.full(n_marks, -1, np.int64)
        function(begin, min(begin + step, n_rows), of_thread.marks.ctypes.data, *values)

    in_threads(task, range(0, n_rows, step))


def in_threads(f: Callable[[Any], Any], tasks: Iterable[Any], most: int = CORES) -> list[Any]:
    """[f(task) for each task], by threads on every core, at most `most`."""
    given, threads = [*tasks], min(most, CORES)
    return [*map(f, given)] if min(len(given), threads) <= 1 else [*_threads(threads).map(f, given)]


def in_pieces(f: Callable[..., tuple[Any, ...]], *arrays: Any, places: int = 0) -> tuple[Any, ...]:
    """f(*arrays), which computes row by row; of NumPy's arrays in pieces on several cores: one stays in a core's cache.

    Args:
      places: of a row of the results; 0: those of the first array.
    """
    if not isinstance(arrays[0], np.ndarray):
        return f(*arrays)
    n, step = len(arrays[0]), max(PLACES // max(places or arrays[0][:1].size, 1), 1)
    found = tuple(np.empty((n, *a.shape[1:]), a.dtype) for a in f(*(a[:0] for a in arrays)))

    def task(begin: int) -> None:
        piece = slice(begin, begin + step)
        for whole, part in zip(found, f(*(a[piece] for a in arrays)), strict=True):
            whole[piece] = part

    in_threads(task, range(0, n, step), FOR_NUMPY)
    return found


def in_some_piece(f: Callable[..., Any], *arrays: np.ndarray) -> bool:
    """Whether f(*pieces) holds for some piece of the arrays [n], tried by a few threads until it does."""
    n = len(arrays[0])
    step = max(PLACES, -(-n // PIECES))
    begins = range(0, n, step)
    if len(begins) == 1:
        return bool(f(*arrays))
    return any(_threads(min(FOR_NUMPY, CORES)).map(lambda begin: f(*(a[begin : begin + step] for a in arrays)), begins))


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


@functools.cache
def _function(kernel: Callable[..., None], kinds: tuple[str, ...]) -> Any:
    """The compiled kernel for arguments of these kinds after the marks."""
    signature = f"void(int64, int64, CPointer(int64), {', '.join(kinds)})"
    try:
        address = machine_code.address(lambda: (kernel, signature), kernel.__module__, kernel.__name__, signature)
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        raise ImportError(
            "multigrid, incomplete factors and triangular solves need Numba on the host, to compile their kernels, and "
            "it is not installed; pip install numba"
        ) from None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (3 + len(kinds)))(address)
