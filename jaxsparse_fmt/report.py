"""What the command line shows: progress while it works, tables at the end.

On a terminal in colour and live; to a pipe or a file as plain lines without control characters.
rich, which draws both and heeds NO_COLOR, is imported where it is used.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import readable_bytes
from jaxsparse_fmt._types import readable_seconds as duration
from jaxsparse_fmt.reorder import cuthill_mckee

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from jaxsparse_fmt.choose import Choice

# Two entries that should be equal may differ by this share of the largest beside them: a file may
# hold few digits. The true residual stands guard over what is computed with them.
ASYMMETRY = 1e-8
QUICKLY_ORDERED = 5_000_000  # entries for which reverse Cuthill-McKee takes a second at most
PLAIN_WIDTH = 160  # columns, where there is no terminal to ask
# Seconds between two signs of progress in one stage.
LIVE_PERIOD, PLAIN_PERIOD = 0.05, 5.0


# ------------------------------------------------------------------------------------------- words


def durations(seconds: dict[str, float]) -> str:
    """A total and its parts: `3.1 s: read 1 s, solve 2.1 s`."""
    parts = ", ".join(f"{name} {duration(t)}" for name, t in seconds.items())
    return f"{duration(sum(seconds.values()))}: {parts}"


def bandwidth(n_bytes: float, seconds: float) -> str:
    """Bytes a second for people, in powers of ten: `12.3 GB/s`."""
    return f"{n_bytes / seconds / 1e9:.3g} GB/s"


# ----------------------------------------------------------------------------------------- figures


def relative_residual(S: scipy.sparse.csr_array, b: np.ndarray, x: np.ndarray) -> float:
    """‖b − A·x‖ / ‖b‖ by SciPy's product, ‖A·x‖ for b = 0; b and x are [n]."""
    return float(np.linalg.norm(b - S @ x) / (np.linalg.norm(b) or 1.0))


def asymmetry(S: scipy.sparse.csr_array, mirror: scipy.sparse.sparray | None = None) -> tuple[int, int, float]:
    """The place where a square S differs most from its mirror image, and by how much too much.

    A difference within `ASYMMETRY` of the largest entry in its row and column is what rounding in a
    file may leave.

    Args:
      mirror: None takes the conjugate transpose.

    Returns:
      (row, column, excess); an excess of 0 means equal to rounding. NaNs count as equal.
    """
    if S.nnz == 0:
        return 0, 0, 0.0
    D = abs(S - (S.conj().T if mirror is None else mirror)).tocoo()
    largest = abs(S).max(axis=1).toarray().ravel()
    with np.errstate(invalid="ignore"):
        excess = D.data - ASYMMETRY * np.minimum(largest[D.row], largest[D.col])
    excess = np.nan_to_num(excess, nan=0.0)
    worst = int(excess.argmax()) if excess.size else -1
    if worst < 0 or excess[worst] <= 0:
        return 0, 0, 0.0
    return int(D.row[worst]), int(D.col[worst]), float(excess[worst])


def describe(S: scipy.sparse.csr_array) -> list[tuple[str, str]]:
    """Size, symmetry, row lengths, diagonals and what an order would do to a canonical matrix, as rows for `facts`."""
    rows, cols = S.shape
    lengths = np.diff(S.indptr)
    offsets = S.indices - np.repeat(np.arange(rows), lengths)
    places = max(rows * cols, 1)
    facts = [
        ("rows × columns", f"{rows:,} × {cols:,}"),
        ("nnz", f"{S.nnz:,}, {S.nnz / places:.2g} of all places"),
        ("dtype", str(S.dtype)),
        ("symmetry", _symmetry(S)),
    ]
    if rows:
        spread = f"min {lengths.min():,}, mean {lengths.mean():.4g}, max {lengths.max():,}"
        empty = int(np.count_nonzero(lengths == 0))
        facts += [
            ("row lengths", f"{spread}, standard deviation {lengths.std():.3g}"),
            ("empty rows", f"{empty:,}"),
        ]
    if S.nnz:
        below, above = max(-int(offsets.min()), 0), max(int(offsets.max()), 0)
        facts += [
            ("diagonals", f"{_distinct(offsets):,} of {rows + cols - 1:,} hold entries"),
            ("bandwidth", f"{below:,} below the main diagonal, {above:,} above"),
        ]
        if rows == cols and S.nnz <= QUICKLY_ORDERED:
            place = np.argsort(cuthill_mckee(S))  # the inverse permutation
            before, after = (np.abs(d).mean() for d in (offsets, place[S.indices] - np.repeat(place, lengths)))
            facts += [("mean distance", f"{before:,.1f} from the diagonal, {after:,.1f} with reorder='rcm'")]
    return facts


