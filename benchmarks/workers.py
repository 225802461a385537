"""Processes that make, convert and compile, one for each matrix, of which one at a time has the device.

Of more than eight cores, the process that has the device has four for itself, and the others share the rest.
"""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
LOCK: Any = threading.Lock()  # held by the process that has the device


def _run_on(cores: slice) -> None:
    for thread in os.listdir("/proc/self/task") if multiprocessing.parent_process() and len(CORES) > 8 else ():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), CORES[cores])


def _begin(lock: Any) -> None:
    """Prepares a process."""
    global LOCK
    LOCK = lock
    _run_on(slice(4, None))
    jax.config.update("jax_enable_x64", True)


@contextlib.contextmanager
def device() -> Iterator[None]:
    """A context in which no other process uses the device."""
    with LOCK:
        _run_on(slice(None, 4))
        yield
        _run_on(slice(4, None))


def each(f: Callable[[int], list], numbers: Iterable[int], workers: int) -> Iterator[list]:
    """f(number) for each number, in their order.

    One worker is this process. Of several, each number has a process of its own, which leaves no memory behind.
    """
    if workers > 1:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, _begin, (spawn.Lock(),), max_tasks_per_child=1) as pool:
            yield from pool.map(f, numbers)
        return
    for number in numbers:
        yield f(number)
        jax.clear_caches()
