"""Arguments that several commands share, and the checks that refuse bad input before any long work."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt import convert, plot, saved
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.io import files
from jaxsparse_fmt.kernels.backends import selection

DTYPES = ("float32", "float64", "complex64", "complex128")
PICTURES = (".png", ".pdf", ".svg")
STDIN = "<stdin>"  # how messages name a FILE of "-"


class BadInput(Exception):
    """The command cannot use the user's input; the text names the cause and the cure."""


def _number(of: Callable[[str], Any], allowed: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """The type of an argument, whose error says that a text is not `words`."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if allowed(of(text)):
                return of(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")

    return parse


rtol = _number(float, lambda x: 0 < x < 1, "a number between 0 and 1")
at_least_one = _number(int, lambda n: n >= 1, "a whole number from 1 up")


def argument(name: str, help: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """One of a command's `ARGUMENTS`, as `add_argument` of a parser takes it."""
    return name, options | {"help": help}


FILE = argument(
    "file",
    "Matrix Market, .mtx or .mtx.gz, or the .npz of jsf.save; - for Matrix Market from standard input",
    type=lambda name: STDIN if name == "-" else name,
    metavar="FILE",
)
DTYPE = argument("--dtype", "of matrix and vectors; default: the file's", choices=DTYPES)
BACKEND = argument("--backend", "of the products; default auto", choices=selection.BACKENDS, default="auto")
RTOL = argument("--rtol", "stop when ‖b − A·x‖ ≤ rtol·‖b‖; default %(default).0e", type=rtol, default=1e-6, metavar="R")


@contextlib.contextmanager
def blaming(path: str) -> Iterator[None]:
    """Turns the errors of reading and conversion into `BadInput` that names the file."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, ImportError) as error:
        text = str(error)
        raise BadInput(text if path in text else f"{path}: {text}") from error


def read_matrix(args: argparse.Namespace, progress: Progress) -> Csr:
    """The matrix of FILE as canonical CSR, a stage of the command; standard input and pipes are read once."""
    with progress.stage("read", args.file), blaming(args.file):
        if args.file.lower().endswith(".npz"):
            with jax.enable_x64(True):
                return convert.canonical(saved.load(args.file).to_scipy())
        if args.file != STDIN:
            return convert.canonical(files.read_mtx(args.file))
        if sys.stdin is None:
            raise BadInput(f"{STDIN} is closed; name a file")
        return convert.canonical(files.read_mtx(sys.stdin.buffer))


def check_picture(out: str, *inputs: str) -> None:
    """Refuses a picture that cannot be drawn or written."""
    with blaming(out):
        plot.check_available()
    check_output(out, PICTURES, *inputs)


def check_output(out: str, suffixes: tuple[str, ...], *inputs: str) -> None:
    """Refuses a name without one of the suffixes, and a file that cannot be written or that is one of the inputs."""
    folder = Path(out).parent
    if Path(out).is_dir():
        raise BadInput(f"{out}: is a folder; name a file in it")
    if Path(out).resolve() in (Path(name).resolve() for name in inputs):
        raise BadInput(f"{out}: would overwrite the input; give it another name")
    if not out.lower().endswith(suffixes):
        raise BadInput(f"{out}: the name decides the kind of file; end it in {', '.join(suffixes)}")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"{out}: no folder {folder} that can be written to; create it first")


def check_backend(args: argparse.Namespace) -> None:
    with blaming("--backend"):
        selection.resolve(args.backend, "cuda" if jax.default_backend() == "gpu" else None)


def check_square(file: str, S: Csr) -> None:
    rows, cols = S.shape
    if rows != cols or rows == 0:
        raise BadInput(
            f"{file}: a square matrix of at least one row is needed, this one is {rows} × {cols}; "
            "for least squares take --method lsmr"
        )


def dtype_of(args: argparse.Namespace, given: np.dtype) -> np.dtype:
    """The dtype that the user names, or else that of the files."""
    dtype = np.dtype(args.dtype or given)
    if given.kind == "c" and dtype.kind != "c":
        raise BadInput(
            f"{args.file}: --dtype {dtype} would drop the imaginary parts of the matrix or of the "
            "right-hand side; use complex64 or complex128"
        )
    return dtype


def word_length(dtype: np.dtype) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX holds 64-bit numbers where `dtype` is made of them, and only there."""
    return jax.enable_x64(np.finfo(dtype).bits == 64)
