"""What a GPU without Triton would give: the standard suite in both of Pallas' dialects.

    python -m benchmarks.dialects --json benchmarks/results/dialects.json     on a GPU, some four minutes

In each dialect the format is the one that `auto` takes there, and products are timed in chains as in
`benchmarks.standard`. A ratio is Triton's time over Mosaic GPU's: above 1 Mosaic GPU is faster.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxsparse_fmt as jsf
from benchmarks import solvers, standard, suite, suite_table, timing
from jaxsparse_fmt import choose

DIALECTS = ("triton", "mosaic")
Row = dict[str, Any]


def rows_of(
    case: suite.Case, S: Any, dtypes: list[str], dialects: tuple[str, ...], rounds: dict[str, Any]
) -> list[Row]:
    """A row for each dtype: what auto takes and how long it needs, in each dialect."""
    problem = standard.Problem.of(S, jax.default_backend())
    x = problem.xs[0]
    A = jsf.from_scipy(S, "csr")
    chosen = {(t, d): choose.rank(S, t, backend=d)[0] for t in dtypes for d in dialects}
    stored = {standard.label(c): c for c in chosen.values()}
    stored = {name: standard.converted(A, choice) for name, choice in stored.items()}

    def compiled(key: tuple[str, str]) -> jsf.SparseMatrix | str:
        kept = stored[standard.label(chosen[key])]
        if isinstance(kept, str):
            return kept
        try:
            B = dataclasses.replace(kept[0].astype(key[0]), backend=key[1])
            jax.block_until_ready(problem.run(B, jnp.asarray(x, key[0])))
            return B
        except (ValueError, RuntimeError, NotImplementedError) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]

    with ThreadPoolExecutor(standard.COMPILED_AT_ONCE) as pool:
        ready = dict(zip(chosen, pool.map(compiled, chosen), strict=True))
    out = []
    for dtype in dtypes:
        row: Row = {"matrix": case.name, "class": case.kind, "dtype": dtype}
        for d in dialects:
            B, row[d], row[f"{d} µs"] = ready[dtype, d], standard.label(chosen[dtype, d]), math.nan
            if isinstance(B, str):
                row[d] += f" FAILED: {B}"
                continue
            inputs = jnp.asarray(x, dtype)
            if (off := problem.off(standard.product(B, inputs))) > standard.WRONG:
                row[d] += f" FAILED: its result is off by {off:.0e}"
                continue
            run = lambda _, B=B, inputs=inputs: problem.run(B, inputs)  # noqa: E731
            took = timing.seconds_per_call(run, jax.block_until_ready, **rounds) / problem.products
            row[f"{d} µs"] = 1e6 * took
        row["ratio"] = row[f"{dialects[0]} µs"] / row[f"{dialects[-1]} µs"]
        out.append(row)
    return out


def table(rows: list[Row], header: dict[str, str]) -> str:
    """Markdown: the rows, then the geometric mean of the ratios of each class."""
    lines = [timing.line(header), *solvers.table("dialects", rows)]
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    lines += ["", "| class | " + " | ".join(dtypes) + " |", "|---|" + "---:|" * len(dtypes)]
    classes = {kind: [r for r in rows if r["class"] == kind] for kind in dict.fromkeys(r["class"] for r in rows)}
    for kind, chosen in {**classes, "geometric mean": rows}.items():
        means = [suite_table.geometric_mean(r["ratio"] for r in chosen if r["dtype"] == dtype) for dtype in dtypes]
        lines.append(f"| {kind} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--dialects", nargs="+", default=list(DIALECTS), help="backends; default: triton mosaic")
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the matrices; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the matrices; default 1")
    parser.add_argument("--limit", type=float, default=400, help="end after about so many seconds")
    parser.add_argument("--json", type=Path, help="also write the rows here, and the table beside it as .md")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header = timing.provenance() | {"scale": f"{args.scale:g}"}
    cases = suite.SUITES["standard"]
    numbers = [i for i in range(len(cases)) if not args.cases or i in args.cases]
    matrices = suite.made("standard", numbers, args.scale, ahead=jax.default_backend() == "gpu")
    rows: list[Row] = []
    start, longest = time.perf_counter(), 0.0
    for at, number in enumerate(numbers):
        begun = time.perf_counter() - start
        if begun + longest > args.limit:
            header["left out"] = ", ".join(cases[i].name for i in numbers[at:])
            break
        S = next(matrices)
        rows += rows_of(cases[number], S, args.dtypes, tuple(args.dialects), standard.ROUNDS)
        jax.clear_caches()
        longest = max(longest, time.perf_counter() - start - begun)
        print(f"{begun:.0f} s: {rows[-1]}", file=sys.stderr, flush=True)
        if args.json:
            timing.write(args.json, header, rows, table(rows, header))
    matrices.close()
    print(table(rows, header))
    if args.json:
        timing.write(args.json, header, rows, table(rows, header))
    return int(any("FAILED" in str(v) for row in rows for v in row.values()))


if __name__ == "__main__":
    sys.exit(main())
