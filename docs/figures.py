"""Writes the figures of README.md and docs/performance.md anew from benchmarks/results: python docs/figures.py

A table between `<!-- figures: NAME -->` and `<!-- end -->` is replaced by that of `TABLES[NAME]`. A test asks that the
files are as this script would write them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parent.parent
FILES = ("README.md", "docs/performance.md")
BLOCK = re.compile(r"(<!-- figures: (.*?) -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)
ALL = ""

# The rows of the tables: a name, and the class or the matrix that it stands for.
IN_README = {
    "all 25": ALL,
    "stencils": "stencil",
    "FEM, 3 unknowns a point": "FEM",
    "adaptive mesh": "adaptive mesh",
    "power law (R-MAT)": "power law",
    "ten shapes like published matrices": "stand-in",
    "columns anywhere": "random",
}
IN_PERFORMANCE = {
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
    "ten shapes like published matrices": "stand-in",
}
ON_A_CPU = {
    "all": ALL,
    "stencils": "stencil",
    "optimality system (KKT)": "KKT",
    "Holstein-Hubbard": "quantum",
    "stencil in the L2 cache": "in L2",
    "a few dense rows and columns": "dense rows",
    "FEM, 3 unknowns a point": "FEM",
    "columns anywhere": "random",
    "shapes like published matrices": "stand-in",
    "irregular": "irregular",
    "blocks of 5 × 5": "CFD",
    "power law (R-MAT)": "power law",
    "adaptive mesh": "adaptive mesh",
    "1,000 to 2,000 entries a row": "long rows",
    "1 to 3 entries a row": "short rows",
}
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


def newest(what: str) -> dict[str, Any]:
    """The newest results of a benchmark: a file of benchmarks/results, named by its date."""
    path = max((ROOT / "benchmarks/results").glob(f"*_{what}.json"))
    return json.loads(path.read_text(encoding="utf-8"))


def speeds(rows: list[dict[str, Any]], of: str = ALL) -> dict[str, float]:
    """Geometric means by dtype of auto's speed as a multiple of the best opponent's."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if of in (ALL, row["class"], row["matrix"]) and not math.isnan(row["ratio"]):
            found.setdefault(row["dtype"], []).append(row["ratio"])
    return {dtype: geometric_mean(ratios) for dtype, ratios in found.items()}


def suite(names: dict[str, str], place: str = "h200", heads: str = "float32 | float64") -> Iterator[str]:
    rows = newest(f"suite_{place}")["rows"]
    yield f"| | {heads} |\n|---|---:|---:|"
    for name, of in names.items():
        means = speeds(rows, of)
        yield f"| {name} | {means['float32']:.2f} | {means['float64']:.2f} |"


def formats(matrices: tuple[str, ...]) -> Iterator[str]:
    """Speeds in Triton / Mosaic GPU as multiples of the best of cuSPARSE's CSR."""
    rows = newest("spmv_h200")["rows"]

    def cell(labels: tuple[str, str], key: str, matrix: str, k: int) -> str:
        dtype = ("float32", "float64")[k]
        of = [r for r in rows if (r["matrix"], r["dtype"], r["method"]) == (matrix, dtype, labels[k])]
        return " / ".join(f"{r[key]:.2f}" for r in of)

    columns = [(matrix, k) for matrix in matrices for k in (0, 1)]
    heads = [f"{matrix}, f32" if k == 0 else "f64" for matrix, k in columns]
    yield f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(columns)}"
    yield f"| cuSPARSE CSR | {' | '.join(['1.00'] * len(columns))} |"
    for name, labels in OF_FORMATS.items():
        yield f"| {name} | {' | '.join(cell(labels, 'ratio', *column) for column in columns)} |"
    shares = (cell(OF_FORMATS["`hll`"], "share", *column) for column in columns)
    yield f"| `hll`: share of copy bandwidth | {' | '.join(shares)} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "suite in short": lambda: suite(IN_README),
    "suite": lambda: suite(IN_PERFORMANCE),
    "suite on a CPU": lambda: suite(ON_A_CPU, "cpu", "f32 | f64"),
    "formats": lambda: formats(("7-point 200³", "27-point × 3 dof 64³")),
}


def written_anew(text: str) -> str:
    """The text with every table of figures as the results have it."""
    return BLOCK.sub(lambda m: m[1] + "\n".join(TABLES[m[2]]()) + m[4], text)


if __name__ == "__main__":
    for name in FILES:
        path = ROOT / name
        path.write_text(written_anew(path.read_text(encoding="utf-8")), encoding="utf-8")
