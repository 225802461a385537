"""Products with several columns at once, against as many single products.

    python -m benchmarks.columns --json benchmarks/results/columns.json     on a GPU, a minute

Matrices of the standard suite in the format that `auto` takes. A·X reads A once for all columns of X. "throughput" is
the time of a column in the product with the fewest columns, the first of --columns, over that in this product; "share"
is the speed at which bytes of A and of the vectors move, over the copy's. On a GPU products of square matrices are
timed in chains, as in `benchmarks.standard`.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse_fmt as jsf
from benchmarks import report, standard, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.models import traffic

CASES = ("27-point × 3 dof", "7-point", "irregular, ±2,000", "R-MAT")
COLUMNS = (1, 2, 4, 8, 32)


def rows_of(
    case: suite.Case, S: Any, dtypes: list[str], columns: tuple[int, ...], copy: float, rounds: dict[str, Any]
) -> list[Row]:
    """A row for each dtype and number of columns."""
    problem, wide = standard.Problem.of(S, jax.default_backend()), jsf.from_scipy(S, "csr")
    out = []
    for dtype in dtypes:
        choice = ranking.rank(S, dtype)[0]
        A = wide.asformat(choice.format, max_bytes=2**36, **choice.layout).astype(dtype)
        per_column = 0.0
        for p in columns:
            X = jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[1], p)), dtype)
            X = X[:, 0] if p == 1 else X
            ends = lambda a: np.asarray(a if a.ndim == 1 else a[:, np.array([0, -1])], np.float64)  # noqa: E731
            wanted, got = S @ ends(X), ends(standard.product(A, X))  # SciPy would take seconds for all of them
            off = float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted)))
            run = lambda _, A=A, X=X: problem.run(A, X)  # noqa: E731
            took = timing.seconds_per_call(run, jax.block_until_ready, **rounds) / problem.products
            per_column = per_column or took / p
            moved = traffic.bytes_moved(A.nbytes_read, S.shape, X.dtype.itemsize * p)
            out.append({
                "matrix": case.name, "dtype": dtype, "format": standard.label(choice), "columns": p, "µs": 1e6 * took,
                "throughput": p * per_column / took, "share": moved / took / copy, "error": off,
            })  # fmt: skip
    return out


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, small=False)
    parser.add_argument(
        "--columns", type=int, nargs="+", default=list(COLUMNS), help="the first is the base of comparison"
    )
    parser.add_argument("--scale", type=float, help="size of the matrices; default 1, on a CPU 1/20")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    scale = args.scale or (1 if report.platform_here() == "gpu" else 1 / 20)
    copy, header = report.machine()
    header["scale"] = f"{scale:g}"
    rows: list[Row] = []
    lines: list[str] = []
    for case in suite.SUITES["standard"]:
        if case.name in CASES:
            found = rows_of(case, case.make(scale), args.dtypes, tuple(args.columns), copy, standard.ROUNDS)
            rows += found
            lines += report.section(case.name, found)
            report.log("\n".join(lines[-len(found) :]))
            jax.clear_caches()
            done = [r["matrix"] for r in rows]
            header["to come"] = ", ".join(name for name in CASES if name not in done) or "nothing"
            report.write(args.json, header, rows, "\n".join([report.line(header), *lines]))
    print("\n".join([report.line(header), *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
