"""Ctrl-C during a solve: Python raises KeyboardInterrupt in the first thread, but not while that waits for XLA."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from jaxsparse_fmt._tracing import in_trace, is_on_cpu
from jaxsparse_fmt.kernels.backends import jax_versions

SHORTEST, LONGEST, PART = 1e-5, 5e-3, 1 / 50  # seconds of a pause, and its part of the time waited so far


def run(program: Callable[..., Any], *arguments: Any) -> Any:
    """Results of a compiled program. On one CPU, the first thread waits for them in Python, so that Ctrl-C raises.

    KeyboardInterrupt then leaves the program to end in the background. On GPUs and on several devices the results
    return at once, as those of any compiled program. XLA reports the interrupt of a user's callback as an error of
    its own.
    """
    try:
        results = program(*arguments)
        computed = [a for a in jax.tree.leaves(results) if not isinstance(a, Tracer)]
        if _raises() and jax.device_count() == 1 and computed and is_on_cpu(computed[0]):
            begin = time.perf_counter()
            while not all([a.is_ready() for a in computed]):
                time.sleep(min(max(PART * (time.perf_counter() - begin), SHORTEST), LONGEST))
            jax.block_until_ready(computed[0])  # raises the error of a program that failed
        return results
    except Exception as error:  # of several classes, depending on whether XLA runs the program in a thread of its own
        if re.search(r"^KeyboardInterrupt\b", str(error), re.MULTILINE):
            raise KeyboardInterrupt from error
        raise


def _raises() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this thread."""
    is_first = threading.current_thread() is threading.main_thread()
    return is_first and signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
        jax_versions.forget_tokens()  # else the next program with callbacks would wait for the interrupted one
        raise
    finally:
        _calls = False
