"""What `solve` costs: against its estimates, by size, and against each way by hand and SciPy.

    python -m benchmarks solve_costs --json out.json          some forty minutes on two cores

pairs: set-up and at most STEPS steps of each way that suits a system; "ratio" is the time over the estimate of these.
all: the pairs within a factor of 3.
sizes: each way, and `solve`, for problems of growing size.
campaign: `solve` of a new matrix, of new values ("new"), and of another b ("again"), against the best of its ways by
hand and of SciPy, set-up included; "wrong" is a status that the residual in long double contradicts. mean: of its
ratios.
large: `solve` as in the campaign, its first call compiling nothing that JAX keeps on disk, against other ways by hand,
each in a process of its own, which ends after MINUTES.

On a CPU a time is the processor's, which other load lengthens less than the clock's. A cell that would take more than
LIMIT seconds is left out. JAXSPARSE_MATRICES and JAXSPARSE_CASES add files of theirs.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.ndimage
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.factors import circuit
from solvers import SolverError, Status, estimates, solve, ways
from solvers.core.settings import Settings
from solvers.facts import Facts

STEPS = 60
LARGE = 60_000  # unknowns of the files, at most
FACTOR = 3
LIMIT = 0.5  # seconds
MINUTES = 2
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
LARGE_SYSTEMS: dict[str, Callable[[float], Any]] = {
    "lognormal": lambda s: diffusion([int(60 * s)] * 3, lambda rng, x: np.exp(2 * rng.standard_normal(x[0].shape))),
    "layers and channels": lambda s: diffusion([int(60 * s), int(220 * s), int(20 * s)], channels),
    "jumps": lambda s: diffusion([int(48 * s)] * 3, lambda rng, x: np.where(np.sum(x // 12, 0) % 2, 1e6, 1.0)),
    "slender elasticity": lambda s: jsf.gallery.elasticity((int(200 * s), int(12 * s), int(12 * s))),
    "nearly incompressible": lambda s: jsf.gallery.elasticity(int(22 * s), 0.499),
    "Oseen": lambda s: oseen(int(250 * s)),
    "Helmholtz with an absorbing layer": lambda s: absorbing(int(500 * s)),
    "Maxwell": lambda s: maxwell(int(40 * s)),
    "biharmonic": lambda s: SYSTEMS["biharmonic"](5 * s),
    "Neumann": lambda s: neumann(int(60 * s)),
    "power law": lambda s: SYSTEMS["power law"](50 * s),
    "circuit": lambda s: circuit(int(250_000 * s)),
    "strong convection 3D": lambda s: convection(int(60 * s), 3, 10.0),
    "weak convection 2D": lambda s: convection(int(500 * s)),
    "five dimensions, complex": lambda s: sum_of_lines(int(11 * s), 5) + (3 - 0.5j) * sp.eye_array(int(11 * s) ** 5),
    "bundle adjustment": lambda s: bundles(int(60_000 * s), int(200 * s)),
    "permuted triangle": lambda s: triangle(int(80_000 * s)),
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


def sum_of_lines(n: int, dim: int) -> Any:
    return functools.reduce(sp.kronsum, [line(n)] * dim)


def convection(n: int, dim: int = 2, speed: float = 0.02) -> Any:
    """Upwind, the flow along one axis."""
    flow = line(n) + speed * sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n))
    return sp.kronsum(sum_of_lines(n, dim - 1), flow)


def mixed(n: int) -> Any:
    """Mixed Poisson, fluxes on faces and pressures in cells: a saddle point."""
    D = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n, n + 1))
    B = sp.hstack([sp.kron(sp.eye_array(n), D), sp.kron(D, sp.eye_array(n))])
    return sp.block_array([[sp.eye_array(B.shape[1]), B.T], [B, None]])


def diffusion(shape: list[int], coefficient: Callable[[Any, Any], Any]) -> Any:
    """Finite volumes, with harmonic means of coefficients of cells, or of cells and axes; u = 0 outside."""
    cells = np.indices(shape)
    k = np.broadcast_to(coefficient(np.random.default_rng(0), cells), (len(shape), *shape))
    number, parts = np.arange(cells[0].size).reshape(shape), []
    D = np.zeros(shape)
    for axis in range(len(shape)):
        low, high = (np.delete(number, where, axis).ravel() for where in (-1, 0))
        of_axis = k[axis].ravel()
        w = 2 / (1 / of_axis[low] + 1 / of_axis[high])
        parts.append(sp.coo_array((w, (low, high)), shape=(number.size, number.size)))
        ends = np.zeros(shape)
        for where in (0, -1):
            np.moveaxis(ends, axis, 0)[where] += 2 * np.moveaxis(k[axis], axis, 0)[where]
        D += ends
    W = sp.csr_array(sum(parts, start=sp.coo_array((number.size, number.size))))
    W = W + W.T
    return sp.diags_array(D.ravel() + np.asarray(W.sum(axis=1)).ravel()) - W


def channels(rng: Any, cells: Any) -> Any:
    """Permeable channels in layers, with little flow from one layer to the next, after the second model of SPE10."""
    smooth = scipy.ndimage.gaussian_filter(rng.standard_normal(cells[0].shape), (3, 8, 0.5))
    k = 10 ** (2 * smooth / np.std(smooth))
    return np.stack([k, k, 1e-3 * k])


def oseen(n: int) -> Any:
    """Stokes' equations on staggered cells, with upwind convection by a vortex; a pressure is pinned by 1e-8."""
    one, D = sp.eye_array(n), sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n - 1))
    B = sp.hstack([sp.kron(one, D), sp.kron(D, one)])
    y, x = np.mgrid[:n, : n - 1] / n
    speeds = 30 * np.concatenate([(np.sin(2 * np.pi * y) * np.sin(np.pi * x) ** 2).ravel()] * 2) / n
    flows = []
    for shape in ((n, n - 1), (n - 1, n)):
        m = shape[1]
        gap = sp.kron(sp.eye_array(shape[0]), sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(m, m)))
        c = sp.diags_array(np.abs(speeds[: shape[0] * m]))
        flows.append(sp.kronsum(line(m), line(shape[0])) + c @ gap)
    return sp.block_array([[sp.block_diag(flows), B.T], [B, -1e-8 * sp.eye_array(n * n)]])


