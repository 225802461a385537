"""A system on the device: stored as `choose` says, solved as the solver does, and timed by the clock."""

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import measure
from solvers import cg
from tests.marks import few

S = gallery.poisson(5)
FLOAT64 = np.dtype(np.float64)


def test_auto_takes_the_choice_ranked_first_and_its_bytes():
    best = jsf.choose.rank(S)[0]
    stored = measure.store(S, FLOAT64)
    assert stored.A.name == best.format and stored.A.layout.items() >= best.layout.items()
    assert stored.moved == best.moved and best.reason in stored.why


@pytest.mark.parametrize("format", few(jsf.FORMATS, 5))
def test_a_named_format_is_taken_in_its_best_layout(format: str):
    stored = measure.store(S, FLOAT64, format)
    ranked = [c for c in jsf.choose.rank(S) if c.format == format]
    assert stored.A.name == format and stored.why == "asked for"
    assert all(stored.A.layout.items() >= c.layout.items() for c in ranked[:1])
    vectors = 2 * 8 * S.shape[0]
    unread = stored.A.nbytes - stored.A.nbytes_read  # of mirrored diagonals half of the values
    assert stored.A.values.nbytes - unread + vectors <= stored.moved <= stored.A.nbytes + vectors + 4


def test_all_progress_is_in_when_solve_returns():
    told = []
    S, b = gallery.poisson(10), np.random.default_rng(0).standard_normal(1000)
    report = lambda k, norm: told.append(k)  # noqa: E731
    solve = measure.prepare(cg, measure.store(S, FLOAT64), b, progress=report, rtol=1e-10)
    for _ in range(3):
        told.clear()
        iterations = solve().iterations
        assert told and max(told) <= iterations
