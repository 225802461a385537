"""A system on the device: stored as `choose` says, solved as the solver does, and timed by the clock."""

import numpy as np

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import measure
from solvers import cg

S = gallery.poisson(5)
FLOAT64 = np.dtype(np.float64)


def test_all_progress_is_in_when_solve_returns():
    told = []
    S, b = gallery.poisson(10), np.random.default_rng(0).standard_normal(1000)
    report = lambda k, norm: told.append(k)  # noqa: E731
    solve = measure.prepare(cg, measure.store(S, FLOAT64), b, progress=report, rtol=1e-10)
    for _ in range(3):
        told.clear()
        iterations = solve().iterations
        assert told and max(told) <= iterations
