"""Writes the tables of the pages in FILES anew from benchmarks/results: python docs/figures.py

Between `<!-- figures: NAME -->` and `<!-- end -->` it writes what `TABLES[NAME]` makes: hardware, date, versions, files
and command of a measurement, and its table. A test asks that the files are as this script would write them.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parent.parent
FILES = ("docs/performance.md", "docs/measurements.md", "docs/factors.md", "docs/batches.md")
RESULTS = ROOT / "benchmarks/results"
BLOCK = re.compile(r"(<!-- figures: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ALL = ""
DTYPES = ("float32", "float64")
NO_SLOWER = 0.9995  # 1 in three digits: two timings of one product differ by more
Row = dict[str, Any]
PROBLEMS = ("7-point 200³", "27-point × 3 dof 64³")
ON_A_CPU = ("SciPy", "pattern and values", "new values")

# The rows of the tables: a name, and the class or the matrix that it stands for.
CLASSES = {
    "all": ALL,
    "stencils": "stencil",
    "optimality system (KKT)": "KKT",
    "FEM, 3 unknowns a point": "FEM",
    "stencil in the L2 cache": "in L2",
    "irregular, in a band of ±2,000": "irregular, ±2,000",
    "adaptive mesh": "adaptive mesh",
    "power law (R-MAT)": "power law",
    "1 to 3 entries a row": "short rows",
    "blocks of 5 × 5": "CFD",
    "a few dense rows and columns": "dense rows",
    "1,000 to 2,000 entries a row": "long rows",
    "Holstein-Hubbard": "quantum",
    "irregular, in a band of ±50,000": "irregular, ±50,000",
    "columns anywhere": "random",
    "shapes like published matrices": "stand-in",
}
SHORT = ("all", "stencils", "FEM, 3 unknowns a point", "power law (R-MAT)", "adaptive mesh", "columns anywhere")
SHORT += ("shapes like published matrices",)

# The rows of the table of formats: a name, and the label of the method in float32 and in float64.
OF_FORMATS = {
    "`dia`": ("dia", "dia"),
    "`hdia`": ("hdia", "hdia"),
    "`bsr`, 3 × 3 blocks": ("bsr block_shape=(3, 3)", "bsr block_shape=(3, 3)"),
    "`sell`, values of half the width": ("sell values bfloat16", "sell values float32"),
    "`sell`": ("sell", "sell"),
    "`ell`": ("ell", "ell"),
    "`hll`": ("hll slice_size=128", "hll slice_size=128"),
    "`pjds`": ("pjds", "pjds"),
    "`biell`": ("biell", "biell"),
    "`csr`": ("csr", "csr"),
    "`csr`, one thread a row": ("csr threads_per_row=1", "csr threads_per_row=1"),
    "`coo`": ("coo", "coo"),
    "JAX's BCSR": ("JAX BCSR", "JAX BCSR"),
}


def newest(what: str) -> Path:
    """The newest file of benchmarks/results whose name, which begins with its date, ends so."""
    return max(RESULTS.glob(f"*{what}.json"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8").replace("sdia", "dia"))  # its name until one `dia` was left


def rows_of(what: str, **of: Any) -> list[Row]:
    """The rows of the newest results that have all of these values."""
    return [row for row in read(newest(what))["rows"] if of.items() <= row.items()]


def row_of(what: str, **of: Any) -> Row:
    (row,) = rows_of(what, **of)
    return row


def source(command: str, *whats: str) -> Iterator[str]:
    """Where the table below comes from: hardware, date, versions, commit where the results have it, files, command."""
    paths = [newest(what) for what in whats]
    headers = [read(path)["header"] for path in paths]
    first, dates = headers[0], " and ".join(dict.fromkeys(header["date"] for header in headers))
    count = f"{first.get('devices', 1)} × " if "NVIDIA" in first["device"] else ""
    commit = f", commit {first['commit']}" if "commit" in first else ""
    files = ", ".join(f"[{path.stem}](../benchmarks/results/{path.stem}.md)" for path in paths)
    yield f"{count}{first['device']}, {dates}, JAX {first['jax']}, Python {first['python']}{commit}."
    yield f"All rows: {files}. Made by `python -m benchmarks {command}`."
    yield ""


def table(heads: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table with a name in the first column and numbers in the others."""
    yield f"| | {heads} |"
    yield "|---|" + "---:|" * (heads.count("|") + 1)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def of_keys(rows: Iterable[Row], name: str, heads: str, **keys: str) -> Iterator[str]:
    """A table of rows: how a name is made, the heads of the columns, and each key with the format of its number."""
    return table(heads, ((name.format_map(row), *(format(row[k], spec) for k, spec in keys.items())) for row in rows))


