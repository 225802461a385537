"""The entry point of `jaxsparse` and `python -m jaxsparse`."""

import os
import signal
import sys
from typing import Any, NoReturn

from jaxsparse import commands, process

_is_loading = True


def _run() -> int:
    global _is_loading
    args = commands.parse()
    _forget_working_folder()
    from jaxsparse_fmt.cli import main as cli  # which imports JAX, once the arguments are known to be right

    _is_loading = False
    return cli.run(args)


def _interrupt(*_: Any) -> None:
    """Ends the process while libraries load, of which some would print a traceback; later raises KeyboardInterrupt."""
    if _is_loading:
        try:
            os.write(2, b"jaxsparse: interrupted\n")
        finally:
            os._exit(process.INTERRUPTED)
    raise KeyboardInterrupt


def _forget_working_folder() -> None:
    """Takes the folder in which `python -m` looks first off the path, since a user's `solvers.py` there hides ours."""
    first, ours = sys.path[0], os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if first and not sys.flags.safe_path and os.path.realpath(first) != ours:
        del sys.path[0]


def main() -> NoReturn:
    """Runs the command with the process's arguments; never returns."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores SIGINT
        signal.signal(signal.SIGINT, _interrupt)
    process.run(_run)


if __name__ == "__main__":
    main()
