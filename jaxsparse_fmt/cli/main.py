"""The command `jaxsparse`: its parser, its exit codes, and its handling of errors. Each command has its own module.

Results go to standard output; progress, remarks and errors to standard error. `CODES` lists the exit codes.
"""

import argparse
import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, NoReturn

import jax

from jaxsparse_fmt._types import did_you_mean, exposed, make_private, user_cache
from jaxsparse_fmt._version import __version__
from jaxsparse_fmt.cli import bench, convert, demo, doctor, info, plots, process, solve, tables
from jaxsparse_fmt.cli.arguments import BadInput
from jaxsparse_fmt.cli.progress import Progress

COMMANDS = {
    "solve": solve,
    "info": info,
    "plot": plots,
    "bench": bench,
    "convert": convert,
    "demo": demo,
    "doctor": doctor,
}
CODES = """\
exit codes:
  0    done
  1    a solve did not converge, an answer of demo leaves more than it may, or
       a check of doctor failed
  2    bad input, or results that cannot be written: a full disk, a reader of
       standard output that is gone
  130  interrupted"""


class Parser(argparse.ArgumentParser):
    """Its message about a word that it does not know ends with the word that is spelt most like it."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        super().error(message + (did_you_mean(found[1], re.findall(r"\w+", found[2])) if found else ""))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (None: the process's own) in this thread and returns its exit code."""
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  None where a process is started without
    if sys.stdout is None:
        process.complain("standard output is closed; send it to /dev/null if it is not needed")
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × shows ?
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        _keep_programs()
        with Progress() as progress:
            done = args.run(args, progress)
        makes_way = getattr(args, "out", None) == "-"  # for what the command has written to standard output
        with contextlib.redirect_stdout(sys.stderr) if makes_way else contextlib.nullcontext():
            tables.report(args.json, done.record, *done.shown)
        for fault in done.faults:
            process.complain(fault)
        return done.code
    except (BadInput, tables.OutputLost) as error:
        process.complain(str(error))
        return 2
    except KeyboardInterrupt:
        process.complain("interrupted")
        return process.INTERRUPTED
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise  # a fault of the library
        process.complain(_out_of_memory(args, error))
        return 2


def _keep_programs() -> None:
    """Lets the next command load the programs that this one compiles, where JAX's settings name no other folder."""
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


def _parser() -> argparse.ArgumentParser:
    look: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Sparse matrices and Krylov solvers on JAX. Results go to standard output, progress to standard error."
    parser = Parser("jaxsparse", description=textwrap.fill(about, 78), epilog=CODES, allow_abbrev=False, **look)
    parser.add_argument("--version", action="version", version=f"jaxsparse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in COMMANDS.items():
        examples = "\n".join(["examples:", *(f"  jaxsparse {name} {example}" for example in module.EXAMPLES)])
        command = commands.add_parser(
            name, help=module.HELP, description=textwrap.fill(module.ABOUT, 78), epilog=examples, **look
        )
        command.set_defaults(run=module.run)
        for argument, options in module.ARGUMENTS:
            command.add_argument(argument, **options)
        command.add_argument("--json", action="store_true", help="print the results as one line of JSON")
    return parser


def _out_of_memory(args: argparse.Namespace, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0]
    cures = {"solve": "spread the rows with --devices, or ask for --dtype float32", "demo": "ask for a smaller --n"}
    cure = cures.get(args.command, "use a machine with more")
    return f"{getattr(args, 'file', args.command)}: out of memory{reason and f' ({reason})'}; {cure}"


if __name__ == "__main__":
    process.run(main)
