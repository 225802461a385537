"""Runs a command of `jaxsparse`: its exit codes, and its handling of errors. Each command has its own module.

Results go to standard output; progress, remarks and errors to standard error. `jaxsparse.commands` has the parser and
the list of exit codes.
"""

import argparse
import contextlib
import functools
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxsparse import commands, process
from jaxsparse_fmt._files import exposed, make_private, user_cache
from jaxsparse_fmt.cli import tables
from jaxsparse_fmt.cli.arguments import BadInput
from jaxsparse_fmt.cli.progress import Progress

# Cures as Python has them, and the command line's options in their place; what it has no option for stays.
OPTIONS = {
    "raise maxiter": "raise --maxiter",
    "loosen rtol": "loosen --rtol",
    "a better M": "another --precond",
    "with jax_enable_x64": "--dtype float64",
    "jax.config.update('jax_enable_x64', True)": "--dtype float64",
    **{f"M=precond.{name}(A)": f"--precond {name}" for name in commands.PRECONDITIONERS},
    **{f"{name}={value!r}": f"--{name} {value}" for name, values in commands.CHOICES.items() for value in values},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (None: the process's own) in this thread and returns its exit code."""
    return run(commands.parse(argv))


def run(args: argparse.Namespace) -> int:
    """Runs the command that the parser found, and returns its exit code."""
    if sys.stdout is None:
        process.complain("standard output is closed; send it to /dev/null if it is not needed")
        return 2
    command = importlib.import_module(f"jaxsparse_fmt.cli.{'plots' if args.command == 'plot' else args.command}")
    try:
        _keep_programs()
        with Progress() as progress, _warnings_as_lines(progress):
            done = command.run(args, progress)
        is_taken = vars(args).get("out") == "-"  # standard output, by the command
        with contextlib.redirect_stdout(sys.stderr) if is_taken else contextlib.nullcontext():
            tables.report(args.json, done.record, *done.shown)
        for fault in done.faults:
            process.complain(_in_options(fault))
        return done.code
    except (BadInput, tables.OutputLost) as error:
        process.complain(_in_options(str(error)))
        return 2
    except KeyboardInterrupt:
        process.complain("interrupted")
        return process.INTERRUPTED
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise  # a fault of the library
        process.complain(_out_of_memory(args, error))
        return 2


@contextlib.contextmanager
def _warnings_as_lines(progress: Progress) -> Iterator[None]:
    """A context in which a warning is a line of the command, without the place in the code that gave it."""

    def show(message: Any, *_: Any, **__: Any) -> None:
        progress.clear()
        process.complain(_in_options(str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _in_options(text: str) -> str:
    return functools.reduce(lambda text, pair: text.replace(*pair), OPTIONS.items(), text)


def _keep_programs() -> None:
    """Has JAX keep the programs of this command for later ones, unless its settings name another folder."""
    settings: Any = jax.config
    home = user_cache()
    if home is not None and not settings.jax_compilation_cache_dir:
        folder = home / "xla"
        try:
            make_private(folder)
            if why := exposed(folder):  # JAX runs what it finds there
                raise PermissionError(why)
        except OSError as error:
            return process.complain(f"compiled programs are not kept: {error}")
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _out_of_memory(args: argparse.Namespace, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0]
    cures = {"solve": "spread the rows with --devices, or ask for --dtype float32", "demo": "ask for a smaller --n"}
    cure = cures.get(args.command, "use a machine with more")
    return f"{vars(args).get('file', args.command)}: out of memory{reason and f' ({reason})'}; {cure}"
