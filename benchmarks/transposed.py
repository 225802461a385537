"""Transposed products, and matrices in another order of their unknowns, over classes of matrices.

    python -m benchmarks.transposed --json out.json           on a GPU, at most some two minutes
    python -m benchmarks.transposed --small                   on a CPU, to try it
    python -m benchmarks.transposed --only reordered --dtypes float64

Transposed: A·x and Aᵀ·y in the format that "auto" takes for float64 (stencils in "dia" and "sdia"), without and with
`transpose=True`, against cuSPARSE's transposed product of the same CSR arrays and its product of a stored Aᵀ; on a CPU
against SciPy's. On a GPU products are timed in chains inside one program, as in `standard.py`. Bytes are those of A·x,
also where a transposed product moves more, so that shares compare as times do. "Repeats" says whether three runs on the
same vector agree to the last bit; "× rival" is the time of the fastest opponent for the same product over this one.

Reordered: a matrix as it was made, with its unknowns in random order, and that with reorder="rcm". "Inside" is the
product between vectors in the matrix's basis, as solvers make it; a step of cg is what 160 more of them take, and rows
are scaled by factors of 10^±1.5 so that no solve ends before. "Set-up" is finding the order and storing the matrix,
compilations included.

Files are written after every matrix, and none is begun after the limit or where it would take as long as the longest
so far and pass it. Formats are converted on the device, orders are found on the host.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, spmv, standard, suite, timing
from jaxsparse_fmt import choose, measure
from jaxsparse_fmt.reorder import Reordered, order_of, permuted
from solvers import cg

Row = dict[str, Any]
# Matrices of the standard suite, and the formats in which their transposed products are timed.
TRANSPOSED: dict[str, tuple[str, ...]] = {
    "27-point × 3 dof": ("auto",),
    "7-point": ("dia", "sdia"),
    "irregular, ±2,000": ("auto",),
    "R-MAT": ("auto",),
    "optimal control": ("auto",),
}
# Those that are shuffled, and the share of the full size.
SHUFFLED = {"27-point × 3 dof": 0.5, "7-point": 0.25}
SECTIONS = ("transposed", "reordered")
RUNS = 3  # that must agree to repeat
STEPS = 200


@dataclasses.dataclass(frozen=True)
class Timed:
    """One product: what it is called, its operands, and how it is timed."""

    method: str
    seconds: Callable[[], float]
    once: Callable[[], Any]
    problem: standard.Problem
    nbytes: int
    rival: str  # methods of one word compare

    def row(self, copy: float) -> Row:
        try:
            first, *others = (np.array(self.once()) for _ in range(RUNS))
            seconds = self.seconds()
        except Exception as error:  # whatever it lacks, the run goes on
            return {"method": self.method, "us": math.nan, "failed": f"{type(error).__name__}: {error}".splitlines()[0]}
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
    """What `from_scipy` makes of S in float64, but converted on the device."""
    layout: dict[str, Any] = {}
    if format == "auto":
        best = choose.rank(S, "float64", backend=run.backend)[0]
        format, layout = best.format, best.layout
    return jsf.from_scipy(S, "csr", backend=run.backend).asformat(format, max_bytes=2**36, **layout)


def ours(run: standard.Run, A: jsf.SparseMatrix, forth: standard.Problem, back: standard.Problem) -> Iterator[Timed]:
    """Products of a matrix that carries its transpose, and of its own storage alone."""
    plain = dataclasses.replace(A.own, values=A.values) if isinstance(A, jsf.Paired) else A
    xs = [jnp.asarray(x.astype(A.dtype)) for x in forth.xs]
    maps = [("A @ x", plain, forth, "forth"), ("A.T @ y", plain.T, back, "back")]
    if plain is not A:
        maps.append(("A.T @ y, transpose=True", A.T, back, "back"))
    for method, M, problem, rival in maps:
        seconds = lambda M=M, problem=problem: run.of_jax(M, xs, problem)  # noqa: E731
        once = lambda M=M: standard.product(M, xs[0])  # noqa: E731
        yield Timed(method, seconds, once, problem, spmv.moved_bytes(plain, xs[0]), rival)


def theirs(
    run: standard.Run,
    opponent: cusparse.Opponent,
    turned: cusparse.Opponent,
    forth: standard.Problem,
    back: standard.Problem,
    dtype: str,
) -> Iterator[Timed]:
    """The same by cuSPARSE, or on a CPU by SciPy; `turned` has Aᵀ."""
    xs, S = [x.astype(dtype) for x in forth.xs], opponent.S
    nbytes = S.nnz * (xs[0].itemsize + 4) + 4 * S.shape[0] + sum(S.shape) * xs[0].itemsize
    if run.platform == "cpu":
        A, T = S.astype(dtype), turned.S.astype(dtype)
        maps = [("SciPy A @ x", A, forth, "forth"), ("SciPy A.T @ y", A.T, back, "back")]
        for method, M, problem, rival in [*maps, ("SciPy, stored Aᵀ", T, back, "back")]:
            seconds = lambda M=M: timing.seconds_per_call(lambda i: M @ xs[i % 3], lambda _: None, **run.rounds)  # noqa: E731
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
    for order, matrix, reorder in (("as made", S, None), ("shuffled", shuffled, None), ("rcm", shuffled, "rcm")):
        start = time.perf_counter()
        store = functools.partial(converted, run, "auto")
        if reorder is None:
            A = store(matrix)
        else:
            A = Reordered.from_csr(matrix, perm=order_of(matrix, reorder), store=store)
        jax.block_until_ready(A)
        setup, problem = time.perf_counter() - start, standard.Problem.of(matrix, run.platform)
        for dtype in run.dtypes:
            B, xs = A.astype(dtype), [jnp.asarray(x.astype(dtype)) for x in problem.xs]
            outside, inside = (run.of_jax(M, xs, problem) for M in (B, B.in_basis))
            step = measure.seconds_per_step(cg, B, xs[1], steps=STEPS)
            yield {
                "matrix": case.name, "class": case.kind, "dtype": dtype, "rows": n, "nnz": S.nnz, "order": order,
                "format": B.in_basis.name, "us": 1e6 * outside, "inside us": 1e6 * inside, "cg us": 1e6 * step,
                "share": spmv.moved_bytes(B.in_basis, xs[0]) / inside / run.copy,
                "error": problem.off(standard.product(B, xs[0])), "set-up s": setup,
            }  # fmt: skip


def tables(rows: list[Row], header: dict[str, str]) -> str:
    """Markdown, which reads as plain text too."""
    lines = [timing.line(header)]
    of = {name: [r for r in rows if r["section"] == name] for name in SECTIONS}
    if of["transposed"]:
        lines += ["", "## Transposed products", ""]
        lines += ["| matrix | class | dtype | rows | nnz | format | product | µs | × rival | share of copy | repeats |"]
        lines[-1] += " error |"
        lines += ["|---|---|---|---:|---:|---|---|---:|---:|---:|---|---:|"]
    for r in of["transposed"]:
        head = f"| {r['matrix']} | {r['class']} | {r['dtype']} | {r['rows']} | {r['nnz']} | {r['format']} |"
        if "failed" in r:
            lines.append(f"{head} {r['method']} | {r['failed']} | | | | |")
            continue
        lines.append(
            f"{head} {r['method']} | {r['us']:.1f} | {r['ratio']:.2f} | {r['share']:.2f} | "
            f"{'yes' if r['repeats'] else 'no'} | {r['error']:.0e} |"
        )
    if of["reordered"]:
        lines += ["", "## Reordered", ""]
        lines += [
            "| matrix | dtype | rows | nnz | order | format | A @ x, µs | inside, µs | share of copy | cg step, µs |"
        ]
        lines[-1] += " set-up, s | error |"
        lines += ["|---|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|"]
    for r in of["reordered"]:
        lines.append(
            f"| {r['matrix']} | {r['dtype']} | {r['rows']} | {r['nnz']} | {r['order']} | {r['format']} | "
            f"{r['us']:.1f} | {r['inside us']:.1f} | {r['share']:.2f} | {r['cg us']:.1f} | "
            f"{r['set-up s']:.1f} | {r['error']:.0e} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    parser.add_argument("--scale", type=float, help="size of the matrices; default 1, on a CPU 1/20")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", type=float, default=110, help="begin no matrix that would end after so many seconds")
    parser.add_argument("--json", type=Path, help="also write the rows here, and the tables beside it as .md")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    start, longest, rows = time.perf_counter(), 0.0, []
    scale = args.scale or (1 / 2000 if args.small else 1 if platform == "gpu" else 1 / 20)
    copy = timing.copy_bandwidth(2**24 if args.small else 2**28 if platform == "cpu" else 2**31)
    rounds = standard.QUICK if args.small else standard.ROUNDS
    run = standard.Run(platform, args.dtypes, args.backend, 0, copy, rounds)
    header = timing.provenance() | {"copy": f"{copy / 1e9:.0f} GB/s", "scale": f"{scale:g}"}
    cases = {case.name: case for case in suite.SUITES["standard"]}
    jobs = [("transposed", transposed, name, scale) for name in TRANSPOSED]
    jobs += [("reordered", reordered, name, scale * share) for name, share in SHUFFLED.items()]
    jobs = [job for job in jobs if job[0] in args.only]
    for at, (section, measured, name, size) in enumerate(jobs):
        begun = time.perf_counter() - start
        if begun + longest > args.limit:
            header["left out"] = ", ".join(f"{name} ({section})" for section, _, name, _ in jobs[at:])
            break
        S = cases[name].make(size)
        print(f"{begun:.0f} s: {section}, {name}, {S.shape[0]} rows, {S.nnz} entries", file=sys.stderr, flush=True)
        for row in measured(run, cases[name], S):
            rows.append({"section": section} | row)
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
        jax.clear_caches()
        longest = max(longest, time.perf_counter() - start - begun)
        header["took"] = f"{time.perf_counter() - start:.0f} s"
        if args.json:
            timing.write(args.json, header, rows, tables(rows, header))
    if args.json:
        timing.write(args.json, header, rows, tables(rows, header))
    print(tables(rows, header))
    return int(any("failed" in row and row["format"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
