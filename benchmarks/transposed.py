"""Transposed products, and matrices in another order of their unknowns, over classes of matrices.

    python -m benchmarks.transposed --json out.json           on a GPU, at most some two minutes
    python -m benchmarks.transposed --small                   on a CPU, to try it
    python -m benchmarks.transposed --only reordered --dtypes float64

Transposed: A·x and Aᵀ·y in the format of "auto" for float64 (stencils in "dia" and "sdia"), without and with
`transpose=True`, against cuSPARSE's transposed product of the same CSR arrays and its product of a stored Aᵀ; on a CPU
against SciPy's. On a GPU products are timed in chains, as in `standard.py`. Bytes are those of A·x, even if a
transposed product moves more, so that shares compare as times do. "Repeats" is yes if three runs on the same vector
agree to the last bit; "× rival" is the time of the fastest opponent for the same product over this one.

Reordered: a matrix as it was made, with its unknowns in random order, and in reverse Cuthill-McKee order. "Inside" is
the product between vectors in the matrix's basis, as solvers make it. The time of a step of cg comes from 160 more of
them; rows are scaled by factors of 10^±1.5 so that no solve ends earlier. "Set-up" finds the order and
stores the matrix, compilations included.

Files are written after every matrix; the limit is that of `standard.py`. Formats are converted on the device, orders
are found on the host.
"""

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, standard, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.cli import measure
from jaxsparse_fmt.formats.order import order_of, permuted
from solvers import cg

# Matrices of the standard suite, and the formats in which their transposed products are timed.
TRANSPOSED: dict[str, tuple[str, ...]] = {
    "27-point × 3 dof": ("auto",),
    "7-point": ("dia", "sdia"),
    "irregular, ±2,000": ("auto",),
    "R-MAT": ("auto",),
    "optimal control": ("auto",),
}
# Matrices that are shuffled, and their fraction of the full size.
SHUFFLED = {"27-point × 3 dof": 0.5, "7-point": 0.25}
SECTIONS = ("transposed", "reordered")
RUNS = 3  # that must agree to repeat
STEPS = 200


@dataclasses.dataclass(frozen=True)
class Timed:
    """One product and its timer."""

    method: str
    seconds: Callable[[], float]
    once: Callable[[], Any]
    problem: standard.Problem
    nbytes: int
    rival: str  # the group of methods that are compared

    def row(self, copy: float) -> Row:
        try:
            first, *others = (np.array(self.once()) for _ in range(RUNS))
            seconds = self.seconds()
        except Exception as error:  # of any product; the run goes on
            return {"method": self.method, "us": math.nan, "failed": report.reason(error)}
        return {
            "method": self.method, "us": 1e6 * seconds, "share": self.nbytes / seconds / copy,
            "repeats": all(np.array_equal(first, y, equal_nan=True) for y in others), "error": self.problem.off(first),
        }  # fmt: skip


def transposed(run: standard.Run, case: suite.Case, S: Any) -> Iterator[Row]:
    """A row for each method, format and dtype."""
    forth = standard.Problem.of(S, run.platform)
    back = dataclasses.replace(forth, exact=S.T @ forth.xs[0].astype(np.float64))
    stored = {}
    for format in TRANSPOSED[case.name]:
        store = functools.partial(converted, run, format)
        A = store(S)
        stored[A.name] = A if A.transposes else jsf.Paired.from_csr(S, A=A, across=store)
    opponent, turned = cusparse.Opponent(S), cusparse.Opponent(S.T.tocsr())
    for dtype in run.dtypes:
        timed = [*theirs(run, opponent, turned, forth, back, dtype)]
        labels = [""] * len(timed)
        for name, A in stored.items():
            found = [*ours(run, A.astype(dtype), forth, back)]
            timed, labels = timed + found, labels + [name] * len(found)
        rows = [t.row(run.copy) for t in timed]
        rivals: dict[str, float] = {}
        for t, label, row in zip(timed, labels, rows, strict=True):
            if not label and not math.isnan(row["us"]):
                rivals[t.rival] = min(row["us"], rivals.get(t.rival, math.inf))
        for t, label, row in zip(timed, labels, rows, strict=True):
            head = {"matrix": case.name, "class": case.kind, "dtype": dtype, "rows": S.shape[0], "nnz": S.nnz}
            yield head | {"format": label} | row | {"ratio": rivals.get(t.rival, math.nan) / row["us"]}


