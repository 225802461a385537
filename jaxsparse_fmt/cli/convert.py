"""`jaxsparse convert`: reads a matrix and writes it as another kind of file."""

import argparse
import sys

import scipy.io

from jaxsparse_fmt import convert, saved
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.cli import arguments, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.formats import FORMATS
from jaxsparse_fmt.io import files

HELP = "write a matrix as another file"
ABOUT = "Reads a matrix and writes it as Matrix Market, or as the .npz of jsf.save, which holds its format too."
SUFFIXES = (".mtx", ".mtx.gz", ".npz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_file(parser)
    text = f"{', '.join(SUFFIXES)}; - for Matrix Market to standard output"
    parser.add_argument("out", metavar="OUT", help=text)
    known, text = ("auto", *FORMATS), "the storage format in an .npz; default csr"
    parser.add_argument("--format", choices=known, default="csr", metavar="NAME", help=text)
    arguments.add_dtype(parser)


def run(args: argparse.Namespace) -> int:
    is_piped = args.out == "-"
    if not is_piped:
        arguments.check_output(args.out, SUFFIXES, args.file)
    with Progress() as progress:
        with progress.stage("read", args.file):
            S = arguments.read_matrix(args)
        S = S.astype(arguments.dtype_of(args, S.dtype))
        with progress.stage("write", args.out), arguments.blaming(args.out):
            _write(S, args)
    record = {"file": args.file, "out": args.out, "rows": S.shape[0], "columns": S.shape[1], "nnz": S.nnz}
    where = "standard output" if is_piped else args.out
    text = f"{where}: {S.shape[0]:,} × {S.shape[1]:,}, {S.nnz:,} entries, {S.dtype}"
    with tables.making_way(args.out):
        tables.report(args.json, record, text)
    return 0


def _write(S: Csr, args: argparse.Namespace) -> None:
    if args.out == "-":
        try:
            scipy.io.mmwrite(sys.stdout.buffer, S, symmetry="general")
            sys.stdout.flush()
        except OSError as error:
            raise tables.OutputLost(f"standard output: {error.strerror}") from error
    elif args.out.lower().endswith(".npz"):
        with arguments.word_length(S.dtype):
            saved.save(args.out, convert.from_scipy(S, args.format, S.dtype))
    else:
        files.write_mtx(args.out, S)
