"""The accounting of a profile, on kernels made up."""

import numpy as np
import pytest

from benchmarks import overlap
from benchmarks.overlap import Kernel
from jaxsparse_fmt import plot

# A step: an exchange of 4 µs of which 3 lie beside the product, a reduction, and 1 µs without any kernel.
STEP = [
    Kernel("Stream #1", "loop_gather_fusion", 0, 1),
    Kernel("Stream #2", "ncclDevKernel_SendRecv", 1, 5),
    Kernel("Stream #1", "sparse_product", 2, 12),
    Kernel("Stream #1", "all_reduce_kernel", 13, 15),
    Kernel("Stream #1", "vector_sweep", 15, 20),
]


def trace(starts):
    return [Kernel(k.stream, k.name, (k.start + t) / 1e6, (k.stop + t) / 1e6) for t in starts for k in STEP]


# Twelve steps; after every fourth the host is asked, which takes 7 µs.
MANY = trace([20 * i + 7 * (i // 4) for i in range(12)])


def test_what_a_step_spends_its_time_on():
    told = overlap.account(trace([0, 20, 40]))
    assert told == {
        "µs a step": pytest.approx(20),
        "product µs": pytest.approx(10),
        "vectors and others µs": pytest.approx(6),
        "exchange µs": pytest.approx(4),
        "reduction µs": pytest.approx(2),
        "hidden": pytest.approx(0.75),
        "idle µs": pytest.approx(1),
    }


def test_spans_that_touch_are_one():
    assert overlap.covered([(3, 4), (0, 2), (1, 3), (6, 7)]) == [(0, 4), (6, 7)]


def test_time_in_both_is_that_of_every_pair_of_moments():
    rng = np.random.default_rng(0)
    a, b = (overlap.covered((s, s + rng.integers(1, 6)) for s in rng.integers(0, 90, 12).tolist()) for _ in range(2))
    moments = lambda spans: {t for s, e in spans for t in range(s, e)}  # noqa: E731
    assert overlap.in_both(a, b) == len(moments(a) & moments(b))


def test_a_usual_step_is_one_that_does_not_wait_for_the_host():
    start, step = overlap.usual(MANY)
    assert step == pytest.approx(20e-6)
    assert min(abs(start - k.start) for k in MANY if k.kind == "exchange") == pytest.approx(0, abs=1e-12)


def test_a_timeline_is_drawn(tmp_path):
    if not plot.available():
        pytest.skip("matplotlib is not installed")
    overlap.draw(tmp_path / "t.png", [MANY, MANY], "made up")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
