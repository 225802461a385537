"""The progress that commands show on standard error: one line that changes on a terminal, lines elsewhere."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

LIVE_PERIOD, PLAIN_PERIOD = 0.05, 5.0  # least seconds between two signs of progress in one stage
WIDTH = 79  # columns of the line that changes, which must not wrap


class Progress:
    """The stages of a command: each is shown while it lasts, and timed.

    Attributes:
      seconds: wall time of the finished stages by name, in order; those of one name add up.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Removes the line that changes, before something else is printed."""
        if self._is_live:
            _write("\r\x1b[2K")

    @contextlib.contextmanager
    def stage(self, name: str, detail: str) -> Iterator[None]:
        """Shows and times the code inside; `show` updates the detail."""
        self._name, self._start = name, time.perf_counter()
        self._last = self._start
        self._line(f"{name}: {detail}")
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start

    def show(self, detail: str, fraction: float) -> None:
        """Shows the detail of the present stage and the fraction done, 0 to 1; callable from any thread."""
        now = time.perf_counter()
        if now - self._last < (LIVE_PERIOD if self._is_live else PLAIN_PERIOD):
            return
        self._last = now
        done = f" {fraction:4.0%} {now - self._start:6.1f} s" if self._is_live else ""
        self._line(f"{self._name}:{done} {detail}")

    def _line(self, text: str) -> None:
        _write(f"\r\x1b[2K{text[:WIDTH]}" if self._is_live else f"{text}\n")


def _write(text: str) -> None:
    """Writes to standard error; ignores that it is full or closed."""
    with contextlib.suppress(OSError):
        print(end=text, file=sys.stderr, flush=True)


def residuals(
    show: Callable[[str, float], None], start: float, target: float, least: bool = False
) -> Callable[[int, float], None]:
    """A solver's `progress` callback that shows iterations, residual, and the fraction of the decades gained of those
    between two residual norms, before the first iteration and at the end.

    Args:
      least: the solve also ends at the least residual, which may be larger.
    """
    decades = math.log(start) - math.log(target) if 0 < target < start < math.inf else 0.0

    def progress(iterations: int, norm: float) -> None:
        gained = (math.log(start) - math.log(norm)) / decades if decades > 0 and 0 < norm < math.inf else 0.0
        text = f"iteration {iterations:,}, residual {norm:.2e}, going to {target:.2e}{' or the least' * least}"
        show(text, min(max(gained, 0.0), 0.999))

    return progress
