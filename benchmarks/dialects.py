"""The standard suite in both of Pallas' dialects: the speed that a GPU without Triton would have.

    python -m benchmarks.dialects --json benchmarks/results/dialects.json     on a GPU, some four minutes

In each dialect the format is the one that `auto` takes there, and products are timed in chains as in
`benchmarks.standard`. A ratio is Triton's time over Mosaic GPU's: above 1 Mosaic GPU is faster.
"""

import dataclasses
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

import jaxsparse_fmt as jsf
from benchmarks import report, standard, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking

DIALECTS = ("triton", "mosaic")


def rows_of(
    case: suite.Case, S: Any, dtypes: list[str], dialects: tuple[str, ...], rounds: dict[str, Any]
) -> list[Row]:
    """A row for each dtype: the choice of auto and its time in each dialect."""
    problem = standard.Problem.of(S, jax.default_backend())
    x = problem.xs[0]
    A = jsf.from_scipy(S, "csr")
    chosen = {(t, d): ranking.rank(S, t, backend=d)[0] for t in dtypes for d in dialects}
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
            return report.reason(error)

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
    dtypes = list(dict.fromkeys(r["dtype"] for r in rows))
    classes = {kind: [r for r in rows if r["class"] == kind] for kind in dict.fromkeys(r["class"] for r in rows)}
    means = [
        {"class": kind} | {d: report.geometric_mean(r["ratio"] for r in chosen if r["dtype"] == d) for d in dtypes}
        for kind, chosen in {**classes, "geometric mean": rows}.items()
    ]
    by_class = report.markdown(means, [("class", "class"), *((d, f"{d}:.2f") for d in dtypes)])
    return "\n".join([report.line(header), *report.section("dialects", rows), "", *by_class])


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, small=False)
    parser.add_argument("--dialects", nargs="+", default=list(DIALECTS), help="backends; default: triton mosaic")
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the matrices; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the matrices; default 1")
    parser.add_argument("--limit", type=float, default=400, help="end after about so many seconds")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header = report.provenance() | {"scale": f"{args.scale:g}"}
    cases = suite.SUITES["standard"]
    numbers = [i for i in range(len(cases)) if not args.cases or i in args.cases]
    matrices = suite.made("standard", numbers, args.scale, ahead=jax.default_backend() == "gpu")
    rows: list[Row] = []
    jobs = zip((cases[i] for i in numbers), matrices, strict=True)
    for case, S in report.before_limit(jobs, [cases[i].name for i in numbers], args.limit, header):
        rows += rows_of(case, S, args.dtypes, tuple(args.dialects), standard.ROUNDS)
        report.log(f"{rows[-1]}")
        report.write(args.json, header, rows, table(rows, header))
    matrices.close()
    print(table(rows, header))
    report.write(args.json, header, rows, table(rows, header))
    return int(any("FAILED" in str(v) for row in rows for v in row.values()))


if __name__ == "__main__":
    sys.exit(main())
