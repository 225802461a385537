"""The command `jaxsparse`: solve a system from a file, describe or time a matrix, say how it scales, or demonstrate.

Results go to standard output; progress, remarks and errors to standard error. Exit code 0: done;
1: the solver did not converge, or the demonstration disagrees with SciPy; 2: bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt import convert, demo, io, measure, plot, report, scale, traffic
from jaxsparse_fmt._arguments import (
    DTYPES,
    BadInput,
    add_plot,
    add_rtol,
    at_least_one,
    blaming,
    check_backend,
    check_outputs,
    dtype_of,
)
from jaxsparse_fmt._types import readable_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (None: the process's own) and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × shows ?
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return args.run(args)
    except BadInput as error:
        print(f"jaxsparse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxsparse: interrupted", file=sys.stderr)
        return 130
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise  # a fault of the library
        print(f"jaxsparse: {_out_of_memory(args, error)}", file=sys.stderr)
        return 2


def _out_of_memory(args: argparse.Namespace, error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    cures = {"solve": "spread the rows with --devices, or ask for --dtype float32", "demo": "ask for a smaller --n"}
    cure = cures.get(args.command, "use a machine with more")
    return f"{getattr(args, 'file', args.command)}: out of memory{said and f' ({said})'}; {cure}"


# --------------------------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "jaxsparse", description="Sparse matrices and Krylov solvers on JAX.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"jaxsparse {jsf.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_solve(commands)
    _add_info(commands)
    _add_bench(commands)
    _add_scale(commands)
    _add_demo(commands)
    return parser


def _add_solve(commands: Any) -> None:
    text = "Solves A·x = b by conjugate gradients, for a symmetric positive definite A."
    solve = commands.add_parser("solve", help="solve A·x = b", description=text)
    solve.set_defaults(run=_solve)
    solve.add_argument("file", metavar="FILE", help="A, Matrix Market: .mtx or .mtx.gz")
    solve.add_argument("--rhs", metavar="FILE", help="b: .mtx, .mtx.gz, .npy or .txt; without: A·1")
    solve.add_argument("--out", metavar="FILE", help="write x here: .mtx, .mtx.gz, .npy or .txt")
    add_plot(solve)
    known = ("auto", "tune", *jsf.FORMATS)
    solve.add_argument("--format", choices=known, default="auto", help="storage (auto: ranked; tune: measured)")
    solve.add_argument("--dtype", choices=DTYPES, help="of the computation; default: the file's")
    solve.add_argument("--precond", choices=("none", "jacobi"), default="none", help="default none")
    solve.add_argument("--backend", choices=jsf.BACKENDS, default="auto", help="default auto")
    add_rtol(solve, 1e-6)
    solve.add_argument("--devices", type=at_least_one, default=1, metavar="N", help="spread the rows over N devices")
    solve.add_argument("--maxiter", type=at_least_one, metavar="N", help="most iterations; default 10·rows")


def _add_info(commands: Any) -> None:
    text = "Describes a matrix and ranks the formats by the time that a product should take."
    info = commands.add_parser("info", help="describe a matrix", description=text)
    info.set_defaults(run=_info)
    info.add_argument("file", metavar="FILE", help="Matrix Market: .mtx or .mtx.gz")
    add_plot(info)


def _add_bench(commands: Any) -> None:
    text = "Times A·x in the formats that rank first, each in its best layout, and compares with the prediction."
    bench = commands.add_parser("bench", help="time the formats", description=text)
    bench.set_defaults(run=_bench)
    bench.add_argument("file", metavar="FILE", help="Matrix Market: .mtx or .mtx.gz")
    bench.add_argument("--formats", type=at_least_one, default=8, metavar="N", help="how many; default: all ranked")
    bench.add_argument("--dtype", choices=DTYPES, help="of matrix and vectors; default: the file's")
    bench.add_argument("--backend", choices=jsf.BACKENDS, default="auto", help="default auto")
    add_plot(bench)


def _add_scale(commands: Any) -> None:
    parser = commands.add_parser("scale", help="predict cg on more devices", description=scale.ABOUT)
    parser.set_defaults(run=_scale)
    parser.add_argument("file", metavar="FILE", help="Matrix Market: .mtx or .mtx.gz")
    scale.add_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="of the computation; default: the file's")
    add_plot(parser)


def _add_demo(commands: Any) -> None:
    text = "Solves the 7-point Poisson problem on n³ points here and with SciPy, and compares."
    demo = commands.add_parser("demo", help="solve, against SciPy", description=text)
    demo.set_defaults(run=_demo)
    demo.add_argument("--n", type=at_least_one, default=100, help="points an axis; default 100")
    add_plot(demo, "; default demo.png where matplotlib is installed")
    add_rtol(demo, 1e-8)


# ------------------------------------------------------------------------------------------- solve


def _solve(args: argparse.Namespace) -> int:
    check_outputs(args)
    check_backend(args)
    with blaming("--devices"):
        measure.first_devices(args.devices)
    with report.Progress() as stages:
        with stages.stage("read", args.file), blaming(args.file):
            S = convert.canonical(io.read_mtx(args.file))
            b = _right_hand_side(args, S)
        with stages.stage("check", "whether the matrix is symmetric, as cg needs"):
            _check_symmetric(args.file, S)
        b_norm = float(np.linalg.norm(b))
        options = {
            "precondition": solvers.precond.jacobi if args.precond == "jacobi" else None,
            "rtol": args.rtol,
            "maxiter": args.maxiter,
            "history": bool(args.plot),
            "progress": report.residuals(stages.show, b_norm, args.rtol * b_norm),
        }
        dtype = dtype_of(args, np.result_type(S, b))
        with jax.enable_x64(jnp.finfo(dtype).bits == 64):
            with stages.stage("convert", f"{S.nnz:,} entries to {dtype}"), blaming(args.file):
                stored = measure.store(S, dtype, args.format, args.backend, args.devices)
            with stages.stage("compile", f"cg on {stored.A.name} for {measure.device()}"):
                system = measure.prepare(solvers.cg, stored, b, **options)
            with stages.stage("solve", "iteration 0"):
                sol = system.solve()
            wall = report.durations(stages.seconds)
            with stages.stage("measure", "the product"):
                product = stored.seconds_per_product()
            failure = _failure(sol)
        x = np.asarray(sol.x)
        written, faults = _write(args, S, x, sol, b_norm)
    rows = [*_matrix_rows(S, stored, product), *_answer_rows(args, S, b, x, sol), *written]
    status = solvers.Status(sol.status)
    rows += [("status", f"{status.name}: {status.message}"), ("wall time", wall)]
    report.print_out(report.facts(Path(args.file).name, rows))
    for fault in (*faults, *([f"{args.file}: {failure}"] if failure else [])):
        print(f"jaxsparse: {fault}", file=sys.stderr)
    return 2 if faults else 1 if failure else 0


def _failure(sol: solvers.Solution) -> str:
    try:
        sol.raise_for_status()
    except solvers.SolverError as error:
        return str(error)
    return ""


def _right_hand_side(args: argparse.Namespace, S: scipy.sparse.csr_array) -> np.ndarray:
    n_rows, n_cols = S.shape
    if n_rows != n_cols or n_rows == 0:
        raise BadInput(f"{args.file}: cg needs a square matrix of at least one row; this one is {n_rows} × {n_cols}")
    if args.rhs is None:
        return S @ np.ones(n_cols)
    with blaming(args.rhs):
        b = io.read_vector(args.rhs)
    if b.shape != (n_rows,):
        raise BadInput(
            f"{args.rhs}: holds {b.size:,} numbers, but {args.file} has {n_rows:,} rows; "
            "a right-hand side has one number a row"
        )
    return b


def _check_symmetric(file: str, S: scipy.sparse.csr_array) -> None:
    """Refuses a matrix that is not Hermitian. A NaN passes: the solver's status tells of it."""
    i, j, excess = report.asymmetry(S)
    if excess > 0:
        kind = "Hermitian" if np.iscomplexobj(S) else "symmetric"
        raise BadInput(
            f"{file}: cg needs a {kind} matrix, but entry ({i + 1}, {j + 1}) is {S[i, j]:g} where its "
            f"mirror image, entry ({j + 1}, {i + 1}), asks for {np.conj(S[j, i]):g}; repair the file, or "
            "use a method for such systems, for example scipy.sparse.linalg.gmres"
        )


