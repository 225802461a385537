"""Processes that make, convert and compile, one for each matrix, of which one at a time has the device.

Of more than eight cores, the process that has the device has four for itself, and the others share the rest.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@dataclasses.dataclass(frozen=True)
class Device:
    """What the processes share.

    Attributes:
      lock: held by the process that has the device.
      end: seconds since 1970 at which the run is over.
      workers: the number of processes.
    """

    lock: Any
    end: float
    workers: int

    def in_time(self) -> None:
        """TimeoutError: the run is over."""
        if time.time() > self.end:
            raise TimeoutError

    def run_on(self, cores: slice) -> None:
        for thread in os.listdir("/proc/self/task") if self.workers > 1 and len(CORES) > 8 else ():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), CORES[cores])


def _begin(device: Device) -> None:
    """Prepares a process."""
    global DEVICE
    DEVICE = device
    DEVICE.run_on(slice(4, None))
    jax.config.update("jax_enable_x64", True)


@contextlib.contextmanager
def device() -> Iterator[None]:
    """A context in which no other process uses the device."""
    with DEVICE.lock:
        DEVICE.in_time()
        DEVICE.run_on(slice(None, 4))
        yield
        DEVICE.run_on(slice(4, None))


def each(f: Callable[[int], list], numbers: Iterable[int], limit: float, workers: int) -> Iterator[list]:
    """f(number) for each number, in their order; [] for those that do not get the device within `limit` seconds.

    One worker is this process. Of several, each number has a process of its own, which leaves no memory behind.
    """
    spawn = multiprocessing.get_context("spawn")
    lock = threading.Lock() if workers == 1 else spawn.Lock()
    shared = Device(lock, time.time() + limit, workers)
    call = functools.partial(_call, f)
    if workers == 1:
        _begin(shared)
        yield from map(call, numbers)
        return
    with ProcessPoolExecutor(workers, spawn, _begin, (shared,), max_tasks_per_child=1) as pool:
        yield from pool.map(call, numbers)


def _call(f: Callable[[int], list], number: int) -> list:
    try:
        DEVICE.in_time()
        return f(number)
    except TimeoutError:
        return []
    finally:
        jax.clear_caches()
