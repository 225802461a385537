"""KeyboardInterrupt during a solve: Python raises it in the first thread alone, and not while that waits for XLA."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from jaxsparse_fmt.kernels.cpu import ffi

SHORTEST, LONGEST, PART = 1e-5, 5e-3, 1 / 50  # seconds of a pause, and its part of the time waited so far
GRACE = 1.0  # seconds for an interrupted program to end


def heeding(program: Callable[..., Any], *args: Any) -> Any:
    """The results of a compiled program. An interrupt ends the call, and on a CPU the program, with KeyboardInterrupt.

    So the first thread waits here, where it can be interrupted, for a program on a CPU. A user's callback may be
    interrupted too, which XLA reports as an error of its own.
    """
    try:
        results = program(*args)
        is_first = threading.current_thread() is threading.main_thread()
        if is_first and jax.default_backend() == "cpu" and jax.process_count() == 1:
            _wait([a for a in jax.tree.leaves(results) if not isinstance(a, Tracer)])
        return results
    except Exception as error:  # of several classes, depending on whether XLA runs the program in a thread of its own
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from error
        raise


def _wait(results: list[Any]) -> None:
    begin = time.perf_counter()
    try:
        for a in results:
            while not a.is_ready():
                time.sleep(min(max(PART * (time.perf_counter() - begin), SHORTEST), LONGEST))
    except KeyboardInterrupt:
        with ffi.halting():
            end = time.perf_counter() + GRACE
            while time.perf_counter() < end and not all(a.is_ready() for a in results):
                time.sleep(LONGEST)
        raise
    jax.block_until_ready(results)  # raises the error of a program that failed
