"""`jaxsparse info`: describes a matrix and ranks the formats for it."""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse

from jaxsparse_fmt import choose
from jaxsparse_fmt.cli import arguments, measure, tables
from jaxsparse_fmt.cli.progress import Progress
from jaxsparse_fmt.formats import statistics

# Two entries count as equal if they differ by at most this fraction of the largest entry in their row and column, since
# a file may hold few digits. The true residual shows what such a difference costs.
ASYMMETRY = 1e-8


def run(args: argparse.Namespace, progress: Progress) -> tables.Done:
    S = arguments.read_matrix(args, progress)
    with progress.stage("look", "at rows, diagonals and symmetry"):
        described = describe(S)
    with progress.stage("rank", "the formats"), jax.enable_x64(True):
        choices = choose.rank(S)
    title = f"Formats by what a product on {measure.device()} costs, cheapest first"
    name, formats = Path(args.file).name, [tables.as_record(choice) for choice in choices]
    record = {"file": args.file, "device": measure.device(), **described, "formats": formats}
    return tables.Done(record, [tables.facts(name, facts(described)), tables.ranking(title, choices)])


def describe(S: scipy.sparse.csr_array) -> dict[str, Any]:
    """Size, symmetry, row lengths, diagonals and bandwidth of a canonical matrix, as `--json` prints them."""
    rows, cols = S.shape
    lengths = np.diff(S.indptr)
    found: dict[str, Any] = {"rows": rows, "columns": cols, "nnz": S.nnz, "dtype": str(S.dtype)}
    found["symmetry"] = _symmetry(S)
    if rows:
        found["row_lengths"] = {f.__name__: f(lengths) for f in (np.min, np.mean, np.max, np.std)}
        found["empty_rows"] = np.count_nonzero(lengths == 0)
    if S.nnz:
        offsets = statistics.occupied(S).astype(np.int64) - (rows - 1)
        found["diagonals"] = offsets.size
        found["bandwidth"] = {"below": max(-int(offsets[0]), 0), "above": max(int(offsets[-1]), 0)}
    return found


def facts(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows for `tables.facts` of what `describe` found."""
    rows, cols, nnz = (described[name] for name in ("rows", "columns", "nnz"))
    lines = [
        ("rows × columns", f"{rows:,} × {cols:,}"),
        ("nnz", f"{nnz:,}, {nnz / max(rows * cols, 1):.2g} of all places"),
        ("dtype", described["dtype"]),
        ("symmetry", described["symmetry"]),
    ]
    if of_rows := described.get("row_lengths"):
        extremes = f"min {of_rows['min']:,}, mean {of_rows['mean']:.4g}, max {of_rows['max']:,}"
        lines.append(("row lengths", f"{extremes}, standard deviation {of_rows['std']:.3g}"))
        lines.append(("empty rows", f"{described['empty_rows']:,}"))
    if band := described.get("bandwidth"):
        lines.append(("diagonals", f"{described['diagonals']:,} of {rows + cols - 1:,} hold entries"))
        lines.append(("bandwidth", f"{band['below']:,} below the main diagonal, {band['above']:,} above"))
    return lines


def _symmetry(S: scipy.sparse.csr_array) -> str:
    if S.shape[0] != S.shape[1]:
        return "none: not square"
    mirrors = [("Hermitian", S.conj().T)] if np.iscomplexobj(S) else []
    mirrors += [("symmetric", S.T), ("skew-symmetric", -S.T)]
    for name, mirror in mirrors:
        if asymmetry(S, mirror)[2] == 0:
            return name
    pattern = scipy.sparse.csr_array((np.ones(S.nnz, bool), S.indices, S.indptr), shape=S.shape)
    mirrored = pattern.multiply(pattern.T).nnz
    if mirrored == S.nnz:
        return "of the pattern only"
    return f"none; {mirrored / S.nnz:.0%} of the entries have a mirror image in the pattern"


def asymmetry(S: scipy.sparse.csr_array, mirror: scipy.sparse.sparray | None = None) -> tuple[int, int, float]:
    """The row and column of the entry of a square S that differs most from the mirror image, by default Sᴴ, and by how
    much more than `ASYMMETRY` allows: 0 if all are equal to rounding. NaNs count as equal.
    """
    if S.nnz == 0:
        return 0, 0, 0.0
    D = abs(S - (S.conj().T if mirror is None else mirror)).tocoo()
    largest = abs(S).max(axis=1).toarray().ravel()
    with np.errstate(invalid="ignore"):
        excess = D.data - ASYMMETRY * np.minimum(largest[D.row], largest[D.col])
    excess = np.nan_to_num(excess, nan=0.0)
    worst = int(excess.argmax()) if excess.size else -1
    if worst < 0 or excess[worst] <= 0:
        return 0, 0, 0.0
    return int(D.row[worst]), int(D.col[worst]), float(excess[worst])
