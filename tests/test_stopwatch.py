"""What the tests that ask how long something takes are timed by."""

import time

import pytest

from tests import stopwatch


@pytest.mark.parametrize(("lost", "cpu", "told"), [(0, 0, 10), (6, 0, 4), (12, 0, 0), (8, 8, 4)])
def test_stolen_seconds_do_not_count_but_no_work_is_faster_than_its_processors(monkeypatch, lost, cpu, told):
    clocks = {"perf_counter": iter([0.0, 10.0]), "process_time": iter([0.0, float(cpu)])}
    for name, ticks in clocks.items():
        monkeypatch.setattr(stopwatch.time, name, lambda ticks=ticks: next(ticks))
    kept_waiting = iter([100.0, 100.0 + lost])
    monkeypatch.setattr(stopwatch, "stolen", lambda: next(kept_waiting))
    monkeypatch.setattr(stopwatch.os, "sched_getaffinity", lambda _: {0, 1})
    assert stopwatch.stopwatch()() == told


def test_what_is_slow_by_itself_stays_slow():
    seconds = stopwatch.stopwatch()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert seconds() > 0.09


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"])
def test_where_nobody_counts_nothing_was_stolen(tmp_path, text):
    path = tmp_path / "stat"
    path.write_text(text)
    assert stopwatch.stolen(str(path)) == stopwatch.stolen(str(tmp_path / "none")) == 0
