"""`jaxsparse solve`: solves A·x = b, with A and b from files."""

import argparse
import contextlib
import io
from pathlib import Path

import jax
import numpy as np
import scipy.sparse

import solvers
from jaxsparse.commands import CHOOSING, SYMMETRIC, VECTORS
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt.cli import arguments, measure, plots, tables
from jaxsparse_fmt.cli.info import asymmetry
from jaxsparse_fmt.cli.progress import Progress, Residuals
from jaxsparse_fmt.formats import footprint
from jaxsparse_fmt.io import files


def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    if args.plot:
        arguments.check_picture(args.plot, args.file)
    kind = ""
    if args.out is not None:
        inputs = [name for name in (args.file, args.rhs, args.x0) if name]
        kind = arguments.check_output(args.out, VECTORS, *inputs, kind=args.out_format, piped="txt")
    arguments.check_backend(args)
    args.precond = args.precond or ("auto" if args.method in CHOOSING else "none")
    _check_together(args)
    with arguments.blaming("--devices"):
        measure.first_devices(args.devices)
    S = arguments.read_matrix(args, progress)
    b = _right_hand_side(args, S, progress)
    x0 = None if args.x0 is None else _vector(args.x0, S.shape[1], f"{args.file} has", "columns", progress)
    if args.method in SYMMETRIC:
        with progress.stage("check", f"whether the matrix is symmetric, as {args.method} needs"):
            _check_symmetric(args, S)
    b_norm = float(np.linalg.norm(b))
    options = {
        "rtol": args.rtol,
        "atol": args.atol,
        "maxiter": args.maxiter,
        "history": bool(args.plot),
        "progress": Residuals(progress.show),
    }
    dtype = arguments.dtype_of(args, np.result_type(S, b) if x0 is None else np.result_type(S, b, x0))
    with arguments.word_length(dtype):
        with progress.stage("convert", f"{S.nnz:,} entries to {dtype}"), arguments.blaming(args.file):
            stored = measure.store(S, dtype, args.format, args.backend, args.devices)
        M = "auto" if args.precond == "auto" or args.method == "direct" else None
        if args.precond not in ("auto", "none"):
            with progress.stage("precondition", args.precond), arguments.blaming(f"--precond {args.precond}"):
                M = jax.block_until_ready(getattr(solvers.precond, args.precond)(stored.A))
        if args.precond == "auto" or args.method in CHOOSING:
            solve = measure.prepare(solvers.solve, stored, b, M, x0, method=args.method, **options)
        else:
            with progress.stage("compile", f"{args.method} on {stored.A.name} for {measure.device()}"):
                solve = measure.prepare(getattr(solvers, args.method), stored, b, M, x0, **options)
        refusing = arguments.blaming("--method direct") if args.method == "direct" else contextlib.nullcontext()
        with progress.stage("solve", "iteration 0"), refusing:
            sol = solve()
        wall = tables.durations(progress.seconds)
        with progress.stage("measure", "the product"):
            product = stored.seconds_per_product()
        failures = []
        try:
            sol.raise_for_status()
        except solvers.SolverError as error:
            failures.append(f"{args.file}: {error}")
    x = np.asarray(sol.x)
    curves = {f"{sol.iterations:,} iterations": sol.history}
    name, status = Path(args.file).name, solvers.Status(sol.status)
    rows = [*_matrix_rows(S, stored, product), *_answer_rows(args, S, b, x, sol)]
    faults = []
    progress.clear()
    for what, path, write in (
        ("x written to", args.out, lambda: _write(args.out, x, kind)),
        ("drawn in", args.plot, lambda: plots.draw(args.plot, S, name, curves, args.rtol)),
    ):
        if path:
            try:  # print the table even if a file cannot be written
                with arguments.blaming(path):
                    write()
                rows.append((what, path))
            except arguments.BadInput as error:
                faults.append(str(error))
    rows += [("status", status.name if failures else f"{status.name}: {status.message}"), ("wall time", wall)]
    record = {"file": args.file, "format": stored.A.name, "device": measure.device(), "iterations": sol.iterations}
    record |= {
        "method": _method(args, sol),
        "tried": sol.tried,
        "status": status.name,
        "residual_norm": sol.residual_norm,
        "b_norm": b_norm,
        "seconds": progress.seconds,
        "seconds_per_product": product,
    }
    code = 2 if faults else 1 if failures else 0
    return tables.Done(record, [tables.facts(name, rows)], [*faults, *failures], code)


def _method(args: argparse.Namespace, sol: solvers.Solution) -> str:
    if sol.method:
        return sol.method.replace("the given M", str(args.precond))
    return args.method if args.precond in ("auto", "none") else f"{args.method} with {args.precond}"


