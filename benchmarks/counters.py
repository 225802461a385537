"""What bounds a product on a GPU: counters of Nsight Compute for the kernels of "auto", matrix by matrix.

    python -m benchmarks counters benchmarks/results/2026-11-27_suite_h100.json --json out.json

Takes the matrices of results of `benchmarks spmv` on which "auto" is less than `--below` times as fast as cuSPARSE,
each in the type in which it is the slowest. Processes make and convert them; then `ncu`, which must be on the PATH,
runs one product a matrix and after each a marker, a small kernel of CuPy's. Of several kernels of a product the longest
counts. A figure is a fraction of what the unit sustains; if no unit is near its peak, loads wait for one another.
"""

import argparse
import csv
import functools
import json
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import report, spmv, suite
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking

PEAK, TIME = "avg.pct_of_peak_sustained", "gpu__time_duration.sum"
METRICS = {name: f"{unit}.{PEAK}_elapsed" for name, unit in (("DRAM", "dram__throughput"), ("L2", "lts__throughput"))}
METRICS |= {"L1": f"l1tex__throughput.{PEAK}_elapsed", "SM": f"sm__throughput.{PEAK}_elapsed"}
METRICS |= {"occupancy": f"sm__warps_active.{PEAK}_active"}
NCU = ["ncu", "--csv", "--target-processes", "all", "--profile-from-start", "off"]
NCU += ["--cache-control", "none", "--clock-control", "none", "--metrics", ",".join([TIME, *METRICS.values()])]
MARKER = "cupy_"  # the name of each kernel of CuPy's begins so


def made(folder: Path, scale: float, number: int, row: Row) -> str:
    """Writes the matrix of a row in the format of "auto", with NumPy's arrays, and returns the format."""
    jax.config.update("jax_enable_x64", True)
    case = next(case for cases in suite.SUITES.values() for case in cases if case.name == row["matrix"])
    S = suite.tamed(case.make(scale))
    choice = ranking.rank(S, row["dtype"], platform="gpu")[0]
    with spmv.on_host():
        A = jsf.from_scipy(S, choice.format, dtype=row["dtype"], max_bytes=2**36, **choice.layout)
    (folder / f"{number:03}").write_bytes(pickle.dumps(jax.tree.map(np.asarray, A)))
    return spmv.label(choice)


def profiled(folder: Path) -> None:
    """A product of each matrix that is stored there, and the marker, within what Nsight Compute counts."""
    import cupy  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    marker = cupy.zeros(1)
    with ThreadPoolExecutor() as pool:  # of threads, since compiling takes longer than all the rest
        ready = list(pool.map(_compiled, sorted(folder.glob("[0-9]*"))))
    report.log(f"{len(ready)} products compiled")
    for on_host, product in ready:
        A = jax.device_put(on_host)
        x = jnp.ones(A.shape[1], A.dtype)
        jax.block_until_ready(product(A, x))
        cupy.cuda.runtime.profilerStart()
        jax.block_until_ready(product(A, x))
        marker += 1
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStop()
        report.log(f"{A.nnz:,} entries counted")


def _compiled(path: Path) -> tuple[Any, Callable[..., Any]]:
    """A matrix on the host, and its product on the device."""
    A = pickle.loads(path.read_bytes())
    return A, spmv.product.lower(A, spmv.vector(A, A.dtype)).compile()


def counted(lines: list[str]) -> list[Row]:
    """The counters of each matrix, from the lines that `ncu` writes."""
    kernels: dict[str, Row] = {}
    for line in csv.DictReader(line for line in lines if line.startswith('"')):
        kernel = kernels.setdefault(line["ID"], {"kernel": line["Kernel Name"]})
        kernel[line["Metric Name"]] = float(line["Metric Value"].replace(",", ""))
    found, of_product = [], []
    for kernel in kernels.values():
        if not kernel["kernel"].startswith(MARKER):
            of_product.append(kernel)
            continue
        longest = max(of_product, key=lambda k: k[TIME])
        found.append({name: longest[metric] / 100 for name, metric in METRICS.items()} | {"kernel": longest["kernel"]})
        of_product = []
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", type=Path, nargs="+", help="results of benchmarks spmv")
    parser.add_argument("--below", type=float, default=1.2, help="times the speed of cuSPARSE; default 1.2")
    parser.add_argument("--workers", type=int, default=8, help="processes that make and convert matrices")


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    rows = [row for table in args.tables for row in json.loads(table.read_text())["rows"] if row["ratio"] < args.below]
    slowest = {row["matrix"]: row for row in sorted(rows, key=lambda row: -row["ratio"])}
    rows = sorted(slowest.values(), key=lambda row: -row["nnz"])  # the longest to make first

    def counters() -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as name:
            log = Path(name, "log.csv")
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(args.workers, spawn, max_tasks_per_child=1) as pool:
                make = functools.partial(made, Path(name), 1 / 2000 if args.small else 1.0)
                formats = list(pool.map(make, range(len(rows)), rows))
            report.log(f"{len(rows)} matrices made")
            code = f"import pathlib; from benchmarks import counters; counters.profiled(pathlib.Path({name!r}))"
            command = [*NCU, "--log-file", str(log), sys.executable, "-c", code]
            quiet = subprocess.DEVNULL
            subprocess.run(command, check=True, start_new_session=True, stdin=quiet, stdout=quiet)
            found = counted(log.read_text().splitlines())
        for row, format, of_kernel in zip(rows, formats, found, strict=True):
            row = {"matrix": row["matrix"], "dtype": row["dtype"], "format": format, "ratio": row["ratio"]}
            yield row | of_kernel

    return {"counters": counters}
