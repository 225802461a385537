"""Products of every format against cuSPARSE (GPU) or SciPy (CPU) and JAX's BCSR, in one run.

    python -m benchmarks.spmv                     the standard cases, for the device that is there
    python -m benchmarks.spmv --small --json out.json
    python -m benchmarks.spmv --only torus        some matrices
    python -m benchmarks.spmv --formats sell bsr  some formats
    python -m benchmarks.spmv --suite standard    `auto` against cuSPARSE by class of matrix (standard.py)

"conversion" is the time of the compiled conversion from CSR on the device, in products of the new format. GB/s and the
share of the copy bandwidth count the bytes that a format must move: stored values and indices, pointers, x and y once
each. A share can pass 1 where part of them stays in a cache, or the copy is not the fastest pass. Ratios are to the
fastest opponent outside JAX; above 1 we are faster. On the torus every row has 7 entries: only formats that treat
unequal rows differently run there, and a line below the table has the slowest over the fastest by dtype and backend.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jaxsparse_fmt as jsf
from benchmarks import cusparse, report, standard, suite, timing
from benchmarks.report import Row

# Format, layout, and by the dtype of the vectors that of the values where it is another.
Method = tuple[str, dict[str, Any], dict[str, str]]
NARROW = {"float64": "float32", "float32": "bfloat16"}
FORMATS: dict[str, list[Method]] = {
    "gpu": [
        ("csr", {"threads_per_row": 1}, {}),
        ("csr", {}, {}),
        ("coo", {}, {}),
        ("ell", {}, {}),
        ("ellr", {}, {}),
        ("ellr", {"threads_per_row": 2}, {}),
        ("ellrt", {"threads_per_row": 2}, {}),
        ("hll", {"slice_size": 32}, {}),
        ("hll", {"slice_size": 128}, {}),
        ("jds", {}, {}),
        ("pjds", {}, {}),
        ("pellr", {}, {}),
        ("biell", {}, {}),
        ("bijad", {}, {}),
        ("hyb", {}, {}),
        ("dia", {}, {}),
        ("sdia", {}, {}),
        ("hdia", {}, {}),
        ("bsr", {"block_shape": (3, 3)}, {}),
        ("sell", {}, {}),
        ("sell", {}, NARROW),
    ],
    "cpu": [
        ("csr", {}, {}),
        ("coo", {}, {}),
        ("ell", {}, {}),
        ("hll", {}, {}),
        ("pjds", {}, {}),
        ("dia", {}, {}),
        ("hdia", {}, {}),
        ("bsr", {"block_shape": (3, 3)}, {}),
        ("sell", {}, {}),
        ("csr5", {}, {}),
    ],
}
EQUAL_ROWS: list[Method] = [("hll", {}, {}), ("jds", {}, {}), ("pjds", {}, {}), ("pellr", {}, {})]
CASES = ("7-point", "27-point", "torus")


def cases(platform: str, small: bool, only: Sequence[str] = CASES) -> dict[str, Callable[[], Any]]:
    """Functions that make the matrices, each several times larger than the last-level cache."""
    n, m = (20, 8) if small else (200, 64) if platform == "gpu" else (100, 40)
    matrices = {
        f"7-point {n}³": lambda: jsf.gallery.poisson(n),
        f"27-point × 3 dof {m}³": lambda: jsf.gallery.elasticity(m),
        f"torus {n}³": lambda: torus(n),
    }
    return {name: make for name, make in matrices.items() if name.split()[0] in only}


def torus(n: int) -> scipy.sparse.csr_array:
    """The 7-point stencil on a periodic grid of n³ points, n ≥ 3: 7 entries in every row."""
    point = np.arange(n**3, dtype=np.int32).reshape(n, n, n)
    neighbours = [np.roll(point, shift, axis) for axis in range(3) for shift in (1, -1)]
    col = np.sort(np.stack([point, *neighbours], axis=-1).reshape(-1, 7))
    values = np.where(col == point.reshape(-1, 1), 6.0, -1.0)
    row_ptr = np.arange(0, col.size + 1, 7, dtype=np.int32)
    return scipy.sparse.csr_array((values.ravel(), col.ravel(), row_ptr), shape=(n**3, n**3))


def converted(csr: jsf.SparseMatrix, format: str, layout: dict[str, Any], dtype: str) -> tuple[jsf.SparseMatrix, float]:
    """The matrix in a format, and the seconds of the compiled conversion."""

    def convert() -> tuple[jsf.SparseMatrix, float]:
        start = time.perf_counter()
        A = jax.block_until_ready(csr.astype(dtype).asformat(format, max_bytes=2**36, **layout))
        return A, time.perf_counter() - start

    convert()
    return convert()


def measure(name: str, S: Any, platform: str, backends: list[str], copy: float, formats: list[str]) -> Iterator[Row]:
    """One row per method on one matrix, the opponents first."""
    equal_rows = name.startswith("torus")
    problem = standard.Problem.of(S, "cpu")  # not chained
    xs = [x.astype(S.dtype) for x in problem.xs]
    inputs = [jnp.asarray(x) for x in xs]
    csr_bytes = S.nnz * (S.dtype.itemsize + 4) + 4 * S.shape[0] + sum(S.shape) * S.dtype.itemsize

    def row(method: str, backend: str, seconds: float, nbytes: int, y: Any, conversion: float = math.nan) -> Row:
        rate = nbytes / seconds
        return {"matrix": name, "dtype": S.dtype.name, "rows": S.shape[0], "nnz": S.nnz, "method": method} | {
            "backend": backend, "us": seconds * 1e6, "GB/s": rate / 1e9, "share": rate / copy,
            "error": problem.off(y), "conversion": conversion / seconds,
        }  # fmt: skip

    def of_jax(method: str, backend: str, A: Any, nbytes: int, conversion: float = math.nan) -> Row:
        seconds = timing.of_jax(standard.product, A, inputs)
        return row(method, backend, seconds, nbytes, standard.product(A, inputs[0]), conversion)

    def of_cupy(method: str, product: cusparse.Product) -> Row:
        given = [product.to_device(x) for x in xs]
        seconds = timing.seconds_per_call(lambda i: product(given[i % 3]), product.wait)
        return row(method, "cupy", seconds, csr_bytes, product(given[0]).get())

    if platform == "cpu":
        seconds = timing.seconds_per_call(lambda i: S @ xs[i % 3], lambda _: None)
        yield row("SciPy csr @ x", "scipy", seconds, csr_bytes, S @ xs[0])
        for format in ("coo", "dia", "bsr"):  # beside ours; no opponents of "auto"
            T = S.asformat(format)
            seconds = timing.seconds_per_call(lambda i, T=T: T @ xs[i % 3], lambda _: None)
            yield row(f"SciPy {format} @ x", f"scipy {format}", seconds, csr_bytes, T @ xs[0])
    for method, make in cusparse.products(S).items():
        yield of_cupy(method, make())
    if not equal_rows:
        yield of_jax(standard.BCSR, "xla", standard.bcsr(S, S.dtype), csr_bytes)
    csr = jsf.from_scipy(S, "csr")
    for format, layout, dtypes in EQUAL_ROWS if equal_rows else FORMATS[platform]:
        if formats and format not in formats:
            continue
        stored = dtypes.get(S.dtype.name) or S.dtype.name
        A, conversion = converted(csr, format, layout, stored)
        label = " ".join([format, *(f"{k}={v}" for k, v in layout.items()), *([f"values {stored}"] if dtypes else [])])
        for backend in backends:
            B = dataclasses.replace(A, backend=backend)
            yield of_jax(label, backend, B, timing.moved_bytes(A, xs[0]), conversion)


def with_ratios(rows: list[Row]) -> list[Row]:
    """Adds to each row its speed against the fastest opponent outside JAX on the same matrix and dtype."""
    for row in rows:
        rivals = [
            r["us"]
            for r in rows
            if (r["matrix"], r["dtype"]) == (row["matrix"], row["dtype"]) and r["backend"] in ("cupy", "scipy")
        ]
        row["ratio"] = min(rivals) / row["us"] if rivals else float("nan")
    return rows


COLUMNS = [("matrix", "matrix"), ("dtype", "dtype"), ("method", "method"), ("backend", "backend"), ("µs", "us:.1f")]
COLUMNS += [("GB/s", "GB/s:.0f"), ("share of copy", "share:.2f"), ("× opponent", "ratio:.2f")]
COLUMNS += [("conversion", "conversion:.0f"), ("error", "error:.0e")]


def spread(rows: list[Row]) -> list[str]:
    """Lines with the slowest format's time over the fastest's on the torus, by dtype and backend."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for r in rows:
        if r["matrix"].startswith("torus") and r["backend"] not in ("cupy", "scipy"):
            times.setdefault((r["dtype"], r["backend"]), {})[r["method"]] = r["us"]
    return [""] * bool(times) + [
        f"{dtype} {backend}, rows of equal length: {max(us, key=us.__getitem__)} / {min(us, key=us.__getitem__)} = "
        f"{max(us.values()) / min(us.values()):.2f}, of {', '.join(us)}"
        for (dtype, backend), us in times.items()
    ]


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__)
    parser.add_argument("--backends", nargs="+", help="default: triton and mosaic on a GPU, auto on a CPU")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), help="matrices; default: all")
    parser.add_argument("--formats", nargs="+", default=[], help="default: all")
    parser.add_argument("--suite", choices=suite.SUITES, help="these matrices, in the formats that `auto` ranks first")
    parser.add_argument("--cases", type=int, nargs="+", help="of a suite: numbers of the matrices; default: all")
    parser.add_argument("--join", type=Path, nargs="+", help="of a suite: join these files of other runs")
    parser.add_argument("--others", type=int, default=3, help="of a suite: formats timed beside auto's; default 3")
    parser.add_argument("--scale", type=float, help="of a suite: size of the matrices; default 1, on a CPU 1/20")
    parser.add_argument("--sustained", type=float, default=0, help="of a suite: time after seconds of load too")
    parser.add_argument("--limit", type=float, default=900, help="of a suite: end after about so many seconds")
    parser.add_argument("--plot", type=Path, help="of a suite: draw the ratios by class here")
    args = parser.parse_args(argv)
    if args.join and not args.suite:
        parser.error("--join joins runs of a suite: name it, as --suite standard")
    jax.config.update("jax_enable_x64", True)
    if args.suite:
        return standard.main(args)
    platform = report.platform_here()
    backends = args.backends or (["auto"] if platform == "cpu" else ["triton", "mosaic"])
    copy, header = report.machine(args.small)
    rows: list[Row] = []
    for name, make in cases(platform, args.small, args.only).items():
        S = make()
        for dtype in args.dtypes:
            for row in measure(name, S.astype(dtype), platform, backends, copy, args.formats):
                rows.append(row)
                report.log(f"{name} {dtype} {row['method']} {row['backend']}: {row['us']:.1f} µs")
    text = "\n".join([report.line(header), "", *report.markdown(with_ratios(rows), COLUMNS), *spread(rows)])
    print(text)
    report.write(args.json, header, rows, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
