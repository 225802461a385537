"""The progress that commands show on standard error: one line that changes on a terminal, lines elsewhere."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from jaxsparse_fmt._progress import LIVE_PERIOD, PLAIN_PERIOD, Gain, Watcher, write

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
            write("\r\x1b[2K")

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
        write(f"\r\x1b[2K{text[:WIDTH]}" if self._is_live else f"{text}\n")


class Residuals(Watcher):
    """Shows what a solver reports, and the fraction done."""

    def __init__(self, show: Callable[[str, float], None]):
        self.show, self.gain = show, Gain()

    def __call__(self, iterations: Any, norm: Any, compared: Any, target: Any) -> None:
        self.show(*self.gain.of(iterations, compared, target))