def absorbing(n: int) -> Any:
    """Helmholtz' equation, 20 waves across, in a complex layer of a tenth of the width."""
    h, k = 1 / (n + 1), 2 * np.pi * 20
    depth = np.maximum(0, 0.1 - np.minimum(np.arange(1, n + 1) * h, 1 - np.arange(1, n + 1) * h)) / 0.1
    stretch = 1 / (1 + 1j * 2 * depth**2)
    L = sp.diags_array(stretch) @ line(n) @ sp.diags_array(stretch)
    return sp.kronsum(L, L) - (h * k) ** 2 * sp.eye_array(n * n)


def maxwell(n: int) -> Any:
    """curl curl + 0.01 on the edges of n³ cells."""
    D, one = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n, n + 1)), sp.eye_array(n)
    wide = sp.eye_array(n + 1)

    def three(a: Any, b: Any, c: Any) -> Any:
        return sp.kron(sp.kron(a, b), c)

    curl = sp.block_array(
        [
            [None, -three(wide, one, D), three(wide, D, one)],
            [three(one, wide, D), None, -three(D, wide, one)],
            [-three(one, D, wide), three(D, one, wide), None],
        ]
    )
    return curl.T @ curl + 0.01 * sp.eye_array(curl.shape[1])


def bundles(points: int, cameras: int) -> Any:
    """Normal equations of a bundle adjustment: each point is seen by four near cameras."""
    rng = np.random.default_rng(0)
    first = np.arange(points) * (cameras - 8) // points
    camera = first[:, None] + np.argsort(rng.random((points, 8)))[:, :4]
    rows = np.arange(8 * points).reshape(points, 4, 2, 1)
    of_points = np.broadcast_to(3 * np.arange(points)[:, None, None, None] + np.arange(3), (points, 4, 2, 3))
    of_cameras = np.broadcast_to(3 * points + 9 * camera[:, :, None, None] + np.arange(9), (points, 4, 2, 9))
    cols = np.concatenate([of_points, of_cameras], -1)
    J = sp.csr_array((rng.standard_normal(cols.size), (np.broadcast_to(rows, cols.shape).ravel(), cols.ravel())))
    return J.T @ J + 1e-3 * sp.eye_array(J.shape[1])


def triangle(n: int) -> Any:
    rng, i = np.random.default_rng(0), np.repeat(np.arange(n), 4)
    j = (rng.random(i.size) * i).astype(int)
    T = sp.coo_array((rng.uniform(-0.3, 0.3, i.size), (i, j)), shape=(n, n)).tocsr()
    T = sp.tril(T, -1, "csr") + sp.diags_array(rng.uniform(1, 2, n))
    return T.tocsr()[rng.permutation(n)][:, rng.permutation(n)]


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


