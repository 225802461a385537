"""A command as a process: an interruption ends it at once, and lost output ends it with one line of error."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from jaxsparse.commands import wrapped

INTERRUPTED = 130  # the exit code of shells for SIGINT
GRACE = 0.3  # seconds for an interrupted command to clean up
STACK = 64 << 20  # bytes: some systems give all threads but the first too little for XLA's compiler


def run(command: Callable[[], int]) -> NoReturn:
    """Calls the command in a thread of its own, and ends the process with the exit code that it returns.

    Python calls signal handlers in the first thread only, and not while that thread waits for XLA. This function raises
    an interruption in the command's thread too, so that the command can remove its display and half-written files. If
    XLA holds that thread for `GRACE` seconds, the process ends without that clean-up.
    """
    code, interrupted, done = 1, False, threading.Event()  # 1: of an error that Python shows

    def work() -> None:
        nonlocal code
        try:
            code = command()
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        except BaseException:
            if not interrupted:
                raise
            complain("interrupted")
        finally:
            done.set()

    threading.stack_size(STACK)
    worker = threading.Thread(target=work, name="jaxsparse", daemon=True)
    try:
        worker.start()
        done.wait()  # in Python 3.11 an interrupted `worker.join` takes the thread for ended
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait
        interrupted = True
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(KeyboardInterrupt))
        if not done.wait(GRACE):
            complain("interrupted")
            os._exit(INTERRUPTED)
        code = INTERRUPTED
    worker.join()
    for name in ("stdout", "stderr"):
        try:
            print(end="", file=getattr(sys, name), flush=True)
        except OSError as error:  # Python flushes again when it ends, and would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())
            if name == "stdout" and code != 2:  # with 2 the command has printed an error already
                complain(f"standard output: {error.strerror}")
                code = 2
    sys.exit(code)


def complain(text: str) -> None:
    """Prints one line on standard error, broken between words on a terminal."""
    with contextlib.suppress(OSError):
        print(wrapped(f"jaxsparse: {text}"), file=sys.stderr)
