"""`jaxsparse convert`: reads a matrix and writes it as another kind of file."""

import argparse
import sys

import scipy.io

from jaxsparse.commands import MATRICES
from jaxsparse_fmt import convert, saved
from jaxsparse_fmt._types import Csr
from jaxsparse_fmt.cli import arguments, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.io import files


def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    kind = arguments.check_output(args.out, MATRICES, args.file, kind=args.out_format, piped="mtx")
    S = arguments.read_matrix(args, progress)
    S = S.astype(arguments.dtype_of(args, S.dtype))
    with progress.stage("write", args.out), arguments.blaming(args.out):
        _write(S, args, kind)
    record = {"file": args.file, "out": args.out, "rows": S.shape[0], "columns": S.shape[1], "nnz": S.nnz}
    out = "standard output" if args.out == "-" else args.out
    text = f"{out}: {S.shape[0]:,} × {S.shape[1]:,}, {S.nnz:,} entries, {S.dtype}"
    return tables.Done(record, [text])


def _write(S: Csr, args: argparse.Namespace, kind: str) -> None:
    if args.out == "-":
        try:
            scipy.io.mmwrite(sys.stdout.buffer, S, symmetry="general")
            sys.stdout.flush()
        except OSError as error:
            raise tables.OutputLost(f"standard output: {error.strerror}") from error
    elif kind == ".npz":
        with arguments.word_length(S.dtype):
            saved.save(args.out, convert.from_scipy(S, args.format, S.dtype))
    else:
        files.write_mtx(args.out, S, kind)
