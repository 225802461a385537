"""The limits of a product's speed: counters of Nsight Compute for our kernels and cuSPARSE's.

    python -m benchmarks.counters --cases 9 12 --json benchmarks/results/counters.json     on a GPU, a minute a matrix

Matrices of the standard suite in the format that `auto` takes, beside cuSPARSE's CSR ALG1. Columns: the bytes that the
format must move, kernels and time; the bytes through DRAM and from the L2 to the L1 caches; the hit rates of L1 and
L2; the warps on a multiprocessor over the most that it can hold; the throughput of DRAM, the L2, the L1 and the
issue of instructions over its peak (the one near 1 limits the kernel); and the registers of a thread. Times are those
of a profiled launch, with the caches as the previous launch left them. Needs `ncu`, and a machine that lets it read the
counters. Every matrix has a process of its own, which is ended if it takes too long.
"""

import argparse
import csv
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, standard, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking

WINDOW = "window"  # the kernel that marks the start of a product in the profile
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
    """For each product of ours and theirs: a row without its counters, and a function that runs it and waits."""
    A = jsf.from_scipy(S, "csr", backend=backend)
    x = np.random.default_rng(0).standard_normal(S.shape[1])
    opponent = cusparse.Opponent(S, A)
    for dtype in dtypes:
        choice = ranking.rank(S, dtype, backend=backend)[0]
        B = A.asformat(choice.format, max_bytes=2**36, **choice.layout).astype(dtype)
        xj = jnp.asarray(x, dtype)
        row = {"matrix": case.name, "dtype": dtype}
        moved = timing.moved_bytes(B, xj) / 1e6
        run = lambda B=B, xj=xj: standard.product(B, xj).block_until_ready()  # noqa: E731
        yield row | {"product": standard.label(choice), "MB": moved}, run
        product = opponent.methods[THEIRS](dtype)
        given = product.to_device(x.astype(dtype))
        moved = timing.moved_bytes(A.astype(dtype), xj) / 1e6
        yield row | {"product": f"cuSPARSE {THEIRS}", "MB": moved}, lambda p=product, g=given: p.wait(p(g))


def profiled(case: suite.Case, S: Any, dtypes: list[str], backend: str) -> Iterator[Row]:
    """The rows without their counters. Each product runs once in a window that Nsight Compute watches."""
    cupy = cusparse.library().cupy
    window = cupy.RawKernel(f'extern "C" __global__ void {WINDOW}() {{}}', WINDOW)
    for row, run in products(case, S, dtypes, backend):
        run()
        run()
        cupy.cuda.profiler.start()
        window((1,), (1,), ())
        cupy.cuda.runtime.deviceSynchronize()
        run()
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.profiler.stop()
        yield row


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


def of_matrix(number: int, S: Any, dtypes: list[str], backend: str, seconds: float) -> list[Row]:
    """The rows of one matrix, from a process of its own.

    Raises:
      RuntimeError: it failed, or took more than `seconds`; its last words.
    """
    metrics = ",".join([TIME, DRAM, TO_L1, *SHARES.values(), REGISTERS])
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics, "--profile-from-start"]
    command += ["off", "--clock-control", "none", "--cache-control", "none", "--target-processes", "all"]
    with tempfile.TemporaryDirectory() as folder:
        again = ["--cases", str(number), "--dtypes", *dtypes, "--backend", backend]
        again += ["--inside", suite.save(S, str(Path(folder, "matrix")))]
        command += [sys.executable, "-m", "benchmarks.counters", *again]
        out, errors = within(command, seconds)
    heads = [line.split("|") for line in errors.splitlines() if line.count("|") == 3]
    found = windows(out)
    if not heads or len(found) != len(heads) or not all(found):
        raise RuntimeError(f"{out[-1000:]}\n{errors[-1000:]}".strip())
    names = ("matrix", "dtype", "product", "MB")
    return [
        counted(dict(zip(names, (*row[:3], float(row[3])), strict=True)), kernels)
        for row, kernels in zip(heads, found, strict=True)
    ]


def within(command: list[str], seconds: float) -> tuple[str, str]:
    """The output of the command on stdout and stderr.

    Raises:
      RuntimeError: it took more than `seconds`; it and its child processes, which hold the GPU, are killed then.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise RuntimeError(f"not done after {seconds:g} s") from None


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, small=False)
    parser.add_argument("--cases", type=int, nargs="+", required=True, help="numbers of the matrices in the suite")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the matrices; default 1")
    parser.add_argument("--backend", default="auto", help="of our products: auto (default), triton or mosaic")
    parser.add_argument("--each", type=float, default=90, help="seconds that a matrix may take; default 90")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    if args.inside:
        case = suite.SUITES["standard"][args.cases[0]]
        for row in profiled(case, suite.load(args.inside), args.dtypes, args.backend):
            print("|".join(f"{value}" for value in row.values()), file=sys.stderr)
        return 0
    if shutil.which("ncu") is None:
        report.log("no ncu on the PATH: it comes with Nsight Compute")
        return 1
    # To run a kernel once more, Nsight Compute restores the allocations that it may write; "platform" makes small ones.
    os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    rows, failed, text = [], [], ""
    for number, S in zip(args.cases, suite.made("standard", args.cases, args.scale, ahead=True), strict=True):
        start, name = time.perf_counter(), suite.SUITES["standard"][number].name
        try:
            rows += of_matrix(number, S, args.dtypes, args.backend, args.each)
        except RuntimeError as error:
            failed.append(name)
            report.log(f"{name}: {error}")
        report.log(f"{name}: {time.perf_counter() - start:.0f} s")
        header = report.provenance() | {"scale": f"{args.scale:g}"} | ({"failed": ", ".join(failed)} if failed else {})
        text = "\n".join([report.line(header), *report.section("counters", rows)])
        report.write(args.json, header, rows, text)
    print(text)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
