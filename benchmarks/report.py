"""The frame of a benchmark: options, the machine, tables and files; and a fresh process, for what only one can show."""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

LONGEST = 900  # seconds of a process of its own
Row = dict[str, Any]
# By name, what makes the rows of a section.
Sections = dict[str, Callable[[], Iterable[Row]]]


def run(module: Any, argv: list[str]) -> int:
    """Makes the rows of each section of a benchmark, writes all of them after every row, and prints tables; returns 0.

    Args:
      module: has `sections(args, header)`, which may add to the header at any time, and `options(parser)` if it has
        options of its own. `args.rows` are the rows made so far, for sections that sum up others.
    """
    name = module.__name__.rpartition(".")[2]
    parser = argparse.ArgumentParser(
        f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file, and tables of them to its .md")
    parser.add_argument("--small", action="store_true", help="tiny matrices, to try the script")
    parser.add_argument("--only", nargs="+", help="names of sections; default: all")
    parser.set_defaults(rows=[])
    getattr(module, "options", lambda parser: None)(parser)
    args = parser.parse_args(argv)
    if vars(args).get("workers", 1) > 1:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share the memory of the GPU
    jax.config.update("jax_enable_x64", True)
    header, rows = provenance(), args.rows
    sections = module.sections(args, header)
    if unknown := set(args.only or ()) - set(sections):
        parser.error(f"--only {sorted(unknown)}: the sections are {', '.join(sections)}")
    began = time.perf_counter()

    def keep() -> None:
        header["took"] = f"{time.perf_counter() - began:.0f} s"
        if args.json:
            write(args.json, header, rows)

    for name in args.only or sections:
        for row in sections[name]():
            rows.append({"section": name} | row)
            log(f"{name} {scalars(row)}")
            keep()
    keep()
    print(text(header, rows))
    return 0


def made(args: argparse.Namespace, *sections: str) -> list[Row]:
    """The rows so far of these sections."""
    return [row for row in args.rows if row["section"] in sections]


def platform_here() -> str:
    return "cpu" if jax.default_backend() == "cpu" else "gpu"


def theirs() -> Any:
    """CuPy and its sparse matrices; on a CPU NumPy and SciPy's, which stand in for them where nothing is timed."""
    names = ("cupy", "cupyx.scipy.sparse") if platform_here() == "gpu" else ("numpy", "scipy.sparse")
    return map(importlib.import_module, names)


def provenance() -> dict[str, str]:
    """Date, hardware, versions and commit, without which a figure cannot be compared."""
    device = jax.devices()[0]
    versions = {}
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
        **_commit(),
    }


def _commit() -> dict[str, str]:
    """The commit that is measured, with "-dirty" if files differ from it; empty outside of a repository."""
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


def scalars(row: Row) -> Row:
    return {key: value for key, value in row.items() if not isinstance(value, (dict, list))}


def text(header: dict[str, str], rows: list[Row]) -> str:
    """The header in a line, and a Markdown table of each section, which reads as plain text too."""
    lines = [", ".join(f"{key} {value}" for key, value in header.items())]
    for name in dict.fromkeys(row["section"] for row in rows):
        lines += ["", f"## {name}", "", *table([row for row in rows if row["section"] == name])]
    return "\n".join(lines)


def table(rows: list[Row]) -> Iterable[str]:
    """The lines of a Markdown table of all scalars of the rows; a NaN, which was not measured, stays empty."""
    rows = [scalars(row) for row in rows]
    keys = list(dict.fromkeys(key for row in rows for key in row if key != "section"))
    numbers = [any(isinstance(row.get(key), (int, float)) for row in rows) for key in keys]
    yield f"| {' | '.join(keys)} |"
    yield f"|{'|'.join('---:' if is_number else '---' for is_number in numbers)}|"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(key, '')) for key in keys)} |"


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if value != value else f"{value:.3g}"


def write(path: Path, header: dict[str, str], rows: list[Row]) -> None:
    """The rows as JSON in `path`, and tables of them in its .md; each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = json.dumps({"header": header, "rows": rows}, indent=1, ensure_ascii=False)
    for target, content in ((path, figures), (path.with_suffix(".md"), text(header, rows))):
        scratch = target.with_name(f".{target.name}")
        scratch.write_text(content + "\n")
        scratch.replace(target)


def matrix_files() -> list[Path]:
    """The Matrix Market files of the folders that JAXSPARSE_MATRICES and JAXSPARSE_CASES name, by name."""
    folders = filter(None, map(os.environ.get, ("JAXSPARSE_MATRICES", "JAXSPARSE_CASES")))
    return sorted((path for folder in folders for path in Path(folder).glob("*.mtx*")), key=lambda path: path.name)


def fresh(code: str, cache: str | None = None, **environment: str) -> Row:
    """What Python prints last, as JSON, when a process of its own runs `code`.

    Args:
      cache: a folder of programs that JAX keeps; None: it keeps none.

    Raises:
      RuntimeError: it fails. subprocess.TimeoutExpired: it takes more than `LONGEST` seconds.
    """
    settings = {"JAX_ENABLE_COMPILATION_CACHE": "false" if cache is None else "true", "PYTHONDONTWRITEBYTECODE": ""}
    settings |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if cache is not None:
        settings |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", code]
    settings = os.environ | settings | environment
    done = subprocess.run(command, env=settings, timeout=LONGEST, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def child(f: Callable[..., Row], *args: Any, **options: Any) -> Row:
    """f(*args) of a fresh process with 64 bits; options and errors as of `fresh`."""
    code = f"import jax, json; jax.config.update('jax_enable_x64', True); from {f.__module__} import {f.__name__}; "
    return fresh(code + f"print(json.dumps({f.__name__}{args!r}))", **options)
