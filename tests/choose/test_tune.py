"""format="tune": the fastest is taken; what does not fit is passed over."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.choose import ranking, tune
from tests.oracle import assert_refused

S = jsf.gallery.poisson(5)
X = np.arange(S.shape[1]) / 8.0
pytestmark = pytest.mark.usefixtures("plain_xla")  # in which "hll" is among the first few for `S`


@pytest.fixture
def clock(monkeypatch) -> list[str]:
    """Products that seem to take long, but for "hll"; and the formats that were timed."""
    timed: list[str] = []

    def seconds(A: jsf.SparseMatrix) -> float:
        timed.append(A.name)
        return 1e-3 if A.name == "hll" else 1.0

    monkeypatch.setattr(tune, "seconds_per_product", seconds)
    return timed


def test_the_fastest_of_the_first_few_is_taken_and_right(clock):
    A = jsf.from_scipy(S, "tune")
    few = list(dict.fromkeys(c.format for c in ranking.rank(S)))[: tune.CANDIDATES]
    assert "hll" in few and clock == few and A.name == "hll"
    np.testing.assert_allclose(A @ X, S @ X)


@pytest.mark.parametrize("backend", ["auto", "interpret"])  # jnp, and kernels
def test_inside_jit_it_is_measured_by_a_real_clock_and_right(backend):
    y = jax.jit(lambda x: jsf.from_scipy(S, "tune", backend=backend) @ x)(X)
    np.testing.assert_allclose(y, S @ X)


def test_memory_that_runs_out_while_measuring_rules_a_format_out(monkeypatch):
    def seconds(A: jsf.SparseMatrix) -> float:
        if A.name != "csr":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return 1.0

    few = [c for c in ranking.rank(S) if c.format in ("ell", "csr")]
    monkeypatch.setattr(ranking, "rank", lambda *_, **__: few)
    monkeypatch.setattr(tune, "seconds_per_product", seconds)
    assert jsf.from_scipy(S, "tune").name == "csr"


@pytest.mark.parametrize("kind", [TypeError, AttributeError, jax.errors.JaxRuntimeError])
def test_a_mistake_of_a_conversion_or_a_kernel_is_not_taken_for_a_refusal(kind, monkeypatch):
    def fail(*_, **__):
        raise kind("INTERNAL: mistake")

    monkeypatch.setattr(tune, "build", fail)
    assert_refused(lambda: jsf.from_scipy(S, "tune"), kind, "mistake")


def test_options_that_tune_chooses_itself_and_too_low_limits_are_refused():
    chosen = "format='tune' chooses the layout itself; name a format to set sigma"
    for option, words in (({"max_bytes": 10}, "max_bytes=10 allows none, max_bytes="), ({"sigma": 1}, chosen)):
        assert_refused(lambda given=option: jsf.from_scipy(S, "tune", **given), ValueError, words)


def test_a_matrix_without_entries_can_be_tuned():
    for shape in ((0, 3), (3, 0), (2, 2)):
        assert jsf.from_scipy(sp.csr_array(shape), "tune").shape == shape
