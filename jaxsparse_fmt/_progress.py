"""What `progress=True` shows on standard error: a bar by rich in terminals and notebooks, plain lines elsewhere."""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

LIVE_PERIOD, PLAIN_PERIOD = 0.05, 5.0  # least seconds between two signs of progress
WORTH = 1.0  # seconds after which a conversion or a set-up shows a bar


def write(text: str) -> None:
    """Writes to standard error; ignores that it is full, closed or absent."""
    with contextlib.suppress(OSError, ValueError):
        print(end=text, file=sys.stderr or io.StringIO(), flush=True)


# ------------------------------------------------------------------------------------------------- what solvers report


class Watcher:
    """What a solver reports to."""

    def __call__(self, iterations: Any, norm: Any, compared: Any, target: Any) -> None:
        """Takes a report from the middle of a solve.

        Args:
          norm: of the residual, by column.
          compared, target: the quantity that the stopping rule compares, and the bound at which the solve ends.
        """

    def end(self, iterations: Any, compared: Any, target: Any, status: str) -> None:
        """Takes the report of the end, with the name of the status."""


@dataclasses.dataclass(frozen=True)
class Reports(Watcher):
    """A user's function of the iterations and the largest residual norm; equal for the same function."""

    function: Callable[..., object]

    def __call__(self, iterations: Any, norm: Any, compared: Any, target: Any) -> None:
        self.function(int(np.max(iterations)), float(np.max(norm)))


class Gain:
    """The fraction done of a solve: the decades gained of those between its first report and its target."""

    first: float | None = None

    def of(self, iterations: Any, compared: Any, target: Any) -> tuple[str, float]:
        """A line about the column that is farthest from its target, and the fraction, from 0 to below 1."""
        compared, target = np.ravel(np.asarray(compared, float)), np.ravel(np.asarray(target, float))
        with np.errstate(all="ignore"):
            ratios = np.where(target > 0, compared / target, np.inf)
        worst = int(np.argmax(ratios))  # the first NaN, if there is one
        ratio, start = float(ratios[worst]), self.first
        if start is None or not start > 1:
            self.first = start = ratio
        bounded = 1 < start < math.inf and 0 < ratio < math.inf
        gained = 1 - math.log(ratio) / math.log(start) if bounded else 0.0
        text = f"iteration {int(np.max(iterations)):,}, residual {compared[worst]:.2e}, target {target[worst]:.2e}"
        return text, min(max(gained, 0.0), 0.999)


# -------------------------------------------------------------------------------------------------------- the bar


class Shown:
    """One bar, from its first sign to `close`.

    Args:
      alive: whether a thread moves the bar between signs.
      since: seconds that have passed.
    """

    def __init__(self, name: str, alive: bool, since: float = 0.0):
        self.name, self.begin, self.last, self.bar = name, time.perf_counter() - since, -math.inf, _by_rich(alive)
        if self.bar is not None:
            self.task = self.bar.add_task(name, total=None if alive else 1.0, detail="")
            self.bar.tasks[0].start_time -= since
            self.bar.start()

    def show(self, detail: str, fraction: float) -> None:
        """Shows a detail and the fraction done, unless the last sign was a moment ago."""
        now = time.perf_counter()
        if now - self.last >= (PLAIN_PERIOD if self.bar is None else LIVE_PERIOD):
            self.last = now
            self._sign(detail, fraction)

    def close(self, detail: str | None = None) -> None:
        """Leaves the last line, with this detail."""
        if detail is not None:
            self._sign(detail, 1.0)
        if self.bar is not None:
            self.bar.stop()

    def _sign(self, detail: str, fraction: float) -> None:
        if self.bar is None:
            write(f"{self.name}: {detail} ({time.perf_counter() - self.begin:.1f} s)\n")
        else:
            self.bar.update(self.task, total=1.0, completed=fraction, detail=detail)
            self.bar.refresh()


def _by_rich(alive: bool) -> Any:
    """rich's bar; None without rich, and where a line cannot change."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets"))):
        return None
    columns = "{task.description}", progress.BarColumn(24), "{task.fields[detail]}", "{task.elapsed:.1f} s"
    return progress.Progress(*columns, console=console, auto_refresh=alive)


class Bar(Watcher):
    """The bar of the solve that runs. One serves all programs, so that no solve compiles for a bar of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shown: Shown | None = None
        self.gain = Gain()

    def __call__(self, iterations: Any, norm: Any, compared: Any, target: Any) -> None:
        if jax.process_index() == 0:
            with self.lock:
                self._begun().show(*self.gain.of(iterations, compared, target))

    def end(self, iterations: Any, compared: Any, target: Any, status: str) -> None:
        if jax.process_index() == 0:
            with self.lock:
                text, _ = self.gain.of(iterations, compared, target)
                self._begun().close(f"{text}, {status}")
                self.shown = None

    def close(self) -> None:
        """Ends the bar of a solve that was interrupted."""
        with self.lock:
            if self.shown is not None:
                self.shown.close()
            self.shown = None

    def _begun(self) -> Shown:
        if self.shown is None:
            self.shown, self.gain = Shown("solve", alive=False), Gain()
        return self.shown


BAR = Bar()


# ------------------------------------------------------------------------------------- conversions and set-ups


@contextlib.contextmanager
def stage(name: str, wanted: bool) -> Iterator[None]:
    """Shows a bar that moves while the code inside runs, if that takes longer than `WORTH` seconds."""
    if not isinstance(wanted, (bool, np.bool_)):
        raise TypeError(f"progress must be True or False; got {wanted!r}, and only solvers report to functions")
    if not wanted:
        yield
        return
    shown: list[Shown] = []
    timer = threading.Timer(WORTH, lambda: shown.append(Shown(name, alive=True, since=WORTH)))
    timer.daemon = True
    timer.start()
    outcome = "interrupted"
    try:
        yield
        outcome = "done"
    finally:
        timer.cancel()
        timer.join()
        for one in shown:
            one.close(outcome)


def staged(f: Callable[P, R]) -> Callable[P, R]:
    """f, which has a keyword `progress`, with the bar that this asks for."""

    @functools.wraps(f)
    def called(*args: P.args, **keywords: P.kwargs) -> R:
        if "progress" not in keywords:
            return f(*args, **keywords)
        with stage(f.__name__, keywords["progress"]):  # pyright: ignore[reportArgumentType]
            return f(*args, **keywords)

    return called