def converted(run: standard.Run, format: str, S: Any) -> jsf.SparseMatrix:
    """S in a format, float64, converted on the device."""
    layout: dict[str, Any] = {}
    if format == "auto":
        best = ranking.rank(S, "float64", backend=run.backend)[0]
        format, layout = best.format, best.layout
    return jsf.from_scipy(S, "csr", backend=run.backend).asformat(format, max_bytes=2**36, **layout)


def ours(run: standard.Run, A: jsf.SparseMatrix, forth: standard.Problem, back: standard.Problem) -> Iterator[Timed]:
    """The products of a matrix with its transpose stored beside it, and of its own storage alone."""
    plain = dataclasses.replace(A.own, values=A.values) if isinstance(A, jsf.Paired) else A
    xs = [jnp.asarray(x.astype(A.dtype)) for x in forth.xs]
    maps = [("A @ x", plain, forth, "forth"), ("A.T @ y", plain.T, back, "back")]
    if plain is not A:
        maps.append(("A.T @ y, transpose=True", A.T, back, "back"))
    for method, M, problem, rival in maps:
        seconds = lambda M=M, problem=problem: run.of_jax(M, xs, problem)  # noqa: E731
        once = lambda M=M: standard.product(M, xs[0])  # noqa: E731
        yield Timed(method, seconds, once, problem, timing.moved_bytes(plain, xs[0]), rival)


def theirs(
    run: standard.Run,
    opponent: cusparse.Opponent,
    turned: cusparse.Opponent,
    forth: standard.Problem,
    back: standard.Problem,
    dtype: str,
) -> Iterator[Timed]:
    """The same products by cuSPARSE, or on a CPU by SciPy; `turned` holds Aᵀ."""
    xs, S = [x.astype(dtype) for x in forth.xs], opponent.S
    nbytes = S.nnz * (xs[0].itemsize + 4) + 4 * S.shape[0] + sum(S.shape) * xs[0].itemsize
    if run.platform == "cpu":
        A, T = S.astype(dtype), turned.S.astype(dtype)
        maps = [("SciPy A @ x", A, forth, "forth"), ("SciPy A.T @ y", A.T, back, "back")]
        for method, M, problem, rival in [*maps, ("SciPy, stored Aᵀ", T, back, "back")]:
            multiply = lambda i, M=M: M @ xs[i % 3]  # noqa: E731
            seconds = lambda f=multiply: timing.seconds_per_call(f, lambda _: None, **run.rounds)  # noqa: E731
            yield Timed(method, seconds, lambda M=M: M @ xs[0], problem, nbytes, rival)
        return
    for what, methods, problem, rival in [
        ("A @ x", opponent.methods, forth, "forth"),
        ("A.T @ y", opponent.transposed, back, "back"),
        ("stored Aᵀ", turned.methods, back, "back"),
    ]:
        for name in ("CSR ALG1", "CSR ALG2"):
            made: list[cusparse.Product] = []

            def once(make=methods[name], made=made) -> Any:
                product = made[0] if made else make(dtype)
                made[:] = [product]
                return product(product.to_device(xs[0])).get()

            seconds = lambda made=made, problem=problem: run.cupy(made[0], xs, problem)()  # noqa: E731
            yield Timed(f"cuSPARSE {name}, {what}", seconds, once, problem, nbytes, rival)