def _write(
    args: argparse.Namespace,
    S: scipy.sparse.csr_array,
    x: np.ndarray,
    sol: solvers.Solution,
    b_norm: float,
) -> tuple[list[tuple[str, str]], list[str]]:
    """Writes what was asked for; returns rows that tell of it, and what went wrong, which must not cost the report."""

    def draw() -> None:
        norms = np.asarray(sol.history) / (b_norm or 1.0)
        curve = plot.Curve(f"{sol.iterations:,} iterations", np.arange(len(norms)), norms)
        plot.draw(args.plot, S, Path(args.file).name, [curve], args.rtol)

    rows, faults = [], []
    wanted = ("x written to", args.out, lambda: io.write_vector(args.out, x)), ("drawn in", args.plot, draw)
    for name, path, write in wanted:
        if path:
            try:
                with blaming(path):
                    write()
                rows.append((name, path))
            except BadInput as error:
                faults.append(str(error))
    return rows, faults


def _matrix_rows(S: scipy.sparse.csr_array, stored: measure.Stored, product: float) -> list[tuple[str, str]]:
    A: Any = stored.A
    in_csr = A.nbytes / traffic.csr_bytes(S, A.dtype.itemsize)
    speed = report.bandwidth(stored.moved, product)
    spread = [("devices", f"{A.parts}, {A.told.exchange}")] if hasattr(A, "told") else []
    return [
        ("rows", f"{S.shape[0]:,}"),
        ("nnz", f"{S.nnz:,}"),
        ("format", f"{A.name}, {stored.why}"),
        *spread,
        ("stored", f"{readable_bytes(A.nbytes)} as {A.dtype}, {in_csr:.2f} × CSR"),
        ("product", f"{report.duration(product)}, {speed} on {measure.device()}"),
    ]