def _distinct(numbers: np.ndarray) -> int:
    """How many of the numbers differ: counted in a table where that is not much longer than they are, else sorted."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low <= 8 * numbers.size:
        return int(np.count_nonzero(np.bincount(numbers - low)))
    return np.unique(numbers).size


def _symmetry(S: scipy.sparse.csr_array) -> str:
    if S.shape[0] != S.shape[1]:
        return "none: not square"
    mirrors = [("Hermitian", S.conj().T)] if np.iscomplexobj(S) else []
    mirrors += [("symmetric", S.T), ("skew-symmetric", -S.T)]
    for name, mirror in mirrors:
        if asymmetry(S, mirror)[2] == 0:
            return name
    pattern = scipy.sparse.csr_array((np.ones(S.nnz, bool), S.indices, S.indptr), shape=S.shape)
    mirrored = pattern.multiply(pattern.T).nnz
    if mirrored == S.nnz:
        return "of the pattern only"
    return f"none; {mirrored / S.nnz:.0%} of the entries have a mirror image in the pattern"


# ------------------------------------------------------------------------------------------ tables


def facts(title: str, rows: Iterable[tuple[str, str]]) -> RenderableType:
    """A table of names and their values."""
    table = _table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return _titled(title, table)


def comparison(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table with a name in each row's first column and numbers in the others."""
    table = _table()
    table.add_column(columns[0], style="bold", overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return _titled(title, table)


def ranking(title: str, choices: Sequence[Choice]) -> RenderableType:
    """What `choose.rank` says, the best first and emphasised."""
    table = _table()
    for name in ("format", "layout"):
        table.add_column(name)
    for name in ("stored", "÷ CSR", "moved"):
        table.add_column(name, justify="right")
    table.add_column("reason", overflow="fold")
    in_csr = min(c.nbytes for c in choices if c.format == "csr")
    for i, c in enumerate(choices):
        sizes = readable_bytes(c.nbytes), f"{c.nbytes / in_csr:.2f}", readable_bytes(c.moved)
        table.add_row(c.format, layout(c), *sizes, c.reason, style="bold" if i == 0 else None)
    return _titled(title, table)


def layout(choice: Choice) -> str:
    """Its options, for people: `slice_size=128, sigma=1`."""
    return ", ".join(f"{option}={value}" for option, value in choice.layout.items())


def _table(**options: Any) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", **options)


def _titled(title: str, table: Table) -> RenderableType:
    """A title that may be wider than its table, which rich's own may not."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(title, style="bold"), table)


def print_out(*renderables: Any) -> None:
    """Prints to standard output."""
    console = _console(sys.stdout)
    for renderable in renderables:
        console.print(renderable)


def _console(stream: Any) -> Console:
    from rich.console import Console

    # File names may hold what rich would take for markup, emoji codes or numbers to colour.
    console = Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


# ---------------------------------------------------------------------------------------- progress


class Progress:
    """The stages of a run, shown on standard error while they last, and how long each took.

    Attributes:
      seconds: wall time of each finished stage by name, in order.
    """

    def __init__(self) -> None:
        from rich import progress

        self.seconds: dict[str, float] = {}
        self._console = _console(sys.stderr)
        self._live = None
        if self._console.is_terminal:
            text, bar = progress.TextColumn, progress.BarColumn(bar_width=24)
            name, elapsed = text("{task.description:<8}"), text("{task.elapsed:6.1f} s")
            columns = (name, bar, elapsed, text("{task.fields[detail]}"))
            self._live = progress.Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    @contextlib.contextmanager
    def stage(self, name: str, detail: str) -> Iterator[None]:
        """Shows and times what runs inside; `show` tells how it goes."""
        self._name, self._last = name, time.perf_counter()
        start = self._last
        if self._live is not None:
            self._task = self._live.add_task(name, total=None, detail=detail)
        else:
            self._console.print(f"{name}: {detail}")
        yield
        self.seconds[name] = time.perf_counter() - start
        if self._live is not None:
            self._live.update(self._task, completed=1.0, total=1.0)
            self._live.stop_task(self._task)

    def show(self, detail: str, share: float) -> None:
        """Says of the present stage what it does and how much is done, from 0 to 1; from any thread."""
        now = time.perf_counter()
        if now - self._last < (PLAIN_PERIOD if self._live is None else LIVE_PERIOD):
            return
        self._last = now
        if self._live is not None:
            self._live.update(self._task, detail=detail, completed=share, total=1.0)
        else:
            self._console.print(f"{self._name}: {detail}")


def residuals(show: Callable[[str, float], None], start: float, target: float) -> Callable[[int, float], None]:
    """A solver's `progress`: tells of iterations and residual, and of the decades gained.

    Args:
      show: of a `Progress`.
      start, target: residual norms before the first iteration and at the end.
    """
    way = math.log(start) - math.log(target) if 0 < target < start < math.inf else 0.0

    def progress(iterations: int, norm: float) -> None:
        gained = (math.log(start) - math.log(norm)) / way if way > 0 and 0 < norm < math.inf else 0.0
        text = f"iteration {iterations:,}, residual {norm:.2e}, going to {target:.2e}"
        show(text, min(max(gained, 0.0), 0.999))

    return progress
