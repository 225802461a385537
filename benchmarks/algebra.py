"""Sums, products and assembly of sparse matrices against SciPy.

    python -m benchmarks algebra --json out.json            some three minutes on two cores

Each figure is the best of several calls, in which all sides take turns; nothing compiles in them. "Eager" finds the
pattern of the result and its values, "pattern" makes the plan of an assembly, and "new values" is the jitted numeric
step of a plan. "CPU" sums the seconds of all threads; a ratio is SciPy's seconds by the side's. All is in float64.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.report import Row
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core import entry_index

Sides = dict[str, Callable[[], Any]]  # ways to do the work


def prolongation(A: Any, unknowns: int) -> Any:
    """A smoothed prolongation from aggregates of 8 nodes, constant for each of a node's unknowns."""
    n = A.shape[0]
    row = np.arange(n)
    col = row // unknowns // 8 * unknowns + row % unknowns
    T = sp.csr_array((np.ones(n), (row, col)))
    P = sp.csr_array(T - 0.1 * (A @ T))
    P.sort_indices()
    return P


def cases(small: bool) -> Iterator[tuple[str, Sides]]:
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


def products(name: str, S: Any, P: Any) -> Iterator[tuple[str, Sides]]:
    yield f"A·P, {name}", sides(S, P, lambda A, B: A @ B, jsf.plan.matmul)
    yield f"Pᵀ·A·P, {name}", sides(P, S, lambda P, A: P.T @ (A @ P), jsf.plan.triple)


def sides(S: Any, R: Any, operation: Callable[[Any, Any], Any], make: Callable[[Any, Any], Any]) -> Sides:
    A, B = jsf.from_scipy(S, "csr"), jsf.from_scipy(R, "csr")

    def eager() -> Any:
        patterns._kept.table.clear()
        entry_index._kept.table.clear()
        return operation(A, B)

    plan = make(A, B)
    step = jax.jit(lambda plan, a, b: plan(A.with_data(a), B.with_data(b)).data)
    step = step.lower(plan, A.data, B.data).compile()
    return {"SciPy": lambda: operation(S, R), "eager": eager, "new values": lambda: step(plan, A.data, B.data)}


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


def assembly(row: np.ndarray, col: np.ndarray, n: int) -> Sides:
    v = np.random.default_rng(0).normal(size=row.size)
    pattern, values = jsf.assembly(row, col, (n, n), "csr"), jax.numpy.asarray(v)
    step = jax.jit(lambda pattern, values: pattern(values).data).lower(pattern, values).compile()
    return {
        "SciPy": lambda: sp.coo_array((v, (row, col)), shape=(n, n)).tocsr(),
        "pattern": lambda: jsf.assembly(row, col, (n, n), "csr"),
        "new values": lambda: step(pattern, values),
    }


def measure(case: str, sides: Sides, repeats: int) -> list[Row]:
    best: dict[str, Row] = {}
    for again in range(repeats + 1):
        for name, call in sides.items():
            result, wall, cpu = timing.timed(call)
            row = best.setdefault(name, {"case": case, "side": name, "wall": np.inf, "cpu": np.inf})
            del result  # so that no call frees the result of another
            if again:  # the first call may compile
                row["wall"], row["cpu"] = min(wall, row["wall"]), min(cpu, row["cpu"])
    for row in best.values():
        row |= {"ratio": best["SciPy"]["wall"] / row["wall"], "cpu_ratio": best["SciPy"]["cpu"] / row["cpu"]}
    return list(best.values())


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    repeats = 1 if args.small else 5
    return {
        "algebra": lambda: (row for name, ways in cases(args.small) for row in measure(name, ways, repeats)),
    }
