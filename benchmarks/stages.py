"""Every stage of work with a matrix: first calls and later ones beside CuPy, algebra beside SciPy, several columns.

    python -m benchmarks stages --json out.json               everything; on a GPU some ten minutes
    python -m benchmarks stages --only algebra                some three minutes on two cores

"First" includes compiling; "again" is the best of several calls: those that find patterns with a copy of the matrix,
for which nothing is kept; products 20 at a time. Conversions begin with SciPy's matrix on the host, or with CSR where
the library computes. All is in float64, or complex128. CuPy's time is that of the same work.

algebra: the best of several calls, in which all sides take turns; nothing compiles in them. "Eager" finds the pattern
of the result and its values, "pattern" makes the plan of an assembly, and "new values" is the jitted numeric step of a
plan. "CPU" sums the seconds of all threads; a ratio is SciPy's seconds by the side's.
columns: A·X in the format of "auto" over the suite; throughput is in columns a second, in times of that of one column.
"""

import argparse
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from benchmarks import report, spmv, suite, timing
from benchmarks.report import Row
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.choose.timing import repeated
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.formats import footprint
from solvers import precond

Call = Callable[[], Any]
Sides = dict[str, Call]  # ways to do the work
COUNTS = (1, 2, 4, 8, 32)  # of columns

options = spmv.options_of_suite


def seconds(run: Call, wait: Callable[[Any], Any], flights: int) -> tuple[float, float]:
    """Seconds of the first call, and the least seconds of a call in later rounds of `flights` calls."""
    _, first, _ = timing.timed(lambda: wait(run()))
    _, again, _ = timing.least(lambda: wait([run() for _ in range(flights)]), enough=2)
    return first, again / flights


def row(name: str, run: Call, theirs: Call | None = None, flights: int = 1) -> Row:
    def wait(_: Any) -> None:
        cupy.cuda.Device().synchronize()

    (cupy, _), (first, again) = report.theirs(), seconds(run, jax.block_until_ready, flights)
    peer = seconds(theirs, wait, flights)[1] if theirs and report.platform_here() == "gpu" else math.nan
    return {"what": name, "first s": first, "again ms": again * 1e3, "CuPy ms": peer * 1e3, "ratio": again / peer}


def in_cupy(S: Any) -> Any:
    _, sparse = report.theirs()
    return sparse.csr_matrix(sp.csr_matrix(S))


def fresh(A: Any) -> Any:
    """A copy with index arrays of its own, for which nothing is kept."""
    return jax.tree.map(jnp.copy, A)


def conversions(n: int, k: int) -> Iterator[Row]:
    S = jsf.gallery.poisson(2 * n)
    A = jsf.from_scipy(S, "csr")
    row_ids, col_ids, n_rows = scattered(k)
    r, c, v = jnp.asarray(row_ids), jnp.asarray(col_ids), jnp.ones(k)
    shape = n_rows, n_rows
    yield row(f"from_scipy, 7 points {2 * n}³", lambda: jsf.from_scipy(S).values, lambda: in_cupy(S))
    yield row(f"asformat('auto'), 7 points {2 * n}³", lambda: fresh(A).asformat("auto").values)
    cupy, sparse = report.theirs()
    w, i, j = map(cupy.asarray, (np.ones(k), row_ids, col_ids))

    def tocsr() -> Any:
        return sparse.coo_matrix((w, (i, j)), shape=shape).tocsr()

    yield row(f"assembly of {k:.0e} triplets", lambda: jsf.assembly(r, c, shape, "csr")(v).values, tocsr)
    yield row(f"from_coo of {k:.0e} triplets", lambda: jsf.from_coo(r, c, v, shape, "csr").values, tocsr)


