"""Products with several columns: A·X in the format of "auto".

    python -m benchmarks columns --json out.json                 the suite; on a GPU some ten minutes

Throughput is in columns a second, as a multiple of that with one column.
"""

import argparse
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report, spmv, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.choose.timing import repeated
from jaxsparse_fmt.formats import footprint

COUNTS = (1, 2, 4, 8, 32)


options = spmv.options_of_suite


def of_matrix(name: str, S: Any, dtype: str, copy: float, rounds: dict[str, Any]) -> Iterator[Row]:
    """A row for each number of columns."""
    choice = ranking.rank(S, dtype)[0]
    A: Any = jax.device_put(spmv.converted(S, choice, "auto"), jax.devices()[0]).astype(dtype)
    alone = 0.0
    for count in COUNTS:
        X = jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[1], count)), dtype)
        X = X[:, 0] if count == 1 else X
        # The first and the last column: SciPy would take seconds for all of them.
        ends = [np.asarray(Y.reshape(len(Y), -1)[:, np.array([0, -1])], np.float64) for Y in (X, spmv.product(A, X))]
        wanted = S @ ends[0]
        program, products = repeated(A, X)
        run = functools.partial(program, A, X)
        took = timing.seconds_per_call(lambda _, run=run: run(), **rounds) / products
        alone = alone or took
        moved = footprint.bytes_moved(A.nbytes_read, S.shape, X.dtype.itemsize * count)
        yield {
            "matrix": name, "dtype": dtype, "format": spmv.label(choice), "columns": count, "µs": 1e6 * took,
            "throughput": count * alone / took, "share": moved / took / copy,
            "error": float(np.max(np.abs(ends[1] - wanted)) / np.max(np.abs(wanted))),
        }  # fmt: skip


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    copy = timing.copy_bandwidth(args.small)
    scale = spmv.scale(args.small)
    header |= {"copy": f"{copy / 1e9:.0f} GB/s", "scale": f"{scale:g}"}
    rounds = spmv.QUICK if args.small else spmv.ROUNDS[report.platform_here()]

    def columns() -> Iterator[Row]:
        cases = suite.SUITES["standard"]
        for number in args.cases or range(len(cases)):
            S = suite.tamed(cases[number].make(scale))
            for dtype in args.dtypes:
                yield from of_matrix(cases[number].name, S, dtype, copy, rounds)

    return {"columns": columns}
