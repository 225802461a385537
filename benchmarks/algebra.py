"""Sums, products and assembly of sparse matrices against SciPy, jax.experimental.sparse, and on a GPU CuPy.

    python -m benchmarks.algebra --json out.json            some three minutes on two cores
    python -m benchmarks.algebra --first 7                  the first cases only

Each figure is the best of several calls, in which all sides take turns; nothing compiles in them. "Eager" finds the
pattern of the result and its values, "pattern" makes the plan of an assembly, and "new values" is the jitted numeric
step of a plan. "CPU" sums the seconds of all threads; a ratio is SciPy's seconds by the side's. Memory is that of the
result; of jitted calls it includes what XLA allocates beside it, and of plans what they hold. All is in float64.
BCOO's product of two sparse matrices takes memory for each pair of entries, so it and BCOO's other operations run on
smaller matrices; BCSR has none of them.
"""

import importlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp
from jax.experimental import sparse

import jaxsparse_fmt as jsf
from benchmarks import report
from benchmarks.report import Row
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core import entry_index


class Side(NamedTuple):
    """One way to do the work: the call that is timed, and its memory in bytes after a call."""

    name: str
    call: Callable[[], Any]
    memory: Callable[[Any], float]


def prolongation(A: Any, unknowns: int) -> Any:
    """A smoothed prolongation from aggregates of 8 nodes, constant for each of a node's unknowns."""
    n = A.shape[0]
    row = np.arange(n)
    col = row // unknowns // 8 * unknowns + row % unknowns
    T = sp.csr_array((np.ones(n), (row, col)))
    P = sp.csr_array(T - 0.1 * (A @ T))
    P.sort_indices()
    return P


