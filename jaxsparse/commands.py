"""The commands of `jaxsparse` with their arguments, and what reads a command line. Nothing here imports JAX.

So `--version`, `--help` and a misspelt word are answered at once. The module `jaxsparse_fmt.cli.main` runs a command.
"""

import argparse
import contextlib
import difflib
import os
import runpy
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn

STDIN = "<stdin>"  # how messages name a FILE of "-"
DTYPES = ("float32", "float64", "complex64", "complex128")
PICTURES = (".png", ".pdf", ".svg")
VECTORS = (".mtx", ".mtx.gz", ".npy", ".txt")
MATRICES = (".mtx", ".mtx.gz", ".npz")
# Copies of the library's own names, which a test compares.
BACKENDS = ("auto", "triton", "mosaic", "numba", "xla", "interpret")
FORMATS = (
    *("coo", "csr", "csr5", "csc", "dia", "hdia", "ell", "ellr", "ellrt"),
    *("hll", "jds", "pjds", "pellr", "biell", "bijad", "hyb", "bsr", "sell"),
)
SYMMETRIC, GENERAL = ("cg", "fcg", "minres"), ("gmres", "bicgstab", "idrs", "lsmr")
CHOOSING = ("auto", "direct")  # methods that `solvers.solve` sets up
METHODS = (*CHOOSING, *SYMMETRIC, *GENERAL)
CHOICES = {"format": ("auto", "tune", *FORMATS), "dtype": DTYPES, "backend": BACKENDS, "method": METHODS}
PRECONDITIONERS = ("jacobi", "incomplete_cholesky", "incomplete_lu", "ilu", "multigrid")
CODES = """\
exit codes:
  0    done
  1    a solve did not converge, an answer of demo leaves more than it may, or
       a check of doctor failed
  2    bad input, or results that cannot be written: a full disk, a reader of
       standard output that is gone
  130  interrupted"""


