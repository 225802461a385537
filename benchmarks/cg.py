"""Conjugate gradients per iteration: the loop that checks every step against the one that checks every ten, and SciPy.

    python -m benchmarks.cg                       7-point problems from 4,096 unknowns up, float64

The floor is the bytes a step must move, A once and 11 vectors, over the measured copy bandwidth.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg

import jaxsparse_fmt as jsf
from benchmarks import spmv, timing
from solvers import cg

VECTORS = 11  # read and written by a step as XLA fuses it; see solvers/cg.py


def seconds_per_iteration(A: jsf.SparseMatrix, b: jax.Array, iterations: int, check_every: int) -> float:
    """Median over five solves that run to `iterations`, which no tolerance stops."""
    solve = lambda: cg(A, b, rtol=0.0, maxiter=iterations, check_every=check_every).x.block_until_ready()  # noqa: E731
    solve()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        solve()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) / iterations


def scipy_per_iteration(S: Any, b: np.ndarray, iterations: int) -> float:
    start = time.perf_counter()
    scipy.sparse.linalg.cg(S, b, rtol=0.0, maxiter=iterations)
    return (time.perf_counter() - start) / iterations


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, help="points along an axis")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the rows here, and the table beside it as .md")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    on_cpu = jax.default_backend() == "cpu"
    copy = timing.copy_bandwidth(2**28 if on_cpu else 2**31)
    header = timing.provenance() | {"copy": f"{copy / 1e9:.0f} GB/s"}
    lines = [", ".join(f"{k} {v}" for k, v in header.items()), ""]
    lines += ["| unknowns | format | floor µs | every step µs | every 10 µs | share of floor | SciPy µs |"]
    lines += ["|---:|---|---:|---:|---:|---:|---:|"]
    rows = []
    for n in args.sizes or ([16, 50, 100] if on_cpu else [16, 50, 100, 200]):
        S = jsf.gallery.poisson(n)
        A = jsf.from_scipy(S)
        b = np.random.default_rng(0).standard_normal(S.shape[0])
        moved = spmv.moved_bytes(A, b) + (VECTORS - 2) * b.nbytes
        row = {"unknowns": S.shape[0], "format": A.name, "floor": moved / copy * 1e6}
        for every in (1, 10):
            row[f"every {every}"] = seconds_per_iteration(A, jnp.asarray(b), args.iterations, every) * 1e6
        row["scipy"] = scipy_per_iteration(S, b, min(args.iterations, 20)) * 1e6
        best = min(row["every 1"], row["every 10"])
        lines.append(
            f"| {row['unknowns']} | {row['format']} | {row['floor']:.1f} | {row['every 1']:.1f} | "
            f"{row['every 10']:.1f} | {row['floor'] / best:.2f} | {row['scipy']:.0f} |"
        )
        rows.append(row)
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if args.json:
        timing.write(args.json, header, rows, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