def cases(small: bool) -> Iterator[tuple[str, list[Side]]]:
    n, m, k, side = (10, 4, 10_000, 5) if small else (100, 32, 10_000_000, 54)
    for name, S, unknowns in (
        (f"7 points {n}³", jsf.gallery.poisson(n), 1),
        (f"FEM 27 points × 3, {m}³", jsf.gallery.elasticity(m), 3),
    ):
        yield from products(name, S, prolongation(S, unknowns))
    W = jsf.gallery.power_law(n * 100, seed=0)
    yield f"A·A, power law of {W.shape[0]}", sides(W, W, lambda A, B: A @ B, jsf.plan.matmul)
    F = jsf.gallery.elasticity(m)
    yield f"A + triu(A), FEM {m}³", sides(F, sp.triu(F, format="csr"), lambda A, B: A + B, jsf.plan.add)
    yield f"assembly of {k:.0e} values in no order", assembly(*scattered(k))
    yield f"assembly of {64 * side**3} values, {side}³ elements", assembly(*elements(side))
    A = jsf.gallery.poisson(8)
    P = prolongation(A, 1)
    yield "A·P, 7 points 8³", [*sides(A, P, lambda A, B: A @ B, jsf.plan.matmul), *of_bcoo(A, P, lambda a, b: a @ b)]
    m = max(m // 4, 2)
    F = jsf.gallery.elasticity(m)
    T = sp.triu(F, format="csr")
    plus = lambda a, b: sparse.bcoo_sum_duplicates(a + b, nse=F.nnz)  # noqa: E731
    yield f"A + triu(A), FEM {m}³", [*sides(F, T, lambda A, B: A + B, jsf.plan.add), *of_bcoo(F, T, plus)]
    few = scattered(k // 10)
    yield f"assembly of {k // 10:.0e} values in no order", [*assembly(*few), assembly_of_bcoo(*few)]
    yield f"A @ x, 7 points {n}³", vectors(jsf.gallery.poisson(n))


def products(name: str, S: Any, P: Any) -> Iterator[tuple[str, list[Side]]]:
    yield f"A·P, {name}", sides(S, P, lambda A, B: A @ B, jsf.plan.matmul)
    yield f"Pᵀ·A·P, {name}", sides(P, S, lambda P, A: P.T @ (A @ P), jsf.plan.triple)


def sides(S: Any, R: Any, operation: Callable[[Any, Any], Any], make: Callable[[Any, Any], Any]) -> list[Side]:
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")

    def eager() -> Any:
        patterns._kept.table.clear()
        entry_index._kept.table.clear()
        return operation(A, B)

    plan = make(A, B)
    step = jax.jit(lambda plan, a, b: plan(A.with_data(a), B.with_data(b)).data)
    step = step.lower(plan, A.data, B.data).compile()
    holds = sum(a.nbytes for a in {id(a): a for a in jax.tree.leaves(plan)}.values())
    return [
        Side("SciPy", lambda: operation(S, R), size_of),
        Side("eager", eager, size_of),
        Side("new values", lambda: step(plan, A.data, B.data), lambda _: holds + program(step)),
        *of_cupy(S, R, operation),
    ]


def of_cupy(S: Any, R: Any, operation: Callable[[Any, Any], Any]) -> list[Side]:
    """CuPy's operation on CSR, which finds the pattern anew in every call; none where there is no GPU."""
    if report.platform_here() == "cpu":
        return []
    cupy, theirs = importlib.import_module("cupy"), importlib.import_module("cupyx.scipy.sparse")
    A, B = (theirs.csr_matrix(sp.csr_matrix(M)) for M in (S, R))

    def run() -> Any:
        result = operation(A, B)
        cupy.cuda.Device().synchronize()
        return result

    return [Side("CuPy", run, lambda M: M.data.nbytes + M.indices.nbytes + M.indptr.nbytes)]


def scattered(k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """k coordinates of a matrix of k/10 rows, in no order; one in three repeats a place."""
    rng, n = np.random.default_rng(0), k // 10
    row = rng.integers(0, n, k)
    return row, (row + rng.integers(0, 10, k)) % n, n


def elements(m: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The coordinates of the 8 × 8 matrices of m³ hexahedra, element after element."""
    i = np.arange(m)
    corner = (i[:, None, None] * (m + 1) + i[:, None]) * (m + 1) + i
    steps = np.array([(a * (m + 1) + b) * (m + 1) + c for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    nodes = corner.reshape(-1, 1) + steps
    row, col = np.broadcast_arrays(nodes[:, :, None], nodes[:, None, :])
    return row.ravel(), col.ravel(), (m + 1) ** 3


def assembly(row: np.ndarray, col: np.ndarray, n: int) -> list[Side]:
    v = np.random.default_rng(0).normal(size=row.size)
    pattern, values = jsf.assembly(row, col, (n, n), "csr"), jax.numpy.asarray(v)
    step = jax.jit(lambda pattern, values: pattern(values).data).lower(pattern, values).compile()
    holds = sum(a.nbytes for a in jax.tree.leaves(pattern))
    return [
        Side("SciPy", lambda: sp.coo_array((v, (row, col)), shape=(n, n)).tocsr(), size_of),
        Side("pattern", lambda: jsf.assembly(row, col, (n, n), "csr"), size_of),
        Side("new values", lambda: step(pattern, values), lambda _: holds + program(step)),
    ]


def assembly_of_bcoo(row: np.ndarray, col: np.ndarray, n: int) -> Side:
    nnz = jsf.assembly(row, col, (n, n), "csr").result.nnz
    index = jax.numpy.stack([row, col], axis=1).astype(np.int32)
    made = jax.jit(lambda v, i: sparse.BCOO((v, i), shape=(n, n)).sum_duplicates(nse=nnz))
    return jitted("BCOO", made, jax.numpy.ones(row.size), index)


def of_bcoo(S: Any, R: Any, operation: Callable[[Any, Any], Any]) -> list[Side]:
    return [jitted("BCOO", jax.jit(operation), *(sparse.BCOO.from_scipy_sparse(M) for M in (S, R)))]


def vectors(S: Any) -> list[Side]:
    x = np.random.default_rng(0).normal(size=S.shape[1])
    times = jax.jit(lambda A, x: A @ x)
    of = {
        "csr": jsf.from_scipy(S, "csr"),
        'format="auto"': jsf.from_scipy(S),
        "BCOO": sparse.BCOO.from_scipy_sparse(S),
        "BCSR": sparse.BCSR.from_scipy_sparse(S),
    }
    theirs = Side("SciPy", lambda: S @ x, size_of)
    return [theirs, *(jitted(name, times, A, jax.numpy.asarray(x)) for name, A in of.items())]


def jitted(name: str, f: Any, *operands: Any) -> Side:
    step = f.lower(*operands).compile()
    return Side(name, lambda: step(*operands), lambda _: program(step))


def size_of(result: Any) -> float:
    """Bytes of the arrays of a result."""
    if isinstance(result, sp.sparray | sp.spmatrix):
        return result.data.nbytes + result.indices.nbytes + result.indptr.nbytes  # pyright: ignore
    return sum(a.nbytes for a in jax.tree.leaves(result))


def program(step: Any) -> float:
    """Bytes of a program's results and of what it allocates beside them."""
    memory = step.memory_analysis()
    return memory.output_size_in_bytes + memory.temp_size_in_bytes


def measure(case: str, sides: list[Side], repeats: int) -> list[Row]:
    best: dict[str, Row] = {}
    for again in range(repeats + 1):
        for side in sides:
            wall, cpu = time.perf_counter(), time.process_time()
            result = jax.block_until_ready(side.call())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            row = best.setdefault(side.name, {"case": case, "side": side.name, "wall": np.inf, "cpu": np.inf})
            row["memory"] = side.memory(result) / 2**20
            del result  # so that no call frees the result of another
            if again:  # the first call may compile
                row["wall"], row["cpu"] = min(wall, row["wall"]), min(cpu, row["cpu"])
    for row in best.values():
        row |= {"ratio": best["SciPy"]["wall"] / row["wall"], "cpu_ratio": best["SciPy"]["cpu"] / row["cpu"]}
    return list(best.values())


def main(argv: list[str] | None = None) -> int:
    parser = report.arguments(__doc__, dtypes=False)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first", type=int, help="so many cases; default: all")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header, rows, text = report.provenance(), [], ""
    columns = [
        *(("case", "case"), ("", "side"), ("seconds", "wall:.4f"), ("ratio", "ratio:.2f")),
        *(("CPU seconds", "cpu:.4f"), ("ratio", "cpu_ratio:.2f"), ("MiB", "memory:.1f")),
    ]
    for name, of in itertools.islice(cases(args.small), args.first):
        report.log(name)
        rows += measure(name, of, args.repeats)
        text = "\n".join([report.line(header), "", *report.markdown(rows, columns)])
        report.write(args.json, header, rows, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
