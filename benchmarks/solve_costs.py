"""What `solve` costs: against its estimates, by size, and against each strategy by hand and SciPy.

    python -m benchmarks solve_costs --json out.json          some forty minutes on two cores

pairs: set-up and at most STEPS steps of each strategy that suits a system; "ratio" is their time over its estimate.
all: the pairs within a factor of 3.
sizes: each strategy, and `solve`, for problems of growing size.
campaign: `solve` of a new matrix, of new values ("new"), and of the same again, against the best of its strategies by
hand and of SciPy, set-up included, where these get a new matrix, or new values, as well; "wrong" is a status that the
residual in long double contradicts. mean: of its ratios.
large: `solve` as in the campaign, its first call compiling nothing that JAX keeps on disk, against other strategies by
hand, each in a process of its own, which ends after SECONDS of CPU time.

On a CPU a time is CPU time, which other load lengthens less than wall time. A cell that would take more than
LIMIT seconds is left out. JAXSPARSE_MATRICES and JAXSPARSE_CASES add files of theirs.
"""

import argparse
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.systems import LARGE_SYSTEMS, systems
from solvers import SolverError, Status, estimates, solve, ways
from solvers.core.solve import Settings
from solvers.facts import Facts

STEPS = 60
FACTOR = 3
LIMIT = 0.5  # seconds
SECONDS = 40  # of a way for a large system
RTOL, SHORT = 1e-8, 5e-3
CALLS = 4  # of `timing.cost`, at most
BY_FACTORS = next(way for way in ways.WAYS if way.M == "factors")
SIZES = {"poisson 3D": (6, 9, 13, 20, 30, 45), "convection 3D": (6, 9, 13, 20, 30, 45)}


def pairs(scale: float) -> Iterator[report.Row]:
    for name, S in systems(scale):
        A, b = jsf.from_scipy(S), jnp.asarray(S @ np.random.default_rng(0).standard_normal(S.shape[0]))
        facts = Facts(A, b, True)
        for way in (way for way in ways.WAYS if way.when(facts)):
            try:
                yield {"system": name, "n": facts.n, "nnz": S.nnz, "way": way.name} | pair(way, facts, b)
            except (SolverError, ValueError) as error:
                report.log(f"{name}, {way.name}: {error}")


def pair(way: estimates.Way, facts: Facts, b: Any) -> report.Row:
    trial = estimates.estimate(way, facts, True)
    M, of_set_up = timing.cost(lambda: ways.made(trial, facts), 2.0)
    settings = Settings(rtol=1e-12, maxiter=STEPS)
    sol, of_steps = timing.cost(lambda: ways.run(trial, [], M, facts.A, b, None, settings, facts), 2.0)
    taken = int(sol.iterations)
    guess, seconds = trial.set_up + taken * trial.step, of_set_up + of_steps
    return {"steps": taken, "estimate": guess, "seconds": seconds, "ratio": seconds / guess}


def by_hand(make: Callable[[], Any], b: Any, facts: Facts, limit: float = LIMIT) -> dict[str, Callable[[], Any]]:
    """What solves the system by each strategy that suits it and is expected to set up within `limit` seconds.

    Each call has a matrix that no other has seen: the next of `make`.
    """

    def of_way(trial: estimates.Trial) -> Callable[[], Any]:
        settings = Settings(rtol=RTOL, maxiter=int(limit / trial.step))
        unseen = iter(jax.block_until_ready([make() for _ in range(CALLS)]))

        def solved() -> Any:
            own = Facts(next(unseen), b, True)
            return ways.run(trial, [], ways.made(trial, own), own.A, b, None, settings, own).x

        return solved

    trials = [estimates.estimate(way, facts, True) for way in ways.WAYS if way.when(facts)]
    return {trial.way.name: of_way(trial) for trial in trials if trial.set_up < limit}


def by_scipy(S: Any, b: Any, facts: Facts) -> dict[str, Callable[[], Any]]:
    C, R = sp.csc_matrix(S), sp.csr_matrix(S)
    symmetric = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}

    def in_time(method: Callable[..., Any], **options: Any) -> Any:
        began = time.perf_counter()

        def check(_: Any) -> None:
            if time.perf_counter() - began > LIMIT:
                raise TimeoutError

        return method(R, b, rtol=RTOL, callback=check, **options)[0]

    def with_ilu() -> Any:
        M = spla.LinearOperator(S.shape, spla.spilu(C).solve, dtype=C.dtype)
        return in_time(spla.gmres, M=M, restart=30, callback_type="pr_norm")

    found: dict[str, Callable[[], Any]] = {}
    if facts.host.structurally_singular:  # which ends the process in SuperLU
        return found
    if facts.maybe_definite:
        found["scipy cg"] = lambda: in_time(spla.cg, M=sp.diags_array(1 / S.diagonal()))
    if estimates.estimate(BY_FACTORS, facts, True).set_up < LIMIT:
        found |= {"spsolve": lambda: spla.spsolve(C, b), "splu symmetric": lambda: spla.splu(C, **symmetric).solve(b)}
        found["scipy gmres with spilu"] = with_ilu
    return found