def pair(way: estimates.Way, facts: Facts, b: Any) -> report.Row:
    trial = estimates.estimate(way, facts, True)
    M, of_set_up = timing.cost(lambda: ways.made(trial, facts), 2.0)
    settings = Settings(rtol=1e-12, maxiter=STEPS)
    sol, of_steps = timing.cost(lambda: ways.run(trial, [], M, facts.A, b, None, settings, facts), 2.0)
    taken = int(sol.iterations)
    guess, seconds = trial.set_up + taken * trial.step, of_set_up + of_steps
    return {"steps": taken, "estimate": guess, "seconds": seconds, "ratio": seconds / guess}


def by_hand(A: Any, b: Any, facts: Facts, limit: float = LIMIT) -> dict[str, Callable[[], Any]]:
    """What solves the system by each way that suits it, and is expected to set up within `limit` seconds."""

    def of_way(trial: estimates.Trial) -> Callable[[], Any]:
        settings = Settings(rtol=RTOL, maxiter=int(limit / trial.step))
        return lambda: ways.run(trial, [], ways.made(trial, facts), A, b, None, settings, facts).x

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
            yield {"system": name, "n": S.shape[0], "nnz": S.nnz, "b": what} | compared(S, b)


def compared(S: Any, b: Any) -> report.Row:
    A, wide = jsf.from_scipy(S), S.astype(np.result_type(S.dtype, np.longdouble))
    facts = Facts(A, jnp.asarray(b), True)

    def residual(x: Any) -> float:
        return float(np.linalg.norm((b - wide @ np.asarray(x)).astype(b.dtype)) / (np.linalg.norm(b) or 1))

    fresh = iter([jsf.from_scipy(S) for _ in range(4)])
    sol, seconds = timing.cost(lambda: solve(next(fresh), b, rtol=RTOL), 0.2)
    _, again = timing.cost(lambda: solve(A, b, rtol=RTOL), 0.1)
    others = iter(jax.block_until_ready([A.with_data(A.data * (1 + k / 100)) for k in range(1, 5)]))
    other, new = timing.cost(lambda: solve(next(others), b, rtol=RTOL), 0.2)
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
    row |= {
        "status of new": str(other.status),
        "solve": seconds,
        "new": new,
        "again": again,
        "best": times.get(by, np.nan),
        "by": by,
        "times": times,
    }
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


BY_HAND = ("cg with jacobi", "minres with |jacobi|", "bicgstab with jacobi", "cg with multigrid", "gmres with ilu")
BY_HAND += ("splu symmetric", "splu")


def in_process(name: str, way: str, scale: float) -> report.Row:
    """What `solved` prints in a process of its own; nothing if it takes too long, or fails."""
    code = f"from benchmarks import solve_costs; solve_costs.solved({name!r}, {way!r}, {scale})"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60 * MINUTES)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        report.log(f"{name}, {way}: {report.reason(error)}")
        return {}


def solved(name: str, way: str, scale: float) -> None:
    """Prints, as JSON, what a way takes, or `solve` for a new matrix, for another b, and for new values."""
    jax.config.update("jax_enable_x64", True)
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
        return print(json.dumps({"seconds": cpu, "residual": size(x)}))
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
        return print(json.dumps(row | {"ways": [way for way in BY_HAND if way in suited or way.startswith("splu")]}))
    trial = estimates.Trial(next(one for one in ways.WAYS if one.name == way), 0.0, 0.0)
    settings = Settings(rtol=RTOL, maxiter=100_000)
    (M, cpu), b = timed(lambda: ways.made(trial, facts)), jnp.asarray(b)
    sol, more = timed(lambda: ways.run(trial, [], M, A, b, None, settings, facts))
    print(json.dumps({"seconds": cpu + more, "set-up": cpu, "steps": int(sol.iterations), "residual": size(sol.x)}))


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
    counts = {f"above {k}": sum(ratio > k for ratio in found) for k in (2, 3)}
    counts |= {"wrong": sum(bool(row["wrong"]) for row in rows)}
    return {"of": way, "above s": least, "solves": len(rows), "geometric mean": found_mean} | counts


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    scale, of_pairs, of_campaign = 0.3 if args.small else 1.0, [], []
    means = itertools.product(("solve", "new", "again"), (0.0, SHORT))  # without its memory, and with it
    return {
        "pairs": lambda: kept(pairs(scale), of_pairs),
        "all": lambda: [accuracy(of_pairs)],
        "sizes": lambda: by_size(scale),
        "large": lambda: large(scale),
        "campaign": lambda: kept(campaign(scale), of_campaign),
        "mean": lambda: [mean(of_campaign, *which) for which in means],
    }