def reordered(run: standard.Run, case: suite.Case, S: Any) -> Iterator[Row]:
    """A row for each order and dtype."""
    rng, n = np.random.default_rng(0), S.shape[0]
    D = scipy.sparse.diags_array(10 ** rng.uniform(-1.5, 1.5, n))
    S = scipy.sparse.csr_array(D @ S @ D)
    S.sort_indices()
    shuffled, _ = permuted(S, rng.permutation(n))
    for order, matrix in (("as made", S), ("shuffled", shuffled), ("rcm", shuffled)):
        start = time.perf_counter()
        if order == "rcm":
            matrix, _ = permuted(matrix, order_of(matrix, "rcm"))
        A = jax.block_until_ready(converted(run, "auto", matrix))
        setup, problem = time.perf_counter() - start, standard.Problem.of(matrix, run.platform)
        for dtype in run.dtypes:
            B, xs = A.astype(dtype), [jnp.asarray(x.astype(dtype)) for x in problem.xs]
            outside, inside = (run.of_jax(M, xs, problem) for M in (B, B.in_basis))
            step = measure.seconds_per_step(cg, B, xs[1], steps=STEPS)
            yield {
                "matrix": case.name, "class": case.kind, "dtype": dtype, "rows": n, "nnz": S.nnz, "order": order,
                "format": B.in_basis.name, "us": 1e6 * outside, "inside us": 1e6 * inside, "cg us": 1e6 * step,
                "share": timing.moved_bytes(B.in_basis, xs[0]) / inside / run.copy,
                "error": problem.off(standard.product(B, xs[0])), "set-up s": setup,
            }  # fmt: skip


HEAD = [("matrix", "matrix"), ("class", "class"), ("dtype", "dtype"), ("rows", "rows:d"), ("nnz", "nnz:d")]
COLUMNS = {
    "transposed": [
        *HEAD, ("format", "format"), ("product", "method"), ("µs", "us:.1f"), ("× rival", "ratio:.2f"),
        ("share of copy", "share:.2f"), ("repeats", "outcome"), ("error", "error:.0e"),
    ],
    "reordered": [
        *HEAD, ("order", "order"), ("format", "format"), ("A @ x, µs", "us:.1f"), ("inside, µs", "inside us:.1f"),
        ("share of copy", "share:.2f"), ("cg step, µs", "cg us:.1f"), ("set-up, s", "set-up s:.1f"),
        ("error", "error:.0e"),
    ],
}  # fmt: skip


def tables(rows: list[Row], header: dict[str, str]) -> str:
    """Markdown, which reads as plain text too."""
    lines = [report.line(header)]
    for name, title in zip(SECTIONS, ("Transposed products", "Reordered"), strict=True):
        found = [
            r | {"outcome": r.get("failed", "yes" if r.get("repeats") else "no")} for r in rows if r["section"] == name
        ]
        lines += ["", f"## {title}", "", *report.markdown(found, COLUMNS[name])] if found else []
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__)
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--scale", type=float, help="size of the matrices; default 1, on a CPU 1/20")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", type=float, default=110, help="begin no matrix that would end after so many seconds")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    scale, (copy, header) = report.scale_of(args), report.machine(args.small)
    header["scale"] = f"{scale:g}"
    rounds = standard.QUICK if args.small else standard.ROUNDS
    run = standard.Run(report.platform_here(), args.dtypes, args.backend, 0, copy, rounds)
    cases = {case.name: case for case in suite.SUITES["standard"]}
    jobs = [("transposed", transposed, name, scale) for name in TRANSPOSED]
    jobs += [("reordered", reordered, name, scale * fraction) for name, fraction in SHUFFLED.items()]
    jobs = [job for job in jobs if job[0] in args.only]
    names, rows = [f"{name} ({section})" for section, _, name, _ in jobs], []
    for section, measured, name, size in report.before_limit(jobs, names, args.limit, header):
        S = cases[name].make(size)
        report.log(f"{section}, {name}, {S.shape[0]} rows, {S.nnz} entries")
        for row in measured(run, cases[name], S):
            rows.append({"section": section} | row)
            report.log(f"  {rows[-1]}")
        report.write(args.json, header, rows, tables(rows, header))
    report.write(args.json, header, rows, tables(rows, header))
    print(tables(rows, header))
    return int(any("failed" in row and row["format"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
