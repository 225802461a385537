"""How far the estimates of `solve` lie from the clock: set-up and steps of each way that suits a system.

    python -m benchmarks solve_costs --json out.json          some five minutes on two cores

Each way gets at most STEPS steps. "ratio" is the measured time over the estimate of the set-up and of the steps taken;
on a CPU it is the processor's time, which other load lengthens less than the clock's.
The last section counts the pairs within a factor of 3. JAXSPARSE_MATRICES and JAXSPARSE_CASES add files of theirs.
"""

import argparse
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from solvers import SolverError, ways
from solvers.core.settings import DEFAULTS
from solvers.facts import Facts

STEPS = 60
LARGE = 30_000  # unknowns of the files, at most
FACTOR = 3
SYSTEMS: dict[str, Callable[[float], Any]] = {
    "poisson 2D": lambda s: jsf.gallery.poisson(int(200 * s), dim=2),
    "poisson 3D": lambda s: jsf.gallery.poisson(int(32 * s)),
    "convection 3D": lambda s: jsf.gallery.convection_diffusion(int(24 * s)),
    "elasticity": lambda s: jsf.gallery.elasticity(int(14 * s)),
    "biharmonic": lambda s: jsf.gallery.poisson(int(100 * s), dim=2) @ jsf.gallery.poisson(int(100 * s), dim=2),
    "Helmholtz, complex": lambda s: helmholtz(int(80 * s)),
    "power law": lambda s: laplacian(abs(jsf.gallery.power_law(int(5_000 * s)))),
}


def helmholtz(n: int) -> Any:
    return jsf.gallery.poisson(n, dim=2) - (0.05 + 0.005j) * sp.eye_array(n * n)


def laplacian(W: Any) -> Any:
    W = sp.csr_array(W + W.T)
    return sp.diags_array(np.asarray(W.sum(axis=1)).ravel() + 1e-3) - W


def systems(scale: float) -> Iterator[tuple[str, Any]]:
    for name, make in SYSTEMS.items():
        yield name, sp.csr_array(make(scale))
    folders = [os.environ.get(name) for name in ("JAXSPARSE_MATRICES", "JAXSPARSE_CASES")]
    for path in (path for folder in folders if folder for path in sorted(pathlib.Path(folder).glob("*.mtx*"))):
        S = sp.csr_array(scipy.io.mmread(path))
        if S.shape[0] == S.shape[1] <= LARGE * scale:
            yield path.name.partition(".")[0], S.astype(np.result_type(S.dtype, float))


def measured(f: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the least seconds of up to three calls after one that compiles."""
    found = jax.block_until_ready(f())
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 2:
        found, wall, cpu = timing.timed(f)
        seconds.append(cpu if report.platform_here() == "cpu" else wall)
    return found, min(seconds)


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
    M, of_set_up = measured(lambda: ways.made(trial, facts))
    settings = DEFAULTS | {"rtol": 1e-12, "maxiter": STEPS}
    sol, of_steps = measured(lambda: ways.run(trial, [], M, facts.A, b, None, settings, facts))
    taken = int(sol.iterations)
    guess, seconds = trial.set_up + taken * trial.step, of_set_up + of_steps
    return {"steps": taken, "estimate": guess, "seconds": seconds, "ratio": seconds / guess}


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    ratios: list[float] = []

    def kept() -> Iterator[report.Row]:
        for row in pairs(0.3 if args.small else 1.0):
            ratios.append(row["ratio"])
            yield row

    def counted() -> Iterator[report.Row]:
        near = sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
        yield {"pairs": len(ratios), f"within a factor of {FACTOR}": near, "share": near / max(len(ratios), 1)}

    return {"pairs": kept, "all": counted}
