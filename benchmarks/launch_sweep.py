"""Launch parameters of the kernels, swept: the evidence behind `tuning.LAUNCH` and `tuning.block`.

    python -m benchmarks.launch_sweep                                   needs an NVIDIA GPU
    python -m benchmarks.launch_sweep --sections sums --backend mosaic    when `csr5` should keep its sums

Prints microseconds by matrix, dtype and format. "blocks": by lanes a thread and entries in flight. "diagonals": whole
diagonals, by rows a block and lanes a thread. "columns": products with eight columns, all in one lane, by columns and
entries in flight. "sums": `csr5` without `keep_sums` and with it, by the bytes of sums whose entries are loaded
together, beside the predicted miss rate of x in the L1 cache.
"""

import contextlib
import dataclasses
import itertools
import math
import operator
import sys
from collections.abc import Iterable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import report, spmv, standard, suite, timing
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.formats.footprint import PatternCounts
from jaxsparse_fmt.kernels.backends import tuning

DTYPES = ("float32", "float64")
FORMATS = {"hll": {}, "sell": {}, "hdia": {}, "pjds": {}, "csr": {}, "bsr": {"block_shape": (3, 3)}}
VARIANTS = [(1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (4, 4), (4, 8)]  # lanes a thread, entries in flight
SHORT, UNEVEN = "1 to 3 a row", ("irregular, ±2,000", "5 × 5 blocks")  # of the standard suite
STENCILS, DIAGONALS = ("7-point", "27-point"), list(itertools.product((128, 256, 512, 1024), (1, 2)))
SUMS = ("adaptive mesh", "circuit", "Holstein-Hubbard", "uniform columns", "irregular, ±2,000", "irregular, ±50,000")
SUMS += tuple(f"like {name}" for name in ("StocF-1465", "webbase-1M", "G3_circuit", "thermal2"))
KEPT = (32, 64, 128)  # bytes of sums
IN_A_TRIP = 2  # products of a trip of `standard.chain`
COLUMNS, ALONE = 8, [(4, 8), (4, 4), (8, 8), (8, 4), (8, 2)]  # columns of a lane, entries in flight


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, dtypes=False)
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--sections", nargs="+", default=["blocks", "columns"], choices=list(SECTIONS))
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    print(report.machine(args.small)[1], args.backend)
    for section in args.sections:
        SECTIONS[section](args.backend, args.small)
    return 0


def made(name: str, small: bool) -> Any:
    """A matrix of the standard suite."""
    case = next(case for case in suite.SUITES["standard"] if case.name == name)
    return case.make(scale(small))


def scale(small: bool) -> float:
    return 1 / 2000 if small else 1


def blocks(backend: str, small: bool) -> None:
    heading(f"{lanes} × {unroll}" for lanes, unroll in VARIANTS)
    cases = spmv.cases("gpu", small, ("7-point", "27-point"))
    for name, make in [*cases.items(), (SHORT, lambda: made(SHORT, small))]:
        csr = jsf.from_scipy(make(), "csr", backend=backend)
        formats = {"sell": {"sigma": 1}} if name == SHORT else FORMATS
        for dtype, (format, layout) in itertools.product(DTYPES, formats.items()):
            A = csr.asformat(format, max_bytes=2**36, **layout).astype(dtype)
            times = (microseconds(A, None, of_block(tuning.LAUNCH.rows, *variant)) for variant in VARIANTS)
            row(name, dtype, format, times)


def diagonals(backend: str, small: bool) -> None:
    heading(f"{rows} rows, {lanes}" for rows, lanes in DIAGONALS)
    for name in STENCILS:
        wide = jsf.from_scipy(made(name, small), "sdia", backend=backend)
        for dtype in DTYPES:
            A = wide.astype(dtype)
            lowers = [rows >= tuning.LAUNCH.rows * lanes or backend != "mosaic" for rows, lanes in DIAGONALS]
            times = (
                microseconds(A, None, of_block(*variant, 4)) if whole else math.nan
                for variant, whole in zip(DIAGONALS, lowers, strict=True)
            )
            row(name, dtype, "sdia", times)


def columns(backend: str, small: bool) -> None:
    heading(f"{columns} columns, {unroll}" for columns, unroll in ALONE)
    for name, format in zip(UNEVEN, ("csr5", "csr"), strict=True):
        wide = jsf.from_scipy(made(name, small), format, backend=backend)
        for dtype in DTYPES:
            A = wide.astype(dtype)
            row(name, dtype, format, (microseconds(A, COLUMNS, of_columns(*variant)) for variant in ALONE))


def sums(backend: str, small: bool) -> None:
    heading(["no sums kept", *(f"{nbytes} bytes" for nbytes in KEPT)])
    names = [case.name for case in suite.SUITES["standard"]]
    matrices = suite.made("standard", [names.index(name) for name in SUMS], scale(small), ahead=not small)
    for name, S in zip(SUMS, matrices, strict=True):
        csr = jsf.from_scipy(S, "csr", backend=backend)
        for dtype in DTYPES:
            counts = PatternCounts(S, np.dtype(dtype), "gpu", True)
            stored = next(s for s in ranking.storages(counts) if s.format == "csr5")
            shape = {"tile_shape": stored.layout["tile_shape"], "max_bytes": 2**36}
            loose, kept = (csr.asformat("csr5", keep_sums=keeps, **shape).astype(dtype) for keeps in (False, True))
            times = [microseconds(loose, None, contextlib.nullcontext())]
            times += [microseconds(kept, None, of_launch(kept_loads=nbytes)) for nbytes in KEPT]
            row(name, dtype, f"csr5, {stored.misses:.2f} missed", times)


SECTIONS = {"blocks": blocks, "diagonals": diagonals, "columns": columns, "sums": sums}


def heading(variants: Iterable[str]) -> None:
    names = list(variants)
    print("\n| matrix | dtype | format |" + "".join(f" {name} |" for name in names))
    print("|---|---|---|" + "---:|" * len(names))


def row(name: str, dtype: str, format: str, times: Iterable[float]) -> None:
    print(f"| {name} | {dtype} | {format} |" + "".join(f" {us:.1f} |" for us in times), flush=True)


def of_block(rows: int, lanes_per_thread: int, unroll: int) -> Any:
    block = tuning.Block(rows, lanes_per_thread, unroll)
    return mock.patch.object(tuning, "block", lambda *_, **__: block)


def of_columns(columns: int, unroll: int) -> Any:
    return of_launch(columns_alone=columns, loads={**tuning.LAUNCH.loads, "columns": (1, unroll)})


def of_launch(**changed: Any) -> Any:
    return mock.patch.object(tuning, "LAUNCH", dataclasses.replace(tuning.LAUNCH, **changed))


def microseconds(A: jsf.SparseMatrix, columns: int | None, parameters: Any) -> float:
    """Microseconds of A·x, or of A·X with so many columns, under launch parameters."""
    shape = (A.shape[1],) if columns is None else (A.shape[1], columns)
    xs = [jnp.asarray(np.random.default_rng(i).standard_normal(shape), A.dtype) for i in range(3)]
    chained = columns is None and A.shape[0] == A.shape[1]
    run, products = (chain, IN_A_TRIP * standard.TRIPS) if chained else (operator.matmul, 1)
    with parameters:
        jax.clear_caches()
        seconds = timing.of_jax(run, A, xs) / products
    jax.clear_caches()
    return seconds * 1e6


def chain(A: jsf.SparseMatrix, x: jax.Array) -> jax.Array:
    return standard.chain(A, x, IN_A_TRIP)


if __name__ == "__main__":
    sys.exit(main())