def _answer_rows(
    args: argparse.Namespace,
    S: scipy.sparse.csr_array,
    b: np.ndarray,
    x: np.ndarray,
    sol: solvers.Solution,
) -> list[tuple[str, str]]:
    norm, b_norm = float(sol.residual_norm), float(np.linalg.norm(b)) or 1.0
    wide = np.result_type(S, b)
    rows = [
        ("b", args.rhs or "A·1, since no --rhs was given"),
        ("iterations", f"{sol.iterations:,}"),
        ("true residual", f"{norm:.3e}; {norm / b_norm:.2e} of ‖b‖, where {args.rtol:.0e} was asked"),
    ]
    if x.dtype != wide:
        rows += [(f"  in {wide}", f"{report.relative_residual(S, b, x):.2e} of ‖b‖, with A and b as in the files")]
    if args.rhs is None:
        rows += [("error", f"{np.linalg.norm(x - 1) / np.sqrt(x.size):.2e} = ‖x − 1‖ / ‖1‖")]
    return rows


# -------------------------------------------------------------------------------------------- info


def _info(args: argparse.Namespace) -> int:
    check_outputs(args)
    with report.Progress() as progress:
        with progress.stage("read", args.file), blaming(args.file):
            S = convert.canonical(io.read_mtx(args.file))
        with progress.stage("look", "at rows, diagonals and symmetry"):
            facts = report.describe(S)
        with progress.stage("rank", "the formats"), jax.enable_x64(True):
            choices = jsf.choose.rank(S)
        if args.plot:
            with progress.stage("draw", args.plot), blaming(args.plot):
                plot.draw(args.plot, S, Path(args.file).name)
    title = f"Formats by what a product on {measure.device()} costs, cheapest first"
    report.print_out(report.facts(Path(args.file).name, facts), report.ranking(title, choices))
    return 0


# ------------------------------------------------------------------------------------------- bench


