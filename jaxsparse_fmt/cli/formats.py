"""`jaxsparse formats`: the storage of a matrix in every format."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from jaxsparse_fmt import convert
from jaxsparse_fmt._types import Csr, readable_bytes
from jaxsparse_fmt.cli import arguments, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.formats import FORMATS

HELP = "list a matrix in every format"
ABOUT = "Stores a matrix in every format, each in its default layout, and lists places, fill and bytes."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_file(parser)
    arguments.add_dtype(parser)


def run(args: argparse.Namespace) -> int:
    records = []
    with Progress() as progress:
        with progress.stage("read", args.file):
            S = arguments.read_matrix(args)
        dtype = arguments.dtype_of(args, S.dtype)
        with arguments.word_length(dtype), progress.stage("store", "in every format"):
            for number, name in enumerate(FORMATS):
                progress.show(name, number / len(FORMATS))
                records.append(_record(S, name, dtype))
    title = f"{Path(args.file).name}: {S.shape[0]:,} × {S.shape[1]:,}, {S.nnz:,} entries, in {dtype}"
    columns = ("format", "places", "fill", "bytes", "÷ CSR", "refused")
    in_csr = next(record.get("nbytes") for record in records if record["format"] == "csr")
    lines = [_line(record, S.nnz, in_csr) for record in records]
    record = {"file": args.file, "dtype": str(dtype), "nnz": S.nnz, "formats": records}
    tables.report(args.json, record, tables.comparison(title, columns, lines))
    return 0


def _record(S: Csr, name: str, dtype: np.dtype) -> dict[str, Any]:
    """The storage of S in a format, or why the format refuses S: its storage would be out of proportion."""
    try:
        A = convert.from_scipy(S, name, dtype)
    except ValueError as error:
        return {"format": name, "refused": str(error)}
    return {"format": name, "layout": A.layout, "n_stored": A.n_stored, "nbytes": A.nbytes}


def _line(record: dict[str, Any], nnz: int, in_csr: int | None) -> tuple[str, ...]:
    name = record["format"]
    if "refused" in record:
        return name, "", "", "", "", record["refused"]
    places, size = record["n_stored"], record["nbytes"]
    fill = f"{nnz / places:.3f}" if places else "1"
    return name, f"{places:,}", fill, readable_bytes(size), f"{size / in_csr:.2f}" if in_csr else "", ""
