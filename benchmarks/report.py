"""The frame of a benchmark: arguments, the machine, the time limit, tables and files."""

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from benchmarks import timing

Row = dict[str, Any]
# The header, and by name what makes the rows of each section.
Sections = tuple[dict[str, str], Iterable[tuple[str, Callable[[], Iterable[Row]]]]]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here, and the table beside it as .md")
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    return parser


def platform_here() -> str:
    return "cpu" if jax.default_backend() == "cpu" else "gpu"


def machine(small: bool = False) -> tuple[float, dict[str, str]]:
    """The bandwidth of a copy in bytes a second, and the header of the tables."""
    copy = timing.copy_bandwidth(2**24 if small else 2**28 if platform_here() == "cpu" else 2**31)
    return copy, provenance() | {"copy": f"{copy / 1e9:.0f} GB/s"}


def provenance() -> dict[str, str]:
    """Date, hardware, versions and commit, without which a figure cannot be compared."""
    device, versions = jax.devices()[0], {}
    for name in ("jax", "jaxlib", "numpy", "scipy", "cupy"):
        try:
            versions[name] = importlib.import_module(name).__version__
        except ImportError:
            versions[name] = "absent"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": device.device_kind if device.platform != "cpu" else _cpu_name(),
        "python": platform.python_version(),
        **versions,
        **commit(),
    }


def commit() -> dict[str, str]:
    """The commit that is measured, with "-dirty" where files differ from it; empty outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return {"commit": subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def reason(error: Exception) -> str:
    """The first line of an error, with its kind."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def line(header: dict[str, Any]) -> str:
    """The header in a line."""
    return ", ".join(f"{k} {v}" for k, v in header.items())


def markdown(rows: Iterable[Row], columns: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of a Markdown table, which reads as plain text too.

    Args:
      columns: heading, and "key" of a text or "key:format" of a number. What a row lacks, and a NaN, stays empty.
    """

    def cell(row: Row, key: str, spec: str) -> str:
        value = row.get(key, math.nan)
        return "" if isinstance(value, float) and math.isnan(value) else format(value, spec)

    keys = [key.partition(":") for _, key in columns]
    lines = ["| " + " | ".join(heading for heading, _ in columns) + " |"]
    lines += ["|" + "".join("---:|" if spec else "---|" for *_, spec in keys)]
    return lines + ["| " + " | ".join(cell(row, key, spec) for key, _, spec in keys) + " |" for row in rows]


def section(name: str, rows: list[Row]) -> list[str]:
    """The lines of a Markdown section with a table of all that the rows hold."""
    if not rows:
        return []
    text = lambda v: f"{v:.3g}" if isinstance(v, float) else str(v)  # noqa: E731
    shown = ({key: text(v) for key, v in row.items()} for row in rows)
    return ["", f"## {name}", "", *markdown(shown, [(key, key) for key in rows[0]])]


def write(path: Path | None, header: dict[str, str], rows: list[Row], table: str) -> None:
    """The rows as JSON in `path`, and the table beside it as .md; each whole or not at all. None writes nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = json.dumps({"header": header, "rows": rows}, indent=1, ensure_ascii=False)
    for name, text in ((path, figures), (path.with_suffix(".md"), table)):
        scratch = name.with_name(f".{name.name}")
        scratch.write_text(text + "\n")
        scratch.replace(name)


def run(
    doc: str | None,
    sections: Callable[[argparse.Namespace], Sections],
    argv: Sequence[str] | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> int:
    """Makes the rows of each section, writes everything after every row, and prints it; the exit code 0."""
    parser = parser or arguments(doc)
    parser.add_argument("--only", nargs="+", help="names of sections, in their order; default: all")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    header, made = sections(args)
    lines, rows, of = [line(header)], [], dict(made)
    if unknown := set(args.only or ()) - set(of):
        parser.error(f"--only {sorted(unknown)}: the sections are {', '.join(of)}")
    for name in args.only or of:
        found: list[Row] = []
        for row in of[name]():
            found.append(row)
            rows.append({"section": name} | row)
            log(f"{name} {row}")
            write(args.json, header, rows, "\n".join(lines + section(name, found)))
        lines += section(name, found)
    print("\n".join(lines))
    return 0
