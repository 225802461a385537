"""What solving costs: a step of cg against its floor, refinement, several right-hand sides, gradients, multigrid.

    python -m benchmarks.solvers                  everything, for the device that is there
    python -m benchmarks.solvers --only steps columns --small

The floor of a step is nnz·(value + 4-byte index) + 10 vectors over the measured copy bandwidth: a CSR matrix read once
and the passes of cg fused as far as they go. "own" puts the bytes of the format that ran in the matrix's place. A step
is what 400 more of them take; a solve is timed whole, compiled, from call to answer, and is the median of five.
JAXSPARSE_MATRICES names a folder of matrices for refinement.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.sparse
import scipy.sparse.linalg

import jaxsparse_fmt as jsf
from benchmarks import timing
from solvers import Status, cg, precond, refine

VECTORS = 10  # that a step of cg reads and writes, its product's two among them
Row = dict[str, Any]


def rhs(S: Any, dtype: Any = np.float64, columns: tuple[int, ...] = ()) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[0], *columns)).astype(dtype))


def seconds(solve: Callable[..., Any], *args: Any, **options: Any) -> tuple[float, Any]:
    """Median of five of solve(*args, **options), and the solution."""
    solution = jax.block_until_ready(solve(*args, **options))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        solution = jax.block_until_ready(solve(*args, **options))
        times.append(time.perf_counter() - start)
    return float(np.median(times)), solution


def problems(small: bool) -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """A large problem of each kind with the format that suits it."""
    n, m = (12, 4) if small else (200, 64) if jax.default_backend() == "gpu" else (60, 16)
    return {
        f"7-point {n}³": (jsf.gallery.poisson(n), "dia", {}),
        f"27-point × 3 dof {m}³": (jsf.gallery.elasticity(m), "bsr", {"block_shape": (3, 3)}),
    }


def steps(copy: float, small: bool) -> Iterator[Row]:
    cases = [(name, S, f, o, dtype) for name, (S, f, o) in problems(small).items() for dtype in ("float64", "float32")]
    little = [(f"7-point {n}³", jsf.gallery.poisson(n), "dia", {}, "float64") for n in ((8,) if small else (16, 50))]
    for name, S, format, options, dtype in little + cases:
        # Scaled by what varies from row to row: no solve may end before its count of steps.
        D = scipy.sparse.diags_array(10 ** np.random.default_rng(1).uniform(-1.5, 1.5, S.shape[0]))
        A, b = jsf.from_scipy(D @ S @ D, format, dtype, **options), rhs(S, dtype)
        vectors = VECTORS * b.nbytes
        floor = (S.nnz * (b.itemsize + 4) + vectors) / copy
        own = (A.nbytes_read + vectors) / copy
        for label, merged in (("cg", False), ("cg, one reduction", True)):
            (few, did), (many, did_more) = (seconds(_fixed(n, merged), A, b) for n in (100, 500))
            if (int(did), int(did_more)) != (100, 500):
                raise RuntimeError(f"{name}, {dtype}: {did} and {did_more} steps, not 100 and 500")
            step = (many - few) / 400
            yield {"problem": name, "unknowns": S.shape[0], "dtype": dtype, "format": A.name, "method": label} | {
                "µs a step": step * 1e6, "floor µs": floor * 1e6, "share": floor / step, "own share": own / step,
                "µs a step of 500": many / 500 * 1e6,
            }  # fmt: skip


def _fixed(iterations: int, merged: bool) -> Callable[..., Any]:
    return jax.jit(lambda A, b: cg(A, b, rtol=0.0, maxiter=iterations, one_reduction=merged).iterations)


def refinement(copy: float, small: bool) -> Iterator[Row]:
    cases = [(name, S, f, o) for name, (S, f, o) in problems(small).items()]
    folder = os.environ.get("JAXSPARSE_MATRICES")
    for path in sorted(Path(folder).rglob("*.mtx*")) if folder else []:
        S = _symmetric(path)
        if S is not None:
            cases.append((path.name.split(".")[0], S, "auto", {}))
    for name, S, format, options in cases:
        A, b = jsf.from_scipy(S, format, **options), rhs(S)
        M, limit = (None, 20_000) if name.startswith(("7-", "27-")) else (precond.jacobi(A), 20_000)
        wide, want = seconds(cg, A, b, M=M, rtol=1e-12, maxiter=limit)
        if want.status == Status.NOT_POSITIVE_DEFINITE:
            continue
        for label, rtol, dtype in (("refine", 1e-12, None), ("refine bf16", 1e-8, "bfloat16")):
            if dtype and format == "auto":
                continue
            base, reference = (wide, want) if rtol == 1e-12 else seconds(cg, A, b, M=M, rtol=1e-8)
            narrow, got = seconds(refine, A, b, M=M, rtol=rtol, dtype=dtype, maxiter=limit)
            true = float(np.linalg.norm(np.asarray(b) - S @ np.asarray(got.x)) / np.linalg.norm(np.asarray(b)))
            yield {"problem": name, "unknowns": S.shape[0], "method": label, "rtol": rtol, "format": A.name} | {
                "cg ms": base * 1e3, "cg iterations": int(reference.iterations), "ms": narrow * 1e3,
                "iterations": int(got.iterations), "× cg": base / narrow, "residual": true,
                "status": Status(int(got.status)).name, "cg status": Status(int(reference.status)).name,
            }  # fmt: skip


def _symmetric(path: Path) -> Any:
    """The matrix, if it is real and symmetric with a positive diagonal; whether it is definite cg will say."""
    S = scipy.io.mmread(path)
    if not scipy.sparse.issparse(S) or S.shape[0] != S.shape[1] or np.iscomplexobj(S.data):
        return None
    S = scipy.sparse.csr_array(S).astype(np.float64)
    return S if abs(S - S.T).max() == 0 and S.diagonal().min() > 0 else None


def columns(copy: float, small: bool) -> Iterator[Row]:
    for name, (S, format, options) in problems(small).items():
        A, B = jsf.from_scipy(S, format, **options), rhs(S, columns=(8,))
        one, _ = seconds(cg, A, B[:, 0], rtol=1e-8)
        eight, solution = seconds(cg, A, B, rtol=1e-8)
        yield {"problem": name, "format": A.name, "one ms": one * 1e3, "eight ms": eight * 1e3} | {
            "× eight alone": 8 * one / eight,
            "iterations": str(np.asarray(solution.iterations).tolist()),
        }


def gradient(copy: float, small: bool) -> Iterator[Row]:
    for name, (S, format, options) in problems(small).items():
        A, b = jsf.from_scipy(S, format, **options), rhs(S)
        w = rhs(S)[::-1]
        loss = lambda values, b, A=A, w=w: jnp.vdot(w, cg(A._with_values(values), b, rtol=1e-8).x)  # noqa: E731
        value, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss, (0, 1)))
        solve, _ = seconds(value, A.values, b)
        grad, _ = seconds(both, A.values, b)
        yield {"problem": name, "solve ms": solve * 1e3, "value and gradient ms": grad * 1e3, "solves": grad / solve}


def multigrid(copy: float, small: bool) -> Iterator[Row]:
    sizes = (8, 12) if small else (46, 100, 200) if jax.default_backend() == "gpu" else (24, 46)
    for n in sizes:
        S = jsf.gallery.poisson(n)
        A, b = jsf.from_scipy(S, "dia"), rhs(S)
        plain, alone = seconds(cg, A, b, rtol=1e-8)
        start = time.perf_counter()
        M = jax.block_until_ready(precond.multigrid(A))
        setup = time.perf_counter() - start
        time_, solution = seconds(cg, A, b, M=M, rtol=1e-8)
        yield {"problem": f"7-point {n}³", "unknowns": S.shape[0], "cg ms": plain * 1e3} | {
            "cg iterations": int(alone.iterations), "multigrid-cg ms": time_ * 1e3,
            "iterations": int(solution.iterations), "× cg": plain / time_, "set-up s": setup,
        }  # fmt: skip


SECTIONS = {f.__name__: f for f in (steps, refinement, columns, gradient, multigrid)}


def table(name: str, rows: list[Row]) -> list[str]:
    """Markdown, which reads as plain text too."""
    if not rows:
        return []
    said = lambda v: f"{v:.3g}" if isinstance(v, float) else str(v)  # noqa: E731
    lines = ["", f"## {name}", "", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return lines + ["| " + " | ".join(said(v) for v in row.values()) + " |" for row in rows]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    parser.add_argument("--json", type=Path, help="also write the rows here, and the table beside it as .md")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    copy = timing.copy_bandwidth(2**24 if args.small else 2**28 if jax.default_backend() == "cpu" else 2**31)
    header = timing.provenance() | {"copy": f"{copy / 1e9:.0f} GB/s"}
    lines, rows = [timing.line(header)], []
    for name in args.only:
        found = []
        for row in SECTIONS[name](copy, args.small):
            found.append(row)
            print(name, row, file=sys.stderr, flush=True)
        rows += [{"section": name} | row for row in found]
        lines += table(name, found)
        if args.json:
            timing.write(args.json, header, rows, "\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