def speeds(rows: list[Row], of: str = ALL) -> dict[str, float]:
    """Geometric means by dtype of auto's speed as a multiple of the best opponent's."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if of in (ALL, row["class"], row["matrix"]) and not math.isnan(row["ratio"]):
            found.setdefault(row["dtype"], []).append(row["ratio"])
    return {dtype: geometric_mean(ratios) for dtype, ratios in found.items()}


def by_class(rows: list[Row], names: Iterable[str] = CLASSES) -> Iterator[str]:
    """Means over the classes that the rows have, all of them first and then the fastest."""
    means = {name: speeds(rows, CLASSES[name]) for name in names}
    known = sorted((name for name in means if means[name]), key=lambda n: (CLASSES[n] != ALL, -means[n]["float32"]))
    return table("float32 | float64", ((name, *(f"{means[name][d]:.2f}" for d in DTYPES)) for name in known))


def counts(rows: list[Row]) -> Iterator[str]:
    """In how many cases of a suite the choice is as good as can be, and the worst case."""
    bounds = {
        '"auto" is no slower than the best of cuSPARSE': ("ratio", NO_SLOWER),
        '"auto" is within 3% of the best of our formats that were timed': ("auto vs best", 0.97),
        '"tune" is within 3% of the best of those': ("tune vs best", 0.97),
    }
    lines = []
    for name, (key, bound) in bounds.items():
        worst, met = min(rows, key=lambda row: row[key]), sum(row[key] >= bound for row in rows)
        lines += [(name, f"{met} of {len(rows)}", f"{worst[key]:.3f}", f"{worst['matrix']}, {worst['dtype']}")]
    return table("cases | worst | where", lines)


def held_out() -> Iterator[str]:
    """The choice for every matrix of the other suite in float64, the fastest beside cuSPARSE first, and means."""
    rows = sorted(rows_of("suite_held_out_h200", dtype="float64"), key=lambda row: -row["ratio"])
    for row in rows:
        row |= {"name": f"{row['matrix']} in `{row['auto'].split()[0]}`", "entries": f"{row['nnz'] / 1e6:.1f}"}
    specs = dict.fromkeys(("ratio", "auto vs best", "tune vs best"), ".2f")
    mean = {"name": "geometric mean", "entries": ""} | {k: geometric_mean(row[k] for row in rows) for k in specs}
    heads = '10⁶ entries | × cuSPARSE | × the best of ours | "tune" × the best of ours'
    return of_keys([mean, *rows], "{name}", heads, entries="", **specs)


def formats(matrices: tuple[str, ...]) -> Iterator[str]:
    """Speeds in Triton / Mosaic GPU as multiples of the best of cuSPARSE's CSR."""
    columns = [(matrix, k) for matrix in matrices for k in (0, 1)]

    def cell(labels: tuple[str, str], key: str, matrix: str, k: int) -> str:
        return " / ".join(
            f"{row[key]:.2f}" for row in rows_of("spmv_h200", matrix=matrix, dtype=DTYPES[k], method=labels[k])
        )

    def line(name: str, labels: tuple[str, str], key: str = "ratio") -> tuple[str, ...]:
        return name, *(cell(labels, key, *column) for column in columns)

    heads = " | ".join(f"{matrix}, f32" if k == 0 else "f64" for matrix, k in columns)
    lines = [("cuSPARSE CSR", *["1.00"] * len(columns)), *(line(*item) for item in OF_FORMATS.items())]
    return table(heads, [*lines, line("`hll`: share of copy bandwidth", OF_FORMATS["`hll`"], "share")])


