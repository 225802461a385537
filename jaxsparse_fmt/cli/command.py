"""The entry point of `jaxsparse` and `python -m jaxsparse`: an interruption prints one line, even while JAX loads.

The build installs this file as the module `jaxsparse` outside of the package (`pyproject.toml`), since importing any
module of `jaxsparse_fmt` imports JAX. No module of the package imports it.
"""

import os
import signal
from typing import Any, NoReturn


def _leave(*_: Any) -> NoReturn:
    try:
        os.write(2, b"jaxsparse: interrupted\n")
    finally:
        os._exit(130)


def main() -> NoReturn:
    """Runs the command with the process's arguments; never returns."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller ignores SIGINT
    if is_heeded:
        signal.signal(signal.SIGINT, _leave)
    from jaxsparse_fmt.cli import main as cli
    from jaxsparse_fmt.cli import process

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process.run(cli.main)


if __name__ == "__main__":
    main()
