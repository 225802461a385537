"""What the copy that all figures are held against times, and when a card rests."""

import math
from types import SimpleNamespace

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


@pytest.mark.parametrize(("platform", "lead", "rest"), [("gpu", 0, 8.0), ("gpu", 100, 0), ("cpu", 0, 0)])
def test_a_gpu_rests_as_long_as_a_round_takes_but_not_under_load(monkeypatch, platform, lead, rest):
    """By a clock on which a call takes 2 s."""
    now, slept = [0.0], []
    monkeypatch.setattr(timing.jax, "default_backend", lambda: platform)
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def run(_: int) -> None:
        now[0] += 2

    assert timing.seconds_per_call(run, lambda _: None, rounds=3, seconds=8, lead=lead) == 2
    assert slept == [rest] * 3
    assert now[0] == 2 * 2 + 3 * 8 + (104 if lead else 0)  # the lead ends with the call of four that passes it


@pytest.mark.parametrize(("visible", "id"), [(None, "0"), ("7", "7"), ("3,4", "3")])
def test_the_clock_is_that_of_the_first_card_in_use(monkeypatch, visible, id):
    asked = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told = SimpleNamespace(stdout="1980\n")
    monkeypatch.setattr(timing.subprocess, "run", lambda query, **_: asked.extend(query) or told)
    assert timing.clock() == 1980 and f"--id={id}" in asked


def test_without_a_gpu_no_clock_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert math.isnan(timing.clock())
