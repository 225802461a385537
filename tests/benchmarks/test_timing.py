"""What the copy that all figures are held against times."""

from __future__ import annotations

import jax
import pytest

from benchmarks import timing


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU's copy is timed with the argument kept")
def test_the_pass_in_place_copies_no_argument(monkeypatch):
    taken_over = []

    def seconds_per_call(run, wait):
        first, second = run(0), run(1)
        wait(second)
        taken_over.append(first.is_deleted())
        return 1.0 if taken_over[-1] else 100.0

    monkeypatch.setattr(timing, "seconds_per_call", seconds_per_call)
    assert timing.copy_bandwidth(2**12) == 2 * 2**12 * 10  # ten passes a call
    assert sorted(taken_over) == [False, True]