def _write(out: str, x: np.ndarray, kind: str) -> None:
    if out == "-":
        lines = io.StringIO()
        np.savetxt(lines, x, fmt="%.17g")
        tables.write_out(lines.getvalue().rstrip())
    else:
        files.write_vector(out, x, kind)


def _check_together(args: argparse.Namespace) -> None:
    """Refuses options that exclude each other."""
    takes_none = args.method == "lsmr" or (args.method == "direct" and args.precond != "auto")
    if takes_none and args.precond != "none":
        raise arguments.BadInput(f"--precond {args.precond}: {args.method} takes none; leave --precond out")
    for option, value in (("--method", "direct"), ("--format", "tune")):
        if args.devices > 1 and value in (args.method, args.format):
            raise arguments.BadInput(f"{option} {value} works on one device; leave --devices out, or name another")


def _right_hand_side(args: argparse.Namespace, S: scipy.sparse.csr_array, progress: Progress) -> np.ndarray:
    rows, cols = S.shape
    if rows == 0 or cols == 0 or (rows != cols and args.method != "lsmr"):
        raise arguments.BadInput(
            f"{args.file}: a square matrix of at least one row is needed, this one is {rows} × {cols}; "
            "for least squares use --method lsmr"
        )
    if args.rhs is None:
        return S @ np.ones(cols)
    return _vector(args.rhs, rows, f"{args.file} has", "rows", progress)


def _vector(path: str, size: int, whose: str, sides: str, progress: Progress) -> np.ndarray:
    with progress.stage("read", path), arguments.blaming(path):
        v = files.read_vector(path)
    if v.size != size:
        raise arguments.BadInput(
            f"{path}: holds {v.size:,} numbers, but {whose} {size:,} {sides}; it needs one for each"
        )
    return v


def _check_symmetric(args: argparse.Namespace, S: scipy.sparse.csr_array) -> None:
    """Refuses a matrix that is not Hermitian. A NaN passes, and the solver's status reports it."""
    i, j, excess = asymmetry(S)
    if excess > 0:
        kind = "Hermitian" if np.iscomplexobj(S) else "symmetric"
        raise arguments.BadInput(
            f"{args.file}: {args.method} needs a {kind} matrix, but entry ({i + 1}, {j + 1}) is {S[i, j]:g} where its "
            f"mirror image, entry ({j + 1}, {i + 1}), implies {np.conj(S[j, i]):g}; repair the file, or "
            "use a method for such systems: --method gmres"
        )


def _matrix_rows(S: scipy.sparse.csr_array, stored: measure.Stored, product: float) -> list[tuple[str, str]]:
    A = stored.A
    in_csr = A.nbytes / footprint.csr_bytes(S, A.dtype.itemsize)
    speed = tables.bandwidth(stored.moved, product)
    devices = [("devices", f"{A.parts}, {A.record.exchange}")] if A.name == "sharded" else []
    return [
        ("rows", f"{S.shape[0]:,}"),
        ("nnz", f"{S.nnz:,}"),
        ("format", f"{A.name}, {stored.why}"),
        *devices,
        ("stored", f"{readable_bytes(A.nbytes)} as {A.dtype}, {in_csr:.2f} × CSR"),
        ("product", f"{tables.duration(product)}, {speed} on {measure.device()}"),
    ]


def _asked(args: argparse.Namespace) -> str:
    return f"{args.rtol:.0e}, or {args.atol:.0e} in all," if args.atol else f"{args.rtol:.0e}"


def _answer_rows(
    args: argparse.Namespace, S: scipy.sparse.csr_array, b: np.ndarray, x: np.ndarray, sol: solvers.Solution
) -> list[tuple[str, str]]:
    norm, b_norm, wide = float(sol.residual_norm), float(np.linalg.norm(b)) or 1.0, np.result_type(S, b)
    tried = sol.tried if args.verbose or not sol.success else ()
    rows = [
        ("method", _method(args, sol)),
        *(("  tried" if i == 0 else "", line) for i, line in enumerate(tried)),
        ("b", args.rhs or "A·1, since no --rhs was given"),
        ("iterations", f"{sol.iterations:,}"),
        ("true residual", f"{norm:.3e}; {norm / b_norm:.2e} of ‖b‖, where {_asked(args)} was asked"),
    ]
    if x.dtype != wide:
        rows += [(f"  in {wide}", f"{measure.relative_residual(S, b, x):.2e} of ‖b‖, with A and b as in the files")]
    if args.rhs is None and not b.any():
        rows += [("error", "unknown: b = A·1 is 0, so the matrix is singular, and x = 0 solves the system too")]
    elif args.rhs is None:
        rows += [("error", f"{np.linalg.norm(x - 1) / np.sqrt(x.size):.2e} = ‖x − 1‖ / ‖1‖")]
    return rows
