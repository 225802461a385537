"""What bounds a product on a GPU: counters of Nsight Compute for the kernels of "auto", matrix by matrix.

    python -m benchmarks counters benchmarks/results/2026-11-27_suite_h100.json --json out.json

Takes the matrices of results of `benchmarks spmv` on which "auto" is less than `--below` times as fast as cuSPARSE,
each in the type in which it is the slowest. `ncu`, which must be on the PATH, counts one product a matrix and after
each a marker, a small kernel of CuPy's. Of several kernels of a product the longest counts. A figure is a fraction of
what the unit sustains; if no unit is near its peak, loads wait for one another.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

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


def profiled(folder: str, scale: float) -> None:
    """A product of the matrix of each row that is stored there, and the marker, within what Nsight Compute counts.

    Stores the formats, which are those of "auto".
    """
    import cupy  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    cases, marker = {case.name: case for cases in suite.SUITES.values() for case in cases}, cupy.zeros(1)
    formats = []
    for row in json.loads(Path(folder, "rows").read_text()):
        S = suite.tamed(cases[row["matrix"]].make(scale))
        choice = ranking.rank(S, row["dtype"])[0]
        A: Any = jax.device_put(spmv.converted(S, choice, "auto"), jax.devices()[0]).astype(row["dtype"])
        x = jnp.ones(A.shape[1], A.dtype)
        jax.block_until_ready(spmv.product(A, x))
        cupy.cuda.runtime.profilerStart()
        jax.block_until_ready(spmv.product(A, x))
        marker += 1
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStop()
        formats.append(spmv.label(choice))
        report.log(f"{row['matrix']}, {row['dtype']} counted")
    Path(folder, "formats").write_text(json.dumps(formats))


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


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    rows = [row for table in args.tables for row in json.loads(table.read_text())["rows"] if row["ratio"] < args.below]
    slowest = {row["matrix"]: row for row in sorted(rows, key=lambda row: -row["ratio"])}
    rows = [{key: row[key] for key in ("matrix", "dtype", "ratio")} for row in slowest.values()]
    scale = 1 / 2000 if args.small else 1.0

    def counters() -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as name:
            log = Path(name, "log.csv")
            Path(name, "rows").write_text(json.dumps(rows))
            code = f"from benchmarks import counters; counters.profiled({name!r}, {scale})"
            command = [*NCU, "--log-file", str(log), sys.executable, "-c", code]
            quiet = subprocess.DEVNULL
            subprocess.run(command, check=True, start_new_session=True, stdin=quiet, stdout=quiet)
            formats = json.loads(Path(name, "formats").read_text())
            found = counted(log.read_text().splitlines())
        for row, format, of_kernel in zip(rows, formats, found, strict=True):
            yield row | {"format": format} | of_kernel

    return {"counters": counters}
