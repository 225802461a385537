"""The entry point of `jaxsparse` and `python -m jaxsparse`."""

import os
import sys
from typing import NoReturn

from jaxsparse import commands, process


def _run() -> int:
    args = commands.parse()
    _forget_working_folder()
    from jaxsparse_fmt.cli import main as cli  # which imports JAX, once the arguments are known to be right

    process.is_loaded.set()
    return cli.run(args)


def _forget_working_folder() -> None:
    """Takes the folder in which `python -m` looks first off the path, since a user's `solvers.py` there hides ours."""
    first, ours = sys.path[0], os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if first and not sys.flags.safe_path and os.path.realpath(first) != ours:
        del sys.path[0]


def main() -> NoReturn:
    """Runs the command with the process's arguments; never returns."""
    process.run(_run)


if __name__ == "__main__":
    main()
