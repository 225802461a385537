"""Sums, products and assembly of sparse matrices against SciPy: the first call, and new values on the same patterns.

    python -m benchmarks.algebra          # a table on the console; with --save benchmarks/results/DATE_algebra_cpu.md

Each figure is the median of `--repeats` runs; ours and SciPy's take turns. "first" includes the pattern of the result,
for operands whose plan is not kept; "again" is the jitted numeric step. All in float64.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.algebra import patterns

RESULTS = pathlib.Path(__file__).parent / "results"


def aggregates(n: int, size: int) -> sp.csr_array:
    """A prolongation that joins `size` neighbouring unknowns, smoothed by nothing."""
    rows = np.arange(n)
    return sp.csr_array((np.ones(n), (rows, rows // size)), shape=(n, -(-n // size)))


def cases(scale: float) -> dict[str, tuple[Callable[[], Any], Callable[[], Callable[[], Any]]]]:
    """SciPy's call, and a function that makes our plan and returns its numeric step."""
    n = max(int(100 * scale), 4)
    A = sp.csr_array(jsf.gallery.poisson(n, dim=3)).astype(float)
    smoothed = sp.csr_array(aggregates(A.shape[0], 8) - 0.1 * (A @ aggregates(A.shape[0], 8)))
    F = sp.csr_array(jsf.gallery.elasticity(max(int(32 * scale), 3))).astype(float)
    W = sp.csr_array(jsf.gallery.power_law(max(int(100_000 * scale), 100), seed=0)).astype(float)
    found = {}
    for name, S, R in (
        (f"A @ P, 7 points {n}³", A, smoothed),
        ("A @ A, FEM 3 unknowns a node", F, F),
        ("A @ A, power law", W, W),
    ):
        ours, right = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")
        found[name] = (lambda S=S, R=R: S @ R, lambda a=ours, b=right: _step(jsf.plan.matmul(a, b), a, b))
    ours, turned = jsf.from_scipy(F, "csr"), jsf.from_scipy(sp.csr_array(sp.triu(F)), "csr")
    T = turned.to_scipy()
    found["A + triu(A), FEM"] = (lambda: F + T, lambda: _step(jsf.plan.add(ours, turned), ours, turned))
    k = int(10_000_000 * scale)
    rng = np.random.default_rng(0)
    row, col, v = rng.integers(0, k // 10, k), rng.integers(0, 10, k), rng.normal(size=k)
    col = (row + col) % (k // 10)
    values = jax.numpy.asarray(v)

    def assemble() -> Callable[[], Any]:
        pattern = jsf.assembly(row, col, (k // 10, k // 10), "csr")
        call = jax.jit(lambda values: pattern(values).data)
        return lambda: call(values)

    found[f"assembly of {k:.0e} triplets"] = (
        lambda: sp.coo_array((v, (row, col)), shape=(k // 10, k // 10)).tocsr(),
        assemble,
    )
    return found


def _step(plan: Any, A: Any, B: Any) -> Callable[[], Any]:
    call = jax.jit(lambda plan, a, b: plan(A.with_data(a), B.with_data(b)).data)
    return lambda: call(plan, A.data, B.data)


def seconds(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(f())
    return time.perf_counter() - start


def measure(scale: float, repeats: int) -> list[tuple[str, float, float, float]]:
    rows = []
    for name, (scipys, ours) in cases(scale).items():
        ours()()  # compiles
        theirs, first, again = [], [], []
        for _ in range(repeats):
            patterns._kept.clear()
            theirs.append(seconds(scipys))
            start = time.perf_counter()
            step = ours()
            planned = time.perf_counter() - start
            step()  # compiles anew, since the step is a new function
            again.append(min(seconds(step) for _ in range(3)))
            first.append(planned + again[-1])
        rows.append((name, *(statistics.median(t) for t in (theirs, first, again))))
    return rows


def table(rows: list[tuple[str, float, float, float]]) -> str:
    today = datetime.datetime.now(datetime.UTC).date()
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("jax", "numpy", "scipy", "numba"))
    head = [
        f"# Sums, products and assembly against SciPy, {today}",
        "",
        f"`python -m benchmarks.algebra`: {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}, {versions}; float64. Seconds, medians. Ratios above 1 are in our favour.",
        "",
        "| operation | SciPy | plan and values | ratio | new values | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines = [f"| {n} | {s:.3f} | {f:.3f} | {s / f:.2f} | {a:.4f} | {s / a:.2f} |" for n, s, f, a in rows]
    return "\n".join((*head, *lines, ""))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes; small for a test")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the table into benchmarks/results")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    text = table(measure(args.scale, args.repeats))
    print(text)
    if args.save:
        today = datetime.datetime.now(datetime.UTC).date()
        (RESULTS / f"{today}_algebra_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
