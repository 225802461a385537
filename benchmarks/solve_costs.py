"""What `solve` costs: against its estimates, by size, and against each way by hand and SciPy.

    python -m benchmarks solve_costs --json out.json          some ten minutes on two cores

pairs: set-up and at most STEPS steps of each way that suits a system; "ratio" is the time over the estimate of these.
all: the pairs within a factor of 3.
sizes: each way, and `solve`, for problems of growing size.
campaign: `solve`, warm and without its memory, and "again" with it, against the best of its ways by hand and of SciPy,
set-up included; "wrong" is a status that the residual in long double contradicts. mean: of its ratios.

On a CPU a time is the processor's, which other load lengthens less than the clock's. A cell that would take more than
LIMIT seconds is left out. JAXSPARSE_MATRICES and JAXSPARSE_CASES add files of theirs.
"""

import argparse
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.factors import circuit
from solvers import SolverError, Status, solve, ways
from solvers.core.settings import Settings
from solvers.facts import Facts

STEPS = 60
LARGE = 60_000  # unknowns of the files, at most
FACTOR = 3
LIMIT = 0.5  # seconds
RTOL, SHORT = 1e-8, 5e-3
BY_FACTORS = next(way for way in ways.WAYS if way.M == "factors")
SYSTEMS: dict[str, Callable[[float], Any]] = {
    "poisson 2D": lambda s: jsf.gallery.poisson(int(200 * s), dim=2),
    "poisson 3D": lambda s: jsf.gallery.poisson(int(32 * s)),
    "convection 3D": lambda s: jsf.gallery.convection_diffusion(int(24 * s)),
    "elasticity": lambda s: jsf.gallery.elasticity(int(14 * s)),
    "biharmonic": lambda s: jsf.gallery.poisson(int(100 * s), dim=2) @ jsf.gallery.poisson(int(100 * s), dim=2),
    "Helmholtz, complex": lambda s: helmholtz(int(80 * s)),
    "power law": lambda s: laplacian(abs(jsf.gallery.power_law(int(5_000 * s)))),
    "Neumann": lambda s: neumann(int(30 * s)),
    "anisotropic": lambda s: sp.kronsum(line(int(200 * s)), 1e-3 * line(int(200 * s))),
    "weak convection 2D": lambda s: convection(int(200 * s)),
    "mixed Poisson": lambda s: mixed(int(60 * s)),
    "shifted Poisson": lambda s: jsf.gallery.poisson(int(150 * s), dim=2) - 0.003 * sp.eye_array(int(150 * s) ** 2),
    "circuit": lambda s: circuit(int(8_000 * s)),
}
SIZES = {"poisson 3D": (6, 9, 13, 20, 30, 45), "convection 3D": (6, 9, 13, 20, 30, 45)}


def helmholtz(n: int) -> Any:
    return jsf.gallery.poisson(n, dim=2) - (0.05 + 0.005j) * sp.eye_array(n * n)


def laplacian(W: Any) -> Any:
    W = sp.csr_array(W + W.T)
    return sp.diags_array(np.asarray(W.sum(axis=1)).ravel() + 1e-3) - W


def line(n: int) -> Any:
    return sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))


def neumann(n: int) -> Any:
    """Singular: the constant vector is in the kernel."""
    A = jsf.gallery.poisson(n)
    return A - sp.diags_array(np.asarray(A.sum(axis=1)).ravel())


def convection(n: int) -> Any:
    """Upwind, the flow along one axis."""
    return sp.kronsum(line(n), line(n) + 0.02 * sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n)))


def mixed(n: int) -> Any:
    """Mixed Poisson, fluxes on faces and pressures in cells: a saddle point."""
    D = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n, n + 1))
    B = sp.hstack([sp.kron(sp.eye_array(n), D), sp.kron(D, sp.eye_array(n))])
    return sp.block_array([[sp.eye_array(B.shape[1]), B.T], [B, None]])


def systems(scale: float) -> Iterator[tuple[str, Any]]:
    for name, make in SYSTEMS.items():
        yield name, sp.csr_array(make(scale))
    folders = [os.environ.get(name) for name in ("JAXSPARSE_MATRICES", "JAXSPARSE_CASES")]
    for path in (path for folder in folders if folder for path in sorted(pathlib.Path(folder).glob("*.mtx*"))):
        if scipy.io.mminfo(path)[4] == "pattern":  # without values, and no system
            continue
        S = sp.csr_array(scipy.io.mmread(path, spmatrix=False))
        if S.shape[0] == S.shape[1] <= LARGE * scale:
            yield path.name.partition(".")[0], S.astype(np.result_type(S.dtype, float))


def pairs(scale: float) -> Iterator[report.Row]:
    for name, S in systems(scale):
        A, b = jsf.from_scipy(S), jnp.asarray(S @ np.random.default_rng(0).standard_normal(S.shape[0]))
        facts = Facts(A, b, True)
        for way in (way for way in ways.WAYS if way.when(facts)):
            try:
                yield {"system": name, "n": facts.n, "nnz": S.nnz, "way": way.name} | pair(way, facts, b)
            except (SolverError, ValueError) as error:
                report.log(f"{name}, {way.name}: {error}")


