"""Factors: direct solves with new values by each backend, beside SuperLU's two modes, and what determinants cost.

    python -m benchmarks factors --json out.json     five minutes on a CPU, one on a GPU

Milliseconds, the least of several calls of one jitted function, each with new values; on a CPU, of CPU time.
"COLAMD" and "symmetric" are SciPy's `splu` with a solve, in its default mode and with MMD of A + Aᵀ, SymmetricMode
and a threshold of 0.001; empty where the entries are predicted to take over 20 s, or x has a backward error above
1e-10. "sparsax" calls CHOLMOD alone, and "spineax" cuDSS, whose analysis of the pattern it
keeps; "analysed anew" repeats it in each call. A gradient is that of `logdet` by all entries.
"batches" are systems of one pattern: by `direct` and `bicgstab` under vmap, by dense LU, by
`lax.linalg.tridiagonal_solve`, and by a Python loop over SciPy's `spsolve`.
"ratio" is that of `direct` to the better mode, or to the library alone. JAXSPARSE_MATRICES and JAXSPARSE_CASES name
folders of files to read. On a GPU it measures cuDSS, and SuperLU where that takes less than a second.
"""

import argparse
import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jax import lax

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.report import Row
from solvers import bicgstab, direct, logdet
from solvers.host import COLAMD, MMD, THRESHOLD, Host

SECONDS, CALLS = 0.2, 20  # of a measurement, at most, but for three calls
LONG = 4e10  # multiplications, some 20 s
COUNT = itertools.count(1)
KINDS = ("unsymmetric", "symmetric")
LARGEST = 300_000  # entries of a file
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "COLAMD": (COLAMD, {}),
    "symmetric": (MMD, {"permc_spec": MMD, "diag_pivot_thresh": THRESHOLD, "options": {"SymmetricMode": True}}),
}


def circuit(n: int) -> sp.csr_array:
    """A resistor network with a few nodes of many branches, as supplies are."""
    rng = np.random.default_rng(0)
    chain = np.arange(n - 1)
    ends = np.append(chain, rng.integers(0, 5, n)), np.append(chain + 1, rng.integers(0, n, n))
    G = sp.coo_array((rng.uniform(0.1, 1, len(ends[0])), ends), shape=(n, n))
    G = sp.csr_array(G + 0.5 * G.T)  # a gain makes it unsymmetric
    return sp.csr_array(sp.diags_array(np.asarray(G.sum(axis=1)) + 0.1) - G)


def milliseconds(f: Callable[[float], Any]) -> float:
    """The least time of f(s) over several new s, after one call to warm up."""
    return 1e3 * timing.cost(lambda: f(1 + next(COUNT) / 10_000), SECONDS, CALLS, at_least=3)[1]


def of_direct(S: sp.csr_array, b: Any, **options: Any) -> float:
    A = jsf.from_scipy(S, "csr")
    data = jnp.asarray(A.data)
    return milliseconds(jax.jit(lambda s: direct(A.with_data(s * data), b, **options).x))


def of_scipy(S: sp.csc_array, host: Host, b: np.ndarray, mode: str) -> float:
    """NaN where this mode is left out."""
    ordering, options = MODES[mode]
    if host.cost(ordering)[1] > LONG:
        return math.nan
    try:
        x = spla.splu(S, **options).solve(b)
    except RuntimeError:  # singular
        return math.nan
    error = np.max(np.abs(b - S @ x)) / (np.max(np.abs(b)) + host.row_sums * np.max(np.abs(x)))
    return milliseconds(lambda s: spla.splu(S * s, **options).solve(b)) if error < 1e-10 else math.nan


def against_scipy(name: str, S: sp.csr_array) -> Row:
    column = S.tocsc()
    host, b = Host(column), np.ones(S.shape[0])
    row: Row = {"problem": name, "n": S.shape[0], "A": KINDS[host.symmetric]}
    row |= {mode: of_scipy(column, host, b, mode) for mode in MODES}
    row["superlu"] = of_direct(S, b, backend="superlu")
    best = min((row[mode] for mode in MODES if not math.isnan(row[mode])), default=math.nan)
    return row | {"ratio": row["superlu"] / best}