def formats_on_a_cpu() -> Iterator[str]:
    names = {f"`{name}`": name for name in ("csr", "dia")}
    names |= {f"SciPy's {name}": f"SciPy {name} @ x" for name in ("coo", "dia", "bsr")} | {"JAX's BCSR": "JAX BCSR"}
    columns = [(matrix, dtype) for matrix in ("7-point 100³", "27-point × 3 dof 40³") for dtype in DTYPES]

    def cell(method: str, matrix: str, dtype: str) -> str:
        return f"{row_of('spmv_cpu', matrix=matrix, dtype=dtype, method=method)['ratio']:.2f}"

    heads = "7-point 100³, f32 | f64 | 27-point × 3 dof 40³, f32 | f64"
    return table(heads, ((name, *(cell(method, *column) for column in columns)) for name, method in names.items()))


def columns() -> Iterator[str]:
    """The time of k columns in times of one, and their throughput as a multiple of one column's."""
    formats = {row["matrix"]: row["format"].partition(" ")[0] for row in rows_of("columns_h200")}
    for k in (8, 32):
        throughput = {(r["matrix"], r["dtype"]): r["throughput"] for r in rows_of("columns_h200", columns=k)}
        lines = (
            (
                f"{matrix} in `{name}`",
                *(f"{k / throughput[matrix, d]:.1f}" for d in DTYPES),
                *(f"{throughput[matrix, d]:.2f}" for d in DTYPES),
            )
            for matrix, name in formats.items()
        )
        yield from table(f"{k} columns: time, f32 | f64 | throughput, f32 | f64", lines)
        yield ""


def steps() -> Iterator[str]:
    """A step of cg, its shares of the copy, and what 500 steps take longer than 500 times a step, the start."""

    def line(row: Row) -> tuple[str, ...]:
        step, start = row["µs a step"], (row["µs a step of 500"] - row["µs a step"]) * 500
        shares = (f"{row[key]:.2f}" if row["unknowns"] > 500_000 else "" for key in ("share", "own share"))
        name = f"{row['problem']} in `{row['format']}`, {row['dtype']}, {row['method']}"
        return name, f"{step:.3g}", *shares, f"{start / 1e3:.1f}"

    heads = "a step, µs | of CSR's bytes | of its own | the start, ms"
    return table(heads, map(line, rows_of("solvers_h200", section="steps")))


def solves() -> Iterator[str]:
    lines = {
        "`refine` to 1e-12, × the speed of `cg` in float64": ("× cg", {"method": "refine"}),
        "`refine` with bfloat16 values to 1e-8, × the speed of `cg`": ("× cg", {"method": "refine bf16"}),
        "`refine` to 1e-12, both with a coarse space": ("× cg", {"method": "refine, coarse space"}),
        "`cg` with eight columns, × the speed of eight solves": ("× eight alone", {"section": "columns"}),
        "value and gradient of a solve, in solves": ("solves", {"section": "gradient"}),
    }

    def cell(problem: str, key: str, of: Row) -> str:
        table = "gradient_h200" if of.get("section") == "gradient" else "solvers_h200"
        if not rows_of(table, problem=problem, **of):
            return ""
        row = row_of(table, problem=problem, **of)
        return f"{row[key]:.2f}" if row.get("status", "CONVERGED") == "CONVERGED" else row["status"]

    return table(" | ".join(PROBLEMS), ((name, *(cell(p, *of) for p in PROBLEMS)) for name, of in lines.items()))


OF_SECTIONS = {
    "weak": "{problem}, the same work a GPU",
    "strong": "{problem}, all of the work",
    "irregular": "{problem}, all of the work",
    "products": "7-point 200³, a product in a loop, the same work a GPU",
    "refinement": "7-point 200³, what `refine` gains over `cg`, the same work a GPU",
    "multigrid": "7-point 128³, `cg` with multigrid to 1e-8, the same work a GPU",
}


def several_gpus() -> Iterator[str]:
    """What two and four GPUs keep of the speed of one, whose row comes before theirs."""
    kept: dict[str, list[str]] = {}
    for row in rows_of("scaling_4xh200"):
        if row["devices"] == 1:
            kept[OF_SECTIONS[row["section"]].format_map(row)] = figures = []
            continue
        key = "of one device's" if row["section"] == "refinement" else "efficiency"
        figures.append(f"{row[key]:.2f}")
    return table("two | four", ((name, *figures) for name, figures in kept.items()))


