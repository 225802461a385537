"""Calls of compiled kernels over the rows of arrays on the host, outside of XLA's programs: set-ups and plans."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxsparse_fmt import machine_code

ROWS = 16_384  # of a task


def over_rows(
    kernels: Callable[[], Any], name: Any, n_rows: int, n_marks: int, *arguments: Any, rows: int = ROWS
) -> None:
    """Calls a kernel (begin, end, marks, *arguments) for all rows, on all cores; each thread has marks of its own.

    Args:
      kernels: imports the module with the kernel, which stands in this folder.
      name: of the kernel; or a pair, the name of a function and what it makes the kernel of.
      n_marks: int64 numbers of a thread, -1 at first.
      arguments: contiguous arrays, integers and floats.
      rows: of a task.
    """
    assert all(a.flags.c_contiguous for a in arguments if isinstance(a, np.ndarray))
    function = _function(kernels, name, tuple(map(_kind, arguments)))
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    starts = range(0, n_rows, max(rows, 1))
    threads = max(1, min(len(starts), os.cpu_count() or 1))

    def thread(t: int) -> None:
        marks = np.full(n_marks, -1, np.int64)
        for start in starts[t::threads]:
            function(start, min(start + rows, n_rows), marks.ctypes.data, *values)

    if threads == 1:
        thread(0)
    else:
        list(_threads().map(thread, range(threads)))


def _kind(a: Any) -> str:
    return f"CPointer({a.dtype})" if isinstance(a, np.ndarray) else "double" if isinstance(a, float) else "int64"


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


@functools.cache
def _function(kernels: Callable[[], Any], name: Any, kinds: tuple[str, ...]) -> Any:
    """The compiled kernel, whose arguments after the marks are of these kinds."""
    signature = f"void(int64, int64, CPointer(int64), {', '.join(kinds)})"

    def made() -> tuple[Any, str]:
        module = kernels()
        return getattr(module, name) if isinstance(name, str) else getattr(module, name[0])(name[1]), signature

    types = (ctypes.c_double if kind == "double" else ctypes.c_int64 for kind in kinds)
    address = machine_code.address(made, kernels.__module__, str(name), signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, *types)(address)
