"""What the copy that all figures are held against times, and when a card rests."""

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


@pytest.mark.parametrize(("platform", "rest"), [("gpu", 8.0), ("cpu", 0)])
def test_a_gpu_rests_as_long_as_a_round_takes(monkeypatch, platform, rest):
    """By a clock on which a call takes 2 s."""
    now, slept = [0.0], []
    monkeypatch.setattr(timing.jax, "default_backend", lambda: platform)
    monkeypatch.setattr(timing.time, "sleep", slept.append)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def run(_: int) -> None:
        now[0] += 2

    assert timing.seconds_per_call(run, lambda _: None, rounds=3, seconds=8) == 2
    assert slept == [rest] * 3
    assert now[0] == 2 * 2 + 3 * 8
