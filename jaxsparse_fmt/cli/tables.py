"""The tables that commands print to standard output: in colour on a terminal, plain text in a pipe or a file.

rich, which draws them and heeds NO_COLOR, is imported inside functions.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._text import readable_seconds as duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jaxsparse_fmt.choose.ranking import Choice

PLAIN_WIDTH = 80  # columns, without a terminal
WORDS = ("", "layout", "reason")  # columns that hold words


def durations(seconds: dict[str, float]) -> str:
    """A total and its parts: `3.1 s: read 1 s, solve 2.1 s`."""
    parts = ", ".join(f"{name} {duration(t)}" for name, t in seconds.items())
    return f"{duration(sum(seconds.values()))}: {parts}"


def bandwidth(n_bytes: float, seconds: float) -> str:
    """Bytes a second for people, in powers of ten: `12.3 GB/s`."""
    return f"{n_bytes / seconds / 1e9:.3g} GB/s"


def layout(choice: Choice) -> str:
    """A choice's layout options for people: `slice_size=128, sigma=1`."""
    return ", ".join(f"{option}={value}" for option, value in choice.layout.items())


def facts(title: str, rows: Iterable[tuple[str, str]]) -> RenderableType:
    """A table of names and their values, without a header."""
    return comparison(title, ("", ""), rows, show_header=False)


def ranking(title: str, choices: Sequence[Choice]) -> RenderableType:
    """A table of the choices of `choose.rank`, best first."""
    in_csr = min(c.nbytes for c in choices if c.format == "csr")
    rows = [
        (c.format, layout(c), readable_bytes(c.nbytes), f"{c.nbytes / in_csr:.2f}", readable_bytes(c.moved), c.reason)
        for c in choices
    ]
    return comparison(title, ("format", "layout", "stored", "÷ CSR", "moved", "reason"), rows)


def comparison(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> RenderableType:
    """A table with a name in the first column and numbers in the others, except those of `WORDS`.

    The title is a text before the table, since rich would break one that is wider than its table.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", **options)
    for number, name in enumerate(columns):
        left = number == 0 or name in WORDS
        style = None if number else "bold"
        table.add_column(name, style=style, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Group(Text(title, style="bold"), table)


class Done(NamedTuple):
    """What `main` prints of a command: the record of `--json`, or tables and texts; faults; and its exit code."""

    record: dict[str, Any]
    shown: Sequence[Any]
    faults: Sequence[str] = ()
    code: int = 0


class OutputLost(Exception):
    """Standard output is full, or its reader is gone."""


def report(as_json: bool, record: dict[str, Any], *renderables: Any) -> None:
    """Prints the results of a command: its record as one line of JSON, or its tables and texts. Raises `OutputLost`."""
    if as_json:
        return write_out(json.dumps(_plain(record)))
    from rich.console import Console

    # rich would take parts of file names for markup and emoji codes, colour numbers in them, and end the process if the
    # reader of standard output is gone.
    printed = io.StringIO()
    is_terminal = True if sys.stdout.isatty() else None  # None: as the environment asks
    console = Console(file=printed, markup=False, emoji=False, highlight=False, force_terminal=is_terminal)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    for renderable in renderables:  # whole paths
        console.print(renderable, overflow="ignore" if isinstance(renderable, str) else None, crop=False)
    write_out(printed.getvalue().removesuffix("\n"))


def write_out(text: str) -> None:
    """Writes lines of any length to standard output as they are. Raises `OutputLost`."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise OutputLost(f"standard output: {error.strerror}") from error


def as_record(choice: Choice) -> dict[str, Any]:
    """What `--json` prints of a choice: the format, its layout, the bytes that it stores and moves, and why."""
    return {name: value for name, value in dataclasses.asdict(choice).items() if name not in ("cost", "unread")}


def _plain(value: Any) -> Any:
    """The value in JSON's types; NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
