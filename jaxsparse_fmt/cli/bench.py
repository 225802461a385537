"""`jaxsparse bench`: times the product in the formats that rank first, and compares with SciPy."""

import argparse

import numpy as np

from jaxsparse_fmt import choose, convert
from jaxsparse_fmt.choose.timing import median_seconds, seconds_per_product
from jaxsparse_fmt.cli import arguments, measure, tables
from jaxsparse_fmt.cli.progress import Progress


def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    arguments.check_backend(args)
    timed: list[tuple[choose.Choice, float]] = []
    S = arguments.read_matrix(args, progress)
    dtype = arguments.dtype_of(args, S.dtype)
    with arguments.word_length(dtype):
        with progress.stage("rank", "the formats"), arguments.blaming(args.file):
            choices = choose.fitting(choose.rank(S, dtype, backend=args.backend), S, dtype)
        for choice in choose.best_layouts(choices)[: args.formats]:
            with progress.stage("measure", choice.format), arguments.blaming(args.file):
                A = convert.from_scipy(S, choice.format, dtype, backend=args.backend, **choice.layout)
                timed.append((choice, seconds_per_product(A)))
        in_scipy, x = S.astype(dtype), np.ones(S.shape[1], dtype)
        of_scipy = median_seconds(lambda: in_scipy @ x)
    timed.sort(key=lambda pair: pair[1])
    rows, formats = [], []
    for c, seconds in timed:
        times = tables.duration(seconds), tables.bandwidth(c.moved, seconds)
        rows.append((c.format, tables.layout(c), *times, f"{of_scipy / seconds:.2f}"))
        formats.append({"measured": seconds, **tables.as_record(c)})
    columns = ("format", "layout", "measured", "bandwidth", "× SciPy here")
    record = {"file": args.file, "device": measure.device(), "dtype": str(dtype), "scipy": of_scipy, "formats": formats}
    title = f"A·x in {dtype} on {measure.device()}, fastest first"
    return tables.Done(record, [tables.comparison(title, columns, rows)])
