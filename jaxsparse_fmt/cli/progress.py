"""The progress that commands show on standard error: a live display on a terminal, plain lines elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

from jaxsparse_fmt.cli.tables import console_on

LIVE_PERIOD, PLAIN_PERIOD = 0.05, 5.0  # least seconds between two signs of progress in one stage


class Progress:
    """The stages of a command: each is shown while it lasts, and timed.

    Attributes:
      seconds: wall time of each finished stage by name, in order.
    """

    def __init__(self) -> None:
        from rich import progress

        self.seconds: dict[str, float] = {}
        self._console = console_on(sys.stderr)
        self._live = None
        if self._console.is_terminal:
            text, bar = progress.TextColumn, progress.BarColumn(bar_width=24)
            name, elapsed = text("{task.description:<8}"), text("{task.elapsed:6.1f} s")
            columns = (name, bar, elapsed, text("{task.fields[detail]}"))
            self._live = progress.Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    @contextlib.contextmanager
    def stage(self, name: str, detail: str) -> Iterator[None]:
        """Shows and times the code inside; `show` updates the detail."""
        self._name, self._last = name, time.perf_counter()
        start = self._last
        if self._live is not None:
            self._task = self._live.add_task(name, total=None, detail=detail)
        else:
            self._console.print(f"{name}: {detail}", soft_wrap=True)
        yield
        self.seconds[name] = time.perf_counter() - start
        if self._live is not None:
            self._live.update(self._task, completed=1.0, total=1.0)
            self._live.stop_task(self._task)

    def show(self, detail: str, fraction: float) -> None:
        """Shows the detail of the present stage and the fraction done, 0 to 1; callable from any thread."""
        now = time.perf_counter()
        if now - self._last < (PLAIN_PERIOD if self._live is None else LIVE_PERIOD):
            return
        self._last = now
        if self._live is not None:
            self._live.update(self._task, detail=detail, completed=fraction, total=1.0)
        else:
            self._console.print(f"{self._name}: {detail}", soft_wrap=True)


def residuals(show: Callable[[str, float], None], start: float, target: float) -> Callable[[int, float], None]:
    """A solver's `progress` callback that shows iterations, residual, and the fraction of the decades gained.

    Args:
      show: of a `Progress`.
      start, target: residual norms before the first iteration and at the end.
    """
    decades = math.log(start) - math.log(target) if 0 < target < start < math.inf else 0.0

    def progress(iterations: int, norm: float) -> None:
        gained = (math.log(start) - math.log(norm)) / decades if decades > 0 and 0 < norm < math.inf else 0.0
        text = f"iteration {iterations:,}, residual {norm:.2e}, going to {target:.2e}"
        show(text, min(max(gained, 0.0), 0.999))

    return progress
