"""What the operating system sees: a process of its own, and the memory that NumPy allocates."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]


def printed(*arguments: object, seconds: int = 300, **environment: str) -> str:
    """What Python prints when it runs with these arguments at the root of the repository; it ends well, and in time."""
    command, env = [sys.executable, *map(str, arguments)], os.environ | environment
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=seconds)
    assert run.returncode == 0, run.stderr
    return run.stdout


@contextlib.contextmanager
def allocating_at_most(nbytes: float) -> Iterator[None]:
    """At no moment inside has Python or NumPy allocated more than so much."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < nbytes, f"{peak:,} bytes"
    finally:
        tracemalloc.stop()
