"""The entry point of `jaxsparse` and `python -m jaxsparse`: an interruption prints one line, even while JAX loads."""

import os
import signal
import sys
from typing import Any, NoReturn


def _leave(*_: Any) -> NoReturn:
    try:
        os.write(2, b"jaxsparse: interrupted\n")
    finally:
        os._exit(130)


def _forget_working_folder() -> None:
    """Takes the folder in which `python -m` looks first off the path, since a user's `solvers.py` there hides ours."""
    first, ours = sys.path[0], os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if first and not sys.flags.safe_path and os.path.realpath(first) != ours:
        del sys.path[0]


def main() -> NoReturn:
    """Runs the command with the process's arguments; never returns."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller ignores SIGINT
    if is_heeded:
        signal.signal(signal.SIGINT, _leave)
    _forget_working_folder()
    from jaxsparse_fmt.cli import main as cli
    from jaxsparse_fmt.cli import process

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process.run(cli.main)


if __name__ == "__main__":
    main()