def campaign(scale: float) -> Iterator[report.Row]:
    for name, S in systems(scale):
        random = np.random.default_rng(1).standard_normal(S.shape[0])
        for what, b in (("A·1", S @ np.ones(S.shape[0])), ("random", random.astype(S.dtype))):
            if not np.any(b):  # where A is a Laplacian
                continue
            yield {"system": name, "n": S.shape[0], "nnz": S.nnz, "b": what} | compared(S, b)


def compared(S: Any, b: Any) -> report.Row:
    A, wide = jsf.from_scipy(S), S.astype(np.result_type(S.dtype, np.longdouble))
    facts = Facts(A, jnp.asarray(b), True)

    def residual(x: Any) -> float:
        return float(np.linalg.norm((b - wide @ np.asarray(x)).astype(b.dtype)) / (np.linalg.norm(b) or 1))

    def new_matrix() -> Any:
        return jsf.from_scipy(S)

    def new_values() -> Any:
        return A.with_data(A.data + 0)  # known by its arrays, of which these are others

    def by_solve(make: Callable[[], Any]) -> tuple[Any, float]:
        unseen = iter(jax.block_until_ready([make() for _ in range(CALLS)]))
        return timing.cost(lambda: solve(next(unseen), b, rtol=RTOL), 0.2)

    sol, seconds = by_solve(new_matrix)
    _, again = timing.cost(lambda: solve(A, b, rtol=RTOL), 0.1)
    other, new = by_solve(new_values)
    size = residual(sol.x)

    def costs(found: dict[str, Callable[[], Any]]) -> dict[str, float]:
        times = {}
        for name, f in found.items():
            try:
                x, seconds = timing.cost(f, 0.2)
            except (SolverError, ValueError, RuntimeError, TimeoutError) as error:
                report.log(f"{name}: {report.reason(error)}")
                continue
            if residual(x) <= max(RTOL * (1 + 1e-6), 1.01 * size):
                times[name] = seconds
        return times

    scipys = costs(by_scipy(S, b, facts))
    times, of_new = (scipys | costs(by_hand(make, jnp.asarray(b), facts)) for make in (new_matrix, new_values))
    by = min(times, key=times.__getitem__, default="")
    best = times.get(by, np.nan)
    row = {"took": sol.method, "status": str(sol.status), "residual": size, "wrong": wrong(S, b, sol, size)}
    row |= {"status of new": str(other.status), "solve": seconds, "new": new, "again": again, "best": best}
    row |= {"best of new": min(of_new.values(), default=np.nan), "by": by, "times": times}
    return row | {"ratio": seconds / best}


def wrong(S: Any, b: Any, sol: Any, size: float) -> str:
    """How the status contradicts the residual; empty if it does not."""
    x = np.asarray(sol.x)
    scale = spla.norm(S) * np.linalg.norm(x) + np.linalg.norm(b)
    gradient = np.linalg.norm(S.conj().T @ (b - S @ x)) / (spla.norm(S) * max(size * np.linalg.norm(b), 1e-300))
    holds = {
        Status.CONVERGED: size <= RTOL * (1 + 1e-6),
        Status.ROUNDED: size * np.linalg.norm(b) <= 100 * np.finfo(x.dtype).eps * scale,
        Status.LEAST_SQUARES: gradient <= 1e-4,
    }
    return "" if np.all(np.isfinite(x)) and holds.get(sol.status, size > RTOL) else f"{sol.status}: {gradient:.1e}"


def by_size(scale: float) -> Iterator[report.Row]:
    for problem, sides in SIZES.items():
        make = jsf.gallery.poisson if problem == "poisson 3D" else jsf.gallery.convection_diffusion
        for side in (int(scale * side) or 2 for side in sides):
            S = sp.csr_array(make(side))
            A, b = jsf.from_scipy(S), jnp.asarray(S @ np.random.default_rng(0).standard_normal(S.shape[0]))
            cells = by_hand(lambda S=S: jsf.from_scipy(S), b, Facts(A, b, True), 10 * LIMIT) | {
                "solve": lambda A=A, b=b: solve(A, b, rtol=RTOL, remember=False).x
            }
            for way, f in cells.items():
                x, seconds = timing.cost(f, 0.2)
                if float(jnp.linalg.norm(b - A @ x)) <= 2 * RTOL * float(jnp.linalg.norm(b)):
                    yield {"problem": problem, "n": S.shape[0], "way": way, "seconds": seconds}


