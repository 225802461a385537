"""What the commands of `jaxsparse` share: their arguments, and the refusal of what cannot be worked with."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt import io, plot
from jaxsparse_fmt.kernels import dialect

DTYPES = ("float32", "float64", "complex64", "complex128")


class BadInput(Exception):
    """What the user gave cannot be worked with; the text says why and what helps."""


def add_plot(parser: Any, default: str = "") -> None:
    suffixes = " or ".join(plot.SUFFIXES)
    parser.add_argument("--plot", metavar="FILE", help=f"draw a picture, {suffixes}{default}")


def add_rtol(parser: Any, default: float) -> None:
    text = f"stop when ‖b − A·x‖ ≤ rtol·‖b‖; default {default:.0e}"
    parser.add_argument("--rtol", type=rtol, default=default, metavar="R", help=text)


def rtol(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")


def at_least_one(text: str) -> int:
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")


@contextlib.contextmanager
def blaming(path: str) -> Iterator[None]:
    """Turns what reading and conversion raise into `BadInput` that names the file."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, ImportError) as error:
        text = str(error)
        raise BadInput(text if path in text else f"{path}: {text}") from error


def check_outputs(args: argparse.Namespace) -> None:
    """Before the long work: whether its results can be written."""
    if args.plot:
        with blaming(args.plot):
            plot.check(args.plot)
    out = getattr(args, "out", None)
    if out:
        folder = Path(out).parent
        if Path(out).is_dir():
            raise BadInput(f"{out}: is a folder; name a file in it")
        if Path(out).resolve() in (Path(args.file).resolve(), Path(args.rhs or args.file).resolve()):
            raise BadInput(f"{out}: --out would overwrite the input; give it another name")
        if not out.lower().endswith(io.VECTOR_SUFFIXES):
            known = ", ".join(io.VECTOR_SUFFIXES)
            raise BadInput(f"{out}: cannot write x so; let the name end in {known}")
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise BadInput(f"{out}: no folder {folder} that can be written to; create it first")


def check_backend(args: argparse.Namespace) -> None:
    with blaming("--backend"):
        dialect.resolve(args.backend, "cuda" if jax.default_backend() == "gpu" else None)


def dtype_of(args: argparse.Namespace, given: np.dtype) -> np.dtype:
    """The dtype asked for, else that of the files."""
    dtype = np.dtype(args.dtype or given)
    if given.kind == "c" and dtype.kind != "c":
        raise BadInput(
            f"{args.file}: --dtype {dtype} would drop the imaginary parts of the matrix or of the "
            "right-hand side; use complex64 or complex128"
        )
    return dtype
