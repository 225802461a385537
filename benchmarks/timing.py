"""How the benchmarks time: warmed up, many calls in flight, medians over rounds."""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def seconds_per_call(
    run: Callable[[int], Any],
    wait: Callable[[Any], None],
    *,
    rounds: int = 7,
    seconds: float = 0.03,
    lead: float = 0.0,
) -> float:
    """The median time of one `run(i)`, seconds.

    Calls are issued back to back and waited for once, so that the cost of a launch hides behind the work before it; `i`
    counts up, for inputs that rotate. The number of calls in a round makes a round about 30 ms.

    A GPU rests before every round as long as that takes: with its memory at full speed an H200 reaches its limit of
    power in a second or two and lowers its clock by up to a third, so that a time would hang on what ran before.

    Args:
      lead: seconds of load before the rounds, which then follow without rests: for what a card does at that limit.
    """
    wait(run(0))
    start = time.perf_counter()
    wait(run(1))
    one = max(time.perf_counter() - start, 1e-6)
    calls = max(1, min(200, int(seconds / one)))
    until = time.perf_counter() + lead
    while time.perf_counter() < until:
        for i in range(calls):
            out = run(i)
        wait(out)
    rest = 0.0 if lead or jax.default_backend() == "cpu" else calls * one
    times = []
    for _ in range(rounds):
        time.sleep(rest)
        start = time.perf_counter()
        for i in range(calls):
            out = run(i)
        wait(out)
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def of_jax(function: Callable[..., Any], fixed: Any, inputs: Sequence[Any]) -> float:
    """Seconds of the compiled function(fixed, inputs[i])."""
    compiled = jax.jit(function)
    return seconds_per_call(lambda i: compiled(fixed, inputs[i % len(inputs)]), jax.block_until_ready)


def copy_bandwidth(nbytes: int) -> float:
    """Bytes a second of a plain pass over memory, counting what is read and what is written: the faster of two ways.

    In place inside one program, since fresh pages of a host's memory would be timed otherwise, as on a CPU would the
    copy of an argument that is kept; and into fresh memory, which a GPU hands out at no cost.

    Args:
      nbytes: size of the array; several times the last-level cache.
    """
    passes = 10
    a = jnp.ones(nbytes // 4, jnp.float32)
    add = lambda s, a: jax.lax.fori_loop(0, passes, lambda _, a: a + s, a)  # noqa: E731
    in_place = (_of_updates if jax.default_backend() == "cpu" else of_jax)(add, jnp.float32(1), [a]) / passes
    fresh = of_jax(lambda s, a: a + s, jnp.float32(1), [a])
    return 2 * a.nbytes / min(in_place, fresh)


def _of_updates(function: Callable[..., Any], fixed: Any, inputs: Sequence[Any]) -> float:
    """Seconds of the compiled function(fixed, x), which takes x over and gives the next; x begins as inputs[0]."""
    compiled, held = jax.jit(function, donate_argnums=1), [jnp.copy(inputs[0])]

    def run(_: int) -> Any:
        held.append(compiled(fixed, held.pop()))
        return held[0]

    return seconds_per_call(run, jax.block_until_ready)


def clock() -> float:
    """MHz of the multiprocessors of the first NVIDIA GPU that JAX sees, soon after the call; NaN where none tells."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", f"--id={first}", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return math.nan


def provenance() -> dict[str, str]:
    """Date, hardware and versions: what a number means nothing without."""
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
    }


def line(header: dict[str, Any]) -> str:
    """The provenance and what else heads a table."""
    return ", ".join(f"{k} {v}" for k, v in header.items())


def write(path: Path, header: dict[str, str], rows: list[dict[str, Any]], table: str) -> None:
    """The figures as JSON in `path`, and the table beside it as .md; each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = json.dumps({"header": header, "rows": rows}, indent=1, ensure_ascii=False)
    for name, text in ((path, figures), (path.with_suffix(".md"), table)):
        scratch = name.with_name(f".{name.name}")
        scratch.write_text(text + "\n")
        scratch.replace(name)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