def processes() -> Iterator[str]:
    """Milliseconds of `cg`, called eagerly and inside jit."""
    rows = [row | {"each": row["devices"] // row["processes"]} for row in rows_of("processes_2xh200")]
    return of_keys(rows, "{processes} × {each}", "`cg` | in jit", **{"ms": ".0f", "in jit": ".0f"})


def stages() -> Iterator[str]:
    """Seconds of first calls and milliseconds of later ones, beside CuPy's."""

    def ms(t: float) -> str:
        return "" if math.isnan(t) else f"{t:,.0f}" if t > 30 else f"{t:.2g}"

    rows = [row for row in rows_of("device_h200") if "first s" in row]
    return table(
        "first call, s | later, ms | CuPy, ms",
        ((row["what"], f"{row['first s']:.1f}", ms(row["again ms"]), ms(row["CuPy ms"])) for row in rows),
    )


def algebra_times(what: str, key: str) -> dict[str, dict[str, float]]:
    """Seconds of sums, products and assembly by case and side, `key` being "cpu" or "wall"."""
    names = {"eager": "pattern and values", "pattern": "pattern and values"}
    found: dict[str, dict[str, float]] = {}
    for row in rows_of(what):
        if not row["case"].startswith("A @ x"):
            found.setdefault(row["case"], {})[names.get(row["side"], row["side"])] = row[key]
    return found


def algebra(what: str, key: str, *sides: str) -> Iterator[str]:
    """A table of `algebra_times` in milliseconds; empty where a side was not measured."""

    def cell(times: dict[str, float], side: str) -> str:
        return "" if side not in times else f"{1e3 * times[side]:,.{0 if times[side] > 0.01 else 1}f}"

    rows = algebra_times(what, key).items()
    return table(" | ".join(sides), ((case, *(cell(times, side) for side in sides)) for case, times in rows))


def cell(row: Row, key: str) -> str:
    """A number, or nothing."""
    return format(row[key], ",.3g" if row[key] < 100 else ",.0f") if key in row else ""


def functions() -> Iterator[str]:
    """Seconds of eigenpairs and the like; empty where a library lacks them."""
    keys, rows = ("ours, first", "ours", "SciPy", "CuPy"), rows_of("functions_h200")
    return table("first | later | SciPy, on the host | CuPy", ((r["call"], *(cell(r, k) for k in keys)) for r in rows))


def factors() -> Iterator[str]:
    """CPU milliseconds of solves by factors, and of a determinant and its gradient; empty where a side is absent.

    In between the ratios of `direct` to the better of SciPy's modes, over all matrices.
    """
    sides = {"COLAMD": "COLAMD", "symmetric": "symmetric", "superlu": '"superlu"', "cholmod": '"cholmod"'}
    sides |= {"sparsax": "CHOLMOD alone", "klu": '"klu"'}

    rows = rows_of("factors_cpu", section="solves")
    yield from table(" | ".join(sides.values()), ((row["problem"], *(cell(row, key) for key in sides)) for row in rows))
    yield ""
    ratio = {"matrices": "d", "at most 1.15": "d", "median": ".2f", "largest": ".2f"}
    yield from of_keys(rows_of("factors_cpu", section="ratios"), "{A} matrices", " | ".join(ratio), **ratio)
    yield ""
    rows = rows_of("factors_cpu", section="determinants")
    yield from of_keys(rows, "{problem}", "`logdet` | its gradient", value=",.0f", gradient=",.0f")


def factors_on_a_gpu() -> Iterator[str]:
    """Milliseconds of solves with new values; empty where SuperLU takes too long."""
    sides = {"analysed anew": "cuDSS, analysed in each call", "spineax": "cuDSS alone", "cudss": '"cudss"'}
    sides |= {"not in jit": '"cudss" outside of jit', "superlu": '"superlu"'}

    rows = rows_of("factors_gpu", section="cudss")
    return table(" | ".join(sides.values()), ((row["problem"], *(cell(row, key) for key in sides)) for row in rows))


def batches(what: str) -> Iterator[str]:
    """Milliseconds, on a CPU of the processor, of solves of many systems with new values."""
    sides = {"direct": "`direct`", "bicgstab": "`bicgstab`", "dense": "dense LU", "lax": "`tridiagonal_solve`"}
    rows = rows_of(what, section="batches")
    sides |= {"loop": "a loop of SciPy's `spsolve`"} if "loop" in rows[0] else {}
    cells = ((f"{row['systems']} × {row['problem']}", *(cell(row, key) for key in sides)) for row in rows)
    return table(" | ".join(sides.values()), cells)


def first_calls() -> Iterator[str]:
    """CPU seconds of first calls in fresh processes."""
    keys = dict.fromkeys(("ours", "jax.scipy", "lineax"), ".2f")
    rows = [row for row in rows_of("first_calls_cpu") if "jax.scipy" in row]
    return of_keys(rows, "{call}", "here | `jax.scipy` | lineax", **keys)


def starts() -> Iterator[str]:
    rows = [row | {"ms": 1e3 * row["seconds"]} for row in rows_of("first_calls_cpu") if "what" in row]
    return of_keys(rows, "{what}", "ms", ms=",.3g")


def multigrid() -> Iterator[str]:
    """CPU seconds of a set-up and of a solve, beside PyAMG's, where both were measured."""
    found = {(row["case"], row["side"]): row for row in rows_of("multigrid_cpu")}
    cases = [case for case, side in found if side == "PyAMG"]
    rows = [found[case, "ours, warm"] | {f"PyAMG {k}": v for k, v in found[case, "PyAMG"].items()} for case in cases]
    specs = {"setup_cpu": ".2f", "solve_cpu": ".2f", "iterations": ""}
    keys = {key: spec for ours, spec in specs.items() for key in (ours, f"PyAMG {ours}")}
    heads = "set-up, CPU s | PyAMG's | solve, CPU s | PyAMG's | iterations | PyAMG's"
    return of_keys(rows, "{case}", heads, **keys)


def sourced(made: Callable[[], Iterator[str]], command: str, *whats: str) -> Callable[[], Iterator[str]]:
    """A table below the lines with its source."""
    return lambda: iter([*source(command, *whats), *made()])


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "formats": sourced(lambda: formats(PROBLEMS), "spmv --cases 0 1 --backends triton mosaic --formats …", "spmv_h200"),
    "suite": sourced(lambda: by_class(rows_of("suite_h200")), "spmv --workers 13", "suite_h200"),
    "counts": lambda: counts(rows_of("suite_h200")),
    "held out": sourced(held_out, "spmv --suite held-out --workers 13", "suite_held_out_h200"),
    "counts of held out": lambda: counts(rows_of("suite_held_out_h200")),
    "dialects": sourced(lambda: by_class(rows_of("dialects_h200")), "spmv --backends triton mosaic", "dialects_h200"),
    "columns": sourced(columns, "stages --only columns", "columns_h200"),
    "steps": sourced(steps, "solvers", "solvers_h200"),
    "solves": solves,
    "functions": sourced(functions, "peers --only functions", "functions_h200"),
    "several GPUs": sourced(several_gpus, "scaling --modes overlap", "scaling_4xh200"),
    "processes": sourced(processes, "scaling --only processes --devices 1 2", "processes_2xh200"),
    "formats on a CPU": sourced(formats_on_a_cpu, "spmv --cases 0 1 --formats …", "spmv_cpu"),
    "suite on a CPU": sourced(lambda: by_class(rows_of("suite_cpu")), "spmv", "suite_cpu"),
    "algebra": sourced(lambda: algebra("algebra_cpu", "cpu", *ON_A_CPU), "stages --only algebra", "algebra_cpu"),
    "stages on a GPU": sourced(stages, "stages", "device_h200"),
    "factors": sourced(factors, "factors", "factors_cpu"),
    "factors on a GPU": sourced(factors_on_a_gpu, "factors", "factors_gpu"),
    "batches": sourced(lambda: batches("batches_cpu"), "factors --only batches", "batches_cpu"),
    "batches, GPU": sourced(lambda: batches("batches_h200"), "factors --only batches", "batches_h200"),
    "first calls": sourced(first_calls, "peers", "first_calls_cpu"),
    "starts": sourced(starts, "peers", "first_calls_cpu"),
    "multigrid": sourced(multigrid, "solvers --only multigrid", "multigrid_cpu"),
}


def written_anew(text: str) -> str:
    """The text with every table of figures as the results have it."""
    return BLOCK.sub(lambda m: m[1] + "\n".join(TABLES[m[2]]()).rstrip() + "\n" + m[4], text)


if __name__ == "__main__":
    for name in FILES:
        path = ROOT / name
        path.write_text(written_anew(path.read_text(encoding="utf-8")), encoding="utf-8")
