"""KeyboardInterrupt during a solve: Python raises it in the first thread alone, and not while that waits for XLA."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from jaxsparse_fmt._types import in_trace, is_on_cpu
from jaxsparse_fmt.kernels.backends import jax_versions
from jaxsparse_fmt.kernels.cpu import ffi

SHORTEST, LONGEST, PART = 1e-5, 5e-3, 1 / 50  # seconds of a pause, and its part of the time waited so far
GRACE = 1.0  # seconds for an interrupted program to end


@contextlib.contextmanager
def heeding() -> Iterator[Callable[[Any], Any]]:
    """A context in which a compiled program is called: an interrupt ends it in the first thread, on one CPU.

    It ends the program by an error of its native code. Several devices would wait for one another; there, and on GPUs,
    Python raises KeyboardInterrupt when the program has ended. XLA reports the interrupt of a user's callback as an
    error of its own. The context's function returns the results, complete where an interrupt can end the call.
    """
    thread = threading.current_thread()
    raises = thread is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if not raises or jax.device_count() > 1:  # of all processes
            yield lambda results: results
            return
        try:
            ffi.look(thread.ident or 0)
            yield _complete
        finally:
            ffi.look(0)
    except Exception as error:  # of several classes, depending on whether XLA runs the program in a thread of its own
        if re.search(r"^KeyboardInterrupt\b", str(error), re.MULTILINE):
            raise KeyboardInterrupt from error
        raise


_calls = False  # whether a solve calls the user now; another one inside such a call must not wait for it


@contextlib.contextmanager
def calling(options: Any) -> Iterator[None]:
    """A context for a solve, which ends after the last call of its callback and progress, unless it is traced."""
    global _calls
    if (options.callback, options.progress) == (None, None) or _calls or in_trace():
        yield
        return
    _calls = True
    try:
        yield
        jax.effects_barrier()
    except KeyboardInterrupt:
        jax_versions.forget_tokens()  # else the next program with callbacks may end as the interrupted one did
        raise
    finally:
        _calls = False


def _complete(results: Any) -> Any:
    ffi.look(0)
    computed = [a for a in jax.tree.leaves(results) if not isinstance(a, Tracer)]
    if computed and is_on_cpu(computed[0]):
        _wait(computed)
    return results


def _wait(results: list[Any]) -> None:
    begin = time.perf_counter()
    try:
        for a in results:
            while not a.is_ready():
                time.sleep(min(max(PART * (time.perf_counter() - begin), SHORTEST), LONGEST))
    except KeyboardInterrupt:
        end = time.time() + GRACE
        try:
            ffi.halt(end)
            while time.time() < end and not all(a.is_ready() for a in results):
                time.sleep(LONGEST)
        finally:
            ffi.halt(0)
        raise
    jax.block_until_ready(results[0])  # raises the error of a program that failed