def gallery(n: int) -> dict[str, sp.csr_array]:
    problems = {
        f"Poisson, {10 * n}²": jsf.gallery.poisson(10 * n, dim=2),
        f"Poisson, {n}³": jsf.gallery.poisson(n),
        f"elasticity, {n * 2 // 5}³ × 3": jsf.gallery.elasticity(n * 2 // 5),
        f"convection and diffusion, {n * 2 // 3}³": jsf.gallery.convection_diffusion(n * 2 // 3),
        "circuit": circuit(300 * n),
    }
    return {name: sp.csr_array(S).astype(np.float64) for name, S in problems.items()}


def solves(small: bool) -> Iterator[Row]:
    has_sparsax = importlib.util.find_spec("sparsax") is not None
    for name, S in gallery(10 if small else 30).items():
        row, b = against_scipy(name, S), np.ones(S.shape[0])
        if has_sparsax and row["A"] == KINDS[True]:
            row |= {"cholmod": of_direct(S, b, backend="cholmod"), "sparsax": of_sparsax(S, b)}
        if has_sparsax and name == "circuit":
            row["klu"] = of_direct(S, b, backend="klu")
        yield row


def of_sparsax(S: sp.csr_array, b: np.ndarray) -> float:
    import sparsax  # pyright: ignore[reportMissingImports]

    A, data = jsf.from_scipy(S, "csr"), jnp.asarray(S.data)
    return milliseconds(jax.jit(lambda s: sparsax.solve(A.row_ids, A.col_ids, s * data, b)))


def files(small: bool) -> Iterator[Row]:
    paths = report.matrix_files()
    for path in paths[:3] if small else paths:
        S = sp.csr_array(jsf.io.read_scipy(path))
        if S.shape[0] != S.shape[1]:
            continue
        S = S.astype(np.result_type(S.dtype, np.float64))
        host = Host(S)
        if host.structurally_singular or S.nnz > LARGEST:
            report.log(f"{path.name}: singular, or too large")
            continue
        row = against_scipy(path.name.partition(".")[0], S)
        if not math.isnan(row["ratio"]):
            yield row


def ratios(compared: list[Row]) -> Iterator[Row]:
    for kind in KINDS:
        found = np.array([row["ratio"] for row in compared if row["A"] == kind])
        if len(found):
            row: Row = {"A": kind, "matrices": len(found), "at most 1.15": int(np.sum(found <= 1.15))}
            yield row | {"median": float(np.median(found)), "largest": float(np.max(found))}


def determinant(n: int) -> Row:
    S = sp.csr_array(jsf.gallery.poisson(n, dim=2) + 0.1 * sp.eye_array(n * n))
    A, data = jsf.from_scipy(S, "csr"), jnp.asarray(S.data)
    f = jax.jit(lambda s: logdet(A.with_data(s * data)))
    g = jax.jit(jax.grad(lambda data: logdet(A.with_data(data))))
    row: Row = {"problem": f"Poisson, {n}²", "n": n * n, "value": milliseconds(f)}
    return row | {"gradient": milliseconds(lambda s: g(s * data))}


def grid(n: int) -> sp.csr_array:
    """As power flow has: n buses in a chain with short branches across, two unknowns a bus."""
    rng = np.random.default_rng(0)
    chain, first = np.arange(n - 1), rng.integers(0, n - 20, n // 2)
    ends = np.append(chain, first), np.append(chain + 1, first + rng.integers(2, 20, n // 2))
    links = sp.coo_array((np.ones(len(ends[0])), ends), shape=(n, n))
    J = sp.csr_array(sp.kron(links + links.T + sp.eye_array(n), np.ones((2, 2))))
    J.data = -rng.uniform(0.1, 1, J.nnz)
    return sp.csr_array(J + sp.diags_array(1.1 * np.asarray(abs(J).sum(axis=1))))


def of_batches(small: bool) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    blocks = sp.kron(sp.eye_array(100), 4 * np.eye(12) + rng.random((12, 12)))
    beside = sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(100, 100))
    random = sp.random_array((50, 50), density=0.1, rng=np.random.default_rng(1))
    problems = {
        "1,000 unknowns, tridiagonal": (sp.diags_array([-1, 2.1, -1], offsets=[-1, 0, 1], shape=(1000, 1000)), 1000),
        "100 unknowns, tridiagonal": (sp.diags_array([-1, 2.1, -1], offsets=[-1, 0, 1], shape=(100, 100)), 10_000),
        "64 unknowns, 5 diagonals": (sp.diags_array([1, -4, 6.1, -4, 1], offsets=range(-2, 3), shape=(64, 64)), 2000),
        "50 unknowns, 10 % full": (random + 5 * sp.eye_array(50), 4000),
        "Poisson, 32²": (jsf.gallery.poisson(32, dim=2), 1000),
        "power grid, 1,354 buses": (grid(1354), 500),
        "100 blocks of 12, tridiagonal": (blocks + sp.kron(beside, 0.1 * rng.random((12, 12))), 1000),
    }
    for name, (S, count) in problems.items():
        count = 8 if small else count // 10 if jax.default_backend() == "cpu" else count
        yield of_batch(name, sp.csr_array(S).astype(np.float64), count, rng)


def of_batch(name: str, S: sp.csr_array, count: int, rng: np.random.Generator) -> Row:
    A, n = jsf.from_scipy(S, "csr"), S.shape[0]
    data = jnp.asarray(S.data * rng.uniform(0.95, 1.05, (count, S.nnz)))
    b = jnp.asarray(rng.standard_normal((count, n)))

    def time_of(one: Callable[..., Any]) -> float:
        return milliseconds(jax.jit(lambda s: jax.vmap(lambda d, b: one(A.with_data(d), b))(s * data, b)))

    row: Row = {"problem": name, "systems": count, "direct": time_of(lambda A, b: direct(A, b).x)}
    row["bicgstab"] = time_of(lambda A, b: bicgstab(A, b, rtol=1e-10).x)
    if count * n * n < 2**28:
        row["dense"] = time_of(lambda A, b: jnp.linalg.solve(A.todense(), b))
    if "unknowns, tri" in name:
        low, main, up = (jnp.asarray(rng.uniform(a, a + 0.1, (count, n))) for a in (-1.0, 2.1, -1.0))
        row["lax"] = milliseconds(jax.jit(lambda s: lax.linalg.tridiagonal_solve(s * low, s * main, up, b[..., None])))
    if jax.default_backend() == "cpu":
        each = [sp.csc_array((d, S.indices, S.indptr), shape=S.shape) for d in np.asarray(data)]
        pairs = [*zip(each, np.asarray(b), strict=True)]
        row["loop"] = milliseconds(lambda s: [spla.spsolve(s * a, c) for a, c in pairs])
    return row


def by_cudss(name: str, S: Any) -> Row:
    from spineax import cudss  # pyright: ignore[reportMissingImports]

    # A is an argument: XLA would compute with a constant pattern while it compiles.
    def ours(**options: Any) -> float:
        f = jax.jit(lambda A, s: direct(A.with_data(s * A.data), b, **options).x)
        return milliseconds(lambda s: f(A, s))

    def anew(s: float) -> Any:
        return solved(analyze(s * A.data, ptr, col), s * A.data)[1]

    def again(s: float) -> Any:
        known[0], x = solved(known[0], s * A.data)
        return x

    S = sp.csr_array(S).astype(np.float64)
    A, ptr, col = jsf.from_scipy(S, "csr"), jnp.asarray(S.indptr, jnp.int32), jnp.asarray(S.indices, jnp.int32)
    b = jnp.ones(S.shape[0])
    analyze = jax.jit(functools.partial(cudss.analyze, mtype_id="symmetric", mview_id="full"))
    solved = jax.jit(lambda token, values: (token := cudss.factorize(token, values), cudss.solve(token, b)))
    known = [analyze(A.data, ptr, col)]
    row: Row = {"problem": name, "n": S.shape[0], "analysed anew": milliseconds(anew)}
    row["spineax"] = milliseconds(again)
    row["cudss"] = ours(backend="cudss", symmetric=True)
    row["not in jit"] = milliseconds(lambda s: direct(s * A, b, backend="cudss", symmetric=True).x)
    if name.startswith("Poisson"):
        row["cudss, LU"] = ours(backend="cudss", symmetric=False)
        row["superlu"] = ours(backend="superlu")
    return row | {"ratio": row["cudss"] / row["spineax"]}


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    small, n = args.small, 20 if args.small else 300
    if jax.default_backend() != "cpu":
        problems = {f"Poisson, {n}²": jsf.gallery.poisson(n, dim=2)}
        problems |= {} if small else {"elasticity, 30³ × 3": jsf.gallery.elasticity(30)}
        return {"cudss": lambda: itertools.starmap(by_cudss, problems.items()), "batches": lambda: of_batches(small)}
    return {
        "solves": lambda: solves(small),
        "files": lambda: files(small),
        "ratios": lambda: ratios(report.made(args, "solves", "files")),
        "determinants": lambda: map(determinant, (20,) if small else (100, 300)),
        "batches": lambda: of_batches(small),
    }
