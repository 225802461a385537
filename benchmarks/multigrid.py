"""Multigrid against PyAMG: seconds to set up and to solve to 1e-8, iterations, operator complexity.

    python -m benchmarks.multigrid --json out.json            some three minutes on two cores

Each figure is of a second call, so that nothing compiles; "cold" is the first set-up and solve of the process, which
compile or load kernels and programs. "CPU" sums the seconds of all threads.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pyamg

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.report import Row
from solvers import cg, precond


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, seconds, and the processor's seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(f())
    return result, time.perf_counter() - wall, time.process_time() - cpu


def cases(small: bool) -> dict[str, tuple[Any, Any]]:
    """Matrix and near-null space."""
    n, m = (20, 8) if small else (100, 32)
    points = np.array(list(itertools.product(range(m), repeat=3)), float)
    return {
        f"7 points {n}³": (jsf.gallery.poisson(n), None),
        f"elasticity {m}³": (jsf.gallery.elasticity(m), jsf.gallery.rigid_body_modes(points)),
    }


def measure(name: str, S: Any, B: Any) -> list[Row]:
    A, b = jsf.from_scipy(S), np.random.default_rng(0).standard_normal(S.shape[0])
    rows: list[Row] = []
    for call in ("cold", "warm"):
        M, *setup = timed(lambda: precond.multigrid(A, B))
        sol, *solve = timed(lambda M=M: cg(A, b, M=M, rtol=1e-8))
        assert sol.success
        figures = int(sol.iterations), M.operator_complexity
        rows.append(row(name, f"ours, {call}", *setup, *solve, *figures))
    blocks = S if B is None else S.tobsr(blocksize=(3, 3))
    theirs, *setup = timed(lambda: pyamg.smoothed_aggregation_solver(blocks, B=B))
    residuals: list[float] = []
    _, *solve = timed(lambda: theirs.solve(b, tol=1e-8, accel="cg", residuals=residuals))
    rows.append(row(name, "PyAMG", *setup, *solve, len(residuals) - 1, theirs.operator_complexity()))
    return rows


def row(case: str, side: str, *figures: float) -> Row:
    names = ("setup", "setup_cpu", "solve", "solve_cpu", "iterations", "complexity")
    return {"case": case, "side": side} | dict(zip(names, figures, strict=True))


def main(argv: list[str] | None = None) -> int:
    args = report.arguments(__doc__, dtypes=False).parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header = report.provenance()
    rows = [row for name, (S, B) in cases(args.small).items() for row in measure(name, S, B)]
    columns = [
        *(("case", "case"), ("", "side"), ("set-up s", "setup:.2f"), ("CPU s", "setup_cpu:.2f")),
        *(("solve s", "solve:.2f"), ("CPU s", "solve_cpu:.2f")),
        *(("iterations", "iterations"), ("operator complexity", "complexity:.2f")),
    ]
    text = "\n".join([report.line(header), "", *report.markdown(rows, columns)])
    report.write(args.json, header, rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
