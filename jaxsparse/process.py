"""A command as a process: an interruption ends it at once, and lost output ends it with one line of error."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from jaxsparse.commands import wrapped

INTERRUPTED = 130  # the exit code of shells for SIGINT
GRACE = 0.3  # seconds for an interrupted command to clean up

is_loaded = threading.Event()  # set once all libraries are: some would print a traceback if they were interrupted


def run(command: Callable[[], int]) -> NoReturn:
    """Calls the command, and ends the process with the exit code that it returns.

    Python calls signal handlers in this thread only, and not while it waits for XLA. So another thread waits for an
    interruption and raises it here, so that the command can remove its display and half-written files. If XLA holds
    this thread for `GRACE` seconds, the process ends without that clean-up.
    """
    is_interrupted, is_done = threading.Event(), threading.Event()

    def watch() -> None:
        signal.sigwait({signal.SIGINT})
        if is_loaded.is_set() and not is_done.is_set():
            is_interrupted.set()
            _thread.interrupt_main()
            if is_done.wait(GRACE):
                return
        complain("interrupted")
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in all threads that start from here on
        threading.Thread(target=watch, name="jaxsparse", daemon=True).start()
    try:
        code = command()
    except SystemExit as end:  # of argparse
        code = int(end.code or 0)
    except BaseException:  # XLA makes another error of an interruption in a callback
        if not is_interrupted.is_set():
            raise
        complain("interrupted")
        code = INTERRUPTED
    is_done.set()
    for stream in (sys.stdout, sys.stderr):
        try:
            print(end="", file=stream, flush=True)
        except OSError as error:  # Python flushes again when it ends, and would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and code != 2:  # with 2 the command has printed an error already
                complain(f"standard output: {error.strerror}")
                code = 2
    sys.exit(code)


def complain(text: str) -> None:
    """Prints one line on standard error, broken between words on a terminal."""
    with contextlib.suppress(OSError):
        print(wrapped(f"jaxsparse: {text}"), file=sys.stderr)