def _bench(args: argparse.Namespace) -> int:
    check_outputs(args)
    check_backend(args)
    timed: list[tuple[jsf.Choice, float]] = []
    with report.Progress() as progress:
        with progress.stage("read", args.file), blaming(args.file):
            S = convert.canonical(io.read_mtx(args.file))
        dtype = dtype_of(args, S.dtype)
        with jax.enable_x64(jnp.finfo(dtype).bits == 64):
            with progress.stage("rank", "the formats"), blaming(args.file):
                choices = jsf.choose.fitting(jsf.choose.rank(S, dtype, backend=args.backend), S, dtype)
            for choice in jsf.choose.best_layouts(choices)[: args.formats]:
                with progress.stage("measure", choice.format), blaming(args.file):
                    A = jsf.from_scipy(S, choice.format, dtype, backend=args.backend, **choice.layout)
                    timed.append((choice, measure.seconds_per_product(A)))
            in_scipy, x = S.astype(dtype), np.ones(S.shape[1], dtype)
            rival = measure.median_seconds(lambda: in_scipy @ x)
        timed.sort(key=lambda pair: pair[1])
        if args.plot:
            bars = {"SciPy": (rival, None), **{c.format: (s, c.seconds) for c, s in timed}}
            with progress.stage("draw", args.plot), blaming(args.plot):
                plot.draw_times(args.plot, bars, f"{Path(args.file).name}, A·x in {dtype} on {measure.device()}")
    rows = []
    for c, seconds in timed:
        times = report.duration(seconds), report.duration(c.seconds), report.bandwidth(c.moved, seconds)
        rows.append((c.format, report.layout(c), *times, f"{rival / seconds:.2f}"))
    title = f"A·x in {dtype} on {measure.device()}, fastest first"
    columns = ("format", "layout", "measured", "predicted", "bandwidth", "× SciPy here")
    report.print_out(report.comparison(title, columns, rows))
    return 0


# ------------------------------------------------------------------------------------------- scale


def _scale(args: argparse.Namespace) -> int:
    check_outputs(args)
    remarks: list[str] = []
    with report.Progress() as progress:
        with progress.stage("read", args.file), blaming(args.file):
            S = io.read_mtx(args.file)
        if S.shape[0] != S.shape[1] or S.shape[0] == 0:
            raise BadInput(f"{args.file}: cg needs a square matrix of at least one row; this one is {S.shape}")
        dtype = dtype_of(args, S.dtype)
        with progress.stage("count", "entries and halos of every partition"), blaming(args.file):
            S = scale.ordered(S, args)
            found = scale.points(S, args, dtype)
        if args.measure or jax.default_backend() == "gpu":
            with progress.stage("measure", "cg"), jax.enable_x64(jnp.finfo(dtype).bits == 64), blaming(args.file):
                found = scale.measured(found, solvers.cg, S, args, dtype, progress.show, remarks.append)
        title = f"{Path(args.file).name}: cg in {dtype}, mode {args.mode}"
        if args.plot:
            with progress.stage("draw", args.plot), blaming(args.plot):
                scale.draw(args.plot, title, found)
    for remark in remarks:
        print(f"jaxsparse: {args.file}: {remark}", file=sys.stderr)
    report.print_out(scale.table(f"{title}; predicted for {args.memory:g} GB/s of memory", found))
    return 0


# -------------------------------------------------------------------------------------------- demo


def _demo(args: argparse.Namespace) -> int:
    args.plot = args.plot or ("demo.png" if plot.available() else None)
    check_outputs(args)
    with report.Progress() as stages, jax.enable_x64(True):
        outcome = demo.run(solvers.cg, args.n, args.rtol, stages)
        if args.plot:
            with stages.stage("draw", args.plot), blaming(args.plot):
                plot.draw(args.plot, outcome.S, outcome.title, outcome.curves(), args.rtol)
    report.print_out(outcome.table(), outcome.verdict())
    if args.plot:
        report.print_out(f"The picture is in {args.plot}.")
    for fault in outcome.faults:
        print(f"jaxsparse: {fault}", file=sys.stderr)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