def operations(n: int, m: int) -> Iterator[Row]:
    side = m * 20 // 32
    S, F, G = jsf.gallery.poisson(n), jsf.gallery.elasticity(m), jsf.gallery.elasticity(side)
    T = sp.csr_array((np.ones(n**3), np.arange(n**3) // 8, np.arange(n**3 + 1)))
    for name, a, b in (
        (f"A @ A, 7 points {n}³", S, S),
        ("A @ T, with aggregates of 8", S, T),
        (f"A @ A, FEM {side}³ × 3", G, G),
    ):
        (A, C), (B, D) = ((jsf.from_scipy(M, "csr"), in_cupy(M)) for M in (a, b))
        yield row(name, lambda A=A, B=B: fresh(A) @ fresh(B), lambda C=C, D=D: C @ D)
    for name, a in ((f"7 points {n}³", S), (f"FEM {m}³ × 3", F)):
        A, C = jsf.from_scipy(a, "csr"), in_cupy(a)
        yield row(f"A + A.T, {name}", lambda A=A: fresh(A) + fresh(A).T, lambda C=C: C + C.T.tocsr())


def preconditioners(n: int) -> Iterator[Row]:
    for side in (n, 2 * n):
        A = jsf.from_scipy(jsf.gallery.poisson(side))
        b = jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0]))
        yield row(f"precond.multigrid, 7 points {side}³", lambda A=A: precond.multigrid(fresh(A)))
        M = precond.multigrid(A)
        steps = int(solvers.cg(A, b, M=M, rtol=1e-8).iterations)
        yield row(f"cg with it, {steps} steps", lambda A=A, b=b, M=M: solvers.cg(A, b, M=M, rtol=1e-8).x)
        yield row(f"cg without, 7 points {side}³", lambda A=A, b=b: solvers.cg(A, b, rtol=1e-8).x)
    A = jsf.from_scipy(jsf.gallery.poisson(n * 64 // 100), "csr")
    yield row(f"precond.incomplete_lu, {A.shape[0]} unknowns", lambda: precond.incomplete_lu(fresh(A)))


def products(n: int, m: int, nodes: int) -> Iterator[Row]:
    S, W = jsf.gallery.poisson(n), jsf.gallery.power_law(nodes)
    yield from of_matrix(f"FEM {m}³ × 3", jsf.gallery.elasticity(m))
    for name, M in ((f"7 points {n}³", S), (f"power law {nodes:,}", W)):
        yield from of_matrix(name, M)
        yield from of_functions(name, M)


def of_matrix(name: str, S: Any) -> Iterator[Row]:
    many = functools.partial(row, flights=20)
    times, turned = jax.jit(lambda A, x: A @ x), jax.jit(lambda A, x: A.T @ x)
    A, both, C, n = jsf.from_scipy(S), jsf.from_scipy(S, transpose=True), in_cupy(S), S.shape[0]
    cupy, _ = report.theirs()
    x, u, w = jnp.ones(n), cupy.ones(n), cupy.ones(n, complex)
    yield many(f"A @ x, {name}", lambda: times(A, x), lambda: C @ u)
    yield many(f"A.T @ x, {name}", lambda: turned(A, x), lambda: C.T @ u)
    yield many(f"A.T @ x, transpose=True, {name}", lambda: turned(both, x), lambda: C.T @ u)
    Z = (sp.csr_array(S) * (1 + 0.5j)).tocsr()
    AZ, CZ, z = jsf.from_scipy(Z), in_cupy(Z), x + 1j
    yield many(f"complex A @ x, {name}", lambda: times(AZ, z), lambda: CZ @ w)


def of_functions(name: str, S: Any) -> Iterator[Row]:
    many, A, n = functools.partial(row, flights=20), jsf.from_scipy(S), S.shape[0]
    x, X = jnp.ones(n), jnp.ones((n, 8))
    times, across = jax.jit(lambda A, x: A @ x), jax.jit(jax.vmap(lambda A, x: A @ x, (None, 0)))
    yield many(f"A @ X of 8 columns, {name}", lambda: times(A, X))
    yield many(f"vmap over 8, {name}", lambda: across(A, X.T))
    d, loss = A.data, lambda d, A: jnp.sum((A.with_data(d) @ x) ** 2)
    inside, passed = jax.jit(jax.grad(lambda d: loss(d, A))), jax.jit(jax.grad(loss))
    yield many(f"gradient by data, A in a closure, {name}", lambda: inside(d))
    yield many(f"gradient by data, A passed, {name}", lambda: passed(d, A))


def solves(n: int, nodes: int) -> Iterator[Row]:
    W = jsf.gallery.power_law(nodes)
    out = 1 / np.maximum(abs(W).sum(axis=1), 1e-30)
    walk = sp.csr_array(sp.eye_array(nodes) - 0.85 * sp.diags_array(out) @ W)
    side = n * 64 // 100
    for name, A in (
        (f"convection {side}³", jsf.from_scipy(jsf.gallery.convection_diffusion(side))),
        (f"power law {nodes:,}, transpose=True", jsf.from_scipy(walk, transpose=True)),
    ):
        b, d = jnp.asarray(np.random.default_rng(0).standard_normal(A.shape[0])), A.data
        for method in (solvers.bicgstab, solvers.gmres):
            solve = functools.partial(method, b=b, rtol=1e-8)
            alone = row(f"{method.__name__}, {name}", functools.partial(solve, A))
            loss = jax.value_and_grad(lambda d, A, solve=solve: jnp.sum(solve(A.with_data(d)).x ** 2))
            both = row(f"value and gradient of {method.__name__}, {name}", functools.partial(jax.jit(loss), d, A))
            both["what"] += f": {both['again ms'] / alone['again ms']:.1f} solves"
            yield from (alone, both)


def prolongation(A: Any, unknowns: int) -> Any:
    """A smoothed prolongation from aggregates of 8 nodes, constant for each of a node's unknowns."""
    n = A.shape[0]
    row = np.arange(n)
    col = row // unknowns // 8 * unknowns + row % unknowns
    T = sp.csr_array((np.ones(n), (row, col)))
    P = sp.csr_array(T - 0.1 * (A @ T))
    P.sort_indices()
    return P


def algebra(small: bool) -> Iterator[tuple[str, Sides]]:
    n, m, k, side = (10, 4, 10_000, 5) if small else (100, 32, 10_000_000, 54)
    for name, S, unknowns in (
        (f"7 points {n}³", jsf.gallery.poisson(n), 1),
        (f"FEM 27 points × 3, {m}³", jsf.gallery.elasticity(m), 3),
    ):
        P = prolongation(S, unknowns)
        yield f"A·P, {name}", sides(S, P, lambda A, B: A @ B, jsf.plan.matmul)
        yield f"Pᵀ·A·P, {name}", sides(P, S, lambda P, A: P.T @ (A @ P), jsf.plan.triple)
    W = jsf.gallery.power_law(n * 100, seed=0)
    yield f"A·A, power law of {W.shape[0]}", sides(W, W, lambda A, B: A @ B, jsf.plan.matmul)
    F = jsf.gallery.elasticity(m)
    yield f"A + triu(A), FEM {m}³", sides(F, sp.triu(F, format="csr"), lambda A, B: A + B, jsf.plan.add)
    yield f"assembly of {k:.0e} values in no order", assembly(*scattered(k))
    yield f"assembly of {64 * side**3} values, {side}³ elements", assembly(*elements(side))


def sides(S: Any, R: Any, operation: Callable[..., Any], make: Callable[..., Any]) -> Sides:
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
    pattern, values = jsf.assembly(row, col, (n, n), "csr"), jnp.asarray(v)
    step = jax.jit(lambda pattern, values: pattern(values).data).lower(pattern, values).compile()
    return {
        "SciPy": lambda: sp.coo_array((v, (row, col)), shape=(n, n)).tocsr(),
        "pattern": lambda: jsf.assembly(row, col, (n, n), "csr"),
        "new values": lambda: step(pattern, values),
    }


def measure(case: str, sides: Sides, repeats: int) -> list[Row]:
    timing.in_turn(sides, 1)  # which may compile
    best = timing.in_turn(sides, repeats)
    wall, cpu = best["SciPy"]
    return [
        {"case": case, "side": name, "wall": w, "cpu": c, "ratio": wall / w, "cpu_ratio": cpu / c}
        for name, (w, c) in best.items()
    ]


def of_columns(name: str, S: Any, dtype: str, copy: float, rounds: dict[str, Any]) -> Iterator[Row]:
    """A row for each number of columns."""
    choice = ranking.rank(S, dtype)[0]
    A: Any = jax.device_put(spmv.converted(S, choice, "auto"), jax.devices()[0]).astype(dtype)
    alone = 0.0
    for count in COUNTS:
        X = jnp.asarray(np.random.default_rng(0).standard_normal((S.shape[1], count)), dtype)
        X = X[:, 0] if count == 1 else X
        # The first and the last column: SciPy would take seconds for all of them.
        ends = [np.asarray(Y.reshape(len(Y), -1)[:, np.array([0, -1])], np.float64) for Y in (X, spmv.product(A, X))]
        wanted = S @ ends[0]
        program, products = repeated(A, X)
        run = functools.partial(program, A, X)
        took = timing.seconds_per_call(lambda _, run=run: run(), **rounds) / products
        alone = alone or took
        moved = footprint.bytes_moved(A.nbytes_read, S.shape, X.dtype.itemsize * count)
        yield {
            "matrix": name, "dtype": dtype, "format": spmv.label(choice), "columns": count, "µs": 1e6 * took,
            "throughput": count * alone / took, "share": moved / took / copy,
            "error": float(np.max(np.abs(ends[1] - wanted)) / np.max(np.abs(wanted))),
        }  # fmt: skip


def columns(args: argparse.Namespace, header: dict[str, str]) -> Iterator[Row]:
    copy, scale = timing.copy_bandwidth(args.small), spmv.scale(args.small)
    header |= {"copy": f"{copy / 1e9:.0f} GB/s", "scale": f"{scale:g}"}
    rounds = spmv.QUICK if args.small else spmv.ROUNDS[report.platform_here()]
    cases = suite.SUITES["standard"]
    for number in args.cases or range(len(cases)):
        S = suite.tamed(cases[number].make(scale))
        for dtype in args.dtypes:
            yield from of_columns(cases[number].name, S, dtype, copy, rounds)


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    n, m, nodes, k = (8, 4, 2000, 10_000) if args.small else (100, 32, 1_000_000, 10_000_000)
    repeats = 1 if args.small else 5
    return {
        "conversions": lambda: conversions(n, k),
        "operations": lambda: operations(n, m),
        "preconditioners": lambda: preconditioners(n),
        "products": lambda: products(n, m, nodes),
        "solves": lambda: solves(n, nodes),
        "algebra": lambda: (row for name, ways in algebra(args.small) for row in measure(name, ways, repeats)),
        "columns": lambda: columns(args, header),
    }