class Command(NamedTuple):
    """The texts of a command, example command lines without `jaxsparse NAME`, and arguments of `add_argument`."""

    help: str
    about: str
    examples: Sequence[str]
    arguments: Sequence[tuple[str, dict[str, Any]]]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(choices), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def wrapped(text: str) -> str:
    """`text` broken between words for a terminal; one line in a pipe or a file."""
    if sys.stderr is None or not sys.stderr.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Ends its message about an unknown word with the known word of most similar spelling."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, wrapped(f"{self.prog}: error: {message}") + "\n")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        known = action.choices
        if known is not None and value not in known:
            near = did_you_mean(value, known)
            raise argparse.ArgumentError(action, f"{value!r} is not one of {', '.join(known)}{near}")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends with the first argument that this command does not take."""
        word = next((word for word in unknown if word.startswith("-")), unknown[0])
        near = did_you_mean(word.partition("=")[0], self._option_string_actions)
        self.error(f"unknown {'option' if word.startswith('-') else 'argument'} {word!r}{near}")


def version() -> str:
    """The version of the packages, read from its file, since importing the package imports JAX."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return runpy.run_path(os.path.join(root, "jaxsparse_fmt", "_version.py"))["__version__"]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of a command line (None: the process's own). Ends the process if they are wrong."""
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  None if the process was started without
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × shows ?
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    about = "Sparse matrices and Krylov solvers on JAX. Results go to standard output, progress to standard error."
    parser = Parser("jaxsparse", description=textwrap.fill(about, 78), epilog=CODES, **style)
    parser.add_argument("--version", action="version", version=f"jaxsparse {version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {}
    for name, command in COMMANDS.items():
        examples = "\n".join(["examples:", *(f"  jaxsparse {name} {example}" for example in command.examples)])
        about = textwrap.fill(command.about, 78)
        parsers[name] = commands.add_parser(name, help=command.help, description=about, epilog=examples, **style)
        for argument, options in command.arguments:
            parsers[name].add_argument(*argument.split(", "), **options)
        parsers[name].add_argument("--json", action="store_true", help="print the results as one line of JSON")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parsers.get(args.command, parser).refuse(unknown)
    if args.command is None:
        parser.print_help(sys.stderr)
        sys.exit(2)
    return args


def _number(convert: Callable[[str], Any], allowed: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """The type of an argument; its error says that a text is not `words`."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if allowed(convert(text)):
                return convert(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")

    return parse


_rtol = _number(float, lambda x: 0 < x < 1, "a number between 0 and 1")
_atol = _number(float, lambda x: 0 <= x < float("inf"), "a number from 0 up")
_at_least_one = _number(int, lambda n: n >= 1, "a whole number from 1 up")


def _argument(name: str, help: str, metavar: str | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
    return name, options | {"help": help, "metavar": metavar}


def _out_format(suffixes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    kinds = [suffix[1:] for suffix in suffixes]
    return _argument("--out-format", "the kind of OUT, whatever its name: %(choices)s", "KIND", choices=kinds)


_FILE_HELP = (
    "Matrix Market, .mtx or .mtx.gz; MATLAB's .mat; .npz of scipy.sparse or jaxsparse.save; - for Matrix Market from "
    "standard input"
)
_METHOD_HELP = "%(choices)s; auto, the default, takes what suits A; lsmr takes a matrix of any shape, for least squares"
_ITERATIONS_HELP = "most iterations of a method; default 10·rows, and fewer where another method may follow"
_RTOL_HELP = "stop when ‖b − A·x‖ ≤ rtol·‖b‖; default %(default).0e"
_FORMAT_HELP = "a storage format, or auto (ranked), the default, or tune (measured)"
_PICTURE = " or ".join(PICTURES)

FILE = _argument("file", _FILE_HELP, "FILE", type=lambda name: STDIN if name == "-" else name)
DTYPE = _argument("--dtype", "of matrix and vectors; default: the file's", choices=DTYPES)
BACKEND = _argument("--backend", "of the products; default auto", choices=BACKENDS, default="auto")
SOLVE = [
    FILE,
    _argument("--rhs", "b: .mtx, .mtx.gz, .npy or .txt; without: A·1", "FILE"),
    _argument("--x0", "where to begin, a file as of --rhs; without: 0", "FILE"),
    _argument("--out", "write x here: .mtx, .mtx.gz, .npy or .txt; -: standard output", "FILE"),
    _out_format(VECTORS),
    _argument("--plot", f"draw a picture, {_PICTURE}", "FILE"),
    _argument("--format", _FORMAT_HELP, "NAME", choices=CHOICES["format"], default="auto"),
    DTYPE,
    _argument("--method", _METHOD_HELP, "NAME", choices=METHODS, default="auto"),
    _argument(
        "--precond",
        "%(choices)s; default auto with --method auto, else none",
        "NAME",
        choices=("auto", "none", *PRECONDITIONERS),
    ),
    BACKEND,
    _argument("--rtol", _RTOL_HELP, "R", type=_rtol, default=1e-6),
    _argument("--atol", "or when ‖b − A·x‖ ≤ atol; default 0", "R", type=_atol, default=0.0),
    _argument("--devices", "spread the rows over N devices", "N", type=_at_least_one, default=1),
    _argument("--maxiter", _ITERATIONS_HELP, "N", type=_at_least_one),
    ("-v, --verbose", {"help": "list the methods that were tried", "action": "store_true"}),
]
BENCH = [FILE, _argument("--formats", "how many; default 8", "N", type=_at_least_one, default=8), DTYPE, BACKEND]
CONVERT = [
    FILE,
    _argument("out", f"{', '.join(MATRICES)}; - for Matrix Market to standard output", "OUT"),
    _out_format(MATRICES),
    _argument(
        "--format", "the storage format in an .npz; default csr", "NAME", choices=("auto", *FORMATS), default="csr"
    ),
    DTYPE,
]
DEMO = [
    _argument("--n", "points an axis; default 100", type=_at_least_one, default=100),
    _argument("--plot", f"draw both, {_PICTURE}", "FILE"),
    _argument("--rtol", _RTOL_HELP, "R", type=_rtol, default=1e-8),
]

COMMANDS = {
    "solve": Command(
        "solve A·x = b",
        "Solves A·x = b: by a method that suits A, and by another if that fails, or by the one asked for.",
        ["matrix.mtx.gz --rhs b.mtx --rtol 1e-8 --out x.npy", "matrix.mtx --method gmres --precond incomplete_lu"],
        SOLVE,
    ),
    "info": Command(
        "describe a matrix",
        "Describes a matrix and ranks the formats by the bytes that a product moves.",
        ["matrix.mtx.gz", "- --json < matrix.mtx"],
        [FILE],
    ),
    "plot": Command(
        "draw a matrix",
        "Draws the pattern and the row lengths of a matrix.",
        ["matrix.mtx.gz matrix.png"],
        [FILE, _argument("out", f"the picture, {_PICTURE}", "OUT")],
    ),
    "bench": Command(
        "time the formats",
        "Times A·x in the formats that rank first, each in its best layout, and compares with SciPy.",
        ["matrix.mtx.gz --dtype float32"],
        BENCH,
    ),
    "convert": Command(
        "write a matrix as another file",
        "Reads a matrix and writes it as Matrix Market, or as the .npz of jaxsparse.save, which holds its format too.",
        ["matrix.mtx.gz matrix.npz --format sell", "matrix.npz - | gzip > matrix.mtx.gz"],
        CONVERT,
    ),
    "demo": Command(
        "solve, against SciPy",
        "Solves the 7-point Poisson problem on n³ points here and with SciPy, and compares.",
        ["--n 64", "--plot demo.png"],
        DEMO,
    ),
    "doctor": Command(
        "check this installation",
        "Shows versions, devices and kernels; checks a product and a solve on every device, and names cures.",
        ["", "--json"],
        [],
    ),
}