def large(scale: float) -> Iterator[report.Row]:
    for name in LARGE_SYSTEMS:
        row, times = in_process(name, "solve", scale), {}
        for way in row.pop("ways", BY_HAND):
            found = in_process(name, way, scale)
            if found.get("residual", np.inf) <= max(RTOL * (1 + 1e-6), 1.01 * row.get("residual", 0)):
                times[way] = found["seconds"]
        by = min(times, key=times.__getitem__, default="")
        row |= {"best": times.get(by, np.nan), "by": by, "times": times}
        yield {"system": name} | row | {"ratio": row.get("first", np.inf) / row["best"]}


BY_HAND = ("cg with jacobi", "cg with multigrid", "bicgstab with jacobi", "splu symmetric", "splu")


def in_process(name: str, way: str, scale: float) -> report.Row:
    """What `solved` finds in a process of its own; nothing if it takes more than SECONDS, or fails."""
    try:
        return report.child(solved, name, way, scale, cache=os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    except RuntimeError as error:
        report.log(f"{name}, {way}: {report.reason(error)}")
        return {}


def solved(name: str, way: str, scale: float) -> report.Row:
    """The cost of a strategy, or of `solve` for a new matrix, for another b, and for new values."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    S = sp.csr_array(LARGE_SYSTEMS[name](scale))
    b = S @ np.random.default_rng(0).standard_normal(S.shape[0])
    C, mmd = S.tocsc(), {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}

    def timed(f: Callable[[], Any]) -> tuple[Any, float]:
        x, _, cpu = timing.timed(f)
        return x, cpu

    def size(x: Any) -> float:
        return float(np.linalg.norm(b - S @ np.asarray(x)) / np.linalg.norm(b))

    if way.startswith("splu"):
        x, cpu = timed(lambda: spla.splu(C, **mmd if way == "splu symmetric" else {}).solve(b))
        return {"seconds": cpu, "residual": size(x)}
    A = jsf.from_scipy(S)
    facts = Facts(A, jnp.asarray(b), True)
    if way == "solve":
        sol, first = timed(lambda: solve(A, b, rtol=RTOL))
        row = {"n": len(b), "nnz": S.nnz, "took": sol.method, "status": str(sol.status), "residual": size(sol.x)}
        row |= {"wrong": wrong(S, b, sol, row["residual"]), "first": first, "tried": list(sol.tried)}
        row["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        for key in ("again", "third"):
            _, row[key] = timed(lambda: solve(A, b, rtol=RTOL))
        B = A.with_data(A.data * 1.01)
        _, row["new"] = timed(lambda: solve(B, b, rtol=RTOL))
        suited = {way.name for way in ways.WAYS if way.when(facts)}
        if estimates.estimate(BY_FACTORS, facts, True).set_up < SECONDS:
            suited |= {"splu symmetric"} | (set() if facts.symmetric else {"splu"})
        return row | {"ways": [way for way in BY_HAND if way in suited]}
    trial = estimates.Trial(next(one for one in ways.WAYS if one.name == way), 0.0, 0.0)
    settings = Settings(rtol=RTOL, maxiter=100_000)
    (M, cpu), b = timed(lambda: ways.made(trial, facts)), jnp.asarray(b)
    sol, more = timed(lambda: ways.run(trial, [], M, A, b, None, settings, facts))
    return {"seconds": cpu + more, "set-up": cpu, "steps": int(sol.iterations), "residual": size(sol.x)}


def accuracy(rows: list[report.Row]) -> report.Row:
    near = sum(1 / FACTOR <= row["ratio"] <= FACTOR for row in rows)
    return {"pairs": len(rows), f"within a factor of {FACTOR}": near, "share": near / max(len(rows), 1)}


def mean(rows: list[report.Row], way: str, least: float) -> report.Row:
    """Of the solves that take longer than `least` seconds."""
    best = "best" if way == "solve" else "best of new"
    rows = [row for row in rows if row[way] > least and row[best] > 0]  # which NaN, no other way, is not
    found = [row[way] / row[best] for row in rows]
    found_mean = float(np.exp(np.mean(np.log(found)))) if found else np.nan
    counts = {f"above {k}": sum(ratio > k for ratio in found) for k in (2, 3)}
    counts |= {"wrong": sum(bool(row["wrong"]) for row in rows)}
    return {"of": way, "above s": least, "solves": len(rows), "geometric mean": found_mean} | counts


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    scale = 0.3 if args.small else 1.0
    means = itertools.product(("solve", "new", "again"), (0.0, SHORT))  # without its memory, and with it
    return {
        "pairs": lambda: pairs(scale),
        "all": lambda: [accuracy(report.made(args, "pairs"))],
        "sizes": lambda: by_size(scale),
        "large": lambda: large(scale),
        "campaign": lambda: campaign(scale),
        "mean": lambda: [mean(report.made(args, "campaign"), *which) for which in means],
    }
