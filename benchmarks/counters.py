"""Why a product takes as long as it does: what the counters of Nsight Compute say of our kernels and of cuSPARSE's.

    python -m benchmarks.counters --cases 9 12 --json benchmarks/results/counters.json     on a GPU, 15 s a matrix

Matrices of the standard suite in the format that `auto` takes, beside cuSPARSE's CSR ALG1. Columns: what the format
must move at least, kernels and time; what went through DRAM, and from the L2 to the L1 caches; the share of sectors
that were in the L1 and in the L2; the warps that a multiprocessor holds, of the most that it can; the share of the peak
at which DRAM, the L2, the L1 and the issue of instructions worked: near 1, that is what the kernel waits for; and the
registers of a thread. Times are those of a profiled launch, with the caches as the launch before left them. Needs
`ncu`, and a machine that lets it read the counters.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import cusparse, solvers, spmv, standard, suite, timing
from jaxsparse_fmt import choose

Row = dict[str, Any]
WINDOW = "window"  # the kernel that tells in the profile where a product begins
THEIRS = "CSR ALG1"
TIME, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
TO_L1 = "l1tex__m_xbar2l1tex_read_bytes.sum"
SHARES = {
    "in L1": "l1tex__t_sector_hit_rate.pct",
    "in L2": "lts__t_sector_hit_rate.pct",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
REGISTERS = "launch__registers_per_thread"


def products(case: suite.Case, S: Any, dtypes: list[str], backend: str) -> Any:
    """(a row so far, a function that runs the product and waits) of each of ours and theirs."""
    A = jsf.from_scipy(S, "csr", backend=backend)
    x = np.random.default_rng(0).standard_normal(S.shape[1])
    opponent = cusparse.Opponent(S, A)
    for dtype in dtypes:
        choice = choose.rank(S, dtype, backend=backend)[0]
        B = A.asformat(choice.format, max_bytes=2**36, **choice.layout).astype(dtype)
        xj = jnp.asarray(x, dtype)
        row = {"matrix": case.name, "dtype": dtype}
        moved = spmv.moved_bytes(B, xj) / 1e6
        run = lambda B=B, xj=xj: standard.product(B, xj).block_until_ready()  # noqa: E731
        yield row | {"product": standard.label(choice), "MB": moved}, run
        product = opponent.methods[THEIRS](dtype)
        given = product.to_device(x.astype(dtype))
        moved = spmv.moved_bytes(A.astype(dtype), xj) / 1e6
        yield row | {"product": f"cuSPARSE {THEIRS}", "MB": moved}, lambda p=product, g=given: p.wait(p(g))


def profiled(numbers: list[int], dtypes: list[str], scale: float, backend: str) -> list[Row]:
    """The rows without their counters. Each product runs once in a window that Nsight Compute watches."""
    cupy = cusparse.library().cupy
    window = cupy.RawKernel(f'extern "C" __global__ void {WINDOW}() {{}}', WINDOW)
    rows = []
    for number in numbers:
        case = suite.SUITES["standard"][number]
        for row, run in products(case, case.make(scale), dtypes, backend):
            run()
            run()
            cupy.cuda.profiler.start()
            window((1,), (1,), ())
            cupy.cuda.runtime.deviceSynchronize()
            run()
            cupy.cuda.runtime.deviceSynchronize()
            cupy.cuda.profiler.stop()
            rows.append(row)
        jax.clear_caches()
    return rows


def windows(text: str) -> list[list[dict[str, str]]]:
    """The kernels of each window in the output of `ncu --csv --page raw`."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        return []
    header, _, *kernels = csv.reader(io.StringIO("\n".join(lines)))
    found: list[list[dict[str, str]]] = []
    for kernel in (dict(zip(header, k, strict=True)) for k in kernels):
        if kernel["Kernel Name"].startswith(WINDOW):
            found.append([])
        else:
            found[-1].append(kernel)
    return found


def counted(row: Row, kernels: list[dict[str, str]]) -> Row:
    """Sums over the kernels of a product; shares are those of its longest kernel."""
    number = lambda kernel, name: float(kernel[name].replace(",", ""))  # noqa: E731
    total = lambda name: sum(number(k, name) for k in kernels)  # noqa: E731
    longest = max(kernels, key=lambda k: number(k, TIME))
    return row | {
        "kernels": len(kernels),
        "µs": total(TIME) / 1e3,
        "DRAM MB": total(DRAM) / 1e6,
        "L2 to L1 MB": total(TO_L1) / 1e6,
        **{name: number(longest, metric) / 100 for name, metric in SHARES.items()},
        "registers": round(number(longest, REGISTERS)),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="+", required=True, help="numbers of the matrices in the suite")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--scale", type=float, default=1.0, help="size of the matrices; default 1")
    parser.add_argument("--backend", default="auto", help="of our products: auto (default), triton or mosaic")
    parser.add_argument("--json", type=Path, help="also write the rows here, and the table beside it as .md")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    if args.inside:
        for row in profiled(args.cases, args.dtypes, args.scale, args.backend):
            print("|".join(f"{value}" for value in row.values()), file=sys.stderr)
        return 0
    if shutil.which("ncu") is None:
        print("no ncu on the PATH: it comes with Nsight Compute", file=sys.stderr)
        return 1
    metrics = ",".join([TIME, DRAM, TO_L1, *SHARES.values(), REGISTERS])
    watched = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics, "--profile-from-start"]
    watched += ["off", "--clock-control", "none", "--cache-control", "none", "--target-processes", "all"]
    again = ["--inside", "--scale", str(args.scale), "--backend", args.backend]
    again += ["--dtypes", *args.dtypes, "--cases", *map(str, args.cases)]
    # To run a kernel once more, Nsight Compute restores the allocations that it may write; "platform" makes small ones.
    small = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    inside = [*watched, sys.executable, "-m", "benchmarks.counters", *again]
    done = subprocess.run(inside, capture_output=True, text=True, env=os.environ | small)
    told = [line.split("|") for line in done.stderr.splitlines() if line.count("|") == 3]
    found = windows(done.stdout)
    if len(found) != len(told) or not all(found):
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
        return 1
    names = ("matrix", "dtype", "product", "MB")
    rows = [
        counted(dict(zip(names, (*row[:3], float(row[3])), strict=True)), kernels)
        for row, kernels in zip(told, found, strict=True)
    ]
    header = timing.provenance() | {"scale": f"{args.scale:g}"}
    lines = [timing.line(header), *solvers.table("counters", rows)]
    print("\n".join(lines))
    if args.json:
        timing.write(args.json, header, rows, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
