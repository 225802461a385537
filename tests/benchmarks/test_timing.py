"""What the copy that all figures are held against times, and when a card rests."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(("platform", "lead", "rests"), [("gpu", 0.0, True), ("gpu", 0.01, False), ("cpu", 0.0, False)])
def test_a_gpu_rests_as_long_as_a_round_takes_but_not_under_load(monkeypatch, platform, lead, rests):
    slept, calls = [], []
    monkeypatch.setattr(timing.jax, "default_backend", lambda: platform)
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    timing.seconds_per_call(calls.append, lambda _: None, rounds=3, seconds=1e-3, lead=lead)
    assert len(slept) == 3 and [s > 0 for s in slept] == [rests] * 3
    assert len(calls) > 2 + 3 and (lead == 0 or len(calls) > 1000)


def test_without_a_gpu_no_clock_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert math.isnan(timing.clock())