def pair(way: ways.Way, facts: Facts, b: Any) -> report.Row:
    trial = ways.estimate(way, facts, True)
    M, of_set_up = timing.cost(lambda: ways.made(trial, facts), 2.0)
    settings = Settings(rtol=1e-12, maxiter=STEPS)
    sol, of_steps = timing.cost(lambda: ways.run(trial, [], M, facts.A, b, None, settings, facts), 2.0)
    taken = int(sol.iterations)
    guess, seconds = trial.set_up + taken * trial.step, of_set_up + of_steps
    return {"steps": taken, "estimate": guess, "seconds": seconds, "ratio": seconds / guess}


def by_hand(A: Any, b: Any, facts: Facts, limit: float = LIMIT) -> dict[str, Callable[[], Any]]:
    """What solves the system by each way that suits it, and is expected to set up within `limit` seconds."""

    def of_way(trial: ways.Trial) -> Callable[[], Any]:
        settings = Settings(rtol=RTOL, maxiter=int(limit / trial.step))
        return lambda: ways.run(trial, [], ways.made(trial, facts), A, b, None, settings, facts).x

    trials = [ways.estimate(way, facts, True) for way in ways.WAYS if way.when(facts)]
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
    if ways.estimate(BY_FACTORS, facts, True).set_up < LIMIT:
        found |= {"spsolve": lambda: spla.spsolve(C, b), "splu symmetric": lambda: spla.splu(C, **symmetric).solve(b)}
        found["scipy gmres with spilu"] = with_ilu
    return found


def campaign(scale: float) -> Iterator[report.Row]:
    for name, S in systems(scale):
        random = np.random.default_rng(1).standard_normal(S.shape[0])
        for what, b in (("A·1", S @ np.ones(S.shape[0])), ("random", random.astype(S.dtype))):
            yield {"system": name, "n": S.shape[0], "nnz": S.nnz, "b": what} | compared(S, b)


def compared(S: Any, b: Any) -> report.Row:
    A, wide = jsf.from_scipy(S), S.astype(np.result_type(S.dtype, np.longdouble))
    facts = Facts(A, jnp.asarray(b), True)

    def residual(x: Any) -> float:
        return float(np.linalg.norm((b - wide @ np.asarray(x)).astype(b.dtype)) / (np.linalg.norm(b) or 1))

    sol, seconds = timing.cost(lambda: solve(A, b, rtol=RTOL, remember=False), 0.2)
    _, again = timing.cost(lambda: solve(A, b, rtol=RTOL), 0.1)
    size, times = residual(sol.x), {}
    for name, f in (by_hand(A, jnp.asarray(b), facts) | by_scipy(S, b, facts)).items():
        try:
            x, times[name] = timing.cost(f, 0.2)
        except (SolverError, ValueError, RuntimeError, TimeoutError) as error:
            report.log(f"{name}: {report.reason(error)}")
            continue
        if not residual(x) <= max(RTOL * (1 + 1e-6), 1.01 * size):
            del times[name]
    by = min(times, key=times.__getitem__, default="")
    row = {"took": sol.method, "status": str(sol.status), "residual": size, "wrong": wrong(S, b, sol, size)}
    row |= {"solve": seconds, "again": again, "best": times.get(by, np.nan), "by": by, "times": times}
    return row | {"ratio": seconds / times[by] if by else np.nan}


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
            cells = by_hand(A, b, Facts(A, b, True), 10 * LIMIT) | {
                "solve": lambda A=A, b=b: solve(A, b, rtol=RTOL, remember=False).x
            }
            for way, f in cells.items():
                x, seconds = timing.cost(f, 0.2)
                if float(jnp.linalg.norm(b - A @ x)) <= 2 * RTOL * float(jnp.linalg.norm(b)):
                    yield {"problem": problem, "n": S.shape[0], "way": way, "seconds": seconds}


def kept(rows: Iterator[report.Row], found: list[report.Row]) -> Iterator[report.Row]:
    for row in rows:
        found.append(row)
        yield row


def accuracy(rows: list[report.Row]) -> report.Row:
    near = sum(1 / FACTOR <= row["ratio"] <= FACTOR for row in rows)
    return {"pairs": len(rows), f"within a factor of {FACTOR}": near, "share": near / max(len(rows), 1)}


def mean(rows: list[report.Row], way: str, least: float) -> report.Row:
    """Of the solves that take longer than `least` seconds."""
    rows = [row for row in rows if row["by"] and row[way] > least]
    found = [row[way] / row["best"] for row in rows]
    found_mean = float(np.exp(np.mean(np.log(found)))) if found else np.nan
    counts = {"above 2": sum(ratio > 2 for ratio in found), "wrong": sum(bool(row["wrong"]) for row in rows)}
    return {"of": way, "above s": least, "solves": len(rows), "geometric mean": found_mean} | counts


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    scale, of_pairs, of_campaign = 0.3 if args.small else 1.0, [], []
    means = itertools.product(("solve", "again"), (0.0, SHORT))  # without its memory, and with it
    return {
        "pairs": lambda: kept(pairs(scale), of_pairs),
        "all": lambda: [accuracy(of_pairs)],
        "sizes": lambda: by_size(scale),
        "campaign": lambda: kept(campaign(scale), of_campaign),
        "mean": lambda: [mean(of_campaign, *which) for which in means],
    }
